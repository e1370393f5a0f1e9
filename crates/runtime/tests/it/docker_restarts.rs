//! An engine that is killed and started again: one of the test's own, in directories of its own.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command as HostCommand, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use runtime::docker::{DockerConfig, Endpoint, LinkMode};
use runtime::{Runtime, RuntimeErrorCode};
use tokio::time::{sleep, timeout};

use crate::docker_engine::{skip, spec};

const PATIENCE: Duration = Duration::from_secs(45);

static PLACES: AtomicU64 = AtomicU64::new(0);

/// An engine of our own.
struct OwnEngine {
    place: PathBuf,
    live_restore: bool,
    process: Option<Child>,
}

impl OwnEngine {
    /// Starts one; none if that is impossible here, which fails where it must be possible.
    fn start(live_restore: bool) -> Option<Self> {
        let why = if !rustix::process::geteuid().is_root() {
            Some("only root can start an engine of its own")
        } else if !std::env::var("PATH")
            .unwrap_or_default()
            .split(':')
            .any(|directory| PathBuf::from(directory).join("dockerd").exists())
        {
            Some("no dockerd")
        } else {
            None
        };
        if let Some(why) = why {
            skip(why);
            return None;
        }
        let n = PLACES.fetch_add(1, Ordering::Relaxed);
        let place = std::env::temp_dir().join(format!("engine-{}-{n}", std::process::id()));
        fs::create_dir_all(&place).expect("made");
        let mut engine = Self { place, live_restore, process: None };
        engine.begin();
        Some(engine)
    }

    fn begin(&mut self) {
        let place = |name: &str| self.place.join(name).display().to_string();
        let log = fs::File::options().create(true).append(true).open(self.place.join("log"));
        // In a session of its own, so that what it starts can be ended with it.
        let mut command = HostCommand::new("dockerd");
        command
            .args(["--data-root", &place("data"), "--exec-root", &place("exec")])
            .args(["--host", &format!("unix://{}", place("docker.sock"))])
            .args(["--pidfile", &place("pid"), "--bridge=none", "--iptables=false"])
            .args(["--ip6tables=false"])
            .args(self.live_restore.then_some("--live-restore"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"))
            .process_group(0);
        self.process = Some(command.spawn().expect("dockerd"));
    }

    /// Waits until it answers: it listens long before that.
    async fn is_up(&self) {
        let up = async {
            while !self.client(&["version"]).status.success() {
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(PATIENCE, up).await.expect("the engine comes up");
    }

    /// Runs the engine's own client.
    fn client(&self, args: &[&str]) -> Output {
        let host = format!("unix://{}", self.place.join("docker.sock").display());
        let mut client = HostCommand::new("docker");
        client.args(["--host", &host]).args(args).output().expect("the client of Docker")
    }

    /// Kills it without a warning, and what keeps containers for it too.
    fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.kill().expect("killed");
        process.wait().expect("waited");
        // It dies with its engine, but on some machines that is noticed only after a while, and
        // the next engine would wait for it.
        let keeper = self.place.join("exec/containerd/containerd.pid");
        let pid = fs::read_to_string(&keeper).expect("the process that keeps containers");
        let state = format!("/proc/{}/stat", pid.trim());
        for _ in 0..100 {
            match fs::read_to_string(&state) {
                Ok(text) if !text.contains(") Z ") => std::thread::sleep(Duration::from_millis(20)),
                Ok(_) | Err(_) => break,
            }
        }
        let _ = fs::remove_file(keeper);
        let _ = fs::remove_file(self.place.join("pid"));
    }

    fn config(&self, link: LinkMode) -> DockerConfig {
        let socket = self.place.join("docker.sock").display().to_string();
        let mut config =
            DockerConfig::new(Endpoint::Unix(socket), "node", "run-1", self.place.join("run"));
        config.link = link;
        config
    }

    fn containers(&self) -> String {
        let listed = self.client(&["ps", "--all", "--quiet"]);
        assert!(listed.status.success(), "{listed:?}");
        String::from_utf8_lossy(&listed.stdout).trim().to_owned()
    }
}

impl Drop for OwnEngine {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // Asked to end, it ends what it has started.
            let pid = rustix::process::Pid::from_child(&process);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            for _ in 0..100 {
                if matches!(process.try_wait(), Ok(Some(_))) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            let _ = process.kill();
            let _ = process.wait();
        }
        if !std::thread::panicking() {
            let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
            let ours = self.place.display().to_string();
            let beneath = mounts.lines().filter_map(|line| line.split(' ').nth(1));
            for point in beneath.filter(|point| point.starts_with(&ours)) {
                let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
            }
            let _ = fs::remove_dir_all(&self.place);
        }
    }
}

async fn start(engine: &OwnEngine, link: LinkMode) -> Arc<dyn Runtime> {
    runtime::docker::start(engine.config(link)).await.expect("started")
}

/// Launches as soon as that works.
async fn launched(runtime: &Arc<dyn Runtime>, number: u128) -> Arc<dyn runtime::Sandbox> {
    let trying = async {
        loop {
            match runtime.launch(spec(number)).await {
                Ok(sandbox) => return sandbox,
                Err(error) => assert!(error.retryable(), "{error}"),
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, trying).await.expect("in time")
}

/// What the runtime says keeps it from working, once it does or does not.
async fn wait_for_trouble(runtime: &Arc<dyn Runtime>, trouble: bool) -> Option<String> {
    let telling = async {
        while runtime.trouble().is_some() != trouble {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, telling).await.expect("in time");
    runtime.trouble()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_docker_engine_takes_its_sandboxes_along_and_is_used_again() {
    for link in [LinkMode::Socket, LinkMode::Attach] {
        let Some(mut engine) = OwnEngine::start(false) else { return };
        engine.is_up().await;
        let runtime = start(&engine, link).await;
        let mut deaths = runtime.events();
        let sandbox = launched(&runtime, 1).await;
        engine.kill();
        let refused = runtime.launch(spec(2)).await.err().expect("there is no engine");
        assert_eq!(refused.code, RuntimeErrorCode::LaunchFailed, "{refused}");
        assert!(refused.cause.contains("does not answer"), "{refused}");
        let away = wait_for_trouble(&runtime, true).await.expect("it is away");
        assert!(away.contains("start it or set docker.host"), "{away}");
        engine.begin();
        engine.is_up().await;
        assert_eq!(wait_for_trouble(&runtime, false).await, None);
        let died = timeout(PATIENCE, deaths.next()).await.expect("in time").expect("a death");
        assert_eq!(died.instance, sandbox.instance());
        assert!(sandbox.inside().ping().await.is_err());
        let next = launched(&runtime, 3).await;
        next.inside().ping().await.expect("it answers");
        runtime.shutdown().await.expect("shut down");
        assert_eq!(engine.containers(), "", "{link:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_by_socket_survive_an_engine_that_leaves_containers_alone() {
    let Some(mut engine) = OwnEngine::start(true) else { return };
    engine.is_up().await;
    let runtime = start(&engine, LinkMode::Socket).await;
    let mut deaths = runtime.events();
    let sandbox = launched(&runtime, 1).await;
    engine.kill();
    sandbox.inside().ping().await.expect("it needs no engine");
    engine.begin();
    engine.is_up().await;
    sandbox.inside().ping().await.expect("still there");
    timeout(PATIENCE, sandbox.freeze()).await.expect("in time").expect("frozen");
    timeout(PATIENCE, sandbox.thaw()).await.expect("in time").expect("thawed");
    sandbox.inside().ping().await.expect("still there");
    assert!(deaths.try_next().is_none(), "no sandbox died");
    runtime.shutdown().await.expect("shut down");
    assert_eq!(engine.containers(), "");
}
