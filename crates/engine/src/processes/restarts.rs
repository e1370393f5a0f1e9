//! What the kernel decides about a process, carried out: its program rests, is started again, or the
//! process is over. A start may be given up at any moment, and then leaves no program behind.

use std::sync::Arc;

use bytes::Bytes;
use model::{InstanceId, ProcessEnd, ProcessId, SandboxId};
use runtime::{RuntimeError, RuntimeErrorCode};

use super::live::Over;
use crate::core::Core;
use crate::effects;

/// The program of a process failed, and rests before it is started again: its log says so.
pub(crate) fn rests(
    core: &Core,
    sandbox: SandboxId,
    process: ProcessId,
    exit_code: Option<i32>,
    (attempt, of): (u32, Option<u32>),
) {
    let Some(live) = core.processes.live(sandbox, process) else { return };
    let code = exit_code.unwrap_or(-1);
    let of = of.map_or_else(|| "unlimited".to_owned(), |most| most.to_string());
    let text =
        format!("\n[Process failed with exit code {code}. Attempting restart {attempt}/{of}...]\n");
    live.log.add(core.now().wall, false, Bytes::from(text));
}

/// A process is over. Its own task ends it, when what is left of its output is read.
pub(crate) fn over(
    core: &Core,
    sandbox: SandboxId,
    process: ProcessId,
    end: ProcessEnd,
    keeps_alive: bool,
) {
    if let Some(live) = core.processes.live(sandbox, process) {
        live.is_over(Over { end, keeps_alive });
    }
}

/// Starts the program of a process again, unless the process is over meanwhile.
pub(crate) async fn restart(
    core: &Arc<Core>,
    sandbox: SandboxId,
    instance: InstanceId,
    process: ProcessId,
    attempt: u32,
) -> Result<(), RuntimeError> {
    let refused = |cause| {
        Err(RuntimeError::new(RuntimeErrorCode::ProcessUnknown, "start the program again", cause))
    };
    let Some(live) = core.processes.live(sandbox, process) else {
        return refused("the process is not known any more");
    };
    let Some(spec) = live.again() else {
        return refused("what was started is not known any more");
    };
    let inside = effects::find(core, instance)?;
    let program = tokio::select! {
        biased;
        _ = live.decided_over() => return refused("the process is over"),
        program = inside.inside().exec(spec) => program?,
    };
    live.hand(program, attempt, core.now().wall);
    core.processes.changed(&live.record(), &live);
    Ok(())
}
