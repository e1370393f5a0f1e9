//! Uses of a session's sandbox: by session and by sandbox id, live and cold.

use model::lifecycle::ActiveCause;
use model::{ErrorCode, RequestId, SandboxState, SessionStatus, UseId};

use super::rig::{NATIVE, Rig, claim, template, trouble};
use crate::{DeathCause, Event, Reply, UseKind, UseTarget};

/// A node on which a session's sandbox is the only one.
fn alone() -> Rig {
    Rig::with_pool(template(0, 1), NATIVE)
}

#[test]
fn answer_to_a_message_says_how_the_session_got_its_sandbox() {
    let mut rig = alone();
    let (session, sandbox) = rig.session();
    assert_eq!(rig.whole_turn(session).cause, ActiveCause::Reconnected);
    rig.live(3_600_000);
    assert_eq!(rig.whole_turn(session).cause, ActiveCause::Resumed);
    rig.delete(sandbox);
    rig.run();
    let ready = rig.whole_turn(session);
    assert_eq!((ready.cause, ready.lost().is_some()), (ActiveCause::Replaced, true));
}

#[test]
fn uses_show_what_they_are_by_session_and_by_sandbox() {
    let table = [
        (UseKind::Exec, SandboxState::Running),
        (UseKind::Files, SandboxState::Waiting),
        (UseKind::Port, SandboxState::Waiting),
    ];
    for (kind, during) in table {
        for by_id in [true, false] {
            let mut rig = alone();
            let (session, sandbox) = rig.session();
            let target =
                if by_id { UseTarget::Sandbox(sandbox) } else { UseTarget::Session(session) };
            let (request, use_id) = rig.use_of(target, kind);
            assert_eq!(rig.granted(request).sandbox, sandbox);
            assert_eq!(rig.state(sandbox), during);
            let twice = rig.ask(|request| Event::UseRequested {
                request,
                target,
                use_id,
                kind,
                wait_ms: None,
            });
            assert_eq!(rig.refused(twice), ErrorCode::IdConflict);
            rig.use_ended(use_id);
            assert_eq!(rig.state(sandbox), SandboxState::Waiting);
        }
    }
}

#[test]
fn an_exec_in_a_cold_sandbox_of_a_session_wakes_it() {
    let mut rig = alone();
    let (session, sandbox) = rig.slept_session();
    let (request, _) = rig.use_of(UseTarget::Sandbox(sandbox), UseKind::Exec);
    assert!(rig.pending(request) && rig.launching().restore);
    rig.run();
    let grant = rig.granted(request);
    assert_eq!((grant.sandbox, grant.generation.0), (sandbox, 2));
    assert_eq!(rig.status(session), SessionStatus::Active);
    assert_eq!(rig.last_active(session).cause, ActiveCause::Resumed);
}

#[test]
fn an_exec_by_the_id_of_a_sandbox_that_is_going_is_refused_at_once() {
    let going: [fn(&mut Rig, model::SandboxId); 2] = [
        |rig, sandbox| rig.dies_of(sandbox, DeathCause::Crash),
        |rig, sandbox| {
            rig.delete(sandbox);
        },
    ];
    for go in going {
        let mut rig = alone();
        let (_, sandbox) = rig.session();
        go(&mut rig, sandbox);
        let (request, _) = rig.use_of(UseTarget::Sandbox(sandbox), UseKind::Exec);
        assert_eq!(rig.refused(request), ErrorCode::SandboxGone);
    }
}

#[test]
fn use_is_not_granted_to_a_client_that_went_away() {
    let mut rig = alone();
    let (session, sandbox) = rig.slept_session();
    let (request, _) = rig.use_of(UseTarget::Session(session), UseKind::Exec);
    rig.client_gone(request);
    rig.run();
    assert!(rig.pending(request));
    assert_ne!(rig.state(sandbox), SandboxState::Running);
    rig.live(3_600_000);
    assert_eq!(rig.state(sandbox), SandboxState::Cold, "no caller holds it");
}

#[test]
fn use_does_not_wait_past_its_deadline() {
    type Ask = fn(&mut Rig, model::SessionId, model::SandboxId) -> RequestId;
    let waits: [(u64, ErrorCode, Ask); 5] = [
        (90_000, ErrorCode::ReadyTimeout, |rig, session, _| {
            rig.use_of(UseTarget::Session(session), UseKind::Files).0
        }),
        (90_000, ErrorCode::ReadyTimeout, |rig, session, _| rig.resume(session)),
        (120_000, ErrorCode::DeadlineExceeded, |rig, _, sandbox| rig.delete(sandbox)),
        (120_000, ErrorCode::DeadlineExceeded, |rig, session, _| rig.stop(session)),
        (120_000, ErrorCode::DeadlineExceeded, |rig, session, _| rig.end(session)),
    ];
    for (deadline_ms, code, ask) in waits {
        let mut rig = alone();
        let (session, sandbox) = rig.session();
        // It died, and what is left of it cannot be removed.
        rig.dies_of(sandbox, DeathCause::Crash);
        let request = ask(&mut rig, session, sandbox);
        rig.effects.clear();
        rig.pass(deadline_ms - 1);
        assert!(rig.pending(request), "{code:?}");
        rig.pass(1);
        assert_eq!(rig.refused(request), code);
        rig.live(120_000);
        assert_eq!(rig.processes(), 0, "it is removed in the end");
    }
}

#[test]
fn dirty_files_are_journalled_once() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (session, sandbox) = rig.session();
    assert!(!rig.store.sandboxes[&sandbox].dirty);
    rig.session_work(session);
    assert!(rig.store.sandboxes[&sandbox].dirty);
}

#[test]
fn session_limits_how_many_requests_wait_for_it() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (session, _) = rig.create_session();
    // The creator waits too.
    for n in 1..crate::request::WAITING_MAX as u128 {
        let asked = Event::UseRequested {
            request: RequestId::from_u128(n << 64),
            target: UseTarget::Session(session),
            use_id: UseId::from_u128(n << 64),
            kind: UseKind::Files,
            wait_ms: None,
        };
        assert_eq!(rig.kernel.apply(rig.now, asked), Ok(Reply::Pending));
    }
    let (one_more, _) = rig.use_of(UseTarget::Session(session), UseKind::Files);
    assert_eq!(rig.refused(one_more), ErrorCode::QueueFull);
}

#[test]
fn a_session_whose_claim_fails_takes_the_next_idle_one_at_once() {
    for dies in [false, true] {
        let mut rig = Rig::with_pool(template(2, 0), NATIVE);
        let (session, created) = rig.create_session();
        if dies {
            let first = rig.store.sessions[&session].sandbox.expect("one that is being bound");
            rig.dies_of(first, DeathCause::Crash);
        } else {
            rig.finish(claim, trouble());
        }
        let another = rig.effects.iter().filter(|effect| claim(&effect.action));
        assert!(another.count() >= 1, "it does not wait for the first to be removed");
        rig.run();
        assert!(rig.session_ready(created).lost().is_none());
        let not_live = rig.store.sandboxes.values().filter(|record| !record.state.is_live());
        assert_eq!(not_live.count(), 0, "nothing is left of the first");
    }
}
