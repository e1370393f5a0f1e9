//! Commits decisions: all that are queued in one transaction, retried until it succeeds. Their
//! effects and answers go out only after that, in the order of the decisions.

use std::sync::Arc;
use std::time::Duration;

use store::Batch;
use tokio::time::{Instant, sleep, timeout};

use crate::core::{Core, Decision};
use crate::decision_log;

/// The most decisions in one transaction.
const GROUP_MAX: usize = 512;
/// Bytes of turns and documents in one transaction; the last of them may exceed it.
const GROUP_BYTES_MAX: usize = 4 * 1024 * 1024;
/// While a commit takes longer, the clock of deadlines stands still.
const SLUGGISH: Duration = Duration::from_millis(250);
/// A commit that takes longer makes the journal unhealthy until it ends.
const SLOW: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Commits for as long as the engine lives.
pub(crate) async fn run(core: Arc<Core>) {
    loop {
        core.to_commit.notified().await;
        // Decisions that are ready now share the transaction.
        tokio::task::yield_now().await;
        loop {
            let mut decisions = core.take_queued(GROUP_MAX, GROUP_BYTES_MAX);
            if decisions.is_empty() {
                break;
            }
            let batch = taken_from(&mut decisions);
            if !batch.is_empty() {
                commit(&core, &batch).await;
                core.metrics.decided(decisions.len());
                decision_log::written(&core, &batch);
                core.named_documents.changed(&batch.documents);
            }
            core.written(decisions);
        }
    }
}

fn taken_from(decisions: &mut [Decision]) -> Batch {
    let mut batch = Batch::default();
    for decision in decisions {
        batch.entries.append(&mut decision.journal);
        batch.events.append(&mut decision.events);
        batch.turns.append(&mut decision.turns.changes);
        batch.documents.append(&mut decision.documents);
    }
    batch
}

async fn commit(core: &Core, batch: &Batch) {
    let began = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let write = core.store.commit(batch);
        tokio::pin!(write);
        let written = loop {
            let patience = if core.clock.is_paused() { SLOW } else { SLUGGISH };
            match timeout(patience, &mut write).await {
                Ok(written) => break written,
                Err(_) if patience == SLUGGISH => core.clock.pause(),
                Err(_) => {
                    core.journal_health.failed("a commit of the journal takes longer than 5 s");
                }
            }
        };
        match written {
            Ok(()) => break,
            Err(error) => {
                core.clock.pause();
                core.journal_health.failed(&format!("{error} ({})", error.remedy()));
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    core.clock.resume();
    core.journal_health.recovered();
    core.metrics.committed(began.elapsed());
}
