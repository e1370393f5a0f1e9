//! A Docker engine of a test's own, with its own directories and network, so that it can be killed.
//! What it leaves on the machine is removed after it, however it ended.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

use crate::acceptance::engine::docker;
use crate::acceptance::machine::{self, Process};
use crate::shell::skipped;

/// How long a start or a stop may take on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub(crate) struct Dockerd {
    child: Child,
    directory: PathBuf,
    flags: &'static [&'static str],
}

impl Dockerd {
    /// Starts one, or says loudly why there is none.
    pub(crate) fn start(name: &str, flags: &'static [&'static str]) -> Option<Self> {
        let missing = ["dockerd", "docker", "unshare", "ip"].into_iter().find(|program| {
            let found = Command::new("which").arg(program).stdout(Stdio::null()).status();
            !found.is_ok_and(|found| found.success())
        });
        if let Some(program) = missing {
            skipped(&format!("no {program}"));
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            skipped("not root");
            return None;
        }
        let directory = std::env::temp_dir().join(format!("shoal-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let child = spawn(&directory, flags);
        let mut dockerd = Self { child, directory, flags };
        dockerd.wait_until_up();
        Some(dockerd)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("docker.sock")
    }

    fn wait_until_up(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while docker(&self.socket(), &["version"]).is_none() {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended: {ended:?}\n{}", self.log());
            assert!(Instant::now() < deadline, "it did not start\n{}", self.log());
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// `kill -9`, and whatever that leaves: its containers run on.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // The process that keeps its containers dies with it. If no process reaps it, the next one
        // would take it for alive by its number, and wait for it.
        let deadline = Instant::now() + PATIENCE;
        while self.processes().iter().any(|process| process.name == "containerd") {
            assert!(Instant::now() < deadline, "containerd lives on\n{}", self.log());
            std::thread::sleep(LOOK_EVERY);
        }
        let _ = std::fs::remove_file(self.directory.join("exec/containerd/containerd.pid"));
    }

    /// Starts it again on what is there.
    pub(crate) fn start_again(&mut self) {
        self.child = spawn(&self.directory, self.flags);
        self.wait_until_up();
    }

    /// Stops it in order. What an engine that was killed had started to watch over containers runs
    /// on without one, and is ended by us: it is the engine's, not the server's.
    pub(crate) fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it did not stop:\n{}", self.log());
            std::thread::sleep(LOOK_EVERY);
        }
        while !self.processes().is_empty() {
            let left = || self.processes();
            assert!(Instant::now() < deadline, "it did not end: {:?}\n{}", left(), self.log());
            for process in left() {
                process.signal(Signal::KILL);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Its processes, and those who look after its containers.
    fn processes(&self) -> Vec<Process> {
        machine::mentioning(&self.directory.to_string_lossy())
    }

    /// Ends what is left in its containers' control groups: of a container that was being started
    /// when its engine was killed, a process waits for ever that no engine knows of.
    fn clear_groups(&self) {
        let group = group_of(&self.directory);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = machine::grouped(&group);
            for process in &left {
                process.signal(Signal::KILL);
            }
            if left.is_empty() || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let controllers = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        for place in controllers.map(|entry| entry.path().join(&group)) {
            for entry in std::fs::read_dir(&place).into_iter().flatten().flatten() {
                let _ = std::fs::remove_dir(entry.path());
            }
            let _ = std::fs::remove_dir(place);
        }
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for process in self.processes() {
            for container in machine::beneath(process.pid) {
                container.signal(Signal::KILL);
            }
            process.signal(Signal::KILL);
        }
        self.clear_groups();
        unmount_beneath(&self.directory);
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The control group of all its containers.
fn group_of(directory: &Path) -> String {
    directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn spawn(directory: &Path, flags: &[&str]) -> Child {
    let at = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let mut log = std::fs::OpenOptions::new();
    let log = log.create(true).append(true).open(directory.join("log")).unwrap();
    // A network of its own: its rules are none of the machine's.
    Command::new("unshare")
        .args(["--net", "sh", "-c", "ip link set lo up; exec dockerd \"$@\"", "dockerd"])
        .args(["--data-root", &at("data"), "--exec-root", &at("exec")])
        .args(["--pidfile", &at("pid"), "--host", &format!("unix://{}", at("docker.sock"))])
        .args(["--cgroup-parent", &format!("/{}", group_of(directory))])
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// Undoes mounts from the last to the first, so that none is in the way of another.
fn unmount_beneath(directory: &Path) {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let mut points: Vec<_> =
        points.filter(|point| Path::new(point).starts_with(directory)).collect();
    points.reverse();
    for point in points {
        let _ = Command::new("umount").args(["--lazy", point]).status();
    }
}
