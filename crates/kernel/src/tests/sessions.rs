//! Sessions: how they get a sandbox, what each status allows, and what is left at their end.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::lifecycle::ActiveCause;
use model::{
    ClaimSettings, EndCause, ErrorCode, NodeConfig, SandboxState, SandboxStatus, SessionId,
    SessionStatus, TerminatedReason,
};

use super::rig::{NATIVE, Rig, claim, gone, kill, launch, name, template, trouble};
use crate::{Action, Event, Outcome, Reply, SessionSettings, UseKind, UseTarget, WhenBusy};

/// A node on which a session's sandbox is the only one.
fn alone() -> Rig {
    Rig::with_pool(template(0, 1), NATIVE)
}

fn settings() -> SessionSettings {
    let env = BTreeMap::from([("KEY".to_owned(), "value".to_owned())]);
    let claim = Some(Arc::new(ClaimSettings { env, ..ClaimSettings::default() }));
    SessionSettings { claim, ..SessionSettings::default() }
}

#[test]
fn a_new_session_takes_an_idle_sandbox_of_the_pool() {
    let mut rig = Rig::with_pool(template(1, 1), NATIVE);
    let idle = rig.kernel.sandboxes()[0].id;
    let (session, request) = rig.create_session();
    assert_eq!(rig.count(claim), 1);
    assert!(rig.pending(request), "it is proven to answer first");
    rig.finish(claim, Outcome::Done);
    let ready = rig.session_ready(request);
    assert_eq!((ready.sandbox, ready.cause), (idle, ActiveCause::Created));
    rig.run();
    assert_eq!(rig.kernel.pool_stats(&name()).unwrap().idle, 1, "another took its place");
    assert_eq!(rig.status(session), SessionStatus::Active);
}

#[test]
fn without_an_idle_one_a_sandbox_is_launched_for_the_session() {
    let mut rig = alone();
    let (session, request) = rig.create_session();
    assert_eq!((rig.count(launch), rig.pending(request)), (1, true));
    assert_eq!(rig.status(session), SessionStatus::Starting);
    rig.launched();
    let ready = rig.session_ready(request);
    assert_eq!((ready.generation.0, ready.cause), (1, ActiveCause::Created));
    assert_eq!(rig.state(ready.sandbox), SandboxState::Warm);
    let seen = rig.of(session);
    assert_eq!(
        (seen.status, seen.sandbox_status),
        (SessionStatus::Active, SandboxStatus::Connected)
    );
    assert_eq!(seen.sandbox_id, Some(ready.sandbox));
}

#[test]
fn an_idle_one_that_dies_while_it_is_bound_is_replaced_by_another() {
    for outcome in [trouble(), gone(), Outcome::TimedOut] {
        let mut rig = Rig::with_pool(template(1, 1), NATIVE);
        let (_, request) = rig.create_session();
        let first = rig.seen_claim();
        rig.finish(claim, outcome);
        rig.run();
        let ready = rig.session_ready(request);
        assert_ne!(ready.instance, first);
        assert!(ready.generation.0 > 1, "the one that was lost had a generation too");
        assert!(!rig.existing.contains(&first));
    }
}

#[test]
fn settings_that_no_sandbox_accepts_do_not_use_up_the_pool() {
    for turn in [false, true] {
        let mut rig = Rig::with_pool(template(4, 1), NATIVE);
        let session = if turn { Some(rig.session().0) } else { None };
        if let Some(session) = session {
            let sandbox = rig.of(session).sandbox_id.unwrap();
            rig.delete(sandbox);
            rig.run();
        }
        let before = rig.kernel.pool_stats(&name()).unwrap().counters.launched;
        let request = match session {
            Some(session) => rig.turn(session).0,
            None => rig.create_session().1,
        };
        rig.finish(claim, trouble());
        rig.finish(kill, Outcome::Done);
        rig.finish(claim, trouble());
        assert_eq!(rig.refused(request), ErrorCode::LaunchFailed, "turn {turn}");
        rig.run();
        let after = rig.kernel.pool_stats(&name()).unwrap().counters.launched;
        assert!(after <= before + 2, "{before} {after}");
    }
}

impl Rig {
    fn seen_claim(&self) -> model::InstanceId {
        let bound = |action: &Action| {
            let Action::Claim { instance, .. } = action else { return None };
            Some(*instance)
        };
        self.effects.iter().find_map(|effect| bound(&effect.action)).expect("a claim")
    }
}

#[test]
fn settings_are_bound_however_the_session_gets_its_sandbox() {
    for pool_size in [0, 1] {
        let mut rig = Rig::with_pool(template(pool_size, 1), NATIVE);
        let (session, _) = rig.create_session_with(settings());
        let bound = if let Action::Claim { settings, .. } = &rig.effects[0].action {
            settings.clone()
        } else {
            rig.launching().settings.clone()
        };
        assert_eq!(bound, settings().claim);
        rig.run();
        let (request, use_id) = rig.use_of(UseTarget::Session(session), UseKind::Exec);
        assert_eq!(rig.granted(request).settings, settings().claim);
        rig.use_ended(use_id);
        rig.live(3_600_000);
        rig.resume(session);
        assert_eq!(rig.launching().settings, settings().claim, "also when it wakes");
    }
}

#[test]
fn failed_launch_of_a_session_is_reported_after_its_removal() {
    let cases = [
        (Some(trouble()), ErrorCode::LaunchFailed, EndCause::LaunchFailed),
        (Some(gone()), ErrorCode::LaunchFailed, EndCause::LaunchFailed),
        (Some(Outcome::TimedOut), ErrorCode::ReadyTimeout, EndCause::ReadyTimeout),
        // No report comes, so the deadline ends it.
        (None, ErrorCode::ReadyTimeout, EndCause::ReadyTimeout),
    ];
    for (outcome, code, cause) in cases {
        let config = NodeConfig { max_live: 1, ..NodeConfig::default() };
        let mut rig = Rig::with(config, template(0, 5), NATIVE);
        let (session, request) = rig.create_session();
        let sandbox = rig.launching().sandbox;
        match outcome {
            Some(outcome) => {
                rig.finish(launch, outcome);
            }
            None => rig.pass(30_000),
        }
        assert!(rig.pending(request), "its place is not free yet");
        rig.effects.retain(|effect| kill(&effect.action));
        rig.killed();
        assert_eq!(rig.refused(request), code);
        assert_eq!(rig.kernel.session(session), None);
        assert!(rig.kernel.sandboxes().is_empty() && rig.store.sessions.is_empty());
        assert!(rig.terminations(sandbox).is_empty(), "no client heard of it");
        let why = rig.kernel.why(rig.now, sandbox);
        assert!(matches!(why, Some(model::why::Why::Ended(ended)) if ended.cause == cause));
        let (_, next) = rig.create_session();
        assert!(rig.pending(next) && rig.count(launch) == 1, "the place is free again");
    }
}

#[test]
fn a_client_that_goes_away_during_creation_leaves_nothing() {
    for pool_size in [0, 1] {
        let mut rig = Rig::with_pool(template(pool_size, 1), NATIVE);
        let (session, request) = rig.create_session();
        rig.client_gone(request);
        rig.run();
        assert_eq!(rig.kernel.session(session), None);
        assert!(rig.store.sessions.is_empty());
        assert_eq!(rig.kernel.sandboxes().len(), pool_size as usize);
        assert_eq!(rig.existing.len(), pool_size as usize);
        assert!(rig.actives(session).is_empty());
    }
}

#[test]
fn a_client_that_goes_away_while_it_waits_for_a_place_takes_none() {
    let config = NodeConfig { max_live: 1, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 5), NATIVE);
    let (first, sandbox) = rig.session();
    rig.session_work(first);
    let (second, request) = rig.create_session();
    assert!(rig.pending(request), "the first gives way");
    rig.client_gone(request);
    rig.run();
    assert_eq!(rig.kernel.session(second), None);
    assert_eq!(rig.kernel.sandboxes().len(), 1);
    assert_eq!(rig.resumed(first).sandbox, sandbox);
}

#[test]
fn parallel_first_commands_make_one_sandbox() {
    let mut rig = alone();
    let (session, created) = rig.create_session();
    let uses = [UseKind::Exec, UseKind::Files, UseKind::Port]
        .map(|kind| rig.use_of(UseTarget::Session(session), kind).0);
    let (turn, _) = rig.turn(session);
    assert_eq!(rig.count(launch), 1);
    rig.run();
    let ready = rig.session_ready(created);
    for request in uses {
        assert_eq!(rig.granted(request).instance, ready.instance);
    }
    assert_eq!(rig.session_ready(turn).instance, ready.instance);
    assert_eq!(rig.kernel.sandboxes().len(), 1);
}

#[test]
fn parallel_commands_wake_a_cold_session_once() {
    let mut rig = alone();
    let (session, sandbox) = rig.slept_session();
    let target = UseTarget::Session(session);
    let uses = [UseTarget::Sandbox(sandbox), target, target]
        .map(|target| rig.use_of(target, UseKind::Exec).0);
    assert_eq!(rig.count(launch), 1);
    rig.run();
    let instances = uses.map(|request| rig.granted(request).instance);
    assert_eq!(instances, [rig.instance(sandbox); 3]);
    assert_eq!(rig.actives(session).len(), 2);
}

/// A session in each status.
fn in_status(status: SessionStatus) -> (Rig, SessionId) {
    let mut rig = alone();
    let (session, _) = rig.create_session();
    if status == SessionStatus::Starting {
        return (rig, session);
    }
    rig.run();
    rig.session_work(session);
    match status {
        SessionStatus::Starting | SessionStatus::Active => {}
        SessionStatus::Paused => {
            rig.pause(session);
        }
        SessionStatus::Stopped => {
            rig.stop(session);
        }
        SessionStatus::Ended => {
            rig.end(session);
        }
    }
    rig.run();
    let found = rig.kernel.session(session).map_or(SessionStatus::Ended, |seen| seen.status);
    assert_eq!(found, status);
    (rig, session)
}

type Asked = Result<SessionStatus, ErrorCode>;

#[test]
fn each_operation_does_in_each_status_what_it_says() {
    use ErrorCode::{SessionBusy, SessionEnded, SessionStopped};
    use SessionStatus::{Active, Ended, Paused, Starting, Stopped};
    let ask: [fn(&mut Rig, SessionId) -> model::RequestId; 5] =
        [Rig::pause, Rig::resume, Rig::stop, Rig::end, |rig, session| {
            rig.turn_with(session, WhenBusy::Refuse).0
        }];
    let table: [(SessionStatus, [Asked; 5]); 5] = [
        (Starting, [Err(SessionBusy), Ok(Active), Err(SessionBusy), Ok(Ended), Ok(Active)]),
        (Active, [Ok(Paused), Ok(Active), Ok(Stopped), Ok(Ended), Ok(Active)]),
        (Paused, [Ok(Paused), Ok(Active), Ok(Stopped), Ok(Ended), Ok(Active)]),
        (Stopped, [Err(SessionStopped), Ok(Active), Ok(Stopped), Ok(Ended), Err(SessionStopped)]),
        (
            Ended,
            [Err(SessionEnded), Err(SessionEnded), Err(SessionEnded), Ok(Ended), Err(SessionEnded)],
        ),
    ];
    for (status, expected) in table {
        for (at, expected) in expected.into_iter().enumerate() {
            let (mut rig, session) = in_status(status);
            let request = ask[at](&mut rig, session);
            rig.run();
            match expected {
                Err(code) => assert_eq!(rig.refused(request), code, "{status:?}, operation {at}"),
                Ok(next) => {
                    rig.answered(request);
                    let found = rig.kernel.session(session).map_or(Ended, |seen| seen.status);
                    assert_eq!(found, next, "{status:?}, operation {at}");
                }
            }
        }
    }
}

#[test]
fn resumes_are_counted_as_warm_or_cold_by_call_and_by_message() {
    for by_call in [true, false] {
        let again = |rig: &mut Rig, session: SessionId| {
            if by_call {
                rig.resumed(session);
            } else {
                rig.whole_turn(session);
            }
        };
        let mut rig = alone();
        let (session, sandbox) = rig.session();
        again(&mut rig, session);
        let hits = |rig: &Rig| {
            let stats = rig.kernel.stats();
            (stats.resume_warm_hits, stats.resume_cold_hits)
        };
        assert_eq!(hits(&rig), (0, 0), "it was not set aside");
        rig.pause(session);
        rig.run();
        again(&mut rig, session);
        assert_eq!(hits(&rig), (1, 0));
        rig.live(3_600_000);
        assert_eq!(rig.state(sandbox), SandboxState::Cold);
        again(&mut rig, session);
        assert_eq!(hits(&rig), (1, 1));
        assert_eq!(rig.of(session).generation.0, 2);
    }
}

#[test]
fn a_stopped_session_goes_on_by_call_only_and_with_its_files() {
    let (mut rig, session) = in_status(SessionStatus::Stopped);
    assert_eq!(rig.processes(), 0);
    let sandbox = rig.kernel.sandboxes()[0].id;
    for target in [UseTarget::Session(session), UseTarget::Sandbox(sandbox)] {
        let (request, _) = rig.use_of(target, UseKind::Exec);
        assert_eq!(rig.refused(request), ErrorCode::SessionStopped);
    }
    let request = rig.resume(session);
    assert!(rig.launching().restore);
    rig.run();
    let ready = rig.session_ready(request);
    assert_eq!((ready.sandbox, ready.generation.0), (sandbox, 2));
    assert_eq!((ready.cause, ready.lost().is_some()), (ActiveCause::Resumed, false));
}

#[test]
fn a_session_that_ends_leaves_nothing_and_stays_ended() {
    let (mut rig, session) = in_status(SessionStatus::Ended);
    assert_eq!((rig.kernel.session(session), rig.kernel.sandboxes().len()), (None, 0));
    assert!(rig.store.sessions.is_empty() && rig.store.sandboxes.is_empty());
    assert!(rig.store.doomed.is_empty() && rig.existing.is_empty());
    let again = rig.end(session);
    assert_eq!(rig.answered(again), Reply::Ended, "it stays ended when it is forgotten");
    let turn = rig.turn(session).0;
    assert_eq!(rig.refused(turn), ErrorCode::SessionEnded);
}

#[test]
fn a_session_without_its_template_is_refused_and_one_of_a_drained_pool_is_not() {
    let mut rig = alone();
    let (session, _) = rig.slept_session();
    let _ = rig.apply(Event::PoolDrained { template: name() });
    let (_, request) = rig.create_session();
    assert_eq!(rig.refused(request), ErrorCode::PoolClosed);
    rig.whole_turn(session);
    rig.live(3_600_000);
    let destroy = |rig: &mut Rig, force| {
        rig.ask(|request| Event::PoolDestroyed { request, template: name(), force })
    };
    let refused = destroy(&mut rig, false);
    assert_eq!(rig.refused(refused), ErrorCode::TemplateInUse);
    let forced = destroy(&mut rig, true);
    rig.run();
    assert_eq!(rig.answered(forced), Reply::Gone);
    let turn = rig.turn(session).0;
    assert_eq!(rig.refused(turn), ErrorCode::TemplateUnknown);
    let (_, request) = rig.create_session();
    assert_eq!(rig.refused(request), ErrorCode::TemplateUnknown);
    rig.put(template(0, 1), NATIVE);
    assert_eq!(rig.whole_turn(session).session, session, "its files waited for the template");
}

#[test]
fn sessions_have_a_limit_and_ids_are_used_once() {
    let config = NodeConfig { max_sessions: 1, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 2), NATIVE);
    let (session, sandbox) = rig.session();
    let (_, request) = rig.create_session();
    assert_eq!(rig.refused(request), ErrorCode::CapacityExhausted);
    let same = |rig: &mut Rig| {
        rig.ask(|request| Event::SessionCreated {
            request,
            session,
            template: name(),
            settings: SessionSettings::default(),
            wait_ms: None,
        })
    };
    let request = same(&mut rig);
    assert_eq!(rig.refused(request), ErrorCode::IdConflict);
    rig.end(session);
    rig.run();
    rig.delete(sandbox);
    let request = same(&mut rig);
    assert_eq!(rig.refused(request), ErrorCode::IdConflict, "also when it has ended");
    rig.session();
}

#[test]
fn sandbox_deleted_under_its_session_is_reported_as_lost_and_replaced() {
    let mut rig = alone();
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    let deleted = rig.delete(sandbox);
    assert!(rig.pending(deleted), "it is confirmed when it is gone");
    rig.run();
    assert_eq!(rig.answered(deleted), Reply::Gone);
    assert_eq!(rig.loss_reasons(session), [TerminatedReason::Deleted]);
    let seen = rig.of(session);
    assert_eq!((seen.sandbox_status, seen.sandbox_id), (SandboxStatus::Disconnected, None));
    assert!(seen.state_lost);
    let ready = rig.resumed(session);
    assert_ne!(ready.sandbox, sandbox);
    assert_eq!((ready.cause, ready.lost().is_some()), (ActiveCause::Replaced, true));
    assert_eq!(ready.generation.0, 2);
    assert!(rig.last_active(session).state_lost && !rig.of(session).state_lost);
    let (request, _) = rig.use_of(UseTarget::Sandbox(sandbox), UseKind::Exec);
    assert_eq!(rig.refused(request), ErrorCode::SandboxGone);
}
