//! Logs committed decisions, one line each. What happens thousands of times a second is logged at
//! `debug`, what an operator looks for the next morning at `info`. No line has an environment, a
//! key or the output of a program.

use model::record::JournalEntry;
use model::why::Ended;
use model::{LifecycleEvent, TerminatedReason};
use store::Batch;

use crate::core::Core;

/// Logs a committed batch and publishes the number of its last event.
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
            tracing::debug!(
                number,
                sandbox = %sandbox_id,
                ?lease,
                ?session,
                ?cause,
                "a sandbox was handed out"
            );
        }
        LifecycleEvent::SandboxTerminated { sandbox_id, cause, .. } => {
            tracing::debug!(
                number,
                sandbox = %sandbox_id,
                cause = cause.as_str(),
                "a sandbox_terminated event was published"
            );
        }
        LifecycleEvent::SandboxFrozen { sandbox_id, frozen, .. } => {
            tracing::debug!(
                number,
                sandbox = %sandbox_id,
                frozen,
                "a sandbox was frozen or thawed"
            );
        }
        LifecycleEvent::SandboxWakefulness { sandbox_id, wakefulness, because, .. } => {
            tracing::info!(
                number,
                sandbox = %sandbox_id,
                ?wakefulness,
                because = because.as_str(),
                "what keeps a sandbox awake changed"
            );
        }
        // Never stored, so it never comes here.
        LifecycleEvent::SandboxState { .. } => {}
        LifecycleEvent::StateLost { session, sandbox_id, reason } => {
            tracing::warn!(
                number,
                %session,
                sandbox = %sandbox_id,
                reason = reason.as_str(),
                "acknowledged files of a session are lost"
            );
        }
        LifecycleEvent::PoolHealth { template, degraded, detail } => {
            if *degraded {
                tracing::warn!(number, %template, detail, "a pool is degraded: its launches fail");
            } else {
                tracing::info!(number, %template, "a pool has recovered: its launches succeed");
            }
        }
        LifecycleEvent::WorkspaceDurable { session, .. } => {
            tracing::debug!(number, %session, "the files of a session are durable");
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
