//! Turns values of the engine into values of the API.

use std::collections::BTreeMap;

use crate::deadline;
use engine::{
    Caller, CheckoutPath, Engine, Entry, EntryKind, SandboxView, SessionView, SessionWorkspace,
    turn_error,
};
use model::record::Owner;
use model::turn::{TurnPiece, TurnRecord};
use model::{KeyId, ProcessRecord, Role};
use serde::de::DeserializeOwned;
use wire::{FileEntry, FileKind, Sandbox, Session, Time, Turn, TurnEvent};

pub(crate) fn sandbox(engine: &Engine, view: &SandboxView, caller: Caller) -> Sandbox {
    let (lease, session) = match view.owner {
        Owner::Unowned => (None, None),
        Owner::Lease(lease) => (Some(lease), None),
        Owner::Session(session) => (None, Some(session)),
    };
    let is_shown = caller.role == Role::Admin && view.tenant != KeyId::NIL;
    Sandbox {
        id: view.id,
        template: view.template.clone(),
        runtime: view.runtime,
        container_id: engine.container_id(view),
        state: view.state,
        frozen: view.frozen,
        awake: view.awake,
        freezes_at: view.freezes_at.map(Time::from),
        generation: view.generation,
        lease,
        session,
        labels: view.claim.as_ref().map_or_else(BTreeMap::new, |claim| claim.labels.clone()),
        uses: view.uses,
        use_count: view.uses,
        created_at: view.created_at.into(),
        last_used_at: view.last_used_at.into(),
        expires_at: view.expires_at.map(Time::from),
        ending: view.ending,
        key: is_shown.then_some(view.tenant),
    }
}

pub(crate) fn session(view: &SessionView, caller: Caller) -> Session {
    let is_shown = caller.role == Role::Admin && view.tenant != KeyId::NIL;
    let claim = view.claim.as_deref();
    Session {
        id: view.id,
        template: view.template.clone(),
        status: view.status,
        sandbox_status: view.sandbox_status,
        sandbox_id: view.sandbox_id,
        generation: view.generation,
        state_lost: view.state_lost,
        files_durable: view.files_durable,
        turn: view.turn,
        queued_turns: view.queued_turns,
        parent_id: view.parent,
        metadata: claim.map_or_else(BTreeMap::new, |claim| claim.labels.clone()),
        config: claim.and_then(|claim| read_json(claim.config.as_deref())),
        idle_timeout_s: view.idle_timeout_ms.map(|ms| ms.div_ceil(1000)),
        deadline: deadline::shown(view),
        on_disconnect: view.on_disconnect,
        workspace: None,
        created_at: view.created_at.into(),
        last_active_at: view.last_active_at.into(),
        key: is_shown.then_some(view.tenant),
    }
}

pub(crate) fn workspace(known: &SessionWorkspace) -> wire::SessionWorkspace {
    wire::SessionWorkspace { place: known.place.as_str().to_owned(), bytes: known.bytes }
}

pub(crate) fn turn(record: &TurnRecord) -> Turn {
    let end = record.end.as_ref();
    Turn {
        id: record.id,
        session_id: record.session,
        number: record.number,
        input: read_json(Some(&record.input)).unwrap_or_default(),
        outcome: end.map(|end| end.outcome),
        result: end.and_then(|end| read_json(end.result.as_deref())),
        error: end.and_then(|end| serde_json::from_value(turn_error(end)).ok()),
        sandbox_id: record.started.map(|start| start.sandbox),
        generation: record.started.map(|start| start.generation),
        created_at: record.created_at.into(),
        started_at: record.started.map(|start| start.at.into()),
        ended_at: end.map(|end| end.at.into()),
        events: None,
        events_next: None,
    }
}

pub(crate) fn turn_event(piece: &TurnPiece) -> TurnEvent {
    TurnEvent {
        id: piece.seq,
        at: Some(piece.at.into()),
        event: piece.name.to_string(),
        data: read_json(Some(&piece.data)).unwrap_or_default(),
    }
}

/// Stored JSON, which was valid when it came.
fn read_json<T: DeserializeOwned>(text: Option<&str>) -> Option<T> {
    text.and_then(|text| serde_json::from_str(text).ok())
}

pub(crate) fn process(record: &ProcessRecord) -> wire::Process {
    let end = record.end.as_ref();
    let signal = end.and_then(|end| end.signal);
    let owned = |text: &std::sync::Arc<str>| text.to_string();
    wire::Process {
        id: record.id,
        sandbox_id: record.sandbox,
        number: record.number,
        pid: record.pid,
        name: owned(&record.name),
        command: owned(&record.command),
        cwd: record.cwd.as_ref().map(owned),
        status: record.status(),
        keep_alive: record.keep_alive,
        timeout_s: record.timeout_ms.div_ceil(1000),
        restart_on_failure: record.restart.is_some(),
        max_restarts: record.restart.and_then(|policy| policy.max_restarts),
        restarts: record.restarts,
        terminal: record.terminal,
        stdin_open: record.stdin,
        started_at: record.started_at.into(),
        ended_at: end.map(|end| end.at.into()),
        exit_code: end.and_then(|end| end.exit_code).or(signal.map(|signal| 128 + signal)),
        signal: signal.map(model::signals::name),
        reason: end.map(|end| end.reason),
        detail: end.and_then(|end| end.detail.as_ref().map(owned)),
        log: log_extent(record),
        ports_open: None,
        output: None,
    }
}

pub(crate) const fn log_extent(record: &ProcessRecord) -> wire::LogExtent {
    let model::process::LogExtent { first, end, stdout_bytes, stderr_bytes } = record.log;
    wire::LogExtent { first_offset: first, end_offset: end, stdout_bytes, stderr_bytes }
}

pub(crate) const fn path(path: CheckoutPath) -> wire::CheckoutPath {
    match path {
        CheckoutPath::Fast => wire::CheckoutPath::Fast,
        CheckoutPath::Overflow => wire::CheckoutPath::Overflow,
        CheckoutPath::Blocked => wire::CheckoutPath::Blocked,
    }
}

pub(crate) const fn file_kind(kind: EntryKind) -> FileKind {
    match kind {
        EntryKind::File => FileKind::File,
        EntryKind::Directory => FileKind::Directory,
        EntryKind::Link => FileKind::Link,
        EntryKind::Other => FileKind::Other,
    }
}

pub(crate) fn file(entry: &Entry) -> FileEntry {
    FileEntry::new(
        &entry.name,
        file_kind(entry.kind),
        entry.size,
        entry.mode,
        Time(entry.modified_ms),
        entry.target.as_deref(),
    )
}
