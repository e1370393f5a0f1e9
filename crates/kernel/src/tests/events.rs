//! Published events: every end once per generation and not before it is true, every loss of files
//! and no other, generations that only grow.

use std::collections::BTreeMap;

use model::template::RuntimeTraits;
use model::{
    EndCause, LifecycleEvent, NodeConfig, SandboxId, SandboxState, SessionId, Template,
    TerminatedReason,
};

use super::rig::{
    DOCKER, NATIVE, Rig, claim, delete_workspace, freeze, gone, kill, launch, name, persist, probe,
    prove, start_turn, stop_turn, template, thaw, trouble, wipe,
};
use super::rig_steps::tight_deleting;
use crate::{DeathCause, Event, Outcome, UseKind, UseTarget};

/// No generation of a sandbox ends twice.
fn ends_once(rig: &Rig) {
    let mut seen: BTreeMap<(SandboxId, u64), u32> = BTreeMap::new();
    for event in &rig.published {
        if let LifecycleEvent::SandboxTerminated { sandbox_id, generation, .. } = event {
            *seen.entry((*sandbox_id, generation.0)).or_default() += 1;
        }
    }
    assert!(seen.values().all(|times| *times == 1), "{seen:?}");
}

struct Way {
    cause: EndCause,
    /// Whether the session's files are given up.
    loses: bool,
    act: fn(&mut Rig, SessionId, SandboxId),
}

fn way(cause: EndCause, act: fn(&mut Rig, SessionId, SandboxId)) -> Way {
    Way { cause, loses: false, act }
}

/// Every way in which the sandbox of a session comes to its end.
fn session_ways() -> Vec<Way> {
    vec![
        way(EndCause::Idle, |rig, _, _| {
            rig.live(1_859_000);
            rig.pass(1_000);
        }),
        way(EndCause::Crash, |rig, _, sandbox| rig.dies_of(sandbox, DeathCause::Crash)),
        way(EndCause::Oom, |rig, _, sandbox| rig.dies_of(sandbox, DeathCause::Oom)),
        way(EndCause::SessionStopped, |rig, session, _| {
            rig.stop(session);
        }),
        way(EndCause::SessionEnded, |rig, session, _| {
            rig.end(session);
        }),
        way(EndCause::UserAbort, |rig, session, _| {
            rig.running_turn(session);
            rig.abort(session, false);
        }),
        way(EndCause::TurnTimeout, |rig, session, _| {
            rig.running_turn(session);
            rig.pass(3_600_000);
            rig.finish(stop_turn, trouble());
        }),
        way(EndCause::TurnFailed, |rig, session, _| {
            rig.turn(session);
            rig.finish(start_turn, trouble());
        }),
        way(EndCause::ProbeFailed, |rig, session, _| {
            rig.pass(6_000);
            rig.resume(session);
            rig.finish(probe, gone());
        }),
        way(EndCause::FreezeFailed, |rig, session, _| {
            rig.live(20_000);
            rig.resume(session);
            rig.finish(thaw, trouble());
        }),
        way(EndCause::Shutdown, |rig, _, _| rig.shut_down(0)),
        way(EndCause::LifetimeOver, |rig, _, _| {
            let now = rig.now;
            // The machine slept until its time was over.
            rig.now.wall = now.wall.plus(7_200_000);
            rig.pass(1);
        }),
        way(EndCause::Evicted, |rig, _, _| {
            rig.create_session();
        }),
        Way {
            loses: true,
            ..way(EndCause::Deleted, |rig, _, sandbox| {
                rig.delete(sandbox);
            })
        },
    ]
}

fn one_place(traits: RuntimeTraits) -> Rig {
    let config = NodeConfig { max_live: 1, ..NodeConfig::default() };
    let template = Template { max_lifetime_ms: Some(7_200_000), ..template(0, 5) };
    Rig::with(config, template, traits)
}

#[test]
fn end_of_a_sessions_sandbox_is_published_once_after_its_removal() {
    for Way { cause, loses, act } in session_ways() {
        let mut rig = one_place(NATIVE);
        let (session, sandbox) = rig.session();
        rig.session_work(session);
        act(&mut rig, session, sandbox);
        while let Some(effect) = rig.effects.pop_front() {
            if kill(&effect.action) {
                assert_eq!(rig.terminations(sandbox), [], "{cause:?} is published too early");
                // A removal that fails says nothing, and is tried again.
                rig.end_effect(&effect, trouble());
                assert_eq!(rig.terminations(sandbox), [], "{cause:?} is published too early");
                rig.pass(1_000);
                rig.killed();
                break;
            }
            rig.end_effect(&effect, Outcome::Done);
        }
        assert_eq!(rig.terminations(sandbox), [(1, cause)]);
        let lost = rig.loss_reasons(session);
        assert_eq!(lost, if loses { vec![cause.reason()] } else { vec![] }, "{cause:?}");
        rig.live(120_000);
        ends_once(&rig);
    }
}

#[test]
fn end_of_a_leased_sandbox_is_published_once() {
    type Act = fn(&mut Rig, model::LeaseId, SandboxId);
    let table: [(EndCause, Act); 6] = [
        (EndCause::Returned, |rig, lease, _| rig.give_back(lease)),
        (EndCause::LeaseExpired, |rig, _, _| rig.pass(600_000)),
        (EndCause::Crash, |rig, _, sandbox| rig.dies_of(sandbox, DeathCause::Crash)),
        (EndCause::Oom, |rig, _, sandbox| rig.dies_of(sandbox, DeathCause::Oom)),
        (EndCause::Deleted, |rig, _, sandbox| {
            rig.delete(sandbox);
        }),
        (EndCause::Shutdown, |rig, _, _| rig.shut_down(0)),
    ];
    for traits in [NATIVE, DOCKER] {
        for (cause, act) in table {
            let mut rig = Rig::with_pool(template(1, 0), traits);
            let lease = rig.lease();
            rig.use_once(lease.sandbox);
            act(&mut rig, lease.lease, lease.sandbox);
            assert_eq!(rig.terminations(lease.sandbox), [], "{cause:?} is published too early");
            rig.run();
            assert_eq!(rig.terminations(lease.sandbox), [(1, cause)]);
            rig.live(120_000);
            ends_once(&rig);
        }
    }
}

#[test]
fn end_of_a_wiped_sandbox_is_published_when_it_is_proven_clean() {
    let mut rig = Rig::with_pool(template(1, 0), DOCKER);
    let lease = rig.lease();
    rig.use_once(lease.sandbox);
    rig.give_back(lease.lease);
    rig.finish(wipe, Outcome::Done);
    assert_eq!(rig.terminations(lease.sandbox), []);
    rig.finish(prove, Outcome::Done);
    assert_eq!(rig.terminations(lease.sandbox), [(1, EndCause::Returned)]);
    let next = rig.lease();
    assert_eq!(next.instance, lease.instance);
    assert_ne!(next.sandbox, lease.sandbox, "to the world it is another");
    rig.use_once(next.sandbox);
    rig.give_back(next.lease);
    rig.finish(wipe, trouble());
    rig.run();
    assert_eq!(rig.terminations(next.sandbox), [(1, EndCause::NotClean)]);
}

#[test]
fn sandbox_that_was_never_ready_publishes_no_end() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    rig.create_session();
    let sandbox = rig.launching().sandbox;
    rig.finish(launch, trouble());
    rig.run();
    assert_eq!(rig.terminations(sandbox), []);
    // One that was bound in vain was ready before that.
    let mut rig = Rig::with_pool(template(1, 1), NATIVE);
    let sandbox = rig.kernel.sandboxes()[0].id;
    rig.create_session();
    rig.finish(claim, gone());
    rig.run();
    assert_eq!(rig.terminations(sandbox), [(1, EndCause::Crash)]);
}

#[test]
fn state_loss_is_published_exactly_when_files_are_deleted() {
    // With files inside the sandbox, a death before they are saved loses them.
    for (traits, lost) in [(NATIVE, vec![]), (DOCKER, vec![TerminatedReason::Oom])] {
        let mut rig = Rig::with_pool(template(0, 1), traits);
        let (session, sandbox) = rig.session();
        rig.session_work(session);
        rig.dies_of(sandbox, DeathCause::Oom);
        rig.run();
        assert_eq!(rig.loss_reasons(session), lost);
        let ready = rig.resumed(session);
        assert_eq!(ready.lost().is_some(), !lost.is_empty());
        assert_eq!(rig.last_active(session).state_lost, !lost.is_empty());
        // A published loss is not published again.
        rig.live(3_600_000);
        assert!(rig.resumed(session).lost().is_none());
        assert_eq!(rig.loss_reasons(session), lost);
    }
}

#[test]
fn files_that_were_saved_survive_a_death_wherever_they_were() {
    let mut rig = Rig::with_pool(template(0, 1), DOCKER);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    rig.pause(session);
    rig.run();
    rig.dies_of(sandbox, DeathCause::Crash);
    rig.run();
    assert!(rig.loss_reasons(session).is_empty());
    assert!(rig.resumed(session).lost().is_none());
}

#[test]
fn files_deleted_with_an_evicted_entry_are_a_loss_where_the_node_is_set_to_that() {
    let mut rig = Rig::with(tight_deleting(1, 250), template(0, 5), NATIVE);
    let (session, sandbox) = rig.slept_session();
    assert!(rig.loss_reasons(session).is_empty());
    let workspace = rig.store.sandboxes[&sandbox].workspace;
    rig.create_session();
    assert_eq!(rig.loss_reasons(session), [TerminatedReason::Evicted]);
    assert!(rig.store.doomed.contains(&workspace));
    rig.finish(delete_workspace, trouble());
    assert!(rig.store.doomed.contains(&workspace), "it is tried again");
    rig.live(10_000);
    assert!(!rig.store.doomed.contains(&workspace));
    assert_eq!(rig.terminations(sandbox), [(1, EndCause::Idle)], "its process ended long before");
}

#[test]
fn generations_of_a_session_only_grow() {
    let mut rig = Rig::with_pool(template(1, 5), NATIVE);
    let (session, _) = rig.session();
    let ways: [fn(&mut Rig, SessionId); 5] = [
        |rig, session| {
            let sandbox = rig.of(session).sandbox_id.unwrap();
            rig.delete(sandbox);
        },
        |rig, session| {
            let sandbox = rig.of(session).sandbox_id.unwrap();
            rig.dies_of(sandbox, DeathCause::Crash);
        },
        |rig, _| rig.live(3_600_000),
        |rig, session| {
            rig.running_turn(session);
            rig.abort(session, false);
        },
        |rig, _| {
            let alive: Vec<_> = rig.existing.iter().copied().collect();
            rig.restart(&alive);
        },
    ];
    for act in ways.into_iter().chain(ways) {
        rig.whole_turn(session);
        act(&mut rig, session);
        rig.run();
    }
    rig.whole_turn(session);
    let actives = rig.actives(session);
    let mut last = (actives[0].sandbox, actives[0].generation);
    for active in &actives[1..] {
        let next = (active.sandbox, active.generation);
        assert!(next == last || next.1 > last.1, "{last:?} then {next:?}");
        last = next;
    }
    assert_eq!(last.1.0, 11);
    ends_once(&rig);
}

#[test]
fn pause_publishes_when_the_files_are_durable() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    let durable = |rig: &Rig| {
        let of = |event: &&LifecycleEvent| {
            matches!(event, LifecycleEvent::WorkspaceDurable { session: of, sandbox_id, generation }
                if (*of, *sandbox_id, generation.0) == (session, sandbox, 1))
        };
        rig.published.iter().filter(of).count()
    };
    let paused = rig.pause(session);
    assert_eq!((rig.count(freeze), rig.count(persist)), (1, 1));
    rig.finish(freeze, Outcome::Done);
    assert_eq!(rig.answered(paused), crate::Reply::Paused, "stopped is enough for the answer");
    assert_eq!(durable(&rig), 0);
    rig.finish(persist, Outcome::Done);
    assert_eq!(durable(&rig), 1);
    rig.live(3_600_000);
    assert_eq!(rig.state(sandbox), SandboxState::Cold);
    assert_eq!(durable(&rig), 1, "nothing was written since");
}

#[test]
fn freeze_and_thaw_are_published() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (session, sandbox) = rig.session();
    let seen = |rig: &Rig| {
        let of = |event: &LifecycleEvent| {
            let LifecycleEvent::SandboxFrozen { sandbox_id, frozen, .. } = event else {
                return None;
            };
            (*sandbox_id == sandbox).then_some(*frozen)
        };
        rig.published.iter().filter_map(of).collect::<Vec<_>>()
    };
    rig.pass(10_000);
    assert!(seen(&rig).is_empty(), "it is not frozen yet");
    rig.finish(freeze, Outcome::Done);
    assert_eq!(seen(&rig), [true]);
    let (_, use_id) = rig.use_of(UseTarget::Session(session), UseKind::Files);
    rig.run();
    assert_eq!(seen(&rig), [true, false]);
    rig.use_ended(use_id);
    rig.live(20_000);
    assert_eq!(seen(&rig), [true, false, true]);
}

#[test]
fn drain_publishes_the_end_of_idle_sandboxes() {
    let mut rig = Rig::with_pool(template(2, 0), NATIVE);
    let idle: Vec<SandboxId> = rig.kernel.sandboxes().iter().map(|view| view.id).collect();
    let _ = rig.apply(Event::PoolDrained { template: name() });
    rig.run();
    for sandbox in idle {
        assert_eq!(rig.terminations(sandbox), [(1, EndCause::PoolClosed)]);
    }
}
