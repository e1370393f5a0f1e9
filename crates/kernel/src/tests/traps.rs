//! Known defects of earlier pools, by number. Each test is one that such a pool fails. J22, a
//! forged answer on a shared channel, is no decision and is tested with the guest.

use model::{EndCause, ErrorCode, InstanceId, NodeConfig};

use super::rig::{
    DOCKER, NATIVE, Rig, claim, full, gone, kill, launch, prove, secret_settings, template,
    trouble, wipe,
};
use crate::{Action, CheckedOut, DeathCause, Event, Outcome, UseKind, UseTarget};

fn used_lease(rig: &mut Rig) -> CheckedOut {
    let lease = rig.lease();
    rig.use_once(lease.sandbox);
    lease
}

#[test]
fn j1_no_wake_up_is_lost_and_no_caller_barges_in() {
    for traits in [NATIVE, DOCKER] {
        let mut rig = Rig::with_pool(template(1, 0), traits);
        let lease = used_lease(&mut rig);
        let waiters = [(); 3].map(|()| rig.checkout());
        rig.give_back(lease.lease);
        let newcomer = rig.checkout();
        let mut served = Vec::new();
        for _ in 0..4 {
            rig.run();
            let all = waiters.iter().chain([&newcomer]);
            let new: Vec<_> = all.filter(|w| !rig.pending(**w) && !served.contains(*w)).collect();
            assert_eq!(new.len(), 1, "a return serves exactly one, at once");
            served.push(*new[0]);
            let lease = rig.checked_out(*new[0]);
            rig.use_once(lease.sandbox);
            rig.give_back(lease.lease);
        }
        assert_eq!(served, [waiters[0], waiters[1], waiters[2], newcomer]);
    }
}

#[test]
fn j2_a_return_never_waits_for_the_slot_it_frees() {
    // Every slot is taken and all leases are returned at once, with the last use of each.
    let mut worn = template(3, 0);
    worn.pool.max_uses = 1;
    let mut rig = Rig::with_pool(worn, DOCKER);
    let leases = [(); 3].map(|()| used_lease(&mut rig));
    let waiters = [(); 3].map(|()| rig.checkout());
    for lease in leases {
        rig.give_back(lease.lease);
    }
    assert_eq!((rig.count(kill), rig.pool().leased), (3, 0), "all are returned");
    rig.run();
    assert!(waiters.iter().all(|waiter| !rig.pending(*waiter)));
}

#[test]
fn j3_a_dead_sandbox_does_not_recirculate() {
    for traits in [NATIVE, DOCKER] {
        // It died while it was idle, and the claim is the first to find out.
        let mut rig = Rig::asking(template(2, 0), traits);
        let request = rig.checkout();
        let dead = rig.instances(claim);
        rig.finish(claim, gone());
        rig.run();
        assert!(!dead.contains(&rig.checked_out(request).instance));
        // It died while it was used, and its user returns it before the death is reported.
        let lease = used_lease(&mut rig);
        rig.give_back(lease.lease);
        rig.die(lease.instance, DeathCause::Crash);
        rig.run();
        assert!(rig.idle().iter().all(|idle| idle.instance != Some(lease.instance)));
    }
}

#[test]
fn j4_an_unfinished_use_never_shares_with_the_next() {
    let mut rig = Rig::with_pool(template(1, 0), DOCKER);
    let lease = rig.lease();
    let exec = rig.exec(lease.sandbox);
    let waiter = rig.checkout();
    rig.give_back(lease.lease);
    assert_eq!(rig.broken.remove(0).0, exec);
    assert_eq!((rig.count(wipe), rig.count(claim)), (1, 0), "its processes are killed first");
    rig.finish(wipe, Outcome::Done);
    assert_eq!((rig.count(prove), rig.count(claim)), (1, 0), "and that is proven");
    rig.finish(prove, trouble());
    assert_eq!((rig.instances(kill), rig.count(claim)), (vec![lease.instance], 0));
    rig.run();
    assert_ne!(rig.checked_out(waiter).instance, lease.instance);
}

#[test]
fn j5_a_cancelled_checkout_leaks_nothing_wherever_it_is() {
    // The client goes away after so many effects have ended.
    for steps in 0..6 {
        for traits in [NATIVE, DOCKER] {
            let mut rig = Rig::new(NodeConfig::default());
            rig.put(template(0, 2), traits);
            let settings = secret_settings();
            let request = rig.checkout_with(|checkout| checkout.claim = Some(settings));
            for _ in 0..steps {
                if let Some(effect) = rig.effects.pop_front() {
                    rig.end_effect(&effect, Outcome::Done);
                }
            }
            let _ = rig.apply(Event::ClientGone { request });
            rig.run();
            if let Some(Ok(_)) = rig.answer(request) {
                let lease = rig.checked_out(request).lease;
                rig.give_back(lease);
                rig.run();
            }
            let pool = rig.pool();
            assert_eq!((pool.leased, pool.waiters, pool.launching), (0, 0, 0), "{steps}");
            assert_eq!(pool.slots_used, pool.idle, "{steps}");
            let both = [rig.lease(), rig.lease()];
            assert_ne!(both[0].instance, both[1].instance, "both slots can be had");
        }
    }
}

#[test]
fn j6_a_slot_is_released_once_and_only_when_the_removal_is_confirmed() {
    let (mut rig, lease) = full();
    let sandbox = rig.kernel.sandboxes().remove(0);
    let instance = sandbox.instance.unwrap();
    rig.use_once(sandbox.id);
    rig.give_back(lease);
    let waiter = rig.checkout();
    // It says that it died, its removal fails, and one that timed out ends after all.
    rig.die(instance, DeathCause::Crash);
    let first = rig.finish(kill, trouble());
    assert_eq!((rig.pool().slots_used, rig.count(launch)), (1, 0));
    rig.pass(1_000);
    let second = rig.effects.pop_front().unwrap();
    rig.pass(10_000);
    rig.end_effect(&second, Outcome::Done);
    assert_eq!((rig.pool().slots_used, rig.count(launch)), (1, 0), "that one was given up");
    rig.pass(2_000);
    let third = rig.finish(kill, Outcome::Done);
    assert_eq!((rig.pool().slots_used, rig.count(launch)), (1, 1), "freed, and taken again");
    for again in [first, second, third] {
        rig.end_effect(&again, Outcome::Done);
    }
    rig.die(instance, DeathCause::Crash);
    assert_eq!((rig.pool().slots_used, rig.count(launch)), (1, 1));
    rig.run();
    rig.checked_out(waiter);
    assert_eq!(rig.end_causes(sandbox.id), [EndCause::Returned]);
}

#[test]
fn j7_a_shutdown_refuses_cancels_and_leaves_nothing() {
    let mut rig = Rig::asking(template(1, 2), DOCKER);
    let running = rig.lease();
    rig.exec(running.sandbox);
    let wiping = used_lease(&mut rig);
    let claiming = rig.checkout();
    let (launching, waiting) = (rig.checkout(), rig.checkout());
    rig.give_back(wiping.lease);
    let _ = rig.apply(Event::ShutdownBegan { grace_ms: 5_000 });
    for request in [claiming, launching, waiting, rig.checkout()] {
        assert_eq!(rig.refused(request), ErrorCode::ShuttingDown);
    }
    assert!(!rig.instances(kill).contains(&running.instance), "what runs has its grace");
    for late in rig.effects.clone() {
        // What was started comes up during the stop: nothing of it is handed out or kept.
        if !matches!(late.action, Action::Kill { .. }) {
            rig.end_effect(&late, Outcome::Done);
        }
    }
    assert_eq!((rig.pool().idle, rig.stopped), (0, false));
    rig.pass(5_000);
    assert!(rig.instances(kill).contains(&running.instance));
    rig.effects.retain(|effect| matches!(effect.action, Action::Kill { .. }));
    while rig.count(kill) > 0 {
        assert!(!rig.stopped, "it stops when the last is gone");
        rig.finish(kill, Outcome::Done);
    }
    assert!(rig.stopped);
    assert_eq!((rig.kernel.stats().total, rig.pool().slots_used), (0, 0));
}

#[test]
fn j8_what_a_crash_left_is_found_and_removed() {
    let mut rig = Rig::asking(template(1, 3), NATIVE);
    let lease = used_lease(&mut rig);
    let launching = rig.checkout();
    let stray = InstanceId::from_u128(0xdead);
    let known: Vec<InstanceId> =
        rig.kernel.sandboxes().iter().filter_map(|view| view.instance).collect();
    assert!(rig.pending(launching) && known.len() >= 2);
    let mut alive = known.clone();
    alive.push(stray);
    let recovery = rig.restart(&alive);
    assert_eq!(recovery.orphans, 1);
    let mut killed = rig.instances(kill);
    killed.sort_unstable();
    alive.sort_unstable();
    assert_eq!(killed, alive, "what no record names, and what was being started, too");
    let lost = rig.apply(Event::LeaseReturned { lease: lease.lease });
    assert_eq!(lost.map_err(|refusal| refusal.code), Err(ErrorCode::LeaseLost));
    rig.run();
    assert_eq!((rig.pool().idle, rig.pool().slots_used), (1, 1));
    assert!(rig.idle().iter().all(|idle| !alive.contains(&idle.instance.unwrap())));
}

#[test]
fn j8_orphans_take_a_place_until_they_are_gone() {
    let config = NodeConfig { max_live: 1, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(1, 0), NATIVE);
    rig.restart(&[InstanceId::from_u128(0xdead)]);
    rig.finish(kill, trouble());
    assert_eq!(rig.count(launch), 0);
    rig.live(60_000);
    assert_eq!(rig.pool().idle, 1, "its removal is tried until it works");
}

#[test]
fn j20_no_process_serves_two_users() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let first = used_lease(&mut rig);
    rig.give_back(first.lease);
    rig.run();
    assert_ne!(rig.lease().instance, first.instance);
}

#[test]
fn j21_the_last_users_late_calls_do_not_reach_the_next() {
    let mut rig = Rig::with_pool(template(1, 0), DOCKER);
    let first = rig.lease();
    let late = rig.exec(first.sandbox);
    rig.give_back(first.lease);
    rig.run();
    let second = rig.lease();
    assert_eq!(second.instance, first.instance, "the same one, wiped");
    let exec = rig.exec(second.sandbox);
    rig.use_ended(late);
    assert_eq!(rig.kernel.stats().running, 1, "the end of another's use is not the end of mine");
    let (request, _) = rig.use_of(UseTarget::Sandbox(first.sandbox), UseKind::Exec);
    assert_eq!(rig.refused(request), ErrorCode::SandboxGone);
    assert!(rig.apply(Event::LeaseRenewed { lease: first.lease, ttl_ms: None }).is_err());
    rig.give_back(first.lease);
    assert_eq!(rig.kernel.stats().running, 1, "nor is another's return");
    rig.use_ended(exec);
    assert_eq!(rig.kernel.stats().running, 0);
}

#[test]
fn j23_settings_of_one_user_are_gone_for_the_next() {
    let mut rig = Rig::with_pool(template(1, 0), DOCKER);
    let settings = secret_settings();
    let request = rig.checkout_with(|checkout| checkout.claim = Some(settings));
    rig.run();
    let first = rig.checked_out(request);
    rig.give_back(first.lease);
    assert_eq!(rig.count(wipe), 1, "settings alone are worth a wipe");
    rig.run();
    let request = rig.checkout();
    let bound = rig.finish(claim, Outcome::Done);
    assert!(matches!(bound.action, Action::Claim { settings: None, .. }));
    let second = rig.checked_out(request);
    assert_eq!(second.instance, first.instance);
    let (request, _) = rig.use_of(UseTarget::Sandbox(second.sandbox), UseKind::Exec);
    assert_eq!(rig.granted(request).settings, None);
}

#[test]
fn j24_a_wipe_counts_only_when_it_is_proven() {
    let mut rig = Rig::asking(template(1, 0), DOCKER);
    let lease = used_lease(&mut rig);
    let waiter = rig.checkout();
    rig.give_back(lease.lease);
    for step in [wipe as fn(&Action) -> bool, prove] {
        assert_eq!((rig.instances(step), rig.count(claim)), (vec![lease.instance], 0));
        rig.finish(step, Outcome::Done);
    }
    assert_eq!(rig.instances(claim), [lease.instance]);
    rig.run();
    rig.checked_out(waiter);
}
