//! Draining and destroying a pool. Both are fences: nothing enters a pool that is closing, and a
//! destroyed pool is gone when the removal of its last sandbox is confirmed.

use model::state::PoolPhase;
use model::{EndCause, ErrorCode, NodeConfig, RequestId};

use super::rig::{
    DOCKER, NATIVE, Rig, claim, kill, launch, name, secret_settings, template, trouble, wipe,
};
use crate::{Action, DeathCause, Effect, Event, Outcome, Reply, UseKind, UseTarget};

fn drain(rig: &mut Rig) {
    assert_eq!(rig.apply(Event::PoolDrained { template: name() }), Ok(Reply::Noted));
}

fn resume(rig: &mut Rig) {
    assert_eq!(rig.apply(Event::PoolResumed { template: name() }), Ok(Reply::Noted));
}

fn destroy(rig: &mut Rig, force: bool) -> RequestId {
    rig.ask(|request| Event::PoolDestroyed { request, template: name(), force })
}

fn is_gone(rig: &Rig) -> bool {
    rig.kernel.pool_stats(&name()).is_none() && !rig.store.pools.contains_key(&name())
}

/// What a sandbox of a pool may be doing when its pool begins to close.
#[derive(Debug, Clone, Copy)]
enum Doing {
    Launching,
    Wiping,
    Proving,
    Killing,
}

const DOINGS: [Doing; 4] = [Doing::Launching, Doing::Wiping, Doing::Proving, Doing::Killing];

/// A pool with one sandbox, which is doing this.
fn doing(what: Doing) -> Rig {
    let mut rig = Rig::new(NodeConfig::default());
    rig.put(template(1, 0), DOCKER);
    if matches!(what, Doing::Launching) {
        return rig;
    }
    rig.run();
    let lease = rig.lease();
    rig.use_once(lease.sandbox);
    match what {
        Doing::Launching | Doing::Wiping => rig.give_back(lease.lease),
        Doing::Proving => {
            rig.give_back(lease.lease);
            rig.finish(wipe, Outcome::Done);
        }
        Doing::Killing => rig.die(lease.instance, DeathCause::Crash),
    }
    rig
}

#[test]
fn a_drained_pool_keeps_nothing_and_hands_out_nothing() {
    let mut rig = Rig::with_pool(template(2, 0), NATIVE);
    let lease = rig.lease();
    let idle = rig.idle().remove(0);
    drain(&mut rig);
    assert_eq!(rig.instances(kill), Vec::from_iter(idle.instance));
    let request = rig.checkout();
    assert_eq!(rig.refused(request), ErrorCode::PoolClosed);
    rig.run();
    assert_eq!(rig.end_cause(idle.id), EndCause::PoolClosed);
    rig.use_once(lease.sandbox);
    rig.give_back(lease.lease);
    rig.run();
    rig.live(60_000);
    assert_eq!((rig.pool().slots_used, rig.pool().phase), (0, PoolPhase::Draining));
}

#[test]
fn an_untouched_lease_does_not_enter_a_pool_that_drains() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let lease = rig.lease();
    drain(&mut rig);
    rig.give_back(lease.lease);
    assert_eq!(rig.instances(kill), [lease.instance]);
}

#[test]
fn drain_refuses_waiting_callers() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    rig.lease();
    let waiters = [(); 2].map(|()| rig.checkout());
    drain(&mut rig);
    for waiter in waiters {
        assert_eq!(rig.refused(waiter), ErrorCode::PoolClosed);
    }
}

#[test]
fn nothing_is_put_into_a_pool_that_drains() {
    for what in DOINGS {
        let mut rig = doing(what);
        drain(&mut rig);
        rig.run();
        assert_eq!((rig.pool().idle, rig.pool().slots_used), (0, 0), "{what:?}");
        resume(&mut rig);
        rig.run();
        assert_eq!((rig.pool().idle, rig.pool().phase), (1, PoolPhase::Active), "{what:?}");
    }
}

#[test]
fn checkout_in_progress_when_a_drain_begins_is_served_or_refused() {
    for (outcome, served) in [(Outcome::Done, true), (trouble(), false)] {
        let mut rig = Rig::asking(template(2, 0), NATIVE);
        let request = rig.checkout();
        drain(&mut rig);
        rig.finish(claim, outcome);
        if served {
            rig.checked_out(request);
        } else {
            assert_eq!(rig.refused(request), ErrorCode::PoolClosed);
        }
    }
}

#[test]
fn a_drain_taken_back_at_once_serves_as_before() {
    let mut rig = Rig::with_pool(template(1, 1), NATIVE);
    let lease = rig.lease();
    drain(&mut rig);
    resume(&mut rig);
    rig.give_back(lease.lease);
    rig.run();
    rig.lease();
}

#[test]
fn a_pool_without_sandboxes_is_destroyed_at_once() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let request = destroy(&mut rig, false);
    assert_eq!(rig.answered(request), Reply::Gone);
    assert!(is_gone(&rig));
    let request = destroy(&mut rig, false);
    assert_eq!(rig.refused(request), ErrorCode::TemplateUnknown);
}

#[test]
fn a_destroyed_pool_is_gone_when_its_last_removal_is_confirmed() {
    let mut rig = Rig::with_pool(template(2, 0), NATIVE);
    let request = destroy(&mut rig, false);
    rig.finish(kill, Outcome::Done);
    assert!(rig.pending(request));
    rig.finish(kill, trouble());
    rig.pass(1_000);
    assert!(rig.pending(request) && !is_gone(&rig), "it may still exist");
    rig.finish(kill, Outcome::Done);
    assert_eq!(rig.answered(request), Reply::Gone);
    assert!(is_gone(&rig));
    assert_eq!(rig.kernel.stats().total, 0);
}

#[test]
fn nothing_is_put_into_a_pool_that_is_destroyed() {
    for what in DOINGS {
        let mut rig = doing(what);
        let is_kill = |effect: &Effect| matches!(effect.action, Action::Kill { .. });
        let (kills, late): (Vec<_>, Vec<_>) = rig.effects.drain(..).partition(is_kill);
        rig.effects.extend(kills);
        let request = destroy(&mut rig, false);
        assert!(rig.pending(request), "{what:?}");
        assert_eq!((rig.effects.len(), rig.count(kill)), (1, 1), "{what:?}: it is not waited for");
        for effect in late {
            rig.end_effect(&effect, Outcome::Done);
        }
        assert_eq!((rig.pool().idle, rig.effects.len()), (0, 1), "{what:?}");
        rig.finish(kill, Outcome::Done);
        assert_eq!(rig.answered(request), Reply::Gone, "{what:?}");
        assert_eq!(rig.count(launch), 0, "{what:?}");
    }
}

#[test]
fn leases_outlive_a_destroy_unless_it_is_forced() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let lease = rig.lease();
    rig.exec(lease.sandbox);
    let gentle = destroy(&mut rig, false);
    assert!(rig.effects.is_empty());
    let (request, _) = rig.use_of(UseTarget::Sandbox(lease.sandbox), UseKind::Files);
    rig.granted(request);
    let forced = destroy(&mut rig, true);
    assert_eq!(rig.instances(kill), [lease.instance]);
    assert_eq!(rig.broken.len(), 2, "its uses are notified");
    assert!(rig.pending(gentle) && rig.pending(forced));
    rig.run();
    for request in [gentle, forced] {
        assert_eq!(rig.answered(request), Reply::Gone);
    }
    assert_eq!(rig.end_cause(lease.sandbox), EndCause::PoolClosed);
}

#[test]
fn a_lease_returned_to_a_pool_that_is_destroyed_ends_it() {
    for settings in [None, Some(secret_settings())] {
        let mut rig = Rig::with_pool(template(1, 0), DOCKER);
        let request = rig.checkout_with(|checkout| checkout.claim = settings);
        rig.run();
        let lease = rig.checked_out(request);
        let request = destroy(&mut rig, false);
        rig.give_back(lease.lease);
        assert_eq!((rig.instances(kill), rig.count(wipe)), (vec![lease.instance], 0));
        rig.run();
        assert_eq!(rig.answered(request), Reply::Gone);
    }
}

#[test]
fn a_destroy_answers_those_who_wait_and_those_who_come() {
    for force in [false, true] {
        let mut rig = Rig::asking(template(2, 0), NATIVE);
        let lease = rig.lease();
        let claiming = rig.checkout();
        let waiting = rig.checkout();
        let request = destroy(&mut rig, force);
        let newcomer = rig.checkout();
        assert_eq!(rig.refused(waiting), ErrorCode::TemplateUnknown);
        assert_eq!(rig.refused(newcomer), ErrorCode::TemplateUnknown);
        if force {
            assert_eq!(rig.refused(claiming), ErrorCode::TemplateUnknown);
            rig.run();
        } else {
            rig.run();
            let claimed = rig.checked_out(claiming);
            assert!(rig.pending(request));
            rig.give_back(claimed.lease);
            rig.give_back(lease.lease);
            rig.run();
        }
        assert_eq!(rig.answered(request), Reply::Gone);
    }
}

#[test]
fn a_destroy_that_takes_too_long_says_so_and_goes_on() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let lease = rig.lease();
    let request = destroy(&mut rig, false);
    rig.pass(119_999);
    assert!(rig.pending(request));
    rig.pass(1);
    assert_eq!(rig.refused(request), ErrorCode::DeadlineExceeded);
    rig.effects.clear();
    rig.give_back(lease.lease);
    rig.run();
    assert!(is_gone(&rig));
}

#[test]
fn a_repeated_destroy_is_recognised() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let request = destroy(&mut rig, false);
    let again = Event::PoolDestroyed { request, template: name(), force: false };
    assert_eq!(rig.apply(again), Ok(Reply::Pending));
    rig.run();
    assert_eq!(rig.answered(request), Reply::Gone);
}

#[test]
fn a_client_that_goes_away_does_not_stop_a_destroy() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let request = destroy(&mut rig, false);
    let _ = rig.apply(Event::ClientGone { request });
    rig.run();
    assert!(rig.pending(request) && is_gone(&rig));
}

#[test]
fn a_pool_that_is_destroyed_cannot_be_changed() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    destroy(&mut rig, false);
    let put = Event::TemplatePut { template: template(1, 0).into(), traits: NATIVE };
    let size = Event::PoolResized { template: name(), pool_size: 3, max_overflow: 0 };
    for (event, code) in [
        (put.clone(), ErrorCode::TemplateInUse),
        (size, ErrorCode::TemplateUnknown),
        (Event::PoolDrained { template: name() }, ErrorCode::TemplateUnknown),
        (Event::PoolResumed { template: name() }, ErrorCode::TemplateUnknown),
    ] {
        assert_eq!(rig.apply(event).map_err(|refusal| refusal.code), Err(code));
    }
    rig.run();
    assert_eq!(rig.apply(put), Ok(Reply::Noted), "the name is free again");
    rig.run();
    rig.lease();
}

#[test]
fn sessions_keep_their_template_unless_it_is_forced_away() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    rig.session();
    let request = destroy(&mut rig, false);
    assert_eq!(rig.refused(request), ErrorCode::TemplateInUse);
    assert_eq!(rig.pool().phase, PoolPhase::Active);
    let request = destroy(&mut rig, true);
    rig.run();
    assert_eq!(rig.answered(request), Reply::Gone);
}

#[test]
fn a_destroy_goes_on_after_a_restart() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let idle = rig.idle().remove(0);
    destroy(&mut rig, false);
    rig.restart(&Vec::from_iter(idle.instance));
    assert_eq!((rig.count(kill), rig.count(launch)), (1, 0));
    rig.run();
    assert!(is_gone(&rig));
}
