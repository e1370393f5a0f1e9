//! The life of a process: when its program is restarted, requests between two programs, and that it
//! ends once, at the latest with its sandbox.

use model::process::{ProcessEndReason as Reason, ProcessStatus as Status, RestartPolicy};
use model::{ErrorCode, NodeConfig, ProcessId, SandboxId, SandboxState, SessionId, SessionStatus};

use super::rig::{
    DOCKER, NATIVE, Rig, freeze, gone, kill, kill_process, persist, restart_process, template,
    thaw, trouble,
};
use crate::{
    Action, DeathCause, EndRequest, Event, Outcome, ProgramEnd, RESTART_PAUSE_MS as PAUSE_MS,
    Reply, StartedProcess,
};

const ALWAYS: Option<RestartPolicy> = Some(RestartPolicy { max_restarts: None });
const ONCE: Option<RestartPolicy> = Some(RestartPolicy { max_restarts: Some(1) });
const TWICE: Option<RestartPolicy> = Some(RestartPolicy { max_restarts: Some(2) });

/// A session's sandbox with a process that is started again whenever it fails.
fn scene(keep_alive: bool) -> (Rig, SessionId, SandboxId) {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    rig.starts_as(sandbox, 1, keep_alive, 0, ALWAYS);
    (rig, session, sandbox)
}

#[track_caller]
fn has_ended(rig: &Rig, status: Status, reason: Reason) {
    let (_, end, _) = rig.over(1);
    assert_eq!((end.status, end.reason), (status, reason), "{end:?}");
}

#[test]
fn a_program_that_fails_is_started_again_after_a_pause_as_often_as_wished() {
    let (mut rig, _, sandbox) = scene(false);
    rig.starts_as(sandbox, 2, false, 0, TWICE);
    for attempt in 1..=2 {
        rig.fails(sandbox, 2);
        assert_eq!(rig.resting.last().map(|(_, n, of)| (*n, *of)), Some((attempt, Some(2))));
        rig.pass(PAUSE_MS - 1);
        assert_eq!(rig.count(restart_process), 0);
        rig.pass(1);
        let effect = rig.finish(restart_process, Outcome::Done);
        let Action::RestartProcess { instance, attempt: of, .. } = effect.action else { panic!() };
        assert_eq!((instance, of), (rig.instance(sandbox), attempt));
    }
    rig.fails(sandbox, 2);
    let (_, end, _) = rig.over(2);
    assert_eq!((end.status, end.reason, end.exit_code), (Status::Failed, Reason::Exited, Some(3)));
    rig.pass(PAUSE_MS);
    assert_eq!(rig.count(restart_process), 0);
}

#[test]
fn process_that_succeeds_or_is_lost_is_not_restarted() {
    let lost = |sandbox_gone| ProgramEnd::Lost { sandbox_gone, detail: "no word".into() };
    for (how, status, reason) in [
        (None, Status::Completed, Reason::Exited),
        (Some(lost(false)), Status::Failed, Reason::Exited),
        (Some(lost(true)), Status::Killed, Reason::SandboxEnded),
        (Some(ProgramEnd::GivenUp), Status::Failed, Reason::Killed),
    ] {
        let (mut rig, _, sandbox) = scene(true);
        match how {
            None => rig.exits(sandbox, 1),
            Some(how) => rig.program_ends(rig.instance(sandbox), 1, how),
        }
        has_ended(&rig, status, reason);
        assert_eq!(rig.over(1).2, reason == Reason::Exited, "only those that ended by themselves");
        rig.fails(sandbox, 1);
        rig.pass(9_000);
        assert_eq!(rig.count(restart_process), 0);
        has_ended(&rig, status, reason);
    }
}

#[test]
fn end_requested_during_the_restart_pause_ends_the_process_at_once() {
    for (asked, status, reason) in [
        (EndRequest::Stop, Status::Stopped, Reason::Stopped),
        (EndRequest::Signal(15), Status::Stopped, Reason::Stopped),
        (EndRequest::Kill, Status::Killed, Reason::Killed),
        (EndRequest::Signal(9), Status::Killed, Reason::Killed),
    ] {
        let (mut rig, _, sandbox) = scene(false);
        rig.fails(sandbox, 1);
        rig.pass(500);
        let seen = rig.asks_end(sandbox, 1, EndRequest::Signal(1)).unwrap_err();
        assert_eq!(seen.code, ErrorCode::SandboxBusy, "nothing runs that could hear a signal");
        assert_eq!(rig.asks_end(sandbox, 1, asked), Ok(Reply::Noted));
        has_ended(&rig, status, reason);
        let late = rig.asks_end(sandbox, 1, EndRequest::Kill).unwrap_err();
        assert_eq!(late.code, ErrorCode::ProcessOver);
        rig.pass(PAUSE_MS);
        assert_eq!(rig.count(restart_process), 0);
    }
}

#[test]
fn process_whose_end_is_requested_during_its_restart_is_killed_when_it_runs() {
    for worked in [true, false] {
        let (mut rig, _, sandbox) = scene(true);
        rig.fails(sandbox, 1);
        rig.pass(PAUSE_MS);
        assert_eq!(rig.asks_end(sandbox, 1, EndRequest::Stop), Ok(Reply::Noted));
        assert!(rig.overs.is_empty(), "its program may be running already");
        if worked {
            rig.finish(restart_process, Outcome::Done);
            rig.finish(kill_process, Outcome::Done);
            assert!(rig.overs.is_empty());
            rig.exits_with(sandbox, 1, None, Some(9));
        } else {
            rig.finish(restart_process, trouble());
        }
        has_ended(&rig, Status::Stopped, Reason::Stopped);
        rig.pass(PAUSE_MS);
        assert_eq!(rig.count(restart_process), 0);
    }
}

#[test]
fn failed_or_unreported_restart_ends_the_process() {
    for heard in [true, false] {
        let (mut rig, _, sandbox) = scene(true);
        rig.fails(sandbox, 1);
        rig.pass(PAUSE_MS);
        assert_eq!(rig.state(sandbox), SandboxState::Running, "a start is a use");
        if heard {
            rig.finish(restart_process, trouble());
        } else {
            rig.pass(59_999);
            assert!(rig.overs.is_empty());
            rig.pass(1);
        }
        has_ended(&rig, Status::Failed, Reason::RestartFailed);
        let (_, end, kept_awake) = rig.over(1);
        let words = if heard { "trouble" } else { "the program was not restarted in time" };
        assert_eq!((end.exit_code, end.detail.as_deref()), (Some(3), Some(words)));
        assert!(kept_awake);
        assert_ne!(rig.state(sandbox), SandboxState::Running);
        if !heard {
            rig.finish(restart_process, Outcome::Done);
            has_ended(&rig, Status::Failed, Reason::RestartFailed);
        }
    }
}

#[test]
fn program_that_ends_before_its_restart_is_reported_counts_as_started() {
    let (mut rig, _, sandbox) = scene(false);
    rig.starts_as(sandbox, 2, false, 0, ONCE);
    rig.fails(sandbox, 2);
    rig.pass(PAUSE_MS);
    rig.fails(sandbox, 2);
    assert_eq!(rig.over(2).1.status, Status::Failed, "it was started as often as it may be");
    rig.finish(restart_process, Outcome::Done);
    rig.pass(PAUSE_MS);
    assert_eq!(rig.count(restart_process), 0);
    assert_ne!(rig.state(sandbox), SandboxState::Running);
}

#[test]
fn a_frozen_sandbox_is_thawed_for_a_restart() {
    for when in ["in the pause", "meanwhile"] {
        let (mut rig, _, sandbox) = scene(false);
        rig.fails(sandbox, 1);
        let request = rig.ask_freeze(sandbox);
        if when == "in the pause" {
            rig.finish(freeze, Outcome::Done);
            assert_eq!(rig.answered(request), Reply::Frozen { frozen: true });
        }
        rig.pass(PAUSE_MS);
        if when == "meanwhile" {
            rig.finish(freeze, Outcome::Done);
        }
        assert_eq!(rig.count(restart_process), 0, "{when}");
        rig.finish(thaw, Outcome::Done);
        rig.finish(restart_process, Outcome::Done);
        assert!(!rig.frozen(sandbox) && rig.overs.is_empty());
    }
}

#[test]
fn paused_session_resumes_with_a_restart_of_a_program() {
    let (mut rig, session, sandbox) = scene(false);
    rig.fails(sandbox, 1);
    let paused = rig.pause(session);
    rig.finish(freeze, Outcome::Done);
    assert_eq!(rig.answered(paused), Reply::Paused);
    rig.pass(PAUSE_MS);
    assert_eq!(rig.status(session), SessionStatus::Paused);
    rig.finish(thaw, Outcome::Done);
    assert_eq!(rig.count(restart_process), 1);
    assert_eq!(rig.status(session), SessionStatus::Active, "as by any use");
}

#[test]
fn program_is_not_restarted_when_its_sandbox_ends() {
    let ends: [fn(&mut Rig, SessionId, SandboxId); 4] = [
        |rig, _, sandbox| rig.dies_of(sandbox, DeathCause::Crash),
        |rig, session, _| {
            rig.stop(session);
        },
        |rig, _, sandbox| {
            rig.delete(sandbox);
        },
        |rig, _, _| rig.shut_down(0),
    ];
    for end in ends {
        for started in [false, true] {
            let (mut rig, session, sandbox) = scene(true);
            rig.starts_as(sandbox, 2, false, 0, None);
            rig.fails(sandbox, 1);
            rig.pass(if started { PAUSE_MS } else { 500 });
            let restart = rig.effects.iter().position(|one| restart_process(&one.action));
            let restart = restart.and_then(|at| rig.effects.remove(at));
            assert_eq!(restart.is_some(), started);
            end(&mut rig, session, sandbox);
            rig.effects.retain(|effect| !restart_process(&effect.action));
            rig.live(5_000);
            has_ended(&rig, Status::Killed, Reason::SandboxEnded);
            assert_eq!(rig.over(2).1.reason, Reason::SandboxEnded);
            assert!(rig.over(2).1.detail.as_deref().unwrap().starts_with("the sandbox is gone: "));
            if let Some(late) = restart {
                rig.end_effect(&late, Outcome::Done);
            }
            rig.live(5_000);
            assert_eq!(rig.count(restart_process), 0);
            has_ended(&rig, Status::Killed, Reason::SandboxEnded);
        }
    }
}

#[test]
fn a_restart_that_finds_its_sandbox_gone_ends_the_sandbox() {
    let (mut rig, _, sandbox) = scene(true);
    rig.fails(sandbox, 1);
    rig.pass(PAUSE_MS);
    rig.finish(restart_process, gone());
    assert_eq!(rig.count(kill), 1);
    has_ended(&rig, Status::Killed, Reason::SandboxEnded);
    let words = rig.over(1).1.detail.clone().unwrap();
    assert!(words.ends_with("(gone)"), "{words}");
}

#[test]
fn process_reported_too_late_ends_with_its_sandbox() {
    for traits in [NATIVE, DOCKER] {
        let mut rig = Rig::with_pool(template(1, 0), traits);
        let lease = rig.lease();
        rig.use_once(lease.sandbox);
        rig.give_back(lease.lease);
        let late = StartedProcess {
            sandbox: lease.sandbox,
            instance: lease.instance,
            process: ProcessId::from_u128(1),
            keep_alive: true,
            timeout_ms: 0,
            restart: ALWAYS,
        };
        let _ = rig.apply(Event::ProcessStarted(late));
        has_ended(&rig, Status::Killed, Reason::SandboxEnded);
        rig.run();
        let later = StartedProcess { process: ProcessId::from_u128(2), ..late };
        let _ = rig.apply(Event::ProcessStarted(later));
        let words = "the sandbox is gone: returned by its user";
        assert_eq!(rig.over(2).1.detail.as_deref(), Some(words), "also when nothing is left of it");
        let next = rig.lease();
        assert_eq!(next.instance == lease.instance, traits == DOCKER, "one of them is wiped");
        let stray = StartedProcess { process: ProcessId::from_u128(3), ..late };
        let _ = rig.apply(Event::ProcessStarted(stray));
        assert_eq!(rig.over(3).1.reason, Reason::SandboxEnded, "the next user does not have it");
        assert!(!rig.kernel.process_keeps_alive(next.instance, stray.process));
    }
}

#[test]
fn keep_alive_process_keeps_its_sandbox_alive_during_the_restart_pause() {
    let config = NodeConfig { max_live: 1, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 5), NATIVE);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    rig.starts_as(sandbox, 1, true, 0, ALWAYS);
    rig.pass(7_200_000);
    rig.fails(sandbox, 1);
    rig.session_wait_ms = Some(0);
    let (_, refused) = rig.create_session();
    assert_eq!(rig.refused(refused), ErrorCode::CapacityExhausted, "it is not evicted");
    rig.pass(PAUSE_MS);
    let request = rig.ask_freeze(sandbox);
    assert_eq!(rig.refused(request), ErrorCode::SandboxBusy);
    rig.finish(restart_process, Outcome::Done);
    rig.pass(7_200_000);
    assert!(rig.effects.is_empty(), "{:?}", rig.effects);
}

#[test]
fn restart_of_a_program_voids_an_eviction_or_sweep() {
    let mut rig = Rig::with_pool(template(0, 1), DOCKER);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    rig.starts_as(sandbox, 1, false, 0, ALWAYS);
    // Its files are being saved before it goes cold.
    while rig.kernel.sandbox(sandbox).unwrap().ending.is_none() {
        rig.effects.retain(|effect| persist(&effect.action));
        while rig.count(persist) > 0 {
            rig.finish(persist, trouble());
        }
        rig.pass(1_000);
    }
    rig.fails(sandbox, 1);
    rig.pass(PAUSE_MS);
    assert_eq!(rig.count(restart_process), 1);
    assert!(rig.kernel.sandbox(sandbox).unwrap().ending.is_none());
}

#[test]
fn process_time_that_expires_in_the_pause_ends_it_and_in_its_restart_kills_it() {
    let (mut rig, _, sandbox) = scene(false);
    rig.starts_as(sandbox, 2, true, 1_500, ALWAYS);
    rig.starts_as(sandbox, 3, true, 2_500, ALWAYS);
    rig.pass(1_000);
    rig.exits_with(sandbox, 2, None, Some(11));
    rig.exits_with(sandbox, 3, None, Some(11));
    rig.pass(500);
    let (_, end, kept_awake) = rig.over(2);
    assert_eq!((end.reason, *kept_awake), (Reason::Timeout, false));
    rig.pass(1_000);
    assert_eq!(rig.count(restart_process), 1);
    rig.finish(restart_process, Outcome::Done);
    rig.finish(kill_process, Outcome::Done);
    rig.exits_with(sandbox, 3, None, Some(9));
    assert_eq!(rig.over(3).1.reason, Reason::Timeout);
}

#[test]
fn a_stopping_server_starts_no_program_again() {
    let (mut rig, session, sandbox) = scene(false);
    rig.running_turn(session);
    rig.fails(sandbox, 1);
    rig.shut_down(60_000);
    rig.pass(PAUSE_MS);
    assert_eq!(rig.count(restart_process), 0);
    has_ended(&rig, Status::Failed, Reason::RestartFailed);
}

#[test]
fn freeze_that_still_waits_for_a_save_is_refused_when_a_program_is_restarted() {
    let mut rig = Rig::with_pool(template(0, 1), DOCKER);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    rig.starts_as(sandbox, 1, false, 0, ALWAYS);
    rig.fails(sandbox, 1);
    rig.effects.retain(|effect| persist(&effect.action));
    let request = rig.ask_freeze(sandbox);
    assert_eq!((rig.count(persist), rig.count(freeze)), (1, 0), "its files are saved first");
    rig.pass(PAUSE_MS);
    assert_eq!(rig.refused(request), ErrorCode::SandboxBusy);
    rig.finish(restart_process, Outcome::Done);
    rig.finish(persist, Outcome::Done);
    assert_eq!(rig.count(freeze), 0);
    assert!(!rig.frozen(sandbox) && rig.overs.is_empty());
}

/// A caller reads about the processes of a sandbox.
fn reads(rig: &mut Rig, sandbox: SandboxId) {
    let _ = rig.apply(Event::ProcessesRead { sandbox });
}

#[test]
fn process_that_is_polled_keeps_its_sandbox_from_being_frozen() {
    let (mut rig, session, sandbox) = scene(false);
    for _ in 0..40 {
        rig.live(1_000);
        reads(&mut rig, sandbox);
        assert!(!rig.frozen(sandbox) && rig.count(freeze) == 0);
    }
    assert_eq!(rig.status(session), SessionStatus::Active);
    // Without a process there is nothing to wait for.
    rig.exits(sandbox, 1);
    for _ in 0..20 {
        rig.live(1_000);
        reads(&mut rig, sandbox);
    }
    assert!(rig.frozen(sandbox));
}

#[test]
fn poll_of_a_process_thaws_a_sandbox_that_was_frozen_because_it_was_idle() {
    for when in ["frozen", "being frozen"] {
        let (mut rig, _, sandbox) = scene(false);
        while rig.count(freeze) == 0 {
            rig.pass(1_000);
        }
        if when == "being frozen" {
            reads(&mut rig, sandbox);
            rig.finish(freeze, Outcome::Done);
        } else {
            rig.finish(freeze, Outcome::Done);
            assert!(rig.frozen(sandbox));
            reads(&mut rig, sandbox);
            reads(&mut rig, sandbox);
        }
        rig.finish(thaw, Outcome::Done);
        assert!(!rig.frozen(sandbox), "{when}");
        rig.run();
        assert_eq!(rig.count(freeze), 0, "{when}: it is quiet for a while first");
    }
}

#[test]
fn poll_counts_after_a_use_of_a_sandbox_that_was_thawed_for_a_copy() {
    let mut rig = Rig::with_pool(template(0, 3), DOCKER);
    let (session, sandbox) = rig.session();
    rig.starts_as(sandbox, 1, false, 0, ALWAYS);
    rig.ask_freeze(sandbox);
    rig.run();
    assert!(rig.frozen(sandbox));
    rig.fork(session);
    rig.finish(thaw, Outcome::Done);
    let use_id = rig.session_exec(session);
    rig.use_ended(use_id);
    rig.run();
    for _ in 0..20 {
        rig.live(1_000);
        reads(&mut rig, sandbox);
    }
    assert!(!rig.frozen(sandbox), "the request to freeze it was before its last use");
}

#[test]
fn poll_of_a_process_thaws_nothing_that_was_frozen_or_paused_on_request() {
    let asks: [fn(&mut Rig, SessionId, SandboxId); 2] = [
        |rig, _, sandbox| {
            rig.ask_freeze(sandbox);
        },
        |rig, session, _| {
            rig.pause(session);
        },
    ];
    for ask in asks {
        let (mut rig, session, sandbox) = scene(false);
        ask(&mut rig, session, sandbox);
        reads(&mut rig, sandbox);
        rig.run();
        assert!(rig.frozen(sandbox));
        reads(&mut rig, sandbox);
        rig.run();
        assert!(rig.frozen(sandbox), "only a use thaws it");
        // After a use it is a sandbox like any other.
        rig.session_work(session);
        for _ in 0..20 {
            rig.live(1_000);
            reads(&mut rig, sandbox);
        }
        assert!(!rig.frozen(sandbox));
    }
    // Frozen because it was idle, and then on request.
    let (mut rig, _, sandbox) = scene(false);
    rig.live(30_000);
    assert!(rig.frozen(sandbox));
    let request = rig.ask_freeze(sandbox);
    assert_eq!(rig.answered(request), Reply::Frozen { frozen: true });
    reads(&mut rig, sandbox);
    rig.run();
    assert!(rig.frozen(sandbox));
}

#[test]
fn poll_of_a_process_spares_no_sandbox_that_must_end() {
    let (mut rig, _, sandbox) = scene(false);
    rig.delete(sandbox);
    reads(&mut rig, sandbox);
    rig.run();
    assert_eq!(rig.terminations(sandbox).len(), 1);
    reads(&mut rig, sandbox);
    assert!(rig.effects.is_empty(), "{:?}", rig.effects);
}
