//! The scale file of a sandbox: what programs write to it is told to the kernel, and how many
//! processes keep the sandbox awake is told to the file. Whoever loses a word of this loses nothing
//! but what a file shows: the next change tells it again.

use std::sync::Arc;
use std::time::Duration;

use kernel::Event;
use model::InstanceId;
use runtime::ScaleNotes;
use tokio::time::timeout;

use crate::core::Core;

/// How long a guest may take to hear how many processes there are.
const PATIENCE: Duration = Duration::from_secs(2);

/// Passes on what programs write, until the runtime is shut down.
pub(crate) async fn run(core: Arc<Core>, mut notes: ScaleNotes) {
    while let Some((instance, note)) = notes.next().await {
        let (seq, scale, drops) = (note.seq, note.scale, note.drops);
        core.tell(Event::ScaleWritten { instance, seq, scale, drops });
    }
}

/// Tells the file of a sandbox how many processes keep that awake; nobody waits for it.
pub(crate) fn show(core: &Arc<Core>, instance: InstanceId, processes: u32, seen: u64) {
    let Some(sandbox) = core.runtimes.sandbox(instance) else { return };
    tasks::spawn(async move {
        match timeout(PATIENCE, sandbox.inside().show_holds(processes, seen)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, %instance, "a scale file was not told"),
            Err(_) => tracing::debug!(%instance, "a scale file was not told in time"),
        }
    });
}
