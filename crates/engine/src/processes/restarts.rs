//! Carries out what the kernel decides about a process: its program pauses before a restart, is
//! restarted, or the process has ended. A start may be given up at any moment, and then leaves no
//! program behind.

use std::sync::Arc;

use bytes::Bytes;
use model::{InstanceId, ProcessEnd, ProcessId, SandboxId};
use runtime::{RuntimeError, RuntimeErrorCode};

use super::live::DecidedEnd;
use crate::core::Core;
use crate::effects;

/// The program of a process failed, and a restart follows after a pause: its log says so.
pub(crate) fn pauses(
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

/// A process has ended. Its own task finishes it when the rest of its output is read.
pub(crate) fn end_process(
    core: &Core,
    sandbox: SandboxId,
    process: ProcessId,
    end: ProcessEnd,
    keeps_alive: bool,
) {
    if let Some(live) = core.processes.live(sandbox, process) {
        live.set_decided_end(DecidedEnd { end, keeps_alive });
    }
}

/// Restarts the program of a process, unless the process has ended meanwhile.
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
        return refused("the command of the process is not known any more");
    };
    let inside = effects::find(core, instance)?;
    let program = tokio::select! {
        biased;
        _ = live.decided_end() => return refused("the process has ended"),
        program = inside.inside().exec(spec) => program?,
    };
    live.hand(program, attempt, core.now().wall);
    core.processes.changed(&live.record(), &live);
    Ok(())
}
