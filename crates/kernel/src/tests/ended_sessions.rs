//! Files of ended sessions are removed before those of sessions that can continue.

use super::rig::{NATIVE, Rig, template};
use super::rig_steps::tight;

#[test]
fn files_of_an_ended_session_go_before_those_of_one_that_can_go_on() {
    let mut rig = Rig::with(tight(2, 2), template(0, 5), NATIVE);
    let (kept, _) = rig.session();
    rig.session_work(kept);
    rig.stop(kept);
    rig.run();
    rig.pass(1_000);
    let (ended, _) = rig.session();
    rig.session_work(ended);
    rig.end(ended);
    rig.run();
    rig.pass(1_000);
    let (_, _) = rig.session();
    rig.run();
    assert_eq!(rig.losses(kept), vec![], "it can be resumed, the other one never");
}

#[test]
fn files_of_an_ended_session_still_go_first_after_a_restart() {
    let mut rig = Rig::with(tight(2, 2), template(0, 5), NATIVE);
    let (kept, _) = rig.session();
    rig.session_work(kept);
    rig.stop(kept);
    rig.run();
    rig.pass(1_000);
    let (ended, _) = rig.session();
    rig.session_work(ended);
    rig.end(ended);
    rig.run();
    rig.restart(&[]);
    rig.run();
    let (_, _) = rig.session();
    rig.run();
    assert_eq!(rig.losses(kept), vec![], "it can be resumed, the other one never");
}
