//! State loss: from the loss of a session's files until an answer has reported it, every answer
//! about its sandbox carries it, also across restarts and into forks.

use model::{Generation, SessionId, TerminatedReason};

use super::rig::{DOCKER, NATIVE, Rig, template};
use crate::{DeathCause, Event, Loss, UseKind, UseTarget};

/// A session whose files were deleted under it, and whose answers do not arrive.
fn scene() -> (Rig, SessionId) {
    let mut rig = Rig::with_pool(template(0, 5), NATIVE);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    rig.delete(sandbox);
    rig.run();
    rig.answers_arrive = false;
    (rig, session)
}

fn reported(rig: &mut Rig, session: SessionId, generation: u64) {
    let generation = Generation(generation);
    let _ = rig.apply(Event::LossReported { session, generation });
}

/// What the answer to a use of a session reports.
#[track_caller]
fn carried(rig: &mut Rig, session: SessionId, kind: UseKind) -> Option<Loss> {
    let (request, use_id) = rig.use_of(UseTarget::Session(session), kind);
    rig.run();
    let lost = rig.granted(request).lost;
    rig.use_ended(use_id);
    lost
}

fn of(session: SessionId, generation: u64) -> Loss {
    let generation = Generation(generation);
    Loss { session, generation, reason: TerminatedReason::Deleted }
}

#[test]
fn every_answer_carries_a_loss_until_one_has_reported_it() {
    let (mut rig, session) = scene();
    for kind in [UseKind::Exec, UseKind::Files, UseKind::Read, UseKind::Port, UseKind::Stream] {
        assert_eq!(carried(&mut rig, session, kind), Some(of(session, 2)), "{kind:?}");
    }
    assert_eq!(rig.whole_turn(session).lost(), Some(of(session, 2)));
    assert_eq!(rig.resumed(session).lost(), Some(of(session, 2)));
    assert!(rig.of(session).state_lost && rig.last_active(session).state_lost);
    assert_eq!(rig.losses(session).len(), 1, "it happened once");
    reported(&mut rig, session, 2);
    assert!(!rig.of(session).state_lost);
    assert_eq!(carried(&mut rig, session, UseKind::Exec), None);
    assert_eq!(rig.whole_turn(session).lost(), None);
    assert_eq!(rig.resumed(session).lost(), None);
}

#[test]
fn loss_report_does_not_cover_files_lost_after_its_answer() {
    let (mut rig, session) = scene();
    let ready = rig.resumed(session);
    assert_eq!(ready.lost(), Some(of(session, 2)));
    rig.session_work(session);
    rig.dies_of(ready.sandbox, DeathCause::Crash);
    rig.run();
    // The first answer arrives when the disk of the second sandbox is gone as well.
    let second = rig.of(session).sandbox_id.or(rig.store.sessions[&session].sandbox).unwrap();
    rig.delete(second);
    rig.run();
    reported(&mut rig, session, 2);
    assert!(rig.of(session).state_lost, "that was about the loss before");
    assert_eq!(carried(&mut rig, session, UseKind::Exec), Some(of(session, 3)));
    reported(&mut rig, session, 3);
    assert_eq!(carried(&mut rig, session, UseKind::Exec), None);
}

#[test]
fn loss_report_without_a_loss_changes_nothing() {
    let (mut rig, session) = scene();
    reported(&mut rig, session, 1);
    assert!(rig.of(session).state_lost, "the answer was about the sandbox with the files");
    reported(&mut rig, SessionId::from_u128(404), 9);
    let (healthy, _) = rig.session();
    let before = rig.of(healthy);
    reported(&mut rig, healthy, 9);
    assert_eq!(rig.of(healthy), before);
}

#[test]
fn an_unreported_loss_survives_restarts_and_a_reported_one_is_not_back() {
    let (mut rig, session) = scene();
    rig.restart(&[]);
    rig.run();
    assert!(rig.of(session).state_lost);
    assert_eq!(rig.resumed(session).lost(), Some(of(session, 2)));
    let alive: Vec<_> = rig.existing.iter().copied().collect();
    rig.restart(&alive);
    // The answer of before the restart arrived after all.
    reported(&mut rig, session, 2);
    rig.run();
    assert_eq!(rig.resumed(session).lost(), None);
    rig.restart(&[]);
    rig.run();
    assert_eq!(rig.resumed(session).lost(), None);
}

#[test]
fn files_in_memory_that_a_crash_of_the_server_took_are_a_loss_whatever_was_going_on() {
    let moments: [fn(&mut Rig, SessionId); 4] = [
        |_, _| {},
        |rig, session| {
            rig.stop(session);
        },
        |rig, _| rig.pass(10_000),
        |rig, session| {
            rig.running_turn(session);
        },
    ];
    for (at, moment) in moments.into_iter().enumerate() {
        let mut rig = Rig::with_pool(template(0, 5), DOCKER);
        let (session, _) = rig.session();
        rig.session_work(session);
        moment(&mut rig, session);
        rig.restart(&[]);
        assert_eq!(rig.loss_reasons(session).len(), 1, "moment {at}");
        rig.run();
        assert!(rig.resumed(session).lost().is_some(), "moment {at}");
    }
    // What was saved is there.
    let mut rig = Rig::with_pool(template(0, 5), DOCKER);
    let (session, _) = rig.session();
    rig.session_work(session);
    rig.live(10_000);
    rig.restart(&[]);
    rig.run();
    assert_eq!((rig.losses(session), rig.resumed(session).lost()), (vec![], None));
}

#[test]
fn a_fork_reports_what_its_parent_lost_and_had_not_reported() {
    let (mut rig, parent) = scene();
    rig.resumed(parent);
    rig.session_work(parent);
    let (fork, _) = rig.fork(parent);
    rig.run();
    assert_eq!(rig.resumed(fork).lost(), Some(of(fork, 1)), "its first sandbox");
    reported(&mut rig, parent, 2);
    assert!(rig.of(fork).state_lost && !rig.of(parent).state_lost, "each has its own readers");
    rig.restart(&[]);
    rig.run();
    assert_eq!(carried(&mut rig, fork, UseKind::Files), Some(of(fork, 2)));
    reported(&mut rig, fork, 2);
    assert_eq!(carried(&mut rig, fork, UseKind::Files), None);
    let (second, _) = rig.fork(parent);
    rig.run();
    assert_eq!(rig.resumed(second).lost(), None, "what was reported is not inherited");
}

#[test]
fn a_lease_has_nothing_to_lose() {
    let mut rig = Rig::with_pool(template(1, 5), DOCKER);
    rig.answers_arrive = false;
    let lease = rig.lease();
    let (request, _) = rig.use_of(UseTarget::Sandbox(lease.sandbox), UseKind::Files);
    assert_eq!(rig.granted(request).lost, None);
}
