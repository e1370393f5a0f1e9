//! A handle on a fake sandbox for one use. After a wipe it is refused, as the connection of a real
//! one is.

use std::ops::Deref;
use std::sync::Arc;

use super::faults::Operation;
use super::sandbox::FakeSandbox;
use crate::error::{RuntimeError, RuntimeErrorCode};

/// One use of a sandbox.
pub(crate) struct Handle {
    pub sandbox: Arc<FakeSandbox>,
    generation: u64,
}

impl Handle {
    /// The present use.
    pub(crate) fn new(sandbox: Arc<FakeSandbox>) -> Self {
        let generation = sandbox.state().generation;
        Self { sandbox, generation }
    }

    /// What every request goes through.
    pub(crate) async fn enter(&self, operation: Operation) -> Result<(), RuntimeError> {
        self.sandbox.enter(operation).await?;
        self.is_present(operation)
    }

    /// Refuses if the use has ended.
    pub(crate) fn is_present(&self, operation: Operation) -> Result<(), RuntimeError> {
        if self.sandbox.state().generation == self.generation {
            return Ok(());
        }
        let cause = "the use of the sandbox has ended";
        Err(RuntimeError::new(RuntimeErrorCode::SandboxGone, operation.step(), cause))
    }
}

impl Deref for Handle {
    type Target = FakeSandbox;

    fn deref(&self) -> &FakeSandbox {
        &self.sandbox
    }
}
