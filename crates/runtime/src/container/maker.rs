//! What one kind of container must be able to do. A maker does what it is told and keeps no books of
//! sandboxes: those are kept once, for all kinds. What makes and removes runs in tasks of its own and is
//! not dropped in the middle unless it says that it can be; whatever it waits for has a deadline.

use std::os::fd::OwnedFd;

use async_trait::async_trait;
use guest_protocol::message::ExitStatus;
use model::InstanceId;

use crate::error::RuntimeError;
use crate::spec::{Capabilities, LaunchSpec, Reaped};

/// Who makes containers of one kind.
#[async_trait]
pub(crate) trait Maker: Send + Sync + 'static {
    /// What it can do on this machine, as far as is known now.
    fn capabilities(&self) -> Capabilities;

    /// Whether what it makes can be wiped from outside: first processes are seen from here, and
    /// connections pass descriptors.
    fn renewable(&self) -> bool {
        false
    }

    /// What keeps it from working at all, if that is known. It must not wait.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Refuses a spec that could never be made, before anything is begun.
    fn check(&self, spec: &LaunchSpec) -> Result<(), RuntimeError>;

    /// Whether making may be dropped at any point, if the container is removed then.
    fn making_can_be_dropped(&self) -> bool {
        false
    }

    /// Makes a container and starts the guest in it as its first process. It need not be ready yet.
    /// If it fails, nothing may be left of it; what could not be removed is found by its label.
    async fn make(&self, spec: &LaunchSpec) -> Result<Made, RuntimeError>;

    /// Removes the container of this instance, in whatever state it is, and all that was made for
    /// it. Done means that nothing is left; that there is none is done too.
    async fn remove(&self, instance: InstanceId) -> Result<(), RuntimeError>;

    /// Stops all its processes from running; done when none runs. That it is frozen is done too.
    async fn freeze(&self, instance: InstanceId) -> Result<(), RuntimeError>;

    /// Lets its processes run again. That it is not frozen is done too.
    async fn thaw(&self, instance: InstanceId) -> Result<(), RuntimeError>;

    /// Whether the kernel killed something in it for want of memory since this was last asked. It
    /// must not wait: it is asked whenever a program ends by a kill.
    fn memory_ran_out(&self, instance: InstanceId) -> bool;

    /// How its first process ended. It is asked once the connection is broken and before the
    /// container is removed; soon, because somebody waits for the reason.
    async fn end(&self, instance: InstanceId) -> End;

    /// Waits for the next container that was found dead or missing, other than by its connection;
    /// for ever if there is never any. Never lost: who is told once need not be told again.
    async fn fallen(&self) -> InstanceId;

    /// Containers of this run that exist, by their label.
    async fn list(&self) -> Result<Vec<InstanceId>, RuntimeError>;

    /// Removes what earlier runs left, by label.
    async fn reap_orphans(&self) -> Result<Reaped, RuntimeError>;

    /// All sandboxes are removed: whatever else carries the label of this run goes too, and is
    /// proven gone.
    async fn close(&self) -> Result<(), RuntimeError>;
}

/// A container that was made.
#[derive(Debug)]
pub(crate) struct Made {
    /// Our end of the connection to its guest: a stream socket.
    pub link: OwnedFd,
    /// Whether descriptors can be passed over it.
    pub passes_descriptors: bool,
    /// What people know it by.
    pub container_id: String,
    /// Its first process as this machine sees it, if it does: without it nothing can be looked at
    /// or renewed from outside.
    pub pid: Option<u32>,
}

/// How a container ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct End {
    /// How its first process ended, if that is known.
    pub status: Option<ExitStatus>,
    /// Whether that was for want of memory.
    pub out_of_memory: bool,
}
