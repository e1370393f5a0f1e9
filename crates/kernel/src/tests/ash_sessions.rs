//! The second half of the known defects of Ash: deaths, turns, statuses, forks. Numbers as in
//! `ash`.

use model::lifecycle::{ActiveCause, TurnOutcome};
use model::{EndCause, ErrorCode, SandboxState, SandboxStatus, SessionId, SessionStatus};

use super::rig::{
    NATIVE, Rig, copy, gone, kill, name, probe, start_turn, stop_turn, template, trouble,
};
use super::rig_steps::{Cases, claiming, env, tight};
use crate::{DeathCause, Event, Outcome, Reply, SessionSettings, UseKind, UseTarget, WhenBusy};

const HOUR_MS: u64 = 3_600_000;

fn stage() -> Rig {
    Rig::with_pool(template(0, 5), NATIVE)
}

// 6.1 #5: files were never forked.
#[test]
fn a_fork_has_the_files_and_settings_of_its_parent_whatever_that_is_doing() {
    let parents: Cases<fn(&mut Rig, SessionId)> = &[
        ("waiting", |_, _| {}),
        ("running", |rig, session| {
            rig.turn(session);
            rig.run();
        }),
        ("paused and cold", |rig, _| rig.live(HOUR_MS)),
        ("stopped", |rig, session| {
            rig.stop(session);
            rig.run();
        }),
    ];
    for (what, prepare) in parents {
        let mut rig = stage();
        let (parent, request) = rig.create_session_with(claiming("parent"));
        rig.run();
        let sandbox = rig.session_ready(request).sandbox;
        rig.whole_turn(parent);
        prepare(&mut rig, parent);
        let before = (rig.state(sandbox), rig.status(parent));
        let (child, forked) = rig.fork_begun(parent);
        assert_eq!(rig.count(copy), 1, "{what}");
        assert!(rig.pending(forked), "{what}: answered before the files are there");
        rig.run();
        assert_eq!(rig.answered(forked), Reply::Forked { session: child }, "{what}");
        assert_eq!(rig.status(child), SessionStatus::Paused, "{what}");
        assert_eq!((rig.state(sandbox), rig.status(parent)), before, "{what}: the parent goes on");
        rig.turn(child);
        let launch = &rig.launches()[0];
        assert!(launch.restore, "{what}");
        assert_ne!(launch.sandbox, sandbox, "{what}");
        assert_eq!(launch.settings, Some(env("parent")), "{what}");
        assert_ne!(launch.workspace, rig.store.sandboxes[&sandbox].workspace, "{what}");
        rig.run();
        assert_eq!(rig.status(child), SessionStatus::Active, "{what}");
    }
}

// 6.1 #2 b: what failed half way left a process or a record behind; a fork must not.
#[test]
fn a_fork_whose_copy_fails_leaves_nothing_behind() {
    let mut rig = stage();
    let (parent, _) = rig.waiting_session();
    let (child, forked) = rig.fork_begun(parent);
    rig.finish(copy, trouble());
    rig.run();
    assert_eq!(rig.refused(forked), ErrorCode::PersistFailed);
    assert!(rig.kernel.session(child).is_none());
    assert_eq!((rig.kernel.stats().total, rig.store.sessions.len()), (1, 1));
    assert!(rig.store.doomed.is_empty(), "what was copied is deleted");
}

// 6.1 #6: a sandbox killed by a signal counted as alive for ever.
#[test]
fn a_dead_sandbox_is_noticed_and_replaced_with_the_files() {
    let mut rig = stage();
    let (session, sandbox) = rig.waiting_session();
    rig.dies(sandbox);
    rig.run();
    assert_eq!(rig.of(session).sandbox_status, SandboxStatus::Disconnected);
    assert_eq!(rig.of(session).sandbox_id, None);
    let ready = rig.whole_turn(session);
    assert_ne!(ready.sandbox, sandbox);
    let last = *rig.actives(session).last().unwrap();
    assert_eq!((last.cause, last.previous), (ActiveCause::Replaced, Some(sandbox)));
    assert!(!last.state_lost && last.generation.0 == 2);
    assert_eq!(rig.terminations(sandbox), [(1, EndCause::Crash)]);
}

// 6.1 #6: no client heard of the death: a resume answered 200 and every message failed.
#[test]
fn an_unnoticed_death_is_found_by_the_probe_before_anything_is_sent() {
    for outcomes in [vec![gone()], vec![trouble(), trouble()], vec![trouble(), Outcome::TimedOut]] {
        let mut rig = stage();
        let (session, sandbox) = rig.waiting_session();
        rig.pass(6_000);
        let (request, _) = rig.turn(session);
        for outcome in outcomes {
            assert_eq!(rig.count(start_turn), 0);
            rig.finish(probe, outcome);
        }
        rig.run();
        assert_ne!(rig.session_ready(request).sandbox, sandbox);
        assert_eq!(rig.terminations(sandbox), [(1, EndCause::ProbeFailed)]);
    }
}

// 6.1 #8: the death of the bridge left a request hanging for ever and the sandbox running.
#[test]
fn a_death_in_the_middle_of_a_turn_ends_the_turn() {
    for (cause, expected) in
        [(DeathCause::Crash, TurnOutcome::SandboxCrashed), (DeathCause::Oom, TurnOutcome::Oom)]
    {
        let mut rig = stage();
        let (session, sandbox) = rig.session();
        rig.turn(session);
        rig.run();
        rig.dies_of(sandbox, cause);
        assert_eq!(rig.of(session).turn, None, "at once");
        rig.run();
        assert_eq!(rig.outcomes(session), [expected]);
        rig.whole_turn(session);
    }
}

// 6.1 #8: an exec never returned.
#[test]
fn a_death_in_the_middle_of_an_exec_ends_the_exec_at_once() {
    let mut rig = stage();
    let (session, sandbox) = rig.session();
    let exec = rig.session_exec(session);
    rig.dies(sandbox);
    assert_eq!(rig.broken.len(), 1);
    assert_eq!((rig.broken[0].0, rig.broken[0].1.code), (exec, ErrorCode::SandboxCrashed));
}

// 6.1 #8: there was no timeout of a turn.
#[test]
fn a_turn_that_never_ends_is_stopped_by_its_timeout() {
    let mut short = template(0, 5);
    short.turn_timeout_ms = 60_000;
    let mut rig = Rig::with_pool(short, NATIVE);
    let (session, sandbox) = rig.session();
    rig.turn(session);
    rig.run();
    rig.pass(60_000);
    assert_eq!(rig.targets(stop_turn), [sandbox]);
    rig.run();
    assert_eq!(rig.outcomes(session), [TurnOutcome::TimedOut]);
    assert_eq!(rig.state(sandbox), SandboxState::Waiting);
}

// 6.1 #9: two messages at once were mixed up.
#[test]
fn a_second_message_at_once_is_refused_or_queued_and_never_mixed_up() {
    let mut rig = stage();
    let (session, _) = rig.session();
    let (first, turn) = rig.turn(session);
    let (second, _) = rig.turn(session);
    assert_eq!(rig.refused(second), ErrorCode::TurnInProgress);
    assert_eq!(ErrorCode::TurnInProgress.status(), 409);
    let (third, queued) = rig.turn_with(session, WhenBusy::Queue);
    assert_eq!(rig.answered(third), Reply::TurnQueued { turn: queued });
    rig.run();
    rig.session_ready(first);
    assert_eq!(rig.of(session).turn, Some(turn));
    // The end of a turn that is not in progress says nothing.
    rig.end_turn(session, queued);
    assert_eq!(rig.of(session).turn, Some(turn));
    rig.end_turn(session, turn);
    rig.run();
    assert_eq!(rig.of(session).turn, Some(queued));
}

// 6.1 #10: a client that went away lost the rest of its turn, and the sandbox counted as waiting.
#[test]
fn a_client_that_goes_away_does_not_lose_its_turn() {
    let mut rig = stage();
    let (session, sandbox) = rig.session();
    let (request, turn) = rig.turn(session);
    rig.run();
    rig.client_gone(request);
    rig.run();
    assert_eq!((rig.state(sandbox), rig.of(session).turn), (SandboxState::Running, Some(turn)));
    rig.live(2 * HOUR_MS / 3);
    assert_eq!(rig.state(sandbox), SandboxState::Running, "neither swept nor waiting");
    rig.end_turn(session, turn);
    assert_eq!(rig.outcomes(session), [TurnOutcome::Completed]);
    // One that goes away before the turn has started does not lose it either.
    rig.pass(6_000);
    let (request, turn) = rig.turn(session);
    rig.client_gone(request);
    rig.run();
    assert_eq!(rig.of(session).turn, Some(turn));
}

// 6.1 #10: nor could a turn be ended with its client, where that is wanted.
#[test]
fn a_client_that_goes_away_ends_its_turn_where_the_session_wants_that() {
    let mut rig = stage();
    let settings = SessionSettings {
        on_disconnect: model::record::OnDisconnect::Abort,
        ..SessionSettings::default()
    };
    let (session, _) = rig.create_session_with(settings);
    rig.run();
    let (request, _) = rig.turn(session);
    rig.run();
    rig.client_gone(request);
    rig.run();
    assert_eq!(rig.outcomes(session), [TurnOutcome::Aborted]);
}

// 6.1 #10: there was no way to interrupt a turn, although the bridge could.
#[test]
fn an_abort_confirms_the_end_and_the_next_message_has_the_files() {
    let mut rig = stage();
    let (session, sandbox) = rig.session();
    let (_, turn) = rig.turn(session);
    rig.run();
    let aborted = rig.abort(session, false);
    assert!(rig.pending(aborted));
    rig.run();
    assert_eq!(rig.answered(aborted), Reply::Aborted { turn: Some(turn), sandbox_kept: false });
    assert_eq!(rig.terminations(sandbox), [(1, EndCause::UserAbort)]);
    rig.turn(session);
    assert!(rig.launches()[0].restore);
}

// 6.1 #15 and 2.11: deleting an agent removed its sessions and left their processes.
#[test]
fn a_template_with_sessions_is_not_deleted() {
    let mut rig = stage();
    let (session, sandbox) = rig.session();
    let destroy = |request, force| Event::PoolDestroyed { request, template: name(), force };
    let request = rig.ask(|request| destroy(request, false));
    assert_eq!(rig.refused(request), ErrorCode::TemplateInUse);
    assert_eq!(
        (rig.status(session), rig.state(sandbox)),
        (SessionStatus::Active, SandboxState::Warm)
    );
    rig.end(session);
    rig.run();
    let request = rig.ask(|request| destroy(request, false));
    rig.run();
    assert_eq!(rig.answered(request), Reply::Gone);
    assert_eq!(rig.processes(), 0);
}

/// What a call on a session in some status is answered with.
const CALLS: Cases<fn(&mut Rig, SessionId) -> model::RequestId> = &[
    ("message", |rig, session| rig.turn(session).0),
    ("exec", |rig, session| rig.use_of(UseTarget::Session(session), UseKind::Exec).0),
    ("pause", Rig::pause),
    ("resume", Rig::resume),
    ("stop", Rig::stop),
    ("fork", |rig, session| rig.fork(session).1),
    ("end", Rig::end),
];

/// 2.11, as it is here: the refusal of each call in each status, in the order of [`CALLS`].
#[test]
fn every_call_has_a_clear_answer_in_every_status() {
    const STOPPED: Option<ErrorCode> = Some(ErrorCode::SessionStopped);
    const OVER: Option<ErrorCode> = Some(ErrorCode::SessionEnded);
    let pause: fn(&mut Rig, SessionId) = |rig, session| {
        rig.pause(session);
    };
    let stop: fn(&mut Rig, SessionId) = |rig, session| {
        rig.stop(session);
    };
    let end: fn(&mut Rig, SessionId) = |rig, session| {
        rig.end(session);
    };
    let nothing: fn(&mut Rig, SessionId) = |_, _| {};
    let sleep: fn(&mut Rig, SessionId) = |rig, _| rig.live(HOUR_MS);
    let statuses = [
        ("active", nothing, [None; 7]),
        ("paused", pause, [None; 7]),
        ("paused and cold", sleep, [None; 7]),
        ("stopped", stop, [STOPPED, STOPPED, STOPPED, None, None, None, None]),
        ("ended", end, [OVER, OVER, OVER, OVER, OVER, OVER, None]),
    ];
    for (status, prepare, expected) in statuses {
        for ((what, call), refusal) in CALLS.iter().zip(expected) {
            let mut rig = stage();
            let (session, _) = rig.waiting_session();
            prepare(&mut rig, session);
            rig.run();
            let request = call(&mut rig, session);
            rig.run();
            let answer = rig.answer(request).expect("an answer");
            let found = answer.as_ref().err().map(|refusal| refusal.code);
            assert_eq!(found, refusal, "{what} when {status}: {answer:?}");
        }
    }
}

// 2.11: pausing left the sandbox running, and ending kept nothing; both are what they say here.
#[test]
fn pause_stop_and_end_do_what_they_say() {
    let mut rig = stage();
    let (session, sandbox) = rig.waiting_session();
    let request = rig.pause(session);
    rig.run();
    assert_eq!(rig.answered(request), Reply::Paused);
    assert!(rig.alive(sandbox).frozen, "its processes do not run");
    let ready = rig.resumed(session);
    assert_eq!((ready.sandbox, ready.generation.0), (sandbox, 1));
    assert_eq!(rig.kernel.stats().resume_warm_hits, 1);
    let request = rig.stop(session);
    rig.run();
    assert_eq!(
        (rig.answered(request), rig.status(session)),
        (Reply::Stopped, SessionStatus::Stopped)
    );
    assert_eq!((rig.processes(), rig.losses(session)), (0, vec![]));
    assert_eq!(rig.resumed(session).sandbox, sandbox);
    let request = rig.end(session);
    assert!(rig.pending(request));
    rig.run();
    assert_eq!((rig.answered(request), rig.processes()), (Reply::Ended, 0));
    assert_eq!(rig.terminations(sandbox).last(), Some(&(2, EndCause::SessionEnded)));
}

// 6.1 #7: what a restart left behind stranded sessions; and the turn it interrupted said nothing.
#[test]
fn a_restart_in_the_middle_of_a_turn_ends_it_and_the_session_goes_on() {
    let mut rig = Rig::with(tight(9, 9), template(0, 5), NATIVE);
    let (session, sandbox) = rig.session();
    rig.turn(session);
    rig.run();
    let alive = [rig.instance(sandbox)];
    rig.restart(&alive);
    assert_eq!(rig.outcomes(session), [TurnOutcome::Interrupted]);
    assert_eq!(rig.status(session), SessionStatus::Paused);
    assert_eq!(rig.count(kill), 1, "what is left of it is removed first");
    let ready = rig.whole_turn(session);
    assert_eq!((ready.sandbox, ready.generation.0), (sandbox, 2));
}
