//! The size of a pool: refilled to its target at a bounded rate, shrunk after a surplus has lasted
//! a while, resized, and renewed when its template is replaced.

use model::stats::PoolCounters;
use model::{EndCause, ErrorCode, NodeConfig, Template, TemplateName};

use super::rig::{
    DOCKER, NATIVE, Rig, claim, kill, launch, name, refusal, template, trouble, wipe,
};
use crate::{DeathCause, Event, Outcome, Reply};

fn resize(rig: &mut Rig, pool_size: u32, max_overflow: u32) {
    let resized = Event::PoolResized { template: name(), pool_size, max_overflow };
    assert_eq!(rig.apply(resized), Ok(Reply::Noted));
}

fn with_rate(mut template: Template, refill_per_s: u32) -> Template {
    template.pool.refill_per_s = refill_per_s;
    template
}

/// A change that makes a template useless.
type Spoil = fn(&mut Template);

/// The same template with another recipe.
fn changed(mut template: Template) -> Template {
    template.limits.pids += 1;
    template
}

fn put_refused(rig: &mut Rig, template: Template) -> (ErrorCode, String) {
    let put = Event::TemplatePut { template: template.into(), traits: NATIVE };
    let refusal = rig.apply(put).expect_err("a refusal");
    (refusal.code, refusal.cause.into_owned())
}

#[test]
fn a_pool_is_filled_to_its_target_and_no_further() {
    let mut rig = Rig::new(NodeConfig::default());
    rig.put(template(5, 3), NATIVE);
    assert_eq!((rig.count(launch), rig.pool().launching), (5, 5));
    rig.run();
    rig.live(60_000);
    let pool = rig.pool();
    assert_eq!((pool.idle, pool.launching, pool.slots_used, pool.slots), (5, 0, 5, 8));
    assert_eq!(pool.counters.launched, 5);
}

#[test]
fn refill_is_rate_limited_by_a_bucket_of_one_second() {
    let mut rig = Rig::new(NodeConfig::default());
    rig.put(with_rate(template(10, 0), 2), NATIVE);
    assert_eq!(rig.count(launch), 2, "what one second allows begins at once");
    rig.pass(499);
    assert_eq!(rig.count(launch), 2);
    rig.pass(1);
    assert_eq!(rig.count(launch), 3);
    rig.pass(1_500);
    assert_eq!(rig.count(launch), 6);
    rig.pass(10_000);
    assert_eq!(rig.count(launch), 10, "the target, however long it takes");
}

#[test]
fn refill_bucket_holds_at_most_one_second() {
    let mut rig = Rig::with_pool(with_rate(template(2, 0), 2), NATIVE);
    rig.live(60_000);
    resize(&mut rig, 10, 0);
    assert_eq!(rig.count(launch), 2);
}

#[test]
fn launches_for_waiters_are_not_rate_limited() {
    let mut rig = Rig::new(NodeConfig::default());
    rig.put(with_rate(template(0, 10), 1), NATIVE);
    for _ in 0..10 {
        rig.checkout();
    }
    assert_eq!(rig.count(launch), 10);
}

#[test]
fn pool_target_does_not_count_waiters() {
    let mut rig = Rig::new(NodeConfig::default());
    rig.put(template(2, 10), NATIVE);
    let waiters = [(); 3].map(|()| rig.checkout());
    assert_eq!(rig.count(launch), 5, "three for them, and two to keep ready");
    rig.run();
    assert!(waiters.iter().all(|waiter| !rig.pending(*waiter)));
    assert_eq!((rig.pool().leased, rig.pool().idle), (3, 2));
}

#[test]
fn refill_never_takes_more_than_the_slots() {
    let mut rig = Rig::with_pool(template(3, 1), NATIVE);
    let leases = [(); 4].map(|()| rig.lease());
    assert_eq!((rig.pool().slots_used, rig.pool().idle), (4, 0));
    rig.give_back(leases[0].lease);
    rig.live(120_000);
    assert_eq!((rig.pool().slots_used, rig.pool().idle), (4, 1));
}

#[test]
fn refill_takes_room_that_is_free_and_makes_none() {
    let config = NodeConfig { max_live: 3, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(5, 0), NATIVE);
    assert_eq!((rig.pool().idle, rig.count(launch), rig.count(kill)), (3, 0, 0));
    let dead = rig.idle().remove(0).instance.unwrap();
    rig.die(dead, DeathCause::Crash);
    assert_eq!(rig.count(launch), 0, "the dead one takes its place until it is gone");
    rig.run();
    assert_eq!(rig.pool().idle, 3, "then it is made up for");
}

#[test]
fn a_dead_idle_sandbox_is_made_up_for_at_once() {
    let mut rig = Rig::with_pool(template(1, 1), NATIVE);
    let dead = rig.idle().remove(0);
    rig.die(dead.instance.unwrap(), DeathCause::Oom);
    assert_eq!((rig.count(kill), rig.count(launch)), (1, 1));
    rig.run();
    assert_eq!((rig.pool().idle, rig.end_cause(dead.id)), (1, EndCause::Oom));
}

#[test]
fn surplus_is_given_up_only_after_a_while() {
    let mut rig = Rig::with_pool(template(1, 2), NATIVE);
    let leases = [(); 3].map(|()| rig.lease());
    for lease in &leases {
        rig.give_back(lease.lease);
    }
    assert_eq!((rig.pool().idle, rig.count(kill)), (3, 0), "they may be wanted again soon");
    rig.pass(29_999);
    assert_eq!(rig.count(kill), 0);
    rig.pass(1);
    assert_eq!((rig.pool().idle, rig.count(kill)), (1, 2));
    assert!(!rig.instances(kill).contains(&leases[2].instance), "the oldest go");
}

#[test]
fn surplus_that_was_wanted_again_starts_its_time_anew() {
    let mut rig = Rig::with_pool(template(1, 1), NATIVE);
    let leases = [rig.lease(), rig.lease()];
    rig.give_back(leases[0].lease);
    rig.give_back(leases[1].lease);
    rig.pass(29_000);
    let again = rig.lease();
    rig.give_back(again.lease);
    rig.pass(29_999);
    assert_eq!(rig.count(kill), 0);
    rig.pass(1);
    assert_eq!(rig.count(kill), 1);
}

#[test]
fn a_pool_grows_at_once_and_shrinks_with_patience() {
    let mut rig = Rig::with_pool(template(2, 0), NATIVE);
    let known = rig.idle();
    resize(&mut rig, 4, 0);
    assert_eq!((rig.count(launch), rig.count(kill)), (2, 0), "those that exist stay");
    rig.run();
    assert_eq!(rig.pool().slots, 4);
    resize(&mut rig, 1, 0);
    assert_eq!(rig.count(kill), 0);
    rig.live(30_000);
    assert_eq!((rig.pool().idle, rig.pool().slots_used, rig.pool().slots), (1, 1, 1));
    assert_eq!(rig.end_cause(known[0].id), EndCause::Surplus);
}

#[test]
fn a_smaller_pool_hands_out_nothing_until_it_fits() {
    let mut rig = Rig::with_pool(template(3, 0), NATIVE);
    let leases = [(); 3].map(|()| {
        let lease = rig.lease();
        rig.use_once(lease.sandbox);
        lease
    });
    resize(&mut rig, 1, 0);
    let waiter = rig.checkout();
    for lease in &leases[..2] {
        rig.give_back(lease.lease);
        rig.run();
        assert!(rig.pending(waiter));
    }
    rig.give_back(leases[2].lease);
    rig.run();
    rig.checked_out(waiter);
    assert_eq!(rig.pool().slots_used, 1);
}

#[test]
fn more_overflow_serves_waiters() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    rig.lease();
    let waiter = rig.checkout();
    resize(&mut rig, 1, 1);
    assert_eq!(rig.count(launch), 1);
    rig.run();
    rig.checked_out(waiter);
}

#[test]
fn pool_size_that_could_never_work_is_refused() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let nothing = Event::PoolResized { template: name(), pool_size: 0, max_overflow: 0 };
    let refusal = rig.apply(nothing).expect_err("a refusal");
    assert_eq!(refusal.code, ErrorCode::InvalidArgument);
    assert!(refusal.cause.contains("pool_size"), "{}", refusal.cause);
    assert_eq!(rig.pool().slots, 1);
}

#[test]
fn a_template_that_could_never_work_is_refused_by_field() {
    let mut rig = Rig::new(NodeConfig::default());
    let cases: [(&str, Spoil); 4] = [
        ("pool.pool_size", |t| (t.pool.pool_size, t.pool.max_overflow) = (0, 0)),
        ("pool.acquire_min_remaining_ttl_ms", |t| {
            t.pool.acquire_min_remaining_ttl_ms = Some(t.pool.idle_ttl_ms);
        }),
        ("pool.max_uses", |t| t.pool.max_uses = 0),
        ("limits.memory_mb", |t| t.limits.memory_mb = 0),
    ];
    for (field, spoil) in cases {
        let mut bad = template(1, 1);
        spoil(&mut bad);
        let (code, cause) = put_refused(&mut rig, bad);
        assert_eq!(code, ErrorCode::TemplateInvalid);
        assert!(cause.starts_with(field), "{cause}");
        assert!(rig.kernel.pools().is_empty());
    }
}

#[test]
fn the_same_template_again_changes_nothing() {
    let mut rig = Rig::with_pool(template(2, 0), NATIVE);
    let idle = rig.idle();
    rig.put(template(2, 0), NATIVE);
    assert!(rig.effects.is_empty());
    assert_eq!(rig.idle(), idle);
}

#[test]
fn a_replaced_template_retires_what_it_made() {
    let mut rig = Rig::with_pool(template(1, 2), NATIVE);
    let lease = rig.lease();
    let idle = rig.idle().remove(0);
    rig.put(changed(template(1, 2)), NATIVE);
    assert_eq!(rig.instances(kill), Vec::from_iter(idle.instance), "leases run on");
    rig.run();
    assert_eq!(rig.end_cause(idle.id), EndCause::TemplateReplaced);
    rig.use_once(lease.sandbox);
    rig.give_back(lease.lease);
    rig.run();
    assert_eq!(rig.end_cause(lease.sandbox), EndCause::TemplateReplaced);
    assert_eq!(rig.pool().idle, 1, "made from the new one");
}

#[test]
fn a_launch_of_a_replaced_template_does_not_enter_the_pool() {
    let mut rig = Rig::new(NodeConfig::default());
    rig.put(template(1, 1), NATIVE);
    let old = rig.instances(launch);
    let waiter = rig.checkout();
    rig.put(changed(template(1, 1)), NATIVE);
    while let Some(at) = rig.instances(launch).iter().position(|i| old.contains(i)) {
        assert_eq!(at, 0);
        rig.finish(launch, Outcome::Done);
    }
    assert!(rig.instances(claim).is_empty(), "it is not handed out either");
    rig.run();
    assert!(!old.contains(&rig.checked_out(waiter).instance));
}

#[test]
fn a_sandbox_being_wiped_when_its_template_is_replaced_does_not_enter_the_pool() {
    for replaced_first in [true, false] {
        let mut rig = Rig::with_pool(template(1, 0), DOCKER);
        let lease = rig.lease();
        rig.use_once(lease.sandbox);
        rig.give_back(lease.lease);
        if replaced_first {
            rig.put(changed(template(1, 0)), DOCKER);
            rig.finish(wipe, Outcome::Done);
        } else {
            rig.finish(wipe, Outcome::Done);
            rig.put(changed(template(1, 0)), DOCKER);
        }
        rig.run();
        assert_ne!(rig.lease().instance, lease.instance);
    }
}

#[test]
fn a_pool_counts_what_it_does() {
    let mut rig = Rig::with_pool(template(1, 1), DOCKER);
    let first = rig.lease();
    let second = rig.lease();
    let blocked = rig.checkout_with(|checkout| checkout.wait_ms = Some(10));
    rig.pass(10);
    assert_eq!(refusal(&rig, blocked).code, ErrorCode::CheckoutTimeout);
    let refused = rig.checkout_with(|checkout| checkout.wait_ms = Some(0));
    assert_eq!(refusal(&rig, refused).code, ErrorCode::CapacityExhausted);
    rig.give_back(first.lease);
    rig.use_once(second.sandbox);
    rig.give_back(second.lease);
    rig.finish(wipe, trouble());
    rig.run();
    let third = rig.lease();
    rig.die(third.instance, DeathCause::Crash);
    rig.run();
    let idle = rig.idle().remove(0);
    rig.die(idle.instance.unwrap(), DeathCause::Oom);
    rig.finish(launch, trouble());
    rig.run();
    rig.pass(86_400_000);
    let counted = rig.pool().counters;
    let expected = PoolCounters {
        fast: 3,
        overflow: 0,
        blocked: 1,
        timed_out: 1,
        refused: 1,
        discarded_near_expiry: 1,
        recycled: 1,
        retired: 1,
        crashed: 2,
        launched: 4,
        launch_failed: counted.launch_failed,
    };
    assert_eq!(counted, expected);
    // The launches that did not end during the day timed out one by one.
    assert!(counted.launch_failed > 1);
}

#[test]
fn a_node_that_is_started_for_some_templates_serves_no_other_and_forgets_none() {
    let started_for = |name: &str| vec![TemplateName::new(name).expect("a name of a template")];
    let others = NodeConfig { templates: started_for("other"), ..NodeConfig::default() };
    let mut rig = Rig::with(others, template(5, 3), NATIVE);
    assert_eq!((rig.count(launch), rig.pool().idle), (0, 0), "nothing is kept warm");
    let request = rig.checkout();
    let seen = refusal(&rig, request);
    assert_eq!(seen.code, ErrorCode::TemplateUnknown);
    assert!(seen.cause.contains("--templates"), "{seen:?}");
    assert!(rig.kernel.template(&name()).is_some());
    let ours = NodeConfig { templates: vec![name()], ..NodeConfig::default() };
    let mut rig = Rig::with(ours, template(5, 3), NATIVE);
    assert_eq!(rig.pool().idle, 5);
    rig.lease();
}
