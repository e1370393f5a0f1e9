//! Each user of an instance is notified of its end once, whatever ends it.

use model::EndCause;

use super::rig::{DOCKER, NATIVE, Rig, kill, launch, prove, template, trouble, wipe};
use crate::{DeathCause, Event, Outcome};

#[test]
fn instance_end_is_notified_once_with_its_cause() {
    type End = fn(&mut Rig, &crate::CheckedOut);
    let ends: &[(EndCause, End)] = &[
        (EndCause::Returned, |rig, out| rig.give_back(out.lease)),
        (EndCause::Crash, |rig, out| rig.die(out.instance, DeathCause::Crash)),
        (EndCause::Oom, |rig, out| rig.die(out.instance, DeathCause::Oom)),
        (EndCause::LeaseExpired, |rig, _| rig.pass(600_000)),
        (EndCause::Deleted, |rig, out| {
            rig.ask(|request| Event::DeleteRequested { request, sandbox: out.sandbox });
        }),
    ];
    for (cause, end) in ends {
        let mut rig = Rig::with_pool(template(1, 0), NATIVE);
        let out = rig.lease();
        rig.use_once(out.sandbox);
        end(&mut rig, &out);
        assert_eq!(rig.over, [(out.instance, *cause)], "notified before it is removed");
        rig.die(out.instance, DeathCause::Crash);
        rig.run();
        assert_eq!(rig.over, [(out.instance, *cause)]);
    }
}

#[test]
fn instance_end_is_notified_to_each_user_of_a_wiped_instance() {
    let mut rig = Rig::with_pool(template(1, 0), DOCKER);
    let first = rig.lease();
    rig.use_once(first.sandbox);
    rig.give_back(first.lease);
    assert_eq!(rig.over, [(first.instance, EndCause::Returned)]);
    rig.finish(wipe, Outcome::Done);
    rig.finish(prove, Outcome::Done);
    let untouched = rig.lease();
    assert_eq!(untouched.instance, first.instance);
    rig.give_back(untouched.lease);
    assert_eq!(rig.over.len(), 1, "there was nothing in it that could be over");
    let second = rig.lease();
    rig.use_once(second.sandbox);
    rig.die(second.instance, DeathCause::Crash);
    assert_eq!(rig.over[1..], [(first.instance, EndCause::Crash)]);
}

#[test]
fn instance_end_is_not_notified_again_after_a_failed_wipe() {
    let mut rig = Rig::with_pool(template(1, 0), DOCKER);
    let out = rig.lease();
    rig.use_once(out.sandbox);
    rig.give_back(out.lease);
    rig.finish(wipe, trouble());
    rig.finish(kill, Outcome::Done);
    assert_eq!(rig.over, [(out.instance, EndCause::Returned)]);
}

#[test]
fn instance_end_is_notified_after_a_failed_launch_and_a_restart() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let out = rig.lease();
    let alive: Vec<_> = rig.existing.iter().copied().collect();
    rig.restart(&alive);
    assert_eq!(rig.over, [(out.instance, EndCause::Restart)]);
    rig.finish(kill, Outcome::Done);
    rig.finish(launch, trouble());
    assert_eq!(rig.over.last().map(|(_, cause)| *cause), Some(EndCause::LaunchFailed));
}
