//! Freeze and idle sweep: an idle sandbox is frozen, then swept; one that is used or held is
//! neither; and a use of a frozen one thaws it.

use model::template::RuntimeTraits;
use model::{EndCause, ErrorCode, Mono, NodeConfig, SandboxState, SessionStatus, Template};

use super::rig::{
    NATIVE, Rig, freeze, gone, kill, launch, persist, start_turn, template, thaw, trouble,
};
use crate::{Failure, FailureKind, Outcome, Reply, SessionSettings, UseKind, UseTarget};

fn alone() -> Rig {
    Rig::with_pool(template(0, 1), NATIVE)
}

fn unsupported() -> Outcome {
    Outcome::Failed(Failure { kind: FailureKind::Unsupported, detail: "no freezer".into() })
}

#[test]
fn a_sandbox_is_frozen_after_it_was_quiet_for_as_long_as_its_template_says() {
    for (own_ms, after_ms) in [(None, 10_000), (Some(3_000), 3_000)] {
        let mut rig =
            Rig::with_pool(Template { freeze_after_ms: own_ms, ..template(0, 1) }, NATIVE);
        let (session, sandbox) = rig.session();
        rig.pass(after_ms - 1);
        rig.session_work(session);
        rig.pass(after_ms - 1);
        assert_eq!(rig.count(freeze), 0, "the use began it anew");
        rig.pass(1);
        assert_eq!(rig.count(freeze), 1);
        rig.run();
        assert!(rig.frozen(sandbox));
        assert_eq!(rig.state(sandbox), SandboxState::Waiting);
    }
}

#[test]
fn sandbox_with_activity_is_not_frozen_or_swept() {
    for kind in [Some(UseKind::Exec), Some(UseKind::Files), Some(UseKind::Port), None] {
        let mut rig = alone();
        let (session, _) = rig.session();
        let mut over: Box<dyn FnMut(&mut Rig)> = if let Some(kind) = kind {
            let (_, use_id) = rig.use_of(UseTarget::Session(session), kind);
            Box::new(move |rig| rig.use_ended(use_id))
        } else {
            let (_, turn) = rig.running_turn(session);
            Box::new(move |rig| rig.end_turn(session, turn))
        };
        rig.pass(3_500_000);
        assert!(rig.effects.is_empty(), "{kind:?}: {:?}", rig.effects);
        over(&mut rig);
        rig.pass(9_999);
        assert!(rig.effects.is_empty(), "{kind:?}: the end of a use is a use");
        rig.pass(1);
        assert_eq!(rig.count(freeze), 1, "{kind:?}");
    }
}

#[test]
fn use_of_a_frozen_sandbox_thaws_it_first() {
    let mut rig = Rig::with_pool(template(1, 1), NATIVE);
    let lease = rig.lease();
    let (session, sandbox) = rig.session();
    rig.live(20_000);
    for sandbox in [lease.sandbox, sandbox] {
        assert!(rig.frozen(sandbox));
        let (request, use_id) = rig.use_of(UseTarget::Sandbox(sandbox), UseKind::Exec);
        assert_eq!((rig.pending(request), rig.count(thaw)), (true, 1));
        rig.run();
        assert_eq!(rig.granted(request).sandbox, sandbox);
        assert!(!rig.frozen(sandbox));
        rig.use_ended(use_id);
    }
    rig.live(20_000);
    assert!(rig.frozen(sandbox));
    assert_eq!(rig.whole_turn(session).sandbox, sandbox);
}

#[test]
fn a_use_that_comes_while_it_is_being_frozen_waits_and_is_served() {
    // Whatever becomes of the freeze, the use is not lost.
    for (outcome, thaws) in [(Outcome::Done, 1), (trouble(), 1), (unsupported(), 0)] {
        for leased in [true, false] {
            let mut rig = alone();
            let sandbox = if leased { rig.lease().sandbox } else { rig.session().1 };
            rig.pass(10_000);
            let (request, _) = rig.use_of(UseTarget::Sandbox(sandbox), UseKind::Exec);
            assert!(rig.pending(request));
            rig.finish(freeze, outcome.clone());
            assert_eq!(rig.count(thaw), thaws);
            rig.run();
            assert_eq!(rig.granted(request).sandbox, sandbox);
            assert_eq!(rig.state(sandbox), SandboxState::Running);
        }
    }
}

#[test]
fn sandbox_that_may_be_half_frozen_is_thawed_before_use() {
    for outcome in [Some(trouble()), Some(Outcome::TimedOut), None] {
        let mut rig = alone();
        let (session, sandbox) = rig.session();
        rig.pass(10_000);
        if let Some(outcome) = outcome {
            rig.finish(freeze, outcome);
        } else {
            rig.effects.clear();
            rig.pass(2_000);
        }
        assert!(!rig.frozen(sandbox), "no event says that it is frozen");
        rig.live(600_000);
        assert_eq!(rig.count(freeze), 0);
        rig.turn(session);
        assert_eq!((rig.count(thaw), rig.count(start_turn)), (1, 0));
        rig.run();
        assert_eq!(rig.last_active(session).sandbox, sandbox);
    }
}

#[test]
fn a_sandbox_that_cannot_be_thawed_is_replaced_or_its_lease_is_lost() {
    let table = [
        (trouble(), EndCause::FreezeFailed),
        (Outcome::TimedOut, EndCause::FreezeFailed),
        (gone(), EndCause::Crash),
    ];
    for (outcome, cause) in table {
        let mut rig = alone();
        let lease = rig.lease();
        rig.live(20_000);
        let (request, _) = rig.use_of(UseTarget::Sandbox(lease.sandbox), UseKind::Exec);
        rig.finish(thaw, outcome.clone());
        assert_eq!(rig.refused(request), ErrorCode::SandboxCrashed);
        rig.run();
        assert_eq!(rig.terminations(lease.sandbox), [(1, cause)]);
        let (request, _) = rig.use_of(UseTarget::Sandbox(lease.sandbox), UseKind::Exec);
        assert_eq!(rig.refused(request), ErrorCode::SandboxGone);
        let (session, sandbox) = rig.session();
        rig.live(20_000);
        let (request, _) = rig.turn(session);
        rig.finish(thaw, outcome);
        rig.run();
        assert_ne!(rig.session_ready(request).sandbox, sandbox);
        assert_eq!(rig.last_active(session).previous, Some(sandbox));
    }
}

#[test]
fn a_sandbox_is_frozen_and_thawed_when_asked() {
    let mut rig = alone();
    for leased in [true, false] {
        let sandbox = if leased { rig.lease().sandbox } else { rig.session().1 };
        let request = rig.ask_thaw(sandbox);
        assert_eq!(rig.answered(request), Reply::Frozen { frozen: false });
        let request = rig.ask_freeze(sandbox);
        assert!(rig.pending(request));
        rig.run();
        assert_eq!(rig.answered(request), Reply::Frozen { frozen: true });
        let request = rig.ask_freeze(sandbox);
        assert_eq!(rig.answered(request), Reply::Frozen { frozen: true });
        let request = rig.ask_thaw(sandbox);
        assert!(rig.pending(request));
        rig.run();
        assert_eq!(rig.answered(request), Reply::Frozen { frozen: false });
        assert!(!rig.frozen(sandbox));
    }
}

#[test]
fn freeze_on_request_is_refused_for_a_used_or_ended_sandbox() {
    let mut rig = alone();
    let (session, sandbox) = rig.session();
    let use_id = rig.session_exec(session);
    let request = rig.ask_freeze(sandbox);
    assert_eq!(rig.refused(request), ErrorCode::SandboxBusy);
    rig.use_ended(use_id);
    rig.live(3_600_000);
    for request in [rig.ask_freeze(sandbox), rig.ask_thaw(sandbox)] {
        assert_eq!(rig.refused(request), ErrorCode::SandboxGone);
    }
}

#[test]
fn a_thaw_asked_for_during_a_freeze_is_answered_whatever_becomes_of_that() {
    for leased in [true, false] {
        for outcome in [Outcome::Done, trouble(), Outcome::TimedOut, unsupported()] {
            let mut rig = alone();
            let sandbox = if leased { rig.lease().sandbox } else { rig.session().1 };
            rig.pass(10_000);
            let request = rig.ask_thaw(sandbox);
            assert!(rig.pending(request));
            rig.finish(freeze, outcome.clone());
            rig.run();
            assert_eq!(rig.answered(request), Reply::Frozen { frozen: false }, "{outcome:?}");
            rig.live(20_000);
            assert!(rig.frozen(sandbox) || outcome == unsupported(), "it may rest again");
        }
    }
}

#[test]
fn failed_freeze_is_reported_to_its_caller() {
    let table = [
        (trouble(), ErrorCode::SandboxBusy),
        (unsupported(), ErrorCode::Unsupported),
        (Outcome::TimedOut, ErrorCode::DeadlineExceeded),
        (gone(), ErrorCode::SandboxCrashed),
    ];
    for (outcome, code) in table {
        let mut rig = alone();
        let (_, sandbox) = rig.session();
        let request = rig.ask_freeze(sandbox);
        rig.finish(freeze, outcome);
        assert_eq!(rig.refused(request), code);
    }
}

#[test]
fn a_runtime_that_cannot_freeze_is_never_asked_to_and_sweeps_all_the_same() {
    let traits = RuntimeTraits { can_freeze: false, ..NATIVE };
    let mut rig = Rig::with_pool(template(0, 1), traits);
    let (session, sandbox) = rig.session();
    let request = rig.ask_freeze(sandbox);
    assert_eq!(rig.refused(request), ErrorCode::Unsupported);
    rig.pass(600_000);
    assert_eq!(rig.count(freeze), 0);
    let paused = rig.pause(session);
    assert_eq!(rig.answered(paused), Reply::Paused);
    rig.live(3_600_000);
    assert_eq!(rig.state(sandbox), SandboxState::Cold);
}

#[test]
fn a_lease_may_be_frozen_and_is_never_swept_or_evicted() {
    let config = NodeConfig { max_live: 1, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 5), NATIVE);
    let request = rig.checkout_with(|checkout| checkout.ttl_ms = Some(86_400_000));
    rig.run();
    let sandbox = rig.checked_out(request).sandbox;
    rig.live(7_200_000);
    assert!(rig.frozen(sandbox));
    rig.session_wait_ms = Some(0);
    let (_, refused) = rig.create_session();
    assert_eq!(rig.refused(refused), ErrorCode::CapacityExhausted);
    assert_ne!(rig.state(sandbox), SandboxState::Cold);
}

#[test]
fn the_sweep_comes_at_fixed_times_and_saves_before_it_kills() {
    let mut rig =
        Rig::with_pool(Template { idle_timeout_ms: Some(100_000), ..template(0, 1) }, NATIVE);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    let due = rig.now.mono.plus(100_000);
    let sweep = Mono(due.0.div_ceil(60_000) * 60_000);
    rig.live(sweep.since(rig.now.mono) - 1);
    assert_eq!((rig.count(persist), rig.status(session)), (0, SessionStatus::Active));
    rig.pass(1);
    assert_eq!((rig.count(persist), rig.count(kill)), (1, 0));
    rig.run();
    assert_eq!(rig.state(sandbox), SandboxState::Cold);
    assert_eq!(rig.status(session), SessionStatus::Paused);
    assert_eq!(rig.terminations(sandbox), [(1, EndCause::Idle)]);
}

#[test]
fn the_patience_of_the_sweep_is_the_sessions_then_the_templates_then_the_nodes() {
    let minute = 60_000;
    let table = [
        (None, None, 1_800_000),
        (None, Some(5 * minute), 5 * minute),
        (Some(2 * minute), Some(5 * minute), 2 * minute),
        (Some(90 * minute), Some(5 * minute), 90 * minute),
    ];
    for (own, of_template, patience) in table {
        let template = Template { idle_timeout_ms: of_template, ..template(0, 1) };
        let mut rig = Rig::with_pool(template, NATIVE);
        let settings = SessionSettings { idle_timeout_ms: own, ..SessionSettings::default() };
        rig.create_session_with(settings);
        rig.run();
        let sandbox = rig.kernel.sandboxes()[0].id;
        rig.live(patience - 1);
        assert_ne!(rig.state(sandbox), SandboxState::Cold);
        rig.live(minute + 1);
        assert_eq!(rig.state(sandbox), SandboxState::Cold);
    }
}

/// Lets time pass until the sweep begins to save.
fn until_swept(rig: &mut Rig) {
    for _ in 0..1_000 {
        if rig.count(persist) > 0 {
            return;
        }
        rig.pass(10_000);
        rig.effects.retain(|effect| !freeze(&effect.action));
    }
    panic!("no sweep came");
}

#[test]
fn a_use_voids_a_sweep_that_has_not_killed_yet() {
    let mut rig = alone();
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    rig.live(1_000_000);
    until_swept(&mut rig);
    let (request, _) = rig.turn(session);
    rig.run();
    let ready = rig.session_ready(request);
    assert_eq!((ready.sandbox, ready.generation.0), (sandbox, 1));
    assert_eq!(rig.state(sandbox), SandboxState::Running);
    assert_eq!((rig.count(kill), rig.count(launch)), (0, 0));
}

#[test]
fn files_that_cannot_be_saved_are_not_swept_away() {
    let mut rig = alone();
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    rig.live(1_700_000);
    until_swept(&mut rig);
    rig.finish(persist, trouble());
    assert_eq!(rig.count(kill), 0);
    assert_ne!(rig.state(sandbox), SandboxState::Cold);
    rig.live(120_000);
    assert_eq!(rig.state(sandbox), SandboxState::Cold, "another sweep comes");
    assert!(rig.loss_reasons(session).is_empty());
}

#[test]
fn looking_at_a_sandbox_is_no_use_of_it() {
    let mut rig = alone();
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    let used = rig.kernel.sandbox(sandbox).unwrap().last_used_at;
    for _ in 0..9 {
        rig.pass(1_000);
        let _ = (rig.kernel.why(rig.now, sandbox), rig.kernel.keep_alive_report(sandbox));
        let _ = (rig.kernel.stats(), rig.of(session), rig.kernel.pools());
        assert_eq!(rig.kernel.sandbox(sandbox).unwrap().last_used_at, used);
    }
    rig.pass(1_000);
    assert_eq!(rig.count(freeze), 1);
}

#[test]
fn why_says_when_a_sandbox_will_be_frozen_and_swept() {
    let mut rig = alone();
    let (_, sandbox) = rig.session();
    let why = |rig: &Rig| match rig.kernel.why(rig.now, sandbox) {
        Some(model::why::Why::Alive(alive)) => alive,
        other => panic!("expected one that lives, found {other:?}"),
    };
    let born = rig.now;
    assert_eq!(why(&rig).freezes_at, Some(born.wall.plus(10_000)));
    let sweep = Mono((born.mono.0 + 1_800_000).div_ceil(60_000) * 60_000);
    assert_eq!(why(&rig).sleeps_at, Some(born.wall.plus(sweep.since(born.mono))));
    rig.starts(sandbox, 1, None);
    assert_eq!((why(&rig).freezes_at, why(&rig).sleeps_at), (None, None));
    assert_eq!(why(&rig).keep_alive_processes, 1);
}
