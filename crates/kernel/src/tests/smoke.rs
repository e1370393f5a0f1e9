//! The shortest way through each part.

use super::rig::{DOCKER, NATIVE, Rig, template};
use crate::{CheckoutPath, DeathCause, Event};

#[test]
fn a_pool_warms_up_and_serves() {
    let mut rig = Rig::with_pool(template(2, 10), NATIVE);
    assert_eq!(rig.kernel.stats().warm, 2);
    let lease = rig.lease();
    assert_eq!(lease.path, CheckoutPath::Fast);
    rig.use_once(lease.sandbox);
    rig.give_back(lease.lease);
    rig.run();
    rig.live(60_000);
    assert_eq!(rig.kernel.stats().warm, 2);
}

#[test]
fn a_wiping_pool_serves() {
    let mut rig = Rig::with_pool(template(1, 0), DOCKER);
    for _ in 0..60 {
        let lease = rig.lease();
        rig.use_once(lease.sandbox);
        rig.give_back(lease.lease);
        rig.run();
    }
    assert_eq!(rig.kernel.stats().warm, 1);
}

#[test]
fn a_session_takes_turns_sleeps_and_wakes() {
    let mut rig = Rig::with_pool(template(1, 1), NATIVE);
    let (session, sandbox) = rig.session();
    let ready = rig.whole_turn(session);
    assert_eq!(ready.sandbox, sandbox);
    rig.live(3_600_000);
    assert_eq!(rig.state(sandbox), model::SandboxState::Cold);
    let ready = rig.whole_turn(session);
    assert_eq!(ready.sandbox, sandbox);
    let _ = rig.apply(Event::ShutdownBegan { grace_ms: 1000 });
    rig.run();
    assert!(rig.stopped);
}

#[test]
fn an_outbox_is_empty_when_all_its_lists_are() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let (session, sandbox) = rig.session();
    rig.session_exec(session);
    rig.running_turn(session);
    // A death in the middle of everything has something for each of them; what it publishes comes
    // when the removal is confirmed.
    let died = Event::InstanceDied {
        instance: rig.instance(sandbox),
        cause: DeathCause::Crash,
        detail: None,
    };
    let _ = rig.kernel.apply(rig.now, died);
    let out = std::mem::take(rig.kernel.outbox());
    let event = rig.published[0].clone();
    let published = vec![crate::Published { tenant: model::KeyId::NIL, event }];
    assert!(!out.journal.is_empty() && !out.effects.is_empty() && !out.notices.is_empty());
    let none = crate::Outbox::default;
    let one_of_each = [
        crate::Outbox { journal: out.journal, ..none() },
        crate::Outbox { published, ..none() },
        crate::Outbox { effects: out.effects, ..none() },
        crate::Outbox { notices: out.notices, ..none() },
    ];
    for mut outbox in one_of_each {
        assert!(!outbox.is_empty());
        outbox.clear();
        assert!(outbox.is_empty());
    }
}
