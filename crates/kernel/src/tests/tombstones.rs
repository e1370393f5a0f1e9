//! Calls on what has ended: answered at once and with the reason, while the tombstone is there,
//! also after a restart.

use model::{EndCause, ErrorCode, LeaseId, NodeConfig, Refusal, SandboxId, SessionId, UseId};

use super::rig::{DOCKER, NATIVE, Rig, claim, template};
use crate::{CheckedOut, DeathCause, Event, Outcome, Reply, UseKind, UseTarget};

/// Ends a lease that was used, in some way.
type End = fn(&mut Rig, &CheckedOut);

fn crash(rig: &mut Rig, out: &CheckedOut) {
    rig.die(out.instance, DeathCause::Crash);
}

fn destroy_pool(rig: &mut Rig) {
    let template = super::rig::name();
    rig.ask(|request| Event::PoolDestroyed { request, template, force: true });
}

/// How a lease may end, the reason that is reported, and the answer to a return.
const ENDS: &[(EndCause, Result<(), ErrorCode>, End)] = &[
    (EndCause::Returned, Ok(()), |rig, out| rig.give_back(out.lease)),
    (EndCause::Crash, Ok(()), crash),
    (EndCause::Oom, Ok(()), |rig, out| rig.die(out.instance, DeathCause::Oom)),
    (EndCause::Deleted, Ok(()), |rig, out| {
        rig.ask(|request| Event::DeleteRequested { request, sandbox: out.sandbox });
    }),
    (EndCause::LeaseExpired, Err(ErrorCode::LeaseLost), |rig, _| rig.pass(600_000)),
    (EndCause::PoolClosed, Err(ErrorCode::LeaseLost), |rig, _| destroy_pool(rig)),
    (EndCause::Restart, Err(ErrorCode::LeaseLost), |rig, _| {
        let alive: Vec<_> = rig.existing.iter().copied().collect();
        rig.restart(&alive);
    }),
];

/// The answers to every call that names a sandbox.
fn calls(rig: &mut Rig, sandbox: SandboxId) -> Vec<(&'static str, Result<Reply, Refusal>)> {
    let use_id = UseId::from_u128(rig.id());
    let target = UseTarget::Sandbox(sandbox);
    let used = rig.ask(|request| Event::UseRequested {
        request,
        target,
        use_id,
        kind: UseKind::Exec,
        wait_ms: None,
    });
    let frozen = rig.ask(|request| Event::FreezeRequested { request, sandbox });
    let thawed = rig.ask(|request| Event::ThawRequested { request, sandbox });
    let stopped = rig.apply(Event::StopRequested { sandbox, after_ms: 0 });
    let answered = |request| rig.answer(request).cloned().expect("an answer at once");
    vec![
        ("use", answered(used)),
        ("freeze", answered(frozen)),
        ("thaw", answered(thawed)),
        ("stop", stopped),
    ]
}

/// Every call on a sandbox and a lease that ended like this says so.
#[track_caller]
fn says_why(rig: &mut Rig, out: &CheckedOut, cause: EndCause, returned: Result<(), ErrorCode>) {
    let words = cause.in_words();
    for (call, answer) in calls(rig, out.sandbox) {
        let refusal = answer.expect_err(call);
        assert_eq!(refusal.code, ErrorCode::SandboxGone, "{call} after {cause:?}");
        assert!(refusal.cause.contains(words), "{call}: {}", refusal.cause);
    }
    let renewed = rig.apply(Event::LeaseRenewed { lease: out.lease, ttl_ms: None });
    let refusal = renewed.expect_err("no renewal");
    assert_eq!(refusal.code, ErrorCode::LeaseLost, "{cause:?}");
    assert!(refusal.cause.contains(words), "{}", refusal.cause);
    assert_eq!(rig.kernel.why_lease(out.lease), Some(cause));
    for _ in 0..2 {
        let answer = rig.apply(Event::LeaseReturned { lease: out.lease });
        let answer = answer.map(|reply| assert_eq!(reply, Reply::Noted));
        assert_eq!(answer.map_err(|refusal| refusal.code), returned, "{cause:?}");
    }
}

#[test]
fn tombstone_says_why_during_the_removal_and_after_it_and_after_a_restart() {
    for traits in [NATIVE, DOCKER] {
        for (cause, returned, end) in ENDS {
            let mut rig = Rig::with_pool(template(1, 0), traits);
            let out = rig.lease();
            rig.use_once(out.sandbox);
            end(&mut rig, &out);
            says_why(&mut rig, &out, *cause, *returned);
            // Nothing is left.
            rig.run();
            says_why(&mut rig, &out, *cause, *returned);
            rig.restart(&[]);
            says_why(&mut rig, &out, *cause, *returned);
        }
    }
}

#[test]
fn tombstone_is_the_same_after_a_kill_during_the_removal() {
    for traits in [NATIVE, DOCKER] {
        for (cause, returned, end) in ENDS {
            let mut rig = Rig::with_pool(template(1, 0), traits);
            let out = rig.lease();
            rig.use_once(out.sandbox);
            end(&mut rig, &out);
            let alive: Vec<_> = rig.existing.iter().copied().collect();
            rig.restart(&alive);
            says_why(&mut rig, &out, *cause, *returned);
            rig.run();
            says_why(&mut rig, &out, *cause, *returned);
            assert_eq!(rig.end_causes(out.sandbox), [*cause]);
        }
    }
}

#[test]
fn ended_session_says_so_also_after_a_restart() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let (session, sandbox) = rig.session();
    rig.ask(|request| Event::SessionEndRequested { request, session });
    rig.run();
    rig.ask(|request| Event::DeleteRequested { request, sandbox });
    rig.run();
    let (kept, _) = rig.session();
    for _ in 0..2 {
        let (over, _) = rig.turn(session);
        assert_eq!(rig.refused(over), ErrorCode::SessionEnded);
        rig.restart(&[]);
        rig.run();
    }
    rig.whole_turn(kept);
    let (unknown, _) = rig.turn(SessionId::from_u128(99));
    assert_eq!(rig.refused(unknown), ErrorCode::SessionUnknown);
}

#[test]
fn a_return_that_finds_nothing_to_give_back_changes_nothing() {
    for (_, returned, end) in ENDS {
        if returned.is_err() {
            continue;
        }
        let mut rig = Rig::with_pool(template(1, 1), NATIVE);
        let out = rig.lease();
        rig.use_once(out.sandbox);
        end(&mut rig, &out);
        rig.run();
        let next = rig.lease();
        let seen = |rig: &Rig| (rig.kernel.sandboxes(), rig.kernel.pools(), rig.published.len());
        let before = seen(&rig);
        rig.give_back(out.lease);
        assert_eq!(seen(&rig), before);
        rig.use_once(next.sandbox);
    }
}

#[test]
fn a_crashed_lease_is_retired_without_its_return() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let out = rig.lease();
    crash(&mut rig, &out);
    rig.run();
    let pool = rig.pool();
    assert_eq!((pool.leased, pool.idle, pool.counters.crashed), (0, 1, 1));
    assert_ne!(rig.idle()[0].instance, Some(out.instance));
    rig.give_back(out.lease);
    assert_eq!(rig.pool().idle, 1);
}

#[test]
fn dead_lease_is_retired_by_its_return_or_its_death() {
    // An untouched lease would go back as it is, were it not dead.
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let out = rig.lease();
    rig.give_back(out.lease);
    rig.die(out.instance, DeathCause::Crash);
    rig.run();
    assert_ne!(rig.idle()[0].instance, Some(out.instance));
    assert_eq!(rig.kernel.why_lease(out.lease), Some(EndCause::Returned));
}

#[test]
fn a_lease_whose_client_went_away_was_given_back() {
    let mut rig = Rig::asking(template(1, 0), NATIVE);
    let lease = LeaseId::from_u128(77);
    let request = rig.checkout_with(|checkout| checkout.lease = lease);
    let _ = rig.apply(Event::ClientGone { request });
    rig.finish(claim, Outcome::Done);
    assert_eq!(rig.kernel.why_lease(lease), Some(EndCause::ClientGone));
    rig.give_back(lease);
}

#[test]
fn unknown_or_forgotten_ids_are_unknown() {
    let config = NodeConfig { remembered_ends: 1, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(1, 0), NATIVE);
    let first = rig.lease();
    rig.give_back(first.lease);
    let second = rig.lease();
    rig.give_back(second.lease);
    rig.give_back(second.lease);
    for lease in [first.lease, LeaseId::from_u128(99)] {
        let answer = rig.apply(Event::LeaseReturned { lease });
        assert_eq!(answer.map_err(|refusal| refusal.code), Err(ErrorCode::LeaseUnknown));
    }
    for (call, answer) in calls(&mut rig, first.sandbox) {
        let code = answer.map_err(|refusal| refusal.code);
        assert_eq!(code, Err(ErrorCode::SandboxUnknown), "{call}");
    }
}
