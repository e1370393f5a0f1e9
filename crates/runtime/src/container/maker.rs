//! The contract of one kind of container. A maker keeps no registry of sandboxes: `containers` has
//! one for all kinds. Makes and removals run in tasks of their own and are not dropped in the
//! middle, unless the maker says that they may be. Every wait in a maker has a deadline.

use std::os::fd::OwnedFd;
use std::time::Duration;

use async_trait::async_trait;
use guest_protocol::message::ExitStatus;
use model::InstanceId;

use crate::error::RuntimeError;
use crate::spec::{Capabilities, LaunchSpec, Reaped};

/// Makes and removes containers of one kind.
#[async_trait]
pub(crate) trait Maker: Send + Sync + 'static {
    /// What it can do on this machine, as far as is known now; what networks its containers can have
    /// the keeper knows.
    fn capabilities(&self) -> Capabilities;

    /// Whether its containers can be wiped from outside: this host sees their first processes, and
    /// their connections pass descriptors.
    fn renewable(&self) -> bool {
        false
    }

    /// Why its containers can have no network, where they can have none.
    fn why_no_network(&self) -> &'static str {
        "the server cannot enter the networks of these containers: it must be root on the machine \
         that runs them, and see their processes"
    }

    /// Why it cannot work at all, if that is known. It must not wait.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Refuses a spec that could never be launched, before anything begins.
    fn check(&self, spec: &LaunchSpec) -> Result<(), RuntimeError>;

    /// Whether making may be dropped at any point, if the container is removed then.
    fn making_can_be_dropped(&self) -> bool {
        false
    }

    /// Makes a container and starts the guest in it as its first process. It need not be ready yet.
    /// If it fails, nothing may be left of it; what could not be removed is found by its label.
    async fn make(&self, spec: &LaunchSpec) -> Result<MadeContainer, RuntimeError>;

    /// Removes the container of this instance, in whatever state it is, and all that was made for
    /// it. Done means that nothing is left, also if there was none.
    async fn remove(&self, instance: InstanceId) -> Result<(), RuntimeError>;

    /// Freezes all its processes; done when none runs, also if it was frozen already.
    async fn freeze(&self, instance: InstanceId) -> Result<(), RuntimeError>;

    /// Thaws its processes. Done also if it was not frozen.
    async fn thaw(&self, instance: InstanceId) -> Result<(), RuntimeError>;

    /// Whether the Linux kernel killed something in it for want of memory since the last call. It
    /// must not wait: each program that ends by a kill leads to a call.
    fn memory_ran_out(&self, instance: InstanceId) -> bool;

    /// The processor time of its control group; none if that cannot be read here. It must not wait.
    fn cpu_time(&self, _instance: InstanceId) -> Option<Duration> {
        None
    }

    /// How its first process exited. Called once the connection is broken and before the container
    /// is removed. It must be quick, because callers wait for the reason.
    async fn end(&self, instance: InstanceId) -> ContainerExit;

    /// Waits for the next container that was found dead or missing, other than by its connection;
    /// for ever if there is none. Each is reported once, and none is lost.
    async fn next_dead(&self) -> InstanceId;

    /// Containers of this run that exist, by their label.
    async fn list(&self) -> Result<Vec<InstanceId>, RuntimeError>;

    /// Removes what earlier runs left, by label.
    async fn reap_orphans(&self) -> Result<Reaped, RuntimeError>;

    /// Called when all sandboxes are removed: removes whatever else carries the label of this run,
    /// and proves that it is gone.
    async fn close(&self) -> Result<(), RuntimeError>;
}

/// A container that was made.
#[derive(Debug)]
pub(crate) struct MadeContainer {
    /// Our end of the connection to its guest: a stream socket.
    pub link: OwnedFd,
    /// Whether descriptors can be passed over it.
    pub passes_descriptors: bool,
    /// The id that the maker's own tools show.
    pub container_id: String,
    /// Its first process as this host sees it, if it does. Without it the keeper can neither
    /// record, wipe nor prove the container.
    pub pid: Option<u32>,
}

/// How a container exited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ContainerExit {
    /// How its first process exited, if that is known.
    pub status: Option<ExitStatus>,
    /// Whether that was for want of memory.
    pub out_of_memory: bool,
}
