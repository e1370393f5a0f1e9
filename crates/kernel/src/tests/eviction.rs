//! Evictions: the tier follows from what is short, the least recently used of it goes first, and a
//! running or held sandbox never does.

use model::why::{Candidate, Shortage, Tier};
use model::{
    EndCause, ErrorCode, NodeConfig, RequestId, SandboxId, SandboxState, SessionId, SessionStatus,
    TemplateName,
};

use super::rig::{NATIVE, Rig, kill, persist, start_turn, template, trouble};
use super::rig_steps::{Cases, other, tight, tight_deleting};
use crate::{CheckoutPolicy, UseKind, UseTarget};

/// A node on which only `max_live` is short.
fn few_processes(max_live: u32) -> NodeConfig {
    tight(1000, max_live)
}

/// A node on which only memory is short: each sandbox takes 512 MB.
fn little_memory(sandboxes: u64) -> NodeConfig {
    NodeConfig { memory_budget_mb: Some(512 * sandboxes), ..NodeConfig::default() }
}

/// A node on which only entries are short.
fn few_entries(max_sandboxes: u32) -> NodeConfig {
    tight(max_sandboxes, 1000)
}

/// An idle sandbox of a pool `u`, whose refill stays away afterwards.
fn idle_one(rig: &mut Rig) -> SandboxId {
    rig.put(other("u", 1, 5), NATIVE);
    rig.run();
    let warm = rig.in_state(SandboxState::Warm);
    let all = rig.kernel.sandboxes();
    let of_u = |id: &SandboxId| all.iter().any(|v| v.id == *id && v.template.as_str() == "u");
    warm.into_iter().find(of_u).expect("an idle sandbox")
}

/// A checkout that takes nothing but what can be had by eviction.
fn demand(rig: &mut Rig) -> RequestId {
    rig.checkout_with(|checkout| checkout.policy = CheckoutPolicy::FailFast)
}

/// Asks for one more sandbox and returns the one that had to end for it.
#[track_caller]
fn victims(rig: &mut Rig) -> Vec<SandboxId> {
    let before = rig.store.ended.len();
    let request = demand(rig);
    rig.run_within_limits();
    rig.checked_out(request);
    rig.store.ended.range(before..).map(|ended| ended.sandbox).collect()
}

#[test]
fn for_processes_and_memory_an_unowned_warm_one_goes_before_a_waiting_one() {
    for (shortage, config) in
        [(Shortage::Processes, few_processes(2)), (Shortage::Memory, little_memory(2))]
    {
        let mut rig = Rig::with(config, template(0, 9), NATIVE);
        let (_, older) = rig.waiting_session();
        let idle = idle_one(&mut rig);
        assert_eq!(victims(&mut rig), [idle], "{shortage:?}");
        let eviction = rig.ended(idle).eviction.expect("a record of the decision");
        assert_eq!((eviction.tier, eviction.shortage), (Tier::Warm, shortage));
        assert_eq!(rig.state(older), SandboxState::Waiting);
        assert_eq!(victims(&mut rig), [older], "{shortage:?}: then the waiting one");
        let eviction = rig.written_end(older).eviction.expect("a record of the decision");
        assert_eq!((eviction.tier, eviction.shortage), (Tier::Waiting, shortage));
        assert_eq!(rig.state(older), SandboxState::Cold);
    }
}

#[test]
fn for_processes_and_memory_a_cold_one_is_never_touched() {
    for config in [few_processes(1), little_memory(1)] {
        let mut rig = Rig::with(config, template(0, 9), NATIVE);
        let (session, cold) = rig.cold_session();
        let lease = rig.lease();
        let request = demand(&mut rig);
        assert_eq!(rig.refused(request), ErrorCode::CapacityExhausted, "it would free nothing");
        assert_eq!(rig.state(cold), SandboxState::Cold);
        assert_eq!(rig.losses(session), []);
        rig.give_back(lease.lease);
    }
}

#[test]
fn for_entries_the_cold_go_first_then_the_unowned_warm_then_the_waiting() {
    for deletes in [false, true] {
        let config = if deletes { tight_deleting(3, 1000) } else { few_entries(3) };
        let mut rig = Rig::with(config, template(0, 9), NATIVE);
        let (waiting_session, waiting) = rig.waiting_session();
        let idle = idle_one(&mut rig);
        let (cold_session, cold) = rig.cold_session();
        let lost = |sandbox| if deletes { vec![sandbox] } else { vec![] };
        assert_eq!(victims(&mut rig), [cold]);
        assert_eq!(rig.losses(cold_session), lost(cold));
        assert_eq!(rig.ended(cold).eviction.map(|e| e.tier), Some(Tier::Cold));
        assert_eq!(victims(&mut rig), [idle]);
        assert_eq!(rig.ended(idle).eviction.map(|e| e.shortage), Some(Shortage::Entries));
        assert_eq!(victims(&mut rig), [waiting]);
        let ended = rig.ended(waiting);
        let eviction = ended.eviction.expect("a record of the decision");
        assert_eq!((eviction.tier, eviction.shortage), (Tier::Waiting, Shortage::Entries));
        assert_eq!(ended.cause, EndCause::Evicted);
        assert_eq!(rig.losses(waiting_session), lost(waiting), "in one decision");
        assert_eq!(rig.status(waiting_session), SessionStatus::Paused);
        assert_eq!(rig.kernel.files_given_up(), if deletes { 2 } else { 0 });
        let request = demand(&mut rig);
        assert_eq!(rig.refused(request), ErrorCode::CapacityExhausted, "leases never give way");
    }
}

#[test]
fn where_files_go_with_entries_a_waiting_one_hears_of_it_with_its_next_sandbox() {
    let mut rig = Rig::with(tight_deleting(1, 1000), template(0, 9), NATIVE);
    let (session, sandbox) = rig.waiting_session();
    let request = demand(&mut rig);
    assert_eq!(rig.targets(kill), [sandbox]);
    rig.run_within_limits();
    let lease = rig.checked_out(request);
    assert!(rig.of(session).state_lost);
    assert!(rig.store.doomed.is_empty(), "its workspace is deleted");
    rig.give_back(lease.lease);
    let ready = rig.whole_turn(session);
    assert_ne!(ready.sandbox, sandbox);
    let last = *rig.actives(session).last().unwrap();
    assert!(last.state_lost);
    assert!(last.generation.0 > 1);
    rig.whole_turn(session);
    assert!(!rig.actives(session).last().unwrap().state_lost, "an answer has reported it");
}

#[test]
fn the_least_recently_used_of_a_tier_goes_first() {
    // Waiting: the order of the last uses, not of the births.
    let mut rig = Rig::with(few_processes(3), template(0, 9), NATIVE);
    let all: Vec<(SessionId, SandboxId)> = (0..3).map(|_| rig.waiting_session()).collect();
    for used in [1, 0, 2] {
        rig.pass(1_000);
        rig.whole_turn(all[used].0);
    }
    for next in [1, 0, 2] {
        assert_eq!(victims(&mut rig), [all[next].1]);
    }
    // Idle in one pool: the oldest.
    let mut rig = Rig::with(few_processes(3), template(0, 9), NATIVE);
    let leases = [rig.lease(), rig.lease(), rig.lease()];
    for used in [1, 0, 2] {
        rig.pass(1_000);
        rig.give_back(leases[used].lease);
    }
    let mut idle = rig.kernel.sandboxes();
    idle.sort_by_key(|view| view.last_used_at);
    rig.put(other("u", 0, 5), NATIVE);
    for expected in idle {
        let before = rig.store.ended.len();
        let (_, request) = rig.create_session_of("u");
        rig.run_within_limits();
        rig.session_ready(request);
        assert_eq!(rig.store.ended[before].sandbox, expected.id);
    }
}

#[test]
fn the_least_recently_used_cold_one_goes_first_whenever_it_fell_asleep() {
    let mut rig = Rig::with(few_entries(3), template(0, 9), NATIVE);
    let all: Vec<(SessionId, SandboxId)> = (0..3).map(|_| rig.waiting_session()).collect();
    for slept in [2, 0, 1] {
        rig.pass(1_000);
        rig.stop(all[slept].0);
        rig.run();
    }
    for next in [0, 1, 2] {
        assert_eq!(victims(&mut rig), [all[next].1]);
    }
}

#[test]
fn a_waiting_one_that_was_spared_keeps_its_place_in_the_order() {
    let mut rig = Rig::with(few_processes(3), template(0, 9), NATIVE);
    let all: Vec<(SessionId, SandboxId)> = (0..3).map(|_| rig.waiting_session()).collect();
    let request = demand(&mut rig);
    rig.finish_of(all[0].1, persist, trouble());
    rig.run_within_limits();
    rig.checked_out(request);
    rig.live(10_001);
    assert_eq!(victims(&mut rig), [all[0].1], "it was used least recently still");
}

#[test]
fn the_least_recently_used_idle_one_goes_first_across_pools() {
    let mut rig = Rig::with(few_processes(3), template(0, 9), NATIVE);
    let mut idle = Vec::new();
    for name in ["a", "b", "c"] {
        rig.put(other(name, 1, 5), NATIVE);
        rig.run();
        rig.pass(1_000);
        idle.push(*rig.in_state(SandboxState::Warm).last().unwrap());
    }
    // A checkout that comes back untouched was used last.
    let of_a = rig.checkout_with(|checkout| checkout.template = TemplateName::new("a").unwrap());
    rig.run();
    let lease = rig.checked_out(of_a);
    rig.give_back(lease.lease);
    assert_eq!(victims(&mut rig), [idle[1]]);
    assert_eq!(victims(&mut rig), [idle[2]]);
}

#[test]
fn a_warm_one_that_a_session_owns_counts_as_waiting() {
    let mut rig = Rig::with(few_processes(3), template(0, 9), NATIVE);
    let (fresh_session, fresh) = rig.session();
    rig.pass(1);
    let (_, waiting) = rig.waiting_session();
    let idle = idle_one(&mut rig);
    assert_eq!(victims(&mut rig), [idle], "an unowned sandbox is evicted first");
    assert_eq!(victims(&mut rig), [fresh], "the least recent of both kinds");
    assert_eq!(
        (rig.state(fresh), rig.status(fresh_session)),
        (SandboxState::Cold, SessionStatus::Paused)
    );
    assert_eq!(victims(&mut rig), [waiting]);
    let ready = rig.kernel.sandbox(fresh).map(|view| view.generation.0);
    assert_eq!(ready, Some(1));
}

/// What protects a session's sandbox from eviction.
const HELD: Cases<fn(&mut Rig, SessionId, SandboxId)> = &[
    ("a turn", |rig, session, _| {
        rig.turn(session);
        rig.run();
    }),
    ("a turn that is being started", |rig, session, _| {
        rig.turn(session);
        assert_eq!(rig.count(start_turn), 1);
    }),
    ("an exec", |rig, session, _| {
        rig.session_exec(session);
    }),
    ("a file call", |rig, session, _| {
        rig.use_of(UseTarget::Session(session), UseKind::Files);
    }),
    ("a connection", |rig, session, _| {
        rig.use_of(UseTarget::Session(session), UseKind::Port);
    }),
    ("a keepAlive process", |rig, _, sandbox| {
        rig.keep_awake(sandbox);
    }),
    ("a plus in the scale file", |rig, _, sandbox| {
        let instance = rig.instance(sandbox);
        rig.write_scale(instance, 1, false);
    }),
    ("a turn that waits for a probe", |rig, session, _| {
        rig.pass(6_000);
        rig.turn(session);
    }),
    ("an exec that waits for a probe", |rig, session, _| {
        rig.pass(6_000);
        rig.use_of(UseTarget::Session(session), UseKind::Exec);
    }),
];

#[test]
fn running_or_held_sandbox_is_never_evicted() {
    for config in [few_processes(1), little_memory(1), few_entries(1)] {
        for (what, hold) in HELD {
            let mut rig = Rig::with(config.clone(), template(0, 9), NATIVE);
            rig.session_wait_ms = Some(0);
            let (session, sandbox) = rig.waiting_session();
            hold(&mut rig, session, sandbox);
            let state = rig.state(sandbox);
            let refused = demand(&mut rig);
            assert_eq!(rig.refused(refused), ErrorCode::CapacityExhausted, "{what}");
            let (_, refused) = rig.create_session();
            assert_eq!(rig.refused(refused), ErrorCode::CapacityExhausted, "{what}");
            assert_eq!(rig.state(sandbox), state, "{what}");
            assert_eq!(rig.alive(sandbox).ending, None, "{what}");
        }
    }
}

#[test]
fn leased_sandbox_is_never_evicted_fresh_waiting_or_frozen() {
    let mut rig = Rig::with(few_processes(3), template(0, 9), NATIVE);
    let leases = [rig.lease(), rig.lease(), rig.lease()];
    rig.use_once(leases[1].sandbox);
    rig.use_once(leases[2].sandbox);
    rig.live(15_000);
    assert!(rig.alive(leases[2].sandbox).frozen);
    rig.use_once(leases[1].sandbox);
    let refused = demand(&mut rig);
    assert_eq!(rig.refused(refused), ErrorCode::CapacityExhausted);
    for lease in leases {
        assert_eq!(rig.alive(lease.sandbox).ending, None);
    }
}

#[test]
fn frozen_waiting_sandbox_is_evicted_like_any_other() {
    let mut rig = Rig::with(few_processes(1), template(0, 9), NATIVE);
    let (_, sandbox) = rig.waiting_session();
    rig.live(15_000);
    assert!(rig.alive(sandbox).frozen);
    assert_eq!(victims(&mut rig), [sandbox]);
    assert_eq!(rig.state(sandbox), SandboxState::Cold);
}

#[test]
fn an_eviction_is_recorded_with_the_candidates_it_was_chosen_from() {
    let mut rig = Rig::with(tight(4, 3), template(0, 9), NATIVE);
    let (_, cold) = rig.cold_session();
    let (_, first) = rig.waiting_session();
    rig.waiting_session();
    let idle = idle_one(&mut rig);
    let used_at = |rig: &Rig, id| rig.kernel.sandbox(id).unwrap().last_used_at;
    let candidate = |rig: &Rig, tier, sandbox, of| {
        let last_used_at = used_at(rig, sandbox);
        Candidate { tier, sandbox, last_used_at, of }
    };
    let expected = vec![
        candidate(&rig, Tier::Cold, cold, 1),
        candidate(&rig, Tier::Warm, idle, 1),
        candidate(&rig, Tier::Waiting, first, 2),
    ];
    let request = demand(&mut rig);
    let decided_at = rig.now.wall;
    rig.pass(5);
    rig.run_within_limits();
    rig.checked_out(request);
    for (sandbox, shortage) in [(cold, Shortage::Entries), (idle, Shortage::Processes)] {
        let eviction = rig.written_end(sandbox).eviction.expect("a record of the decision");
        assert_eq!((eviction.shortage, eviction.decided_at), (shortage, decided_at));
        if sandbox == cold {
            assert_eq!(eviction.candidates, expected);
        }
    }
}
