//! Logs committed decisions, one line each. What happens thousands of times a second is logged at
//! `debug`, what an operator looks for the next morning at `info`. Values are words of the API. No
//! line has an environment, the secret of a key or the output of a program.

use model::lifecycle::SessionChange;
use model::record::JournalEntry;
use model::why::Ended;
use model::{EndCause, KeyId, LifecycleEvent, SandboxId, SessionId, StoredEvent, TerminatedReason};
use serde::Serialize;
use store::Batch;
use tracing::field::display;

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
        if let LifecycleEvent::SessionChanged { session, change } = stored.event {
            session_changed(batch, stored, session, change);
        } else {
            event(stored.number, &stored.event);
        }
    }
    if let Some(last) = batch.events.last() {
        core.last_event.send_replace(last.number);
    }
}

fn ended(ended: &Ended) {
    let (sandbox, template) = (ended.sandbox, &ended.template);
    let (cause, detail) = (ended.cause.as_str(), ended.detail.as_deref());
    let session = ended.session.map(display);
    let lease = ended.lease.map(display);
    let key = shown(ended.tenant);
    let short_of = ended.eviction.as_ref().and_then(|eviction| word(&eviction.shortage));
    if is_routine(ended) {
        tracing::debug!(
            %sandbox, %template, cause, detail, session, lease, key, short_of, "a sandbox ended"
        );
    } else {
        tracing::info!(
            %sandbox, %template, cause, detail, session, lease, key, short_of, "a sandbox ended"
        );
    }
}

/// Whether an end needs no attention.
fn is_routine(ended: &Ended) -> bool {
    match ended.cause.reason() {
        TerminatedReason::Deleted | TerminatedReason::Replaced | TerminatedReason::Shutdown => true,
        // The death of a launcher fails many launches at once, and has a line of its own. So has a
        // pool whose launches keep failing.
        TerminatedReason::Crash => {
            let is_pools = ended.session.is_none() && ended.lease.is_none();
            ended.cause == EndCause::LaunchFailed && is_pools
        }
        TerminatedReason::UserAbort
        | TerminatedReason::Idle
        | TerminatedReason::Expired
        | TerminatedReason::Oom
        | TerminatedReason::DiskLimit
        | TerminatedReason::Evicted
        | TerminatedReason::Policy => false,
    }
}

fn session_changed(batch: &Batch, stored: &StoredEvent, id: SessionId, change: SessionChange) {
    let (sandbox, cause) = match change {
        SessionChange::Paused | SessionChange::Stopped | SessionChange::Ended => {
            match end_of_sandbox(batch, id) {
                Some((sandbox, cause)) => (Some(sandbox), Some(cause.as_str())),
                None => (sandbox_of(batch, id), None),
            }
        }
        SessionChange::Created | SessionChange::Forked | SessionChange::Resumed => {
            (sandbox_of(batch, id), None)
        }
    };
    tracing::info!(
        number = stored.number,
        session = %id,
        change = word(&change),
        sandbox = sandbox.map(display),
        cause,
        key = shown(stored.tenant),
        "a session changed"
    );
}

/// The end of a session's sandbox in the same transaction: it is why the session changed.
fn end_of_sandbox(batch: &Batch, id: SessionId) -> Option<(SandboxId, EndCause)> {
    batch.events.iter().rev().find_map(|stored| {
        let LifecycleEvent::SandboxTerminated { session, sandbox_id, cause, .. } = stored.event
        else {
            return None;
        };
        (session == Some(id)).then_some((sandbox_id, cause))
    })
}

fn sandbox_of(batch: &Batch, id: SessionId) -> Option<SandboxId> {
    batch.entries.iter().rev().find_map(|entry| {
        let JournalEntry::SessionPut(session) = entry else { return None };
        if session.id == id { session.sandbox } else { None }
    })
}

/// A key, unless it is the one that names none.
fn shown(key: KeyId) -> Option<tracing::field::DisplayValue<KeyId>> {
    (key != KeyId::NIL).then(|| display(key))
}

/// A value as the API has it.
fn word(value: &impl Serialize) -> Option<String> {
    serde_json::to_value(value).ok()?.as_str().map(str::to_owned)
}

fn event(number: u64, event: &LifecycleEvent) {
    match event {
        LifecycleEvent::SandboxActive { sandbox_id, lease, session, cause, .. } => {
            tracing::debug!(
                number,
                sandbox = %sandbox_id,
                lease = lease.map(display),
                session = session.map(display),
                cause = word(cause),
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
                wakefulness = word(wakefulness),
                because = because.as_str(),
                "what keeps a sandbox awake changed"
            );
        }
        // The first is never stored; the second is logged with the rest of its transaction.
        LifecycleEvent::SandboxState { .. } | LifecycleEvent::SessionChanged { .. } => {}
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
        LifecycleEvent::TurnStarted { session, turn, .. } => {
            tracing::debug!(number, %session, %turn, "a turn started");
        }
        LifecycleEvent::TurnEnded { session, turn, outcome } => {
            tracing::debug!(number, %session, %turn, outcome = outcome.as_str(), "a turn ended");
        }
    }
}
