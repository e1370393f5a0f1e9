//! A server to measure: a process with its own port and data directory. Dropping it removes both.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use jail::machine::parse::memory_bytes;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::http::Connection;
use command::failure::Failure;

const START_PATIENCE: Duration = Duration::from_secs(20);
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// Where the journal is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Journal {
    /// In a file, which survives `kill -9`.
    Durable,
    /// In memory only.
    Memory,
}

/// A running server.
pub(super) struct TestServer {
    child: Child,
    address: SocketAddr,
    key: String,
}

impl TestServer {
    pub(super) async fn start(
        program: &Path,
        kept: Journal,
        above: &Path,
    ) -> Result<Self, Failure> {
        Self::start_with(program, kept, above, None).await
    }

    /// The same, with a configuration file.
    pub(super) async fn start_with(
        program: &Path,
        kept: Journal,
        above: &Path,
        config: Option<&Path>,
    ) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::new("cannot start a server", error);
        let name = match kept {
            Journal::Durable => "durable",
            Journal::Memory => "memory",
        };
        let directory: PathBuf = above.join(name);
        std::fs::create_dir_all(&directory).map_err(failed)?;
        let address = free_address().map_err(failed)?;
        let mut command = Command::new(program);
        command.arg("serve").arg("--listen").arg(address.to_string());
        command.arg("--data-dir").arg(&directory);
        command.args(config.iter().flat_map(|path| [Path::new("--config"), path]));
        if kept == Journal::Memory {
            command.args(["--store", "memory"]);
        }
        let log = std::fs::File::create(directory.join("log")).map_err(failed)?;
        command.env("SHOAL_LOG_LEVEL", "warn").stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(log).kill_on_drop(true).spawn().map_err(failed)?;
        let mut served = Self { child, address, key: String::new() };
        // A store in memory has its key in a directory of its own.
        let key = match kept {
            Journal::Durable => directory.join("admin.key"),
            Journal::Memory => directory.join("memory").join("admin.key"),
        };
        served.wait_until_up(&directory, &key).await?;
        Ok(served)
    }

    async fn wait_until_up(&mut self, directory: &Path, key: &Path) -> Result<(), Failure> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            if let Ok(key) = std::fs::read_to_string(key) {
                key.trim().clone_into(&mut self.key);
                if let Ok(mut connection) = self.connect().await
                    && connection.json("GET", "/health", "").await.is_ok()
                {
                    return Ok(());
                }
            }
            let ended = self.child.try_wait().ok().flatten();
            if ended.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(directory.join("log")).unwrap_or_default();
                return Err(Failure::new("the server did not start", log));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub(super) async fn connect(&self) -> Result<Connection, Failure> {
        Connection::open(self.address, &self.key).await
    }

    /// Memory of the server's process.
    pub(super) fn resident_bytes(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()?)).ok()?;
        memory_bytes(&status, "VmRSS")
    }

    /// Stops it in order.
    pub(super) async fn stop(mut self) {
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            // It may have ended already.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = timeout(STOP_PATIENCE, self.child.wait()).await;
    }
}

/// An address on which no program listens now.
fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind(("127.0.0.1", 0))?.local_addr()
}
