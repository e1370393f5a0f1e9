//! A server as its users have it: the built program, its own data directory and port, real
//! sandboxes. It is started, driven over HTTP, killed and started again.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use client::Client;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::Instant;

/// How long a start or a stop may take on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// A server, and what it leaves when it is killed.
pub(crate) struct Server {
    child: Child,
    directory: PathBuf,
    address: SocketAddr,
    config: String,
    /// Every process that ever was this server.
    pids: Vec<u32>,
    /// What others had left before, whose numbers may come again.
    others: BTreeSet<PathBuf>,
}

impl Server {
    /// Starts one with this configuration, or says why the test is skipped.
    pub(crate) fn start(name: &str, config: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
            println!("skipped: not root");
            return None;
        }
        let directory = std::env::temp_dir().join(format!("shoal-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let others = runs().collect();
        let child = spawn(&directory, address, config);
        let pids = vec![child.id()];
        let config = config.to_owned();
        let mut server = Self { child, directory, address, config, pids, others };
        server.wait_until_up();
        Some(server)
    }

    fn wait_until_up(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.answers() {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended: {ended:?}\n{}", self.log());
            assert!(Instant::now() < deadline, "it did not start\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// It listens before it is ready, so it is asked.
    fn answers(&self) -> bool {
        let ask = || -> std::io::Result<bool> {
            let mut stream = TcpStream::connect(self.address)?;
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            let request = format!("GET /health HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
            stream.write_all(request.as_bytes())?;
            let mut status = [0; 12];
            stream.read_exact(&mut status)?;
            Ok(&status == b"HTTP/1.1 200")
        };
        ask().unwrap_or(false)
    }

    pub(crate) fn key(&self) -> String {
        let path = self.directory.join("admin.key");
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&format!("http://{}", self.address), Some(&self.key())).unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What its things are called by at an engine.
    pub(crate) fn node(&self) -> String {
        let name = std::fs::read_to_string(self.directory.join("node.id"));
        name.unwrap_or_default().trim().to_owned()
    }

    /// Asks it by hand; the status and what it says.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(self.address)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let request = format!(
                "{method} {path} HTTP/1.0\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
                 Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                self.address,
                self.key(),
                body.len()
            );
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = ask().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or_default())
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// The memory of its process.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// `kill -9`, and whatever that leaves.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again on what is there.
    pub(crate) fn start_again(&mut self) {
        self.child = spawn(&self.directory, self.address, &self.config);
        self.pids.push(self.child.id());
        self.wait_until_up();
    }

    /// Asks it to stop, and waits until it has; its exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it did not stop\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What is left on the machine of any run of this server: lock files and control groups, which
    /// carry the number of its process.
    pub(crate) fn leftovers(&self) -> Vec<PathBuf> {
        runs().filter(|path| self.made(path) && !self.others.contains(path)).collect()
    }

    fn made(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let run = name.trim_start_matches("shoal-");
        self.pids.iter().any(|pid| run.starts_with(&format!("{pid}-")))
    }
}

/// What runs of servers have on the machine, or left there.
fn runs() -> impl Iterator<Item = PathBuf> {
    let groups = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    let above = groups.map(|entry| entry.path()).chain([PathBuf::from("/sys/fs/cgroup")]);
    let places = above.map(|path| path.join("shoal")).chain([PathBuf::from("/run/shoal")]);
    let entries = places.flat_map(|place| std::fs::read_dir(place).into_iter().flatten().flatten());
    entries.map(|entry| entry.path())
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be over already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }
}

fn spawn(directory: &Path, address: SocketAddr, config: &str) -> Child {
    let file = directory.join("shoal.toml");
    std::fs::write(&file, config).unwrap();
    let log =
        std::fs::OpenOptions::new().create(true).append(true).open(directory.join("log")).unwrap();
    Command::new(env!("CARGO_BIN_EXE_shoal"))
        .arg("serve")
        .args(["--listen", &address.to_string(), "--data-dir"])
        .arg(directory)
        .arg("--config")
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}
