//! The scale file of a sandbox: what programs write to it goes to the kernel, and the number of
//! processes that keep the sandbox awake goes to the file. A lost update only makes the file out of
//! date until the next change.

use std::sync::Arc;
use std::time::Duration;

use kernel::Event;
use model::InstanceId;
use runtime::ScaleNotes;
use tokio::time::timeout;

use crate::core::Core;

/// How long a guest may take to accept the number of processes.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reports what programs write to the kernel, until the runtime is shut down.
pub(crate) async fn run(core: Arc<Core>, mut notes: ScaleNotes) {
    while let Some((instance, note)) = notes.next().await {
        let (seq, scale, drops) = (note.seq, note.scale, note.drops);
        core.notify(Event::ScaleWritten { instance, seq, scale, drops });
    }
}

/// Writes to the file how many processes keep the sandbox awake; no caller waits for it.
pub(crate) fn show(core: &Arc<Core>, instance: InstanceId, processes: u32, seen: u64) {
    let Some(sandbox) = core.runtimes.sandbox(instance) else { return };
    tasks::spawn(async move {
        match timeout(PATIENCE, sandbox.inside().show_holds(processes, seen)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, %instance, "the scale file of an instance was not updated");
            }
            Err(_) => {
                tracing::debug!(
                    %instance,
                    "the scale file of an instance was not updated: the guest is too slow"
                );
            }
        }
    });
}
