//! The keeper over real containers, made by the script that the guest's own tests use.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use guest_protocol::network::NetworkRules;
use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::collect::RunLimits;
use crate::contract::Inside as _;
use crate::deaths::Died;
use crate::exec::ExecSpec;
use crate::guest_link::{GuestLink, LinkSettings, Surroundings};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../guest/tests/it/container.sh");
const MIB: u64 = 1 << 20;

struct Nothing;

#[async_trait]
impl Surroundings for Nothing {
    fn memory_ran_out(&self) -> bool {
        false
    }

    async fn death(&self) -> Died {
        std::future::pending().await
    }
}

/// A container and its guest.
struct Container {
    maker: Child,
    directory: PathBuf,
    link: GuestLink,
    pid: u32,
}

impl Container {
    async fn start() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("shoal-keeper-{}-{count}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(directory.join("root")).unwrap();
        let guest = directory.join("guest");
        let mut file = std::fs::File::create(&guest).unwrap();
        file.write_all(&guest_image::bytes().unwrap()).unwrap();
        file.set_permissions(std::fs::Permissions::from_mode(0o755)).unwrap();
        drop(file);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let maker = Command::new("/usr/bin/unshare")
            .args(["--mount", "--pid", "--ipc", "--net", "--fork", "--kill-child"])
            .args(["--propagation", "private", "/bin/sh", SCRIPT])
            .arg(directory.join("root"))
            .arg(&guest)
            .args(["/.shoal/guest", "contained", "stdin"])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .unwrap();
        let link = new_link(ours);
        link.ready().await.unwrap();
        let children = format!("/proc/{0}/task/{0}/children", maker.id());
        let pid = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
        Self { maker, directory, link, pid }
    }

    async fn run(&self, line: &str) -> String {
        let spec = ExecSpec::shell(line);
        let process = self.link.exec(spec).await.unwrap();
        let now = tokio::time::Instant::now();
        let limits = RunLimits { output_bytes: MIB, timeout: Duration::from_secs(20) };
        let ran = crate::collect::collect(process, limits, now).await.unwrap();
        // The guest reports the end of a program before it reaps it.
        self.link.ping().await.unwrap();
        String::from_utf8(ran.stdout).unwrap()
    }

    async fn wipe(&mut self, keeper: &Keeper, baseline: &Baseline) -> Result<(), RuntimeError> {
        self.link.end_all().await?;
        keeper.renew(baseline).await?;
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.link.begin_again(theirs.into())?;
        self.link = new_link(ours);
        self.link.ready().await?;
        self.link.ping().await
    }
}

fn new_link(socket: UnixStream) -> GuestLink {
    GuestLink::new(socket.into(), LinkSettings::default(), Arc::new(Nothing)).unwrap()
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.maker.kill();
        let _ = self.maker.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn mounts() -> Vec<WritableMount> {
    let mount = |path, bytes, mode, uid| WritableMount {
        path,
        bytes,
        mode,
        uid,
        no_programs: matches!(path, "/run/shoal" | "/run/secrets"),
    };
    vec![
        mount("/workspace", 600 * MIB, 0o755, 1000),
        mount("/tmp", 64 * MIB, 0o1777, 0),
        mount("/dev/shm", 64 * MIB, 0o1777, 0),
        mount("/run/shoal", 64 * 1024, 0o755, 1000),
        mount("/run/secrets", 8 * MIB, 0o700, 1000),
    ]
}

/// Says loudly that something is not tested. In CI nothing is skipped.
fn is_possible() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        assert!(std::env::var_os("CI").is_none(), "only root has containers: CI skips nothing");
        eprintln!("!!!! skipped: only root has containers !!!!");
    }
    is_root
}

#[tokio::test]
async fn wipe_leaves_nothing_of_a_use() {
    if !is_possible() {
        return;
    }
    let keeper = Keeper::start().unwrap();
    let mut container = Container::start().await;
    let baseline = keeper.record_baseline(container.pid, &mounts()).await.unwrap();
    for round in 0..3 {
        container
            .run("(setsid sleep 1000 >/dev/null 2>&1 &); echo x > /workspace/x; mkdir /tmp/d")
            .await;
        let error = keeper.prove(&baseline).await.unwrap_err();
        assert_eq!(error.code, RuntimeErrorCode::System, "{error}");
        assert!(error.cause.contains("process"), "{error}");
        container.wipe(&keeper, &baseline).await.unwrap();
        keeper.prove(&baseline).await.unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(container.run("ls -A /workspace /tmp; echo $$").await.lines().count(), 4);
    }
    container.run("touch /tmp/late").await;
    let error = keeper.prove(&baseline).await.unwrap_err();
    assert!(error.cause.contains("/tmp/late exists"), "{error}");
}

/// The shared memory of the whole machine, in MiB.
fn files_in_memory_mib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Shmem:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// Other processes use memory meanwhile: one round that shows the drop is enough.
#[tokio::test]
async fn wipe_gives_much_memory_back_before_the_next_use() {
    if !is_possible() {
        return;
    }
    let keeper = Keeper::start().unwrap();
    let mut container = Container::start().await;
    let baseline = keeper.record_baseline(container.pid, &mounts()).await.unwrap();
    let mut given_back_mib = Vec::new();
    for _ in 0..5 {
        container.run("head -c 300M /dev/zero > /workspace/much").await;
        container.link.end_all().await.unwrap();
        let before_mib = files_in_memory_mib();
        keeper.renew(&baseline).await.unwrap();
        given_back_mib.push(before_mib.saturating_sub(files_in_memory_mib()));
        container.wipe(&keeper, &baseline).await.unwrap();
    }
    assert!(given_back_mib.iter().any(|mib| *mib > 200), "{given_back_mib:?}");
}

#[tokio::test]
async fn proof_names_what_changed_since_the_launch() {
    if !is_possible() {
        return;
    }
    let keeper = Keeper::start().unwrap();
    let mut container = Container::start().await;
    let baseline = keeper.record_baseline(container.pid, &mounts()).await.unwrap();
    container.wipe(&keeper, &baseline).await.unwrap();
    let nice = ["-n", "17", "-p", &container.pid.to_string()];
    assert!(Command::new("renice").args(nice).stdout(Stdio::null()).status().unwrap().success());
    let error = keeper.prove(&baseline).await.unwrap_err();
    assert!(
        error.cause.starts_with("the sandbox's scheduling changed: `37 17 0 0` was `"),
        "{error}"
    );
}

#[tokio::test]
async fn keeper_refuses_processes_that_are_gone_or_in_no_container() {
    if !is_possible() {
        return;
    }
    let keeper = Keeper::start().unwrap();
    let container = Container::start().await;
    let baseline = keeper.record_baseline(container.pid, &mounts()).await.unwrap();
    drop(container);
    let mut last = None;
    for _ in 0..200 {
        last = keeper.renew(&baseline).await.err().map(|error| error.code);
        if last == Some(RuntimeErrorCode::SandboxGone) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(last, Some(RuntimeErrorCode::SandboxGone));
    for (pid, code) in [
        (std::process::id(), RuntimeErrorCode::Unsupported),
        (0, RuntimeErrorCode::SandboxGone),
        (u32::MAX, RuntimeErrorCode::SandboxGone),
        (i32::MAX.unsigned_abs(), RuntimeErrorCode::SandboxGone),
    ] {
        assert_eq!(keeper.record_baseline(pid, &mounts()).await.unwrap_err().code, code, "{pid}");
    }
}

/// The keeper's process: our only child of that name that is no zombie.
fn keeper_process() -> Pid {
    let me = std::process::id();
    let children = std::fs::read_to_string(format!("/proc/{me}/task/{me}/children"));
    let all: Vec<i32> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.starts_with("Name:\tshoal-keeper\n")
                && status.contains(&format!("\nPPid:\t{me}\n"))
                && !status.contains("State:\tZ")
        })
        .collect();
    assert_eq!(all.len(), 1, "{children:?}");
    Pid::from_raw(all[0]).unwrap()
}

#[tokio::test]
async fn a_keeper_that_dies_is_replaced() {
    if !is_possible() {
        return;
    }
    let keeper = Keeper::start().unwrap();
    let mut container = Container::start().await;
    let baseline = keeper.record_baseline(container.pid, &mounts()).await.unwrap();
    kill_process(keeper_process(), Signal::KILL).unwrap();
    // The next request may still go to the keeper that is gone.
    let _ = keeper.prove(&baseline).await;
    container.run("touch /tmp/x").await;
    container.wipe(&keeper, &baseline).await.unwrap();
    keeper.prove(&baseline).await.unwrap();
}

#[tokio::test]
async fn keeper_that_is_killed_is_reaped_without_a_request() {
    if !is_possible() {
        return;
    }
    let keeper = Keeper::start().unwrap();
    let killed = keeper_process();
    kill_process(killed, Signal::KILL).unwrap();
    let process = format!("/proc/{}", killed.as_raw_nonzero());
    let reaped = async {
        while std::fs::exists(&process).unwrap() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), reaped).await.expect("the keeper does not stay a zombie");
    let me = std::process::id();
    let error = keeper.record_baseline(me, &mounts()).await.unwrap_err();
    assert_eq!(error.code, RuntimeErrorCode::Unsupported, "a new keeper answers: {error}");
    assert_ne!(keeper_process(), killed);
}

#[tokio::test(start_paused = true)]
async fn a_keeper_that_is_stuck_is_replaced() {
    if !is_possible() {
        return;
    }
    let keeper = Keeper::start().unwrap();
    let stuck = keeper_process();
    kill_process(stuck, Signal::STOP).unwrap();
    let me = std::process::id();
    let error = keeper.record_baseline(me, &mounts()).await.unwrap_err();
    assert_eq!(error.code, RuntimeErrorCode::DeadlineExceeded);
    tokio::time::resume();
    let error = keeper.record_baseline(me, &mounts()).await.unwrap_err();
    assert_eq!(error.code, RuntimeErrorCode::Unsupported, "{error}");
    assert_ne!(keeper_process(), stuck);
}

#[tokio::test]
async fn keeper_requests_that_are_dropped_disturb_no_others() {
    if !is_possible() {
        return;
    }
    let keeper = Keeper::start().unwrap();
    let mut container = Container::start().await;
    let baseline = Arc::new(keeper.record_baseline(container.pid, &mounts()).await.unwrap());
    let mut others = Vec::new();
    for turn in 0..20 {
        let (keeper, baseline) = (Arc::clone(&keeper), Arc::clone(&baseline));
        let asked = tokio::spawn(async move { keeper.prove(&baseline).await });
        if turn % 2 == 0 {
            tokio::task::yield_now().await;
            asked.abort();
        } else {
            others.push(asked);
        }
    }
    for other in others {
        // The mounts of the launch have another number of files than fresh ones.
        assert!(other.await.unwrap().is_err());
    }
    container.wipe(&keeper, &baseline).await.unwrap();
    keeper.prove(&baseline).await.unwrap();
}

#[tokio::test]
async fn a_keeper_without_tables_makes_a_listener_for_the_proxy() {
    if !is_possible() {
        return;
    }
    let keeper = Keeper::start_with(false).unwrap();
    assert_eq!(keeper.network(), NetworkAbility::ProxyOnly);
    let mut container = Container::start().await;
    let baseline = keeper.record_baseline(container.pid, &mounts()).await.unwrap();
    let ask = |request| keeper.network_request("ask", &baseline, request);
    let armed = ask(NetworkRequest::Arm(NetworkRules::Open)).await.unwrap();
    assert_eq!(armed.sockets.len(), 1);
    let listening = container.run("grep -c ' 0A ' /proc/net/tcp").await;
    assert_eq!(listening, "1\n");
    ask(NetworkRequest::Change(NetworkRules::Open)).await.unwrap();
    assert_eq!(ask(NetworkRequest::Refused).await.unwrap().refused, []);
    drop(armed);
    container.wipe(&keeper, &baseline).await.unwrap();
    keeper.prove(&baseline).await.unwrap();
    ask(NetworkRequest::Disarm).await.unwrap();
}

#[tokio::test]
async fn networks_of_containers_are_proven_gone() {
    if !is_possible() {
        return;
    }
    let keeper = Keeper::start().unwrap();
    let mut container = Container::start().await;
    let baseline = keeper.record_baseline(container.pid, &mounts()).await.unwrap();
    container.wipe(&keeper, &baseline).await.unwrap();
    keeper.prove(&baseline).await.unwrap();
    let ask = |request| keeper.network_request("ask", &baseline, request);
    drop(ask(NetworkRequest::Arm(NetworkRules::Open)).await.unwrap());
    let error = keeper.prove(&baseline).await.unwrap_err();
    assert!(error.cause.contains("rules of a network policy"), "{error}");
    container.wipe(&keeper, &baseline).await.unwrap();
    keeper.prove(&baseline).await.unwrap();
}

#[test]
fn proof_differences_are_named_by_their_first_line() {
    let fact = |name: &str, value: &str| Fact { name: name.to_owned(), value: value.to_owned() };
    let then = [fact("limits", "a 1\nb 2\nc 3"), fact("mounts", "x")];
    for (now, expected) in [
        (vec![fact("limits", "a 1\nb 2\nc 3"), fact("mounts", "x")], None),
        (
            vec![fact("limits", "a 1\nb 9\nc 9"), fact("mounts", "y")],
            Some("the sandbox's limits changed: `b 9` was `b 2`"),
        ),
        (
            vec![fact("limits", "a 1\nb 2\nc 3"), fact("mounts", "x\ny")],
            Some("the sandbox's mounts changed: `y` was `nothing`"),
        ),
        (vec![fact("limits", "")], Some("the keeper reports other facts than at the launch")),
    ] {
        assert_eq!(difference(&then, &now).as_deref(), expected);
    }
}
