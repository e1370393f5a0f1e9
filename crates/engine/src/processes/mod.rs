//! Processes of sandboxes: programs that outlive the request that started them. They are started,
//! followed, fed, stopped and remembered here; when they are killed and what they keep awake is the
//! kernel's decision.

mod asked;

pub use self::asked::{
    LogFollow, LogPage, LogPiece, LogQuery, LogWanted, ProcessInput, ProcessPage, ProcessQuery,
    ProcessRef, ProcessRequest,
};

use bytes::Bytes;
use model::{ErrorCode, ProcessRecord, Refusal, SandboxId};
use runtime::TerminalSize;

use crate::keys::Caller;
use crate::{Engine, Use};

impl Use {
    /// Starts a process. It runs on when the use is over.
    pub async fn start_process(&self, asked: ProcessRequest) -> Result<ProcessRecord, Refusal> {
        let _ = asked;
        Err(missing())
    }
}

impl Engine {
    /// A process of a sandbox, also of one that is gone.
    pub async fn process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
    ) -> Result<ProcessRecord, Refusal> {
        let _ = (caller, sandbox, of);
        Err(missing())
    }

    /// Processes of a sandbox, also of one that is gone, the latest first.
    pub async fn processes(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        query: &ProcessQuery,
    ) -> Result<ProcessPage, Refusal> {
        let _ = (caller, sandbox, query);
        Err(missing())
    }

    /// Waits until a process is over for good. It may be given up at any moment. Whoever waits holds
    /// a use of the sandbox meanwhile, or it may be frozen.
    pub async fn wait_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
    ) -> Result<ProcessRecord, Refusal> {
        self.process(caller, sandbox, of).await
    }

    /// Asks a process and everything that descends from it to end, and kills it if it has not after
    /// `grace_ms`. Done when it is over.
    pub async fn stop_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
        grace_ms: u64,
    ) -> Result<ProcessRecord, Refusal> {
        let _ = grace_ms;
        self.process(caller, sandbox, of).await
    }

    /// Kills a process and everything that descends from it. Done when it is over.
    pub async fn kill_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
    ) -> Result<ProcessRecord, Refusal> {
        self.process(caller, sandbox, of).await
    }

    /// Sends a signal to a process, or to everything that descends from it too.
    pub async fn signal_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
        signal: i32,
        tree: bool,
    ) -> Result<ProcessRecord, Refusal> {
        let _ = (signal, tree);
        self.process(caller, sandbox, of).await
    }

    /// Writes to the input of a process: all of it, in one piece, before what others write later.
    pub async fn write_stdin(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
        bytes: Bytes,
    ) -> Result<(), Refusal> {
        let _ = bytes;
        self.process(caller, sandbox, of).await.map(drop)
    }

    /// Ends the input of a process. That it is ended is done too.
    pub async fn close_stdin(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
    ) -> Result<(), Refusal> {
        self.process(caller, sandbox, of).await.map(drop)
    }

    /// Changes the size of a process's terminal.
    pub async fn resize_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
        size: TerminalSize,
    ) -> Result<(), Refusal> {
        let _ = size;
        self.process(caller, sandbox, of).await.map(drop)
    }

    /// Part of what a process wrote.
    pub async fn process_log(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
        query: LogQuery,
    ) -> Result<LogPage, Refusal> {
        let _ = (caller, sandbox, of, query);
        Err(missing())
    }

    /// What a process wrote from `offset` on, and what it writes until it is over.
    pub async fn follow_log(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
        wanted: LogWanted,
        offset: u64,
    ) -> Result<LogFollow, Refusal> {
        let _ = (caller, sandbox, of, wanted, offset);
        Err(missing())
    }
}

fn missing() -> Refusal {
    Refusal::new(ErrorCode::Unsupported, "this node keeps no processes")
}
