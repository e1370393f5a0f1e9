//! Users see each transition, and the journal gets nothing because of it.

use SandboxState::{Cold, Running, Waiting, Warm, Warming};
use model::{EndCause, SandboxId, SandboxState};

use super::rig::{DOCKER, NATIVE, Rig, TENANT, kill, prove, template, trouble, wipe};
use crate::{DeathCause, Event, Outcome, TRANSITIONS_PER_SECOND_MAX, UseKind, UseTarget};

/// What users saw of a sandbox, and how much was left out.
fn seen(rig: &Rig, sandbox: SandboxId) -> Vec<(SandboxState, SandboxState, u32)> {
    let of = rig.transitions.iter().filter(|one| one.sandbox == sandbox);
    of.map(|one| (one.from, one.to, one.skipped)).collect()
}

#[test]
fn sandbox_id_begins_cold_and_ends_cold_for_each_user() {
    let mut rig = Rig::with_pool(template(1, 0), DOCKER);
    let out = rig.lease();
    assert_eq!(seen(&rig, out.sandbox), [(Cold, Warming, 0), (Warming, Warm, 0)]);
    rig.use_once(out.sandbox);
    rig.give_back(out.lease);
    rig.finish(wipe, Outcome::Done);
    rig.finish(prove, Outcome::Done);
    let published_now = seen(&rig, out.sandbox);
    let expected = [(Warm, Running, 0), (Running, Waiting, 0), (Waiting, Cold, 0)];
    assert_eq!(published_now[2..], expected);
    let last = rig.transitions.iter().rfind(|one| one.sandbox == out.sandbox).unwrap();
    assert_eq!((last.cause, last.tenant), (Some(EndCause::Returned), TENANT));
    let next = rig.transitions.last().unwrap();
    assert_ne!(next.sandbox, out.sandbox);
    assert_eq!((next.from, next.to, next.tenant), (Cold, Warm, model::KeyId::NIL));
}

#[test]
fn session_that_loses_its_sandbox_continues_under_another_cold_id() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (session, sandbox) = rig.session();
    let instance = rig.instance(sandbox);
    rig.running_turn(session);
    rig.die(instance, DeathCause::Crash);
    rig.finish(kill, Outcome::Done);
    let last = rig.transitions.last().unwrap();
    assert_eq!((last.sandbox, last.session), (sandbox, Some(session)));
    assert_eq!((last.from, last.to, last.cause), (Running, Cold, Some(EndCause::Crash)));
    rig.whole_turn(session);
    let after = rig.of(session).sandbox_id.unwrap();
    assert_eq!(seen(&rig, after)[0], (Cold, Warming, 0));
}

#[test]
fn a_launch_that_fails_is_cold_to_users() {
    let mut rig = Rig::new(model::NodeConfig::default());
    rig.put(template(1, 0), NATIVE);
    rig.finish(super::rig::launch, trouble());
    rig.finish(kill, Outcome::Done);
    let one = rig.transitions[0].sandbox;
    assert_eq!(seen(&rig, one), [(Cold, Warming, 0), (Warming, Cold, 0)]);
    assert_eq!(rig.transitions[1].cause, Some(EndCause::LaunchFailed));
}

#[test]
fn use_journals_nothing_however_often_its_sandbox_changes() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let out = rig.lease();
    rig.use_once(out.sandbox);
    let target = UseTarget::Sandbox(out.sandbox);
    let use_id = model::UseId::from_u128(rig.id());
    let request = model::RequestId::from_u128(rig.id());
    let event = Event::UseRequested { request, target, use_id, kind: UseKind::Exec, wait_ms: None };
    for event in [event, Event::UseEnded { use_id }] {
        let _ = rig.kernel.apply(rig.now, event);
        let out = std::mem::take(rig.kernel.outbox());
        assert_eq!(out.transitions.len(), 1);
        assert!(out.journal.is_empty() && out.published.is_empty() && out.effects.is_empty());
    }
}

#[test]
fn transitions_are_published_ten_times_a_second_and_the_last_always() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let out = rig.lease();
    rig.live(5_000);
    rig.transitions.clear();
    let uses = 500;
    for _ in 0..uses {
        rig.use_once(out.sandbox);
    }
    assert_eq!(rig.transitions.len(), TRANSITIONS_PER_SECOND_MAX as usize);
    rig.live(1_000);
    let left_out = 2 * uses - TRANSITIONS_PER_SECOND_MAX;
    let all = seen(&rig, out.sandbox);
    assert_eq!(all.last(), Some(&(Running, Waiting, left_out - 1)));
    rig.live(1_000);
    assert_eq!(all.len(), rig.transitions.len(), "nothing more comes");
    rig.use_once(out.sandbox);
    assert_eq!(
        seen(&rig, out.sandbox)[all.len()..],
        [(Waiting, Running, 0), (Running, Waiting, 0)]
    );
    let counted = rig.kernel.transition_counts();
    assert!(counted.contains(&(Running, Waiting, u64::from(uses) + 1)), "{counted:?}");
}
