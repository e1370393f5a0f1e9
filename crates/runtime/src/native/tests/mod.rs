//! The launcher's client against a launcher that the test scripts.

mod restarts;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use guest_protocol::launcher::{
    CgroupPaths, FromLauncher, LaunchRefusal, LauncherFeatures, RefusalCode, Root, Spec,
    ToLauncher, Users,
};
use guest_protocol::message::{ExitStatus, Reply, VERSION};
use guest_protocol::network::NetworkFeature;
use model::{InstanceId, Template, TemplateName, WorkspaceId};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::time::timeout;

use super::launcher_run::wait_until_up;
use super::{LauncherProcess, Native, NativeConfig};
use crate::contract::{Runtime as _, Sandbox};
use crate::deaths::Died;
use crate::error::RuntimeErrorCode;
use crate::native::launcher_client::LauncherClient;
use crate::socket::{Carries, Socket};
use crate::spec::LaunchSpec;

const FEATURES: LauncherFeatures = LauncherFeatures {
    memory_limit: true,
    cpu_limit: true,
    pids_limit: true,
    freeze: false,
    disk_workspaces: true,
    users: Users::Ranges,
    alone_because: None,
    network: NetworkFeature::Transparent,
};

/// The launcher's end of the socket.
struct Script {
    socket: Socket,
}

impl Script {
    async fn hear(&mut self) -> (ToLauncher, Option<OwnedFd>) {
        // Descriptors come along with packets, so it is received by hand.
        loop {
            let mut buffer = [0; 4096];
            match jail::packet::receive(&self.socket, &mut buffer) {
                Ok(mut packet) => {
                    assert!(packet.bytes > 0, "the host has closed the socket");
                    let message = postcard::from_bytes(&buffer[..packet.bytes]).unwrap();
                    return (message, packet.descriptors.pop());
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn say(&self, message: &FromLauncher) {
        let bytes = postcard::to_allocvec(message).unwrap();
        jail::packet::send(&self.socket, &bytes, &[]).expect("the host reads");
    }

    async fn launch(&mut self) -> (u64, Spec, OwnedFd) {
        match self.hear().await {
            (ToLauncher::Launch { ticket, spec }, Some(connection)) => (ticket, spec, connection),
            (other, _) => panic!("not a launch: {other:?}"),
        }
    }

    fn launched(&self, ticket: u64) {
        let cgroup = CgroupPaths::default();
        self.say(&FromLauncher::Launched { ticket, pid: 1, cgroup });
    }

    async fn kill(&mut self) -> (u64, [u8; 16]) {
        match self.hear().await {
            (ToLauncher::Kill { ticket, instance }, None) => (ticket, instance),
            (other, _) => panic!("not a kill: {other:?}"),
        }
    }
}

/// Says something as the guest at the other end of a connection.
fn guest_says(connection: &OwnedFd, reply: &Reply) {
    let mut endpoint = guest_protocol::Endpoint::accepting();
    endpoint.send(0, reply).unwrap();
    rustix::io::write(connection, endpoint.outgoing()).unwrap();
}

/// A launcher that is up and that the test scripts.
fn scripted(config: NativeConfig) -> (LauncherProcess, Script) {
    let (process, script) = silent(config);
    script.say(&FromLauncher::Up { features: FEATURES });
    (process, script)
}

/// One that has said nothing yet.
fn silent(config: NativeConfig) -> (LauncherProcess, Script) {
    let (socket, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let script = Script { socket: Socket::new(theirs, Carries::Packets).unwrap() };
    // Something that can be waited for, as the launcher's process would be.
    let pid = rustix::process::Pid::from_raw(started().cast_signed()).unwrap();
    (LauncherProcess { config, socket, pid }, script)
}

async fn native() -> (Arc<Native>, Script) {
    let (process, script) = scripted(NativeConfig::new(std::env::temp_dir()));
    let never = Arc::new(|_| panic!("no test asked for another launcher"));
    (Arc::new(Native::begin(process, never).await.unwrap()), script)
}

fn started() -> u32 {
    std::process::Command::new("true").spawn().unwrap().id()
}

fn name() -> TemplateName {
    TemplateName::new("default").unwrap()
}

fn spec(n: u128) -> LaunchSpec {
    LaunchSpec::of(&Template::named(name()), InstanceId::from_u128(n))
}

type Launching = tokio::task::JoinHandle<Result<Arc<dyn Sandbox>, crate::RuntimeError>>;

fn launch(native: &Arc<Native>, n: u128) -> Launching {
    let native = Arc::clone(native);
    tokio::spawn(async move { native.launch(spec(n)).await })
}

async fn code(launching: Launching) -> RuntimeErrorCode {
    timeout(Duration::from_secs(5), launching).await.unwrap().unwrap().err().unwrap().code
}

async fn until_forgotten(native: &Native) {
    while !native.launchers.current().registry().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn launch_is_done_when_launcher_and_guest_agree_in_any_order() {
    let (native, mut script) = native().await;
    for guest_first in [true, false] {
        let launching = launch(&native, 1);
        let (ticket, spec, connection) = script.launch().await;
        assert_eq!((&spec.root, spec.limits.memory_bytes), (&Root::Host, 512 << 20));
        if guest_first {
            guest_says(&connection, &Reply::Ready { version: VERSION });
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(!launching.is_finished());
            script.launched(ticket);
        } else {
            script.launched(ticket);
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(!launching.is_finished());
            guest_says(&connection, &Reply::Ready { version: VERSION });
        }
        let sandbox = launching.await.unwrap().unwrap();
        let mut deaths = native.events();
        let killing = tokio::spawn(async move { sandbox.kill().await.map(|()| sandbox) });
        let (ticket, instance) = script.kill().await;
        let status = ExitStatus::Signal(9);
        script.say(&FromLauncher::Died { instance, status, out_of_memory: false });
        script.say(&FromLauncher::Done { ticket });
        let sandbox = killing.await.unwrap().unwrap();
        let died = Died::alone(InstanceId::from_u128(1), Some(status), false);
        assert_eq!((sandbox.ended(), deaths.try_next()), (Some(died), Some(died)));
        assert!(native.sandbox(InstanceId::from_u128(1)).is_none());
    }
}

#[tokio::test]
async fn launch_fails_with_the_first_failure_and_leaves_nothing() {
    let (native, mut script) = native().await;
    let mut deaths = native.events();

    let launching = launch(&native, 1);
    let (ticket, _, _) = script.launch().await;
    let refusal =
        LaunchRefusal { code: RefusalCode::Full, step: "find a slot".to_owned(), errno: 0 };
    script.say(&FromLauncher::Refused { ticket, refusal });
    assert_eq!(code(launching).await, RuntimeErrorCode::Full);
    until_forgotten(&native).await;

    let launching = launch(&native, 2);
    let (ticket, _, connection) = script.launch().await;
    script.launched(ticket);
    guest_says(&connection, &Reply::SetupFailed { step: "mount".to_owned(), errno: 1 });
    assert_eq!(code(launching).await, RuntimeErrorCode::LaunchFailed);
    let (ticket, _) = script.kill().await;
    script.say(&FromLauncher::Done { ticket });
    until_forgotten(&native).await;

    let launching = launch(&native, 3);
    let (ticket, Spec { instance, .. }, connection) = script.launch().await;
    script.launched(ticket);
    drop(connection);
    script.say(&FromLauncher::Died {
        instance,
        status: ExitStatus::Signal(9),
        out_of_memory: true,
    });
    assert_eq!(code(launching).await, RuntimeErrorCode::OutOfMemory);
    let (ticket, _) = script.kill().await;
    script.say(&FromLauncher::Done { ticket });
    until_forgotten(&native).await;
    assert_eq!(deaths.try_next(), None, "none of them was ever handed out");
}

#[tokio::test]
async fn launch_that_is_dropped_or_late_is_removed() {
    let (native, mut script) = native().await;
    let launching = launch(&native, 1);
    let (ticket, _, _) = script.launch().await;
    launching.abort();
    let (kill, instance) = script.kill().await;
    assert_eq!(instance, 1_u128.to_be_bytes());
    assert_eq!(native.launchers.current().registry().len(), 1, "until it is certainly gone");
    let again = launch(&native, 1);
    assert_eq!(code(again).await, RuntimeErrorCode::Duplicate);
    script.launched(ticket);
    script.say(&FromLauncher::Done { ticket: kill });
    until_forgotten(&native).await;

    let short = LaunchSpec { ready_timeout: Duration::from_millis(30), ..spec(2) };
    let late = native.launch(short).await.err().unwrap();
    assert_eq!(late.code, RuntimeErrorCode::ReadyTimeout);
    script.launch().await;
    let (kill, _) = script.kill().await;
    script.say(&FromLauncher::Done { ticket: kill });
    until_forgotten(&native).await;
}

#[tokio::test]
async fn a_kill_ends_a_launch_that_hangs() {
    let (native, mut script) = native().await;
    let launching = launch(&native, 1);
    script.launch().await;
    let killer = Arc::clone(&native);
    let killing = tokio::spawn(async move { killer.kill(InstanceId::from_u128(1)).await });
    let (kill, _) = script.kill().await;
    let refusal =
        LaunchRefusal { code: RefusalCode::Unknown, step: "it was killed".to_owned(), errno: 0 };
    script.say(&FromLauncher::Refused { ticket: 1, refusal });
    script.say(&FromLauncher::Done { ticket: kill });
    killing.await.unwrap().unwrap();
    assert_eq!(code(launching).await, RuntimeErrorCode::SandboxGone);
    until_forgotten(&native).await;
}

#[tokio::test]
async fn launcher_lists_come_in_parts() {
    let (native, mut script) = native().await;
    let lister = Arc::clone(&native);
    let listing = tokio::spawn(async move { lister.list().await });
    let (ToLauncher::List { ticket }, None) = script.hear().await else { panic!("not a list") };
    for (n, more) in [(1_u128, true), (2, true), (3, false)] {
        let instances = vec![n.to_be_bytes()];
        script.say(&FromLauncher::Listed { ticket, instances, more });
    }
    assert_eq!(listing.await.unwrap().unwrap(), [1, 2, 3].map(InstanceId::from_u128));
}

#[tokio::test]
async fn launcher_attaches_workspaces_and_refusals_are_reported() {
    let (native, mut script) = native().await;
    let launching = launch(&native, 1);
    let (ticket, _, connection) = script.launch().await;
    script.launched(ticket);
    guest_says(&connection, &Reply::Ready { version: VERSION });
    let sandbox = launching.await.unwrap().unwrap();
    let claiming = tokio::spawn(async move {
        let settings = model::ClaimSettings::default();
        sandbox.claim(&settings, Some(WorkspaceId::from_u128(7))).await
    });
    let (ToLauncher::Attach { ticket, instance, workspace }, None) = script.hear().await else {
        panic!("not an attach")
    };
    assert_eq!((instance, workspace), (1_u128.to_be_bytes(), 7_u128.to_be_bytes()));
    let refusal =
        LaunchRefusal { code: RefusalCode::Unknown, step: "find it".to_owned(), errno: 2 };
    script.say(&FromLauncher::Refused { ticket, refusal });
    let error = claiming.await.unwrap().unwrap_err();
    assert_eq!((error.code, error.errno), (RuntimeErrorCode::SandboxUnknown, Some(2)));
}

#[tokio::test]
async fn launcher_death_fails_every_caller_and_reports_every_sandbox() {
    let (native, mut script) = native().await;
    let mut deaths = native.events();
    let launching = launch(&native, 1);
    let (ticket, _, connection) = script.launch().await;
    script.launched(ticket);
    guest_says(&connection, &Reply::Ready { version: VERSION });
    let sandbox = launching.await.unwrap().unwrap();
    let waiting = launch(&native, 2);
    script.launch().await;
    let pinger = Arc::clone(&sandbox);
    let ping = tokio::spawn(async move { pinger.inside().ping().await });
    drop(script);
    assert_eq!(code(waiting).await, RuntimeErrorCode::LauncherLost);
    assert_eq!(ping.await.unwrap().unwrap_err().code, RuntimeErrorCode::SandboxGone);
    let died = timeout(Duration::from_secs(5), deaths.next()).await.unwrap().unwrap();
    assert_eq!((died.instance, died.status), (InstanceId::from_u128(1), None));
    sandbox.kill().await.unwrap();
    let settings = model::ClaimSettings::default();
    let claim = sandbox.claim(&settings, Some(WorkspaceId::from_u128(7)));
    assert_eq!(claim.await.unwrap_err().code, RuntimeErrorCode::SandboxGone);
    native.kill(InstanceId::from_u128(9)).await.unwrap();
    let late = native.launch(spec(3)).await.err().unwrap();
    assert_eq!(late.code, RuntimeErrorCode::LauncherLost);
    assert_eq!(native.list().await.unwrap_err().code, RuntimeErrorCode::LauncherLost);
    native.shutdown().await.unwrap();
    assert_eq!(deaths.next().await, None);
    let late = native.launch(spec(4)).await.err().unwrap();
    assert_eq!(late.code, RuntimeErrorCode::ShuttingDown, "the last reason counts");
}

#[tokio::test]
async fn a_launcher_that_cannot_work_says_why() {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let script = Script { socket: Socket::new(theirs, Carries::Packets).unwrap() };
    let refusal =
        LaunchRefusal { code: RefusalCode::System, step: "make groups".to_owned(), errno: 30 };
    script.say(&FromLauncher::Refused { ticket: 0, refusal });
    let launcher = LauncherClient::new(ours).unwrap();
    let error = wait_until_up(&launcher, &mut [0; 1024]).await.unwrap_err();
    assert_eq!((error.step.as_ref(), error.errno), ("make groups", Some(30)));
    drop(script);
    let error = wait_until_up(&launcher, &mut [0; 1024]).await.unwrap_err();
    assert_eq!(error.code, RuntimeErrorCode::LaunchFailed);
}

#[tokio::test]
async fn launcher_requests_beyond_the_socket_buffer_arrive() {
    let (native, mut script) = native().await;
    let launches: Vec<_> = (0..2000).map(|n| launch(&native, n)).collect();
    for _ in 0..2000 {
        let (ticket, _, _) = script.launch().await;
        let refusal =
            LaunchRefusal { code: RefusalCode::Full, step: "find a slot".to_owned(), errno: 0 };
        script.say(&FromLauncher::Refused { ticket, refusal });
        tokio::task::yield_now().await;
    }
    for launching in launches {
        assert_eq!(code(launching).await, RuntimeErrorCode::Full);
    }
    until_forgotten(&native).await;
}
