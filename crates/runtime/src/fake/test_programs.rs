//! Programs that a test adds to the fake runtime, for what its built-in ones cannot do: to use a
//! channel, or to listen on a socket. They see what a program inside a sandbox would see.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use guest_protocol::message::ExitStatus;
use tokio::io::DuplexStream;

use super::program::Out;
pub use super::sandbox::Listener;
use super::sandbox::{Address, FakeSandbox};
use crate::error::RuntimeError;

/// Where relative paths begin.
const WORKSPACE: &str = "/workspace";

/// A program that a test adds.
#[async_trait]
pub trait FakeProgram: Send + Sync {
    /// Does what the program does, and says how it ended. Killed, it is dropped.
    async fn run(&self, inside: FakeProgramContext) -> ExitStatus;
}

/// What a test program finds inside its sandbox.
pub struct FakeProgramContext {
    /// Its name and arguments.
    pub argv: Vec<String>,
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// Its end of the channel, if it has one.
    pub channel: Option<DuplexStream>,
    pub(super) stdout: Out,
    pub(super) stderr: Out,
    pub(super) sandbox: Arc<FakeSandbox>,
    pub(super) pid: u32,
}

impl FakeProgramContext {
    /// Writes to standard output.
    pub async fn write_out(&self, bytes: &[u8]) {
        self.stdout.write(bytes).await;
    }

    /// Writes to standard error.
    pub async fn write_err(&self, bytes: &[u8]) {
        self.stderr.write(bytes).await;
    }

    /// What is in a file.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, RuntimeError> {
        self.sandbox.contents(WORKSPACE, path)
    }

    /// Writes a file.
    pub fn write(&self, path: &str, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.sandbox.append(WORKSPACE, path, bytes.to_vec(), false)
    }

    /// Listens on a Unix socket, if it is free.
    pub fn listen(&self, path: &str) -> Option<Listener> {
        self.sandbox.listen(self.pid, Address::Path(path.to_owned()))
    }
}
