//! Records to store, by number: two numbers give two different records, one number always the same.

use std::sync::Arc;

use model::lifecycle::{ActiveCause, SessionChange, TurnOutcome};
use model::process::{
    LogExtent, ProcessChange, ProcessEnd, ProcessEndReason, ProcessRecord, ProcessStatus,
    RestartPolicy,
};
use model::record::{
    JournalEntry, KeptFiles, OnDisconnect, Owner, PoolRecord, SandboxRecord, SessionRecord,
};
use model::state::PoolPhase;
use model::template::{Recycle, RuntimeTraits};
use model::turn::{TurnChange, TurnEnd, TurnPiece, TurnRecord, TurnStart};
use model::why::{Candidate, Ended, Eviction, Shortage, Tier};
use model::{
    ClaimSettings, Deadline, DeadlineAction, Document, DocumentChange, EndCause, Generation,
    InstanceId, KeyId, KeyLimits, KeyRecord, LeaseId, LifecycleEvent, NetworkPolicy, ProcessId,
    Role, SandboxId, SandboxState, SecretName, SecretUse, SessionId, SessionStatus, StoredEvent,
    Template, TemplateName, TerminatedReason, TurnId, Wall, WorkspaceId,
};

use crate::contract::Batch;

/// Text that breaks careless code.
const AWKWARD: &str = "a'b\"c\\d\n\u{0}\u{1f41f}--;";

const TRAITS: RuntimeTraits = RuntimeTraits {
    recycle: Recycle::Recreate,
    can_freeze: true,
    workspace_survives: false,
    disk: None,
};

/// A sandbox.
pub fn sandbox_id(id: u8) -> SandboxId {
    SandboxId::from_u128(0x5a00 + u128::from(id))
}

/// A session.
pub fn session_id(id: u8) -> SessionId {
    SessionId::from_u128(0x5e00 + u128::from(id))
}

/// A key; 0 is the server itself.
pub fn key_id(id: u8) -> KeyId {
    if id == 0 { KeyId::NIL } else { KeyId::from_u128(u128::MAX - u128::from(id)) }
}

/// A workspace.
pub fn workspace_id(id: u8) -> WorkspaceId {
    WorkspaceId::from_u128(0x3000 + u128::from(id))
}

/// The name of a template.
pub fn name(id: u8) -> TemplateName {
    TemplateName::new(&format!("t{id}")).expect("a name")
}

/// A sandbox in one of its states.
pub fn sandbox(id: u8, n: u32) -> SandboxRecord {
    let has = |bit: u32| n & bit != 0;
    SandboxRecord {
        id: sandbox_id(id),
        previous_id: has(1).then(|| sandbox_id(id.wrapping_add(1))),
        instance: has(2).then(|| InstanceId::from_u128(n.into())),
        generation: Generation(u64::from(n) + 1),
        template: name(id),
        traits: TRAITS,
        owner: match n % 3 {
            0 => Owner::Unowned,
            1 => Owner::Lease(LeaseId::from_u128(n.into())),
            _ => Owner::Session(session_id(id)),
        },
        tenant: key_id((n % 3) as u8),
        lease_end: has(32).then_some(EndCause::LeaseExpired),
        state: if has(4) { SandboxState::Warm } else { SandboxState::Cold },
        ending: has(8).then_some(EndCause::Evicted),
        doomed: has(16),
        slept: has(32).then_some(EndCause::Idle),
        announced: has(1),
        uses: n,
        dirty: has(2),
        workspace: workspace_id(id),
        has_files: has(4),
        archived: has(64),
        copying_from: has(8).then(|| workspace_id(id.wrapping_add(1))),
        created_at: Wall(0),
        last_used_at: Wall(n.into()),
        expires_at: has(16).then_some(Wall(u64::MAX)),
    }
}

fn secret_use() -> Option<SecretUse> {
    let secret = SecretName::new("S").ok()?;
    Some(SecretUse { secret, env: Some("S".to_owned()), file: None, boundary: None })
}

/// A session in one of its states. The larger its number, the longer its record.
pub fn session(id: u8, n: u32) -> SessionRecord {
    let claim = ClaimSettings {
        env: [("A".to_owned(), AWKWARD.repeat(n as usize % 400))].into(),
        secrets: secret_use().into_iter().collect(),
        secret_values: SecretName::new("S").map(|name| (name, n.to_string())).into_iter().collect(),
        network: Some(NetworkPolicy::Allow(format!("h{n}.test:443").parse().into_iter().collect())),
        labels: [(AWKWARD.to_owned(), n.to_string())].into(),
        config: Some(Arc::from(r#"{"model":"m"}"#)),
        seed: Some(model::SeedId::from_bytes([7; 32])),
    };
    SessionRecord {
        id: session_id(id),
        parent: (n & 1 != 0).then(|| session_id(id.wrapping_add(1))),
        tenant: key_id((n % 3) as u8),
        template: name(id),
        status: if n & 2 != 0 { SessionStatus::Active } else { SessionStatus::Paused },
        generation: Generation(n.into()),
        sandbox: (n & 4 != 0).then(|| sandbox_id(id)),
        claim: (n & 8 != 0).then(|| Arc::new(claim)),
        idle_timeout_ms: (n & 16 != 0).then_some(u64::MAX),
        deadline: (n & 32 != 0).then(|| Deadline {
            at: (n & 1 == 0).then_some(Wall(u64::from(n) * 1000)),
            idle_ms: (n & 2 == 0).then_some(n.into()),
            action: if n & 4 == 0 { DeadlineAction::End } else { DeadlineAction::Pause },
        }),
        idle_from: Wall(u64::from(n) / 3),
        on_disconnect: if n & 1 != 0 { OnDisconnect::Abort } else { OnDisconnect::Continue },
        state_lost: (n & 2 != 0).then_some(TerminatedReason::Evicted),
        lost_generation: Generation(u64::from(n) / 2),
        files: (n & 4 == 0).then(|| KeptFiles {
            sandbox: sandbox_id(id),
            workspace: WorkspaceId::from_u128(n.into()),
            archived: n & 1 != 0,
            last_used_at: Wall(n.into()),
        }),
        told_id: None,
        turn: Some(TurnId::from_u128(n.into())),
        queued: (0..n % 4).map(|turn| TurnId::from_u128(turn.into())).collect(),
        created_at: Wall(n.into()),
        last_active_at: Wall(n.into()),
    }
}

/// A pool in one of its states.
pub fn pool(id: u8, n: u32) -> PoolRecord {
    let mut template = Template::named(name(id));
    template.pool.pool_size = n;
    let phase = if n & 1 != 0 { PoolPhase::Draining } else { PoolPhase::Active };
    PoolRecord { template: Arc::new(template), traits: TRAITS, phase }
}

/// An end of a sandbox.
pub fn ended(id: u8, n: u32) -> Ended {
    let candidate =
        Candidate { tier: Tier::Warm, sandbox: sandbox_id(id), last_used_at: Wall(1), of: n };
    let eviction = Eviction {
        tier: Tier::Waiting,
        shortage: Shortage::Memory,
        candidates: vec![candidate; n as usize % 3],
        decided_at: Wall(n.into()),
    };
    Ended {
        sandbox: sandbox_id(id),
        generation: Generation(n.into()),
        template: name(id),
        lease: (n & 8 != 0).then(|| LeaseId::from_u128(n.into())),
        lease_end: (n & 16 != 0).then_some(EndCause::Returned),
        tenant: key_id((n % 3) as u8),
        session: (n & 1 != 0).then(|| session_id(id)),
        cause: EndCause::Evicted,
        detail: (n & 2 != 0).then(|| AWKWARD.into()),
        eviction: (n & 4 != 0).then(|| Arc::new(eviction)),
        created_at: Wall(1),
        ended_at: Wall(n.into()),
    }
}

/// An event: of a sandbox, of a sandbox and a session, of a session, or of neither.
pub fn event(number: u64, id: u8) -> StoredEvent {
    let generation = Generation(number);
    let event = match id % 4 {
        0 => LifecycleEvent::SandboxFrozen { sandbox_id: sandbox_id(id), generation, frozen: true },
        1 => LifecycleEvent::SandboxActive {
            session: Some(session_id(id)),
            lease: None,
            sandbox_id: sandbox_id(id),
            generation,
            cause: ActiveCause::Created,
            previous_id: None,
            state_lost: false,
            expires_at: None,
        },
        2 => LifecycleEvent::SessionChanged {
            session: session_id(id),
            change: SessionChange::Created,
        },
        _ => LifecycleEvent::PoolHealth {
            template: name(id),
            degraded: true,
            detail: AWKWARD.to_owned(),
        },
    };
    StoredEvent { number, at: Wall(number * 10), tenant: key_id(id % 3), event }
}

/// A key.
pub fn key(id: u8, n: u8) -> KeyRecord {
    KeyRecord {
        id: key_id(id),
        name: format!("{AWKWARD}{n}"),
        role: Role::ALL[n as usize % 3],
        hash: [n; 32],
        created_at: Wall(n.into()),
        expires_at: (n & 1 != 0).then_some(Wall(u64::MAX)),
        revoked_at: (n & 2 != 0).then_some(Wall(0)),
        limits: KeyLimits { sessions: (n & 4 != 0).then_some(n.into()), ..KeyLimits::default() },
    }
}

/// A batch of changes only.
pub fn changes(entries: impl Into<Vec<JournalEntry>>) -> Batch {
    Batch { entries: entries.into(), ..Batch::default() }
}

/// A batch of the events with these numbers.
pub fn events(numbers: std::ops::RangeInclusive<u64>) -> Batch {
    Batch { events: numbers.map(|n| event(n, (n % 7) as u8)).collect(), ..Batch::default() }
}

/// A batch whose completeness can be checked: a sandbox, a session, a tombstone, an event and a
/// document.
pub fn whole(number: u64) -> Batch {
    let n = number as u32;
    Batch {
        entries: vec![
            JournalEntry::SandboxPut(sandbox(1, n)),
            JournalEntry::SessionPut(session(1, n)),
            JournalEntry::Ended(ended(2, n)),
        ],
        events: vec![event(number, 1)],
        turns: vec![
            TurnChange::Put(turn(number, 1)),
            TurnChange::Ended { turn: turn_id(number), end: turn_end(number, 1) },
        ],
        processes: vec![ProcessChange::Put {
            record: Arc::new(process(1, number, Some(number))),
            log: None,
        }],
        documents: vec![DocumentChange::Put(document(number))],
    }
}

/// The document of the last whole batch.
pub fn document(number: u64) -> Document {
    Document {
        kind: "whole".to_owned(),
        tenant: KeyId::from_u128(1),
        name: "last".to_owned(),
        seed: None,
        body: number.to_string().into(),
    }
}

/// A turn.
pub fn turn_id(id: u64) -> TurnId {
    TurnId::from_u128(0x7000_0000 + u128::from(id))
}

/// A turn of a session, as it was sent.
pub fn turn(id: u64, of: u8) -> TurnRecord {
    TurnRecord {
        id: turn_id(id),
        number: 0,
        session: session_id(of),
        tenant: key_id(of % 3),
        input: format!("{id}{AWKWARD}").into(),
        created_at: Wall(id),
        started: None,
        end: None,
    }
}

/// Where a turn was given to the harness.
pub fn turn_start(at: u64) -> TurnStart {
    TurnStart { at: Wall(at), sandbox: sandbox_id(1), generation: Generation(at) }
}

/// How a turn ended.
pub fn turn_end(at: u64, seq: u64) -> TurnEnd {
    TurnEnd {
        at: Wall(at),
        outcome: TurnOutcome::Completed,
        seq,
        result: (at & 1 != 0).then(|| AWKWARD.into()),
        error: (at & 2 != 0).then(|| AWKWARD.into()),
    }
}

/// The pieces of a turn, by number.
pub fn pieces(numbers: std::ops::RangeInclusive<u64>) -> Vec<TurnPiece> {
    let piece = |seq| TurnPiece {
        seq,
        at: Wall(seq),
        name: "message".into(),
        data: format!("{{\"n\":{seq},\"text\":\"\\n\"}}{AWKWARD}").into(),
    };
    numbers.map(piece).collect()
}

/// A process of a sandbox.
pub fn process_id(of: u8, number: u64) -> ProcessId {
    ProcessId::from_u128(0x9000_0000 + (u128::from(of) << 16) + u128::from(number))
}

/// A process of a sandbox, ended at a moment if that is given.
pub fn process(of: u8, number: u64, ended_at: Option<u64>) -> ProcessRecord {
    ProcessRecord {
        id: process_id(of, number),
        number,
        sandbox: sandbox_id(of),
        tenant: key_id(of),
        pid: 100 + number as u32,
        name: format!("{number}{AWKWARD}").into(),
        command: AWKWARD.into(),
        cwd: number.is_multiple_of(2).then(|| AWKWARD.into()),
        keep_alive: number.is_multiple_of(3),
        timeout_ms: number,
        restart: (number % 2 == 1).then_some(RestartPolicy { max_restarts: Some(3) }),
        restarts: 1,
        terminal: false,
        stdin: true,
        started_at: Wall(0),
        end: ended_at.map(|at| ProcessEnd {
            at: Wall(at),
            status: ProcessStatus::Failed,
            exit_code: Some(3),
            signal: None,
            reason: ProcessEndReason::Exited,
            detail: Some(AWKWARD.into()),
        }),
        log: LogExtent { first: 1, end: 3, stdout_bytes: 2, stderr_bytes: 1 },
    }
}

/// A batch of changes of turns only.
pub fn talk(turns: impl Into<Vec<TurnChange>>) -> Batch {
    Batch { turns: turns.into(), ..Batch::default() }
}
