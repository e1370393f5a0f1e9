//! Wiping a fake sandbox: its files, programs, environment and scale are as at its launch, and
//! streams of an earlier use never reach the next one.

use std::collections::BTreeMap;

use super::faults::Operation;
use super::sandbox::{FakeSandbox, empty_root, empty_workspace};
use super::scale::Scale;
use crate::error::{RuntimeError, RuntimeErrorCode};

impl FakeSandbox {
    /// Whether it is wiped at all.
    fn is_renewable(&self, operation: Operation) -> Result<(), RuntimeError> {
        if self.world.upgrade().is_some_and(|world| world.wipes) {
            return Ok(());
        }
        let cause = "this runtime recreates used sandboxes and does not wipe them";
        Err(RuntimeError::new(RuntimeErrorCode::Unsupported, operation.step(), cause))
    }

    pub(crate) async fn renew(&self) -> Result<(), RuntimeError> {
        self.is_renewable(Operation::Wipe)?;
        self.check(Operation::Wipe.step())?;
        // Until the wipe is complete, it must not be handed out.
        self.state().wipe_complete = false;
        let processes = std::mem::take(&mut self.state().processes);
        for process in &processes {
            let cause = "the use of the sandbox has ended";
            let ended = RuntimeError::new(RuntimeErrorCode::SandboxGone, "exec", cause);
            process.finish_tree(Err(ended));
        }
        self.state().processes = processes;
        self.vanished().await;
        self.enter(Operation::Wipe).await?;
        let mut state = self.state();
        state.env = BTreeMap::new();
        state.root = empty_root(&self.spec);
        state.workspace = empty_workspace(&self.spec);
        state.processes.clear();
        state.listeners.clear();
        state.scale = Scale::default();
        state.network = None;
        state.generation += 1;
        state.wipe_complete = true;
        Ok(())
    }

    pub(crate) async fn prove_clean(&self) -> Result<(), RuntimeError> {
        self.is_renewable(Operation::Prove)?;
        self.enter(Operation::Prove).await?;
        let step = Operation::Prove.step();
        let unclean = |cause| Err(RuntimeError::new(RuntimeErrorCode::Protocol, step, cause));
        let state = self.state();
        if state.network.is_some() {
            return unclean("the network of a policy is still there");
        }
        if !state.wipe_complete {
            return unclean("the last wipe of the sandbox was not finished");
        }
        if state.processes.iter().any(|process| process.lives()) {
            return unclean("a program runs in the sandbox");
        }
        let workspace = state.workspace.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !workspace.is_like(&["/workspace"]) || !state.env.is_empty() {
            return unclean("the workspace or the environment is not empty");
        }
        Ok(())
    }
}
