//! One line per decision, once it is written down. What happens thousands of times a second is told
//! at `debug`, what somebody may want to know the next morning at `info`. No environment, no key
//! and no output of a program is ever in a line.

use model::record::JournalEntry;
use model::why::Ended;
use model::{LifecycleEvent, TerminatedReason};
use store::Batch;

use crate::core::Core;

/// Tells of what was just written down.
pub(crate) fn written(core: &Core, batch: &Batch) {
    for entry in &batch.entries {
        if let JournalEntry::Ended(ended) = entry {
            core.metrics.ended(ended.cause);
            self::ended(ended);
        }
    }
    for stored in &batch.events {
        event(stored.number, &stored.event);
    }
    if let Some(last) = batch.events.last() {
        core.last_event.send_replace(last.number);
    }
}

fn ended(ended: &Ended) {
    let (sandbox, template) = (ended.sandbox, &ended.template);
    let (cause, detail) = (ended.cause.as_str(), ended.detail.as_deref());
    match ended.cause.reason() {
        TerminatedReason::Deleted | TerminatedReason::Replaced | TerminatedReason::Shutdown => {
            tracing::debug!(%sandbox, %template, cause, detail, "a sandbox ended");
        }
        TerminatedReason::UserAbort
        | TerminatedReason::Idle
        | TerminatedReason::Expired
        | TerminatedReason::Crash
        | TerminatedReason::Oom
        | TerminatedReason::DiskLimit
        | TerminatedReason::Evicted
        | TerminatedReason::Policy => {
            tracing::info!(%sandbox, %template, cause, detail, "a sandbox ended");
        }
    }
}

fn event(number: u64, event: &LifecycleEvent) {
    match event {
        LifecycleEvent::SandboxActive { sandbox_id, lease, session, cause, .. } => {
            tracing::debug!(number, sandbox = %sandbox_id, ?lease, ?session, ?cause, "a sandbox was handed out");
        }
        LifecycleEvent::SandboxTerminated { sandbox_id, cause, .. } => {
            tracing::debug!(number, sandbox = %sandbox_id, cause = cause.as_str(), "the end of a sandbox was told");
        }
        LifecycleEvent::SandboxFrozen { sandbox_id, frozen, .. } => {
            tracing::debug!(number, sandbox = %sandbox_id, frozen, "a sandbox was frozen or thawed");
        }
        LifecycleEvent::SandboxWakefulness { sandbox_id, wakefulness, because, .. } => {
            tracing::info!(number, sandbox = %sandbox_id, ?wakefulness, because = because.as_str(), "what keeps a sandbox awake changed");
        }
        // No store has it, so it never comes here.
        LifecycleEvent::SandboxState { .. } => {}
        LifecycleEvent::StateLost { session, sandbox_id, reason } => {
            tracing::warn!(number, %session, sandbox = %sandbox_id, reason = reason.as_str(), "files of a session were given up");
        }
        LifecycleEvent::PoolHealth { template, degraded, detail } => {
            if *degraded {
                tracing::warn!(number, %template, detail, "launches of a pool fail");
            } else {
                tracing::info!(number, %template, "launches of a pool work again");
            }
        }
        LifecycleEvent::WorkspaceDurable { session, .. } => {
            tracing::debug!(number, %session, "files of a session are safe");
        }
        LifecycleEvent::SessionChanged { session, change } => {
            tracing::info!(number, %session, ?change, "a session changed");
        }
        LifecycleEvent::TurnStarted { session, turn, .. } => {
            tracing::debug!(number, %session, %turn, "a turn started");
        }
        LifecycleEvent::TurnEnded { session, turn, outcome } => {
            tracing::debug!(number, %session, %turn, ?outcome, "a turn ended");
        }
    }
}
