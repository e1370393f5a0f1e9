//! Turns: one at a time, each ending exactly once.

use model::lifecycle::{ActiveCause, TurnOutcome};
use model::record::OnDisconnect;
use model::{EndCause, ErrorCode, LifecycleEvent, NodeConfig, SandboxState, SessionStatus, TurnId};

use super::rig::{
    NATIVE, Rig, gone, kill, launch, persist, start_turn, stop_turn, template, trouble,
};
use crate::{Action, DeathCause, Event, Outcome, Reply, SessionSettings, WhenBusy};

/// A node on which a session's sandbox is the only one.
fn alone() -> Rig {
    Rig::with_pool(template(0, 1), NATIVE)
}

#[test]
fn a_sandbox_is_running_from_the_moment_a_turn_is_asked_for() {
    let mut rig = alone();
    let (session, sandbox) = rig.session();
    let (request, turn) = rig.turn(session);
    assert_eq!(rig.state(sandbox), SandboxState::Running);
    assert!(rig.pending(request), "the harness has not taken it yet");
    rig.finish(start_turn, Outcome::Done);
    assert!(matches!(rig.answered(request), Reply::TurnStarted(_)));
    assert_eq!(rig.of(session).turn, Some(turn));
    rig.end_turn(session, turn);
    assert_eq!(rig.state(sandbox), SandboxState::Waiting);
    assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Completed]);
    rig.end_turn(session, turn);
    assert_eq!(rig.turn_outcomes(turn).len(), 1, "an end that is heard of twice is one");
}

#[test]
fn a_second_turn_is_refused_or_queued_in_order_up_to_a_limit() {
    let config = NodeConfig { max_queued_turns: 2, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 1), NATIVE);
    let (session, _) = rig.session();
    let (_, first) = rig.running_turn(session);
    let (refused, _) = rig.turn(session);
    assert_eq!(rig.refused(refused), ErrorCode::TurnInProgress);
    let queued = [(); 2].map(|()| {
        let (request, turn) = rig.turn_with(session, WhenBusy::Queue);
        assert_eq!(rig.answered(request), Reply::TurnQueued { turn });
        turn
    });
    let (full, _) = rig.turn_with(session, WhenBusy::Queue);
    assert_eq!(rig.refused(full), ErrorCode::TurnQueueFull);
    assert_eq!(rig.of(session).queued_turns, 2);
    let mut order = vec![first];
    rig.end_turn(session, first);
    for _ in queued {
        rig.run();
        let turn = rig.of(session).turn.expect("the next turn has started");
        order.push(turn);
        rig.end_turn(session, turn);
    }
    assert_eq!(order, [first, queued[0], queued[1]]);
    assert_eq!(rig.of(session).turn, None);
    for turn in order {
        assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Completed]);
    }
}

#[test]
fn turn_sent_twice_is_one_turn() {
    let mut rig = alone();
    let (session, _) = rig.session();
    let (_, turn) = rig.running_turn(session);
    for when_busy in [WhenBusy::Refuse, WhenBusy::Queue] {
        let request = rig.ask(|request| Event::TurnRequested {
            request,
            session,
            turn,
            when_busy,
            wait_ms: None,
        });
        assert_eq!(rig.refused(request), ErrorCode::IdConflict);
    }
}

#[test]
fn a_turn_so_quick_that_its_end_is_heard_first_has_started_and_ended() {
    let mut rig = alone();
    let (session, _) = rig.session();
    let (request, turn) = rig.turn(session);
    rig.end_turn(session, turn);
    assert!(matches!(rig.answered(request), Reply::TurnStarted(_)));
    rig.finish(start_turn, Outcome::Done);
    let started = |event: &LifecycleEvent| matches!(event, LifecycleEvent::TurnStarted { .. });
    let at = rig.published.iter().position(started).expect("the start of the turn");
    assert_eq!(rig.published.iter().filter(|event| started(event)).count(), 1);
    let ended = LifecycleEvent::TurnEnded { session, turn, outcome: TurnOutcome::Completed };
    assert_eq!(rig.published[at + 1..], [ended]);
}

/// How often the start of a turn is published. An end must not come before it.
fn starts_published(rig: &Rig, turn: TurnId) -> usize {
    let of_turn = |event: &&LifecycleEvent| match event {
        LifecycleEvent::TurnStarted { turn: of, .. }
        | LifecycleEvent::TurnEnded { turn: of, .. } => *of == turn,
        _ => false,
    };
    let seen: Vec<_> = rig.published.iter().filter(of_turn).map(LifecycleEvent::name).collect();
    assert!(seen.iter().skip(1).all(|name| *name == "turn_ended"), "{seen:?}");
    seen.iter().filter(|name| **name == "turn_started").count()
}

#[test]
fn the_start_of_a_turn_is_published_when_the_harness_gets_it_and_only_then() {
    let mut rig = alone();
    let (session, _) = rig.session();
    let (_, given) = rig.turn(session);
    assert_eq!(starts_published(&rig, given), 1, "before the harness has taken it");
    rig.finish(start_turn, Outcome::Done);
    let (_, queued) = rig.turn_with(session, WhenBusy::Queue);
    rig.apply(Event::TurnWithdrawn { session, turn: queued }).unwrap();
    rig.end_turn(session, given);
    assert_eq!((starts_published(&rig, given), starts_published(&rig, queued)), (1, 0));
    let (_, stopped) = rig.turn(session);
    rig.apply(Event::TurnWithdrawn { session, turn: stopped }).unwrap();
    rig.finish(start_turn, trouble());
    rig.finish(stop_turn, Outcome::Done);
    assert_eq!(rig.turn_outcomes(stopped), [TurnOutcome::Aborted]);
    let (_, failed) = rig.turn(session);
    rig.finish(start_turn, trouble());
    rig.run();
    assert_eq!(rig.turn_outcomes(failed), [TurnOutcome::SandboxCrashed]);
    assert_eq!((starts_published(&rig, stopped), starts_published(&rig, failed)), (1, 1));
}

#[test]
fn harness_that_does_not_accept_the_turn_is_replaced_and_the_turn_ends() {
    let table = [
        (Some(trouble()), EndCause::TurnFailed),
        (Some(Outcome::TimedOut), EndCause::TurnFailed),
        (None, EndCause::TurnFailed),
        (Some(gone()), EndCause::Crash),
    ];
    for (outcome, cause) in table {
        let mut rig = alone();
        let (session, sandbox) = rig.session();
        let (request, turn) = rig.turn(session);
        match outcome {
            Some(outcome) => {
                rig.finish(start_turn, outcome);
            }
            None => rig.pass(5_000),
        }
        assert_eq!(rig.refused(request), ErrorCode::SandboxCrashed);
        assert!(rig.terminations(sandbox).is_empty(), "its removal is not confirmed yet");
        rig.run();
        assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::SandboxCrashed]);
        assert_eq!(rig.terminations(sandbox), [(1, cause)]);
        assert_ne!(rig.whole_turn(session).sandbox, sandbox);
    }
}

#[test]
fn death_ends_the_turn_and_the_next_message_gets_a_replacement_with_the_files() {
    let table = [
        (DeathCause::Crash, TurnOutcome::SandboxCrashed, EndCause::Crash),
        (DeathCause::Oom, TurnOutcome::Oom, EndCause::Oom),
    ];
    for (death, outcome, cause) in table {
        let mut rig = alone();
        let (session, sandbox) = rig.session();
        let workspace = rig.store.sandboxes[&sandbox].workspace;
        let (_, turn) = rig.running_turn(session);
        rig.dies_of(sandbox, death);
        assert_eq!((rig.of(session).turn, rig.of(session).sandbox_id), (None, None));
        rig.dies_of(sandbox, death);
        let (request, _) = rig.turn(session);
        assert_eq!((rig.count(launch), rig.count(kill)), (0, 1), "one process per sandbox");
        rig.killed();
        assert_eq!(rig.terminations(sandbox), [(1, cause)]);
        assert_eq!(rig.turn_outcomes(turn), [outcome]);
        assert_eq!((rig.launching().workspace, rig.launching().restore), (workspace, true));
        rig.run();
        let ready = rig.session_ready(request);
        assert_ne!(ready.sandbox, sandbox);
        assert_eq!(ready.generation.0, 2);
        let active = rig.last_active(session);
        assert_eq!((active.cause, active.previous), (ActiveCause::Replaced, Some(sandbox)));
        assert!(!active.state_lost && rig.loss_reasons(session).is_empty());
    }
}

#[test]
fn a_queued_turn_survives_the_death_of_the_sandbox() {
    let mut rig = alone();
    let (session, sandbox) = rig.session();
    let (_, first) = rig.running_turn(session);
    let (_, second) = rig.turn_with(session, WhenBusy::Queue);
    rig.dies_of(sandbox, DeathCause::Crash);
    rig.run();
    assert_eq!(rig.turn_outcomes(first), [TurnOutcome::SandboxCrashed]);
    assert_eq!(rig.of(session).turn, Some(second));
    rig.end_turn(session, second);
    assert_eq!(rig.turn_outcomes(second), [TurnOutcome::Completed]);
}

#[test]
fn a_turn_over_its_time_is_stopped_and_its_sandbox_kept() {
    let mut rig = alone();
    let (session, sandbox) = rig.session();
    let (_, turn) = rig.running_turn(session);
    rig.pass(3_599_999);
    assert_eq!(rig.count(stop_turn), 0);
    rig.pass(1);
    assert_eq!(rig.count(stop_turn), 1);
    assert_eq!(rig.turn_outcomes(turn), []);
    assert_eq!(rig.state(sandbox), SandboxState::Running);
    rig.finish(stop_turn, Outcome::Done);
    assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::TimedOut]);
    assert_eq!(rig.state(sandbox), SandboxState::Waiting);
    assert_eq!(rig.whole_turn(session).sandbox, sandbox);
    assert!(rig.terminations(sandbox).is_empty());
}

#[test]
fn a_turn_that_cannot_be_stopped_ends_with_its_sandbox() {
    for outcome in [Some(trouble()), None] {
        let mut rig = alone();
        let (session, sandbox) = rig.session();
        let (_, turn) = rig.running_turn(session);
        rig.pass(3_600_000);
        match outcome {
            Some(outcome) => {
                rig.finish(stop_turn, outcome);
            }
            None => rig.pass(5_000),
        }
        assert_eq!(rig.count(persist), 1, "its files are saved before it goes");
        rig.effects.retain(|effect| !stop_turn(&effect.action));
        rig.run();
        assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::TimedOut]);
        assert_eq!(rig.terminations(sandbox), [(1, EndCause::TurnTimeout)]);
        let ready = rig.whole_turn(session);
        assert_eq!((ready.sandbox, ready.generation.0), (sandbox, 2));
    }
}

fn session_that(on_disconnect: OnDisconnect) -> (Rig, model::SessionId) {
    let mut rig = alone();
    let settings = SessionSettings { on_disconnect, ..SessionSettings::default() };
    let (session, _) = rig.create_session_with(settings);
    rig.run();
    (rig, session)
}

#[test]
fn a_turn_goes_on_without_its_client_if_that_is_wanted() {
    for started in [false, true] {
        let (mut rig, session) = session_that(OnDisconnect::Continue);
        let (request, turn) = rig.turn(session);
        if started {
            rig.run();
        }
        rig.client_gone(request);
        rig.run();
        assert_eq!(rig.turn_outcomes(turn), []);
        assert_eq!(rig.of(session).turn, Some(turn));
        rig.end_turn(session, turn);
        assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Completed]);
    }
}

#[test]
fn a_turn_is_aborted_without_its_client_if_that_is_wanted() {
    for started in [false, true] {
        let (mut rig, session) = session_that(OnDisconnect::Abort);
        let sandbox = rig.last_active(session).sandbox;
        let (request, turn) = rig.turn(session);
        if started {
            rig.run();
        }
        rig.client_gone(request);
        rig.client_gone(request);
        assert_eq!(rig.count(stop_turn), 1);
        rig.run();
        assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Aborted]);
        assert_eq!(rig.terminations(sandbox), [(1, EndCause::UserAbort)]);
        assert_ne!(rig.whole_turn(session).sandbox, sandbox);
    }
}

#[test]
fn a_client_of_an_earlier_turn_that_goes_away_aborts_no_later_one() {
    let (mut rig, session) = session_that(OnDisconnect::Abort);
    let (request, turn) = rig.running_turn(session);
    rig.end_turn(session, turn);
    let (_, later) = rig.running_turn(session);
    rig.client_gone(request);
    assert_eq!(rig.of(session).turn, Some(later));
    assert_eq!((rig.count(stop_turn), rig.turn_outcomes(later)), (0, vec![]));
}

#[test]
fn a_turn_that_waits_is_aborted_without_its_client_if_that_is_wanted() {
    for (on_disconnect, outcomes) in
        [(OnDisconnect::Abort, vec![TurnOutcome::Aborted]), (OnDisconnect::Continue, vec![])]
    {
        let (mut rig, session) = session_that(on_disconnect);
        let (_, first) = rig.running_turn(session);
        let (gone, second) = rig.turn_with(session, WhenBusy::Queue);
        let (_, third) = rig.turn_with(session, WhenBusy::Queue);
        rig.client_gone(gone);
        rig.client_gone(gone);
        rig.run();
        assert_eq!(rig.turn_outcomes(second), outcomes);
        assert_eq!((rig.count(stop_turn), rig.of(session).turn), (0, Some(first)));
        let waits = rig.store.sessions[&session].queued.clone();
        let left = if outcomes.is_empty() { vec![second, third] } else { vec![third] };
        assert_eq!(waits, left, "and it is journalled");
        rig.end_turn(session, first);
        rig.run();
        assert_eq!(rig.of(session).turn, left.first().copied());
        for turn in left {
            rig.end_turn(session, turn);
            rig.run();
            assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Completed]);
        }
        assert_eq!(rig.of(session).queued_turns, 0);
    }
}

#[test]
fn a_turn_that_waited_has_its_client_when_it_runs() {
    let (mut rig, session) = session_that(OnDisconnect::Abort);
    let (_, first) = rig.running_turn(session);
    let (request, second) = rig.turn_with(session, WhenBusy::Queue);
    rig.end_turn(session, first);
    rig.run();
    assert_eq!(rig.of(session).turn, Some(second));
    rig.client_gone(request);
    assert_eq!(rig.count(stop_turn), 1);
    rig.run();
    assert_eq!(rig.turn_outcomes(second), [TurnOutcome::Aborted]);
}

/// Whatever becomes of turns that wait, nothing is remembered of their clients afterwards.
#[test]
fn clients_of_ended_turns_are_forgotten() {
    type End = fn(&mut Rig, model::SessionId, TurnId);
    let ends: [(&str, End); 4] = [
        ("withdrawn", |rig, session, turn| {
            let _ = rig.apply(Event::TurnWithdrawn { session, turn });
        }),
        ("aborted", |rig, session, _| {
            rig.abort(session, true);
        }),
        ("stopped", |rig, session, _| {
            rig.stop(session);
        }),
        ("ended", |rig, session, _| {
            rig.end(session);
        }),
    ];
    for (what, end) in ends {
        let (mut rig, session) = session_that(OnDisconnect::Abort);
        let (first, _) = rig.running_turn(session);
        let (request, turn) = rig.turn_with(session, WhenBusy::Queue);
        end(&mut rig, session, turn);
        rig.run();
        assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Aborted], "{what}");
        rig.client_gone(request);
        rig.client_gone(first);
        rig.run();
        assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Aborted], "{what}, and once");
        assert_eq!(rig.kernel.audit(), Ok(()), "{what}");
    }
}

#[test]
fn a_turn_sent_while_its_session_is_paused_is_aborted_without_its_client() {
    let (mut rig, session) = session_that(OnDisconnect::Abort);
    let paused = rig.pause(session);
    assert!(rig.pending(paused), "it is being frozen");
    let (request, turn) = rig.turn(session);
    rig.client_gone(request);
    rig.run();
    assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Aborted]);
}

#[test]
fn sandbox_active_is_published_before_the_turn_also_on_a_reconnect() {
    let mut rig = alone();
    let (session, sandbox) = rig.session();
    for cause in [ActiveCause::Reconnected, ActiveCause::Resumed] {
        rig.published.clear();
        let (_, turn) = rig.running_turn(session);
        let at = |wanted: fn(&LifecycleEvent) -> bool| rig.published.iter().position(wanted);
        let active = at(|event| matches!(event, LifecycleEvent::SandboxActive { .. }));
        let started = at(|event| matches!(event, LifecycleEvent::TurnStarted { .. }));
        assert!(active.unwrap() < started.unwrap());
        assert_eq!(rig.actives(session).len(), 1);
        let seen = rig.last_active(session);
        assert_eq!((seen.cause, seen.sandbox, seen.state_lost), (cause, sandbox, false));
        rig.end_turn(session, turn);
        rig.live(3_600_000);
    }
}

#[test]
fn a_turn_waits_for_its_sandbox_until_its_deadline() {
    let config = NodeConfig { bind_timeout_ms: 10_000, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 1), NATIVE);
    rig.session_wait_ms = Some(0);
    let (session, sandbox) = rig.slept_session();
    let (request, turn) = rig.turn(session);
    rig.pass(9_999);
    assert!(rig.pending(request));
    rig.pass(1);
    assert_eq!(rig.refused(request), ErrorCode::ReadyTimeout);
    assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::NotStarted]);
    rig.launched();
    assert_eq!(rig.count(start_turn), 0, "no caller waits for it any more");
    rig.live(3_600_000);
    assert_eq!(rig.state(sandbox), SandboxState::Cold);
    assert_eq!(rig.status(session), SessionStatus::Paused);
    assert_eq!(rig.whole_turn(session).sandbox, sandbox);
}

#[test]
fn turn_without_a_place_is_refused() {
    let config = NodeConfig { max_live: 2, bind_timeout_ms: 10_000, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 5), NATIVE);
    rig.session_wait_ms = Some(0);
    let (waiting, _) = rig.slept_session();
    let sessions = [rig.session().0, rig.session().0];
    rig.running_turn(sessions[0]);
    rig.running_turn(sessions[1]);
    let (request, turn) = rig.turn(waiting);
    assert_eq!(rig.refused(request), ErrorCode::CapacityExhausted);
    assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::NotStarted]);
    assert_eq!(rig.count(|action| matches!(action, Action::Launch(_))), 0);
}

#[test]
fn failed_launch_for_a_message_is_reported_and_keeps_the_files() {
    let mut rig = alone();
    let (session, sandbox) = rig.slept_session();
    let (request, turn) = rig.turn(session);
    rig.finish(launch, trouble());
    rig.run();
    assert_eq!(rig.refused(request), ErrorCode::LaunchFailed);
    assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::NotStarted]);
    assert!(rig.loss_reasons(session).is_empty());
    let ready = rig.whole_turn(session);
    assert_eq!((ready.sandbox, ready.generation.0), (sandbox, 3));
}
