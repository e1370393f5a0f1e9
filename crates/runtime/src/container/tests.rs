//! Launches, exits and removals over a maker whose containers are only sockets: the test chooses
//! what fails, is slow or dies. In every case nothing may be left, and no death may be reported
//! twice.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use guest_protocol::Endpoint;
use guest_protocol::message::{ExitStatus, Reply, VERSION};
use model::{InstanceId, Template, TemplateName};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::Containers;
use super::maker::{ContainerExit, MadeContainer, Maker};
use crate::conformance::cut;
use crate::contract::Runtime as _;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::spec::{Capabilities, LaunchSpec, NetworkAbility, Reaped};

const PATIENCE: Duration = Duration::from_secs(10);

/// Makes containers whose guests report that they are ready, and do nothing else.
#[derive(Default)]
struct Toy {
    /// The guests' ends.
    made: Mutex<BTreeMap<InstanceId, OwnedFd>>,
    /// How many removals fail before one succeeds.
    stubborn: AtomicU32,
    /// Makes take so long.
    slow_ms: AtomicU32,
    /// Guests never report that they are ready.
    mute: AtomicU32,
    refuse: AtomicU32,
    /// The maker panics after it made the container.
    panic: AtomicU32,
    dead: Mutex<Vec<InstanceId>>,
    fell: Notify,
}

impl Toy {
    fn crash(&self, id: InstanceId) {
        if let Some(fd) = self.made.lock().unwrap().get(&id) {
            rustix::net::shutdown(fd, rustix::net::Shutdown::Both).unwrap();
        }
    }

    fn fall(&self, id: InstanceId) {
        self.dead.lock().unwrap().push(id);
        self.fell.notify_one();
    }
}

#[async_trait]
impl Maker for Toy {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            disk_workspaces: false,
            aliases: false,
            network: NetworkAbility::None,
            ..Capabilities::ALL
        }
    }

    fn check(&self, _: &LaunchSpec) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn make(&self, spec: &LaunchSpec) -> Result<MadeContainer, RuntimeError> {
        let slow_ms = self.slow_ms.load(Ordering::Relaxed);
        sleep(Duration::from_millis(slow_ms.into())).await;
        if self.refuse.load(Ordering::Relaxed) > 0 {
            return Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, "make", "refused"));
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        if self.mute.load(Ordering::Relaxed) == 0 {
            let mut endpoint = Endpoint::accepting();
            endpoint.send(0, &Reply::Ready { version: VERSION }).unwrap();
            rustix::io::write(&theirs, endpoint.outgoing()).unwrap();
        }
        self.made.lock().unwrap().insert(spec.instance, theirs.into());
        assert_eq!(self.panic.load(Ordering::Relaxed), 0, "a panic, on purpose");
        let (link, container_id) = (ours.into(), spec.instance.to_string());
        Ok(MadeContainer { link, passes_descriptors: false, container_id, pid: None })
    }

    async fn remove(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        tokio::task::yield_now().await;
        let left = self.stubborn.load(Ordering::Relaxed);
        if left > 0 {
            self.stubborn.store(left - 1, Ordering::Relaxed);
            return Err(RuntimeError::deadline("remove"));
        }
        self.made.lock().unwrap().remove(&instance);
        Ok(())
    }

    async fn freeze(&self, _: InstanceId) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn thaw(&self, _: InstanceId) -> Result<(), RuntimeError> {
        Ok(())
    }

    fn memory_ran_out(&self, _: InstanceId) -> bool {
        false
    }

    async fn end(&self, _: InstanceId) -> ContainerExit {
        ContainerExit { status: Some(ExitStatus::Code(7)), out_of_memory: false }
    }

    async fn next_dead(&self) -> InstanceId {
        loop {
            let fell = self.fell.notified();
            if let Some(id) = self.dead.lock().unwrap().pop() {
                return id;
            }
            fell.await;
        }
    }

    async fn list(&self) -> Result<Vec<InstanceId>, RuntimeError> {
        Ok(self.made.lock().unwrap().keys().copied().collect())
    }

    async fn reap_orphans(&self) -> Result<Reaped, RuntimeError> {
        Ok(Reaped::default())
    }

    async fn close(&self) -> Result<(), RuntimeError> {
        let left = self.made.lock().unwrap().len();
        if left == 0 { Ok(()) } else { Err(RuntimeError::deadline("close")) }
    }
}

fn spec(n: u128) -> LaunchSpec {
    let template = Template::named(TemplateName::new("t").unwrap());
    LaunchSpec::of(&template, InstanceId::from_u128(n))
}

fn code<T>(result: Result<T, RuntimeError>) -> RuntimeErrorCode {
    result.map(drop).unwrap_err().code
}

async fn empty(containers: &Containers<Toy>) {
    for _ in 0..1_000 {
        if containers.list().await.unwrap().is_empty() {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("something is left: {:?}", containers.list().await);
}

#[tokio::test]
async fn death_is_reported_once_with_its_reason_after_the_removal() {
    let containers = Containers::new(Toy::default());
    let mut deaths = containers.events();
    let sandbox = containers.launch(spec(1)).await.unwrap();
    containers.maker().stubborn.store(2, Ordering::Relaxed);
    containers.maker().crash(sandbox.instance());
    containers.maker().fall(sandbox.instance());
    let died = timeout(PATIENCE, deaths.next()).await.unwrap().unwrap();
    assert_eq!((died.instance, died.status), (sandbox.instance(), Some(ExitStatus::Code(7))));
    assert_eq!(containers.maker().stubborn.load(Ordering::Relaxed), 0, "it is removed by then");
    assert_eq!(sandbox.ended(), Some(died));
    assert_eq!(code(sandbox.inside().ping().await), RuntimeErrorCode::SandboxGone);
    sandbox.kill().await.unwrap();
    assert_eq!(deaths.try_next(), None);
    assert!(containers.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_lost_guest_is_reported_before_its_container_is_removed() {
    let containers = Containers::new(Toy::default());
    let (mut lost, mut deaths) = (containers.lost_guests(), containers.events());
    let killed = containers.launch(spec(1)).await.unwrap();
    killed.kill().await.unwrap();
    deaths.next().await.unwrap();
    let sandbox = containers.launch(spec(2)).await.unwrap();
    // It can never be removed.
    containers.maker().stubborn.store(u32::MAX, Ordering::Relaxed);
    containers.maker().crash(sandbox.instance());
    let first = timeout(PATIENCE, lost.next()).await.unwrap();
    assert_eq!(first, Some(sandbox.instance()), "and not what a caller killed");
    assert_eq!(deaths.try_next(), None);
    containers.maker().stubborn.store(0, Ordering::Relaxed);
    assert_eq!(deaths.next().await.map(|died| died.instance), Some(sandbox.instance()));
}

#[tokio::test]
async fn a_container_found_dead_is_removed_although_its_connection_holds() {
    let containers = Containers::new(Toy::default());
    let mut deaths = containers.events();
    let sandbox = containers.launch(spec(1)).await.unwrap();
    containers.maker().fall(InstanceId::from_u128(99));
    containers.maker().fall(sandbox.instance());
    let died = timeout(PATIENCE, deaths.next()).await.unwrap().unwrap();
    assert_eq!(died.instance, sandbox.instance());
    assert!(containers.sandbox(sandbox.instance()).is_none());
}

#[tokio::test]
async fn launches_that_are_dropped_or_killed_leave_nothing_and_report_no_death() {
    let containers = Containers::new(Toy::default());
    let mut deaths = containers.events();
    for polls in 0..20 {
        let made = cut(polls, containers.launch(spec(1))).await;
        if let Some(made) = made {
            made.unwrap().kill().await.unwrap();
            assert!(deaths.next().await.is_some());
            break;
        }
        empty(&containers).await;
    }
    containers.maker().slow_ms.store(50, Ordering::Relaxed);
    let (launched, killed) = tokio::join!(containers.launch(spec(2)), async {
        sleep(Duration::from_millis(10)).await;
        containers.kill(InstanceId::from_u128(2)).await
    });
    killed.unwrap();
    assert_eq!(code(launched), RuntimeErrorCode::SandboxGone);
    assert_eq!(containers.list().await.unwrap(), []);
    assert_eq!(deaths.try_next(), None);
    containers.launch(spec(2)).await.unwrap();
}

#[tokio::test]
async fn launch_whose_guest_is_silent_is_removed_and_frees_its_id() {
    let containers = Containers::new(Toy::default());
    containers.maker().mute.store(1, Ordering::Relaxed);
    let late = LaunchSpec { ready_timeout: Duration::from_millis(30), ..spec(1) };
    assert_eq!(code(containers.launch(late).await), RuntimeErrorCode::ReadyTimeout);
    empty(&containers).await;
    let crashed = async {
        sleep(Duration::from_millis(30)).await;
        containers.maker().crash(InstanceId::from_u128(1));
    };
    let (launched, ()) = tokio::join!(containers.launch(spec(1)), crashed);
    let error = launched.map(drop).unwrap_err();
    assert_eq!(error.code, RuntimeErrorCode::LaunchFailed);
    assert!(error.to_string().contains("Code(7)") || error.to_string().contains('7'), "{error}");
    containers.maker().mute.store(0, Ordering::Relaxed);
    containers.maker().refuse.store(1, Ordering::Relaxed);
    assert_eq!(code(containers.launch(spec(1)).await), RuntimeErrorCode::LaunchFailed);
    containers.maker().refuse.store(0, Ordering::Relaxed);
    containers.launch(spec(1)).await.unwrap();
}

#[tokio::test]
async fn launch_that_panics_leaves_nothing_and_frees_its_id() {
    let containers = Containers::new(Toy::default());
    containers.maker().panic.store(1, Ordering::Relaxed);
    let error = containers.launch(spec(1)).await.map(drop).unwrap_err();
    assert_eq!(error.code, RuntimeErrorCode::LaunchFailed);
    assert!(error.to_string().contains("internal error (panic)"), "{error}");
    assert_eq!(containers.list().await.unwrap(), []);
    assert!(containers.maker().made.lock().unwrap().is_empty());
    containers.maker().panic.store(0, Ordering::Relaxed);
    containers.launch(spec(1)).await.unwrap();
}

#[tokio::test]
async fn shutdown_ends_live_sandboxes_and_launches_in_progress() {
    let containers = std::sync::Arc::new(Containers::new(Toy::default()));
    let mut deaths = containers.events();
    let sandbox = containers.launch(spec(1)).await.unwrap();
    containers.maker().slow_ms.store(100, Ordering::Relaxed);
    let launching = std::sync::Arc::clone(&containers);
    let launching = tokio::spawn(async move { launching.launch(spec(2)).await.map(drop) });
    sleep(Duration::from_millis(20)).await;
    timeout(PATIENCE, containers.shutdown()).await.unwrap().unwrap();
    assert_eq!(code(launching.await.unwrap()), RuntimeErrorCode::SandboxGone);
    assert_eq!(deaths.next().await.map(|died| died.instance), Some(sandbox.instance()));
    assert_eq!(deaths.next().await, None);
    assert_eq!(code(containers.launch(spec(3)).await), RuntimeErrorCode::ShuttingDown);
    assert!(containers.maker().made.lock().unwrap().is_empty());
}

#[tokio::test]
async fn launch_refuses_what_containers_lack_before_anything_is_made() {
    let containers = Containers::new(Toy::default());
    let aliased = LaunchSpec { aliases: vec!["app".to_owned()], ..spec(1) };
    assert_eq!(code(containers.launch(aliased).await), RuntimeErrorCode::Unsupported);
    containers.launch(spec(1)).await.unwrap();
    assert_eq!(code(containers.launch(spec(1)).await), RuntimeErrorCode::Duplicate);
}
