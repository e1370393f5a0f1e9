//! Crashes at any moment: instances are removed, files are kept, ends of leases and turns are
//! published once, and everything works again.

use std::collections::{BTreeMap, BTreeSet};

use model::lifecycle::TurnOutcome;
use model::record::Owner;
use model::template::RuntimeTraits;
use model::{
    EndCause, ErrorCode, InstanceId, LifecycleEvent, Mono, NodeConfig, Now, SandboxState,
    SessionStatus, TurnId,
};

use super::rig::{
    DOCKER, Moment, NATIVE, Rig, copy, delete_workspace, kill, launch, name, template, trouble,
};
use crate::{DeathCause, Event, Outcome, Recovery, Reply, UseKind, UseTarget, WhenBusy};

fn config() -> NodeConfig {
    NodeConfig { max_live: 5, ..NodeConfig::default() }
}

/// A life in which everything happens, with what a crash would leave after each event.
fn story(traits: RuntimeTraits) -> (Vec<LifecycleEvent>, Vec<Moment>) {
    let mut rig = Rig::new(config());
    rig.moments = Some(Vec::new());
    rig.put(template(1, 3), traits);
    rig.run();
    let returned = rig.lease();
    rig.use_once(returned.sandbox);
    let kept = rig.lease();
    rig.exec(kept.sandbox);
    rig.scale(kept.sandbox, 1);
    let (talking, _) = rig.session();
    rig.whole_turn(talking);
    let (_, turn) = rig.running_turn(talking);
    rig.give_back(returned.lease);
    rig.run();
    rig.end_turn(talking, turn);
    rig.running_turn(talking);
    rig.abort(talking, false);
    rig.run();
    rig.running_turn(talking);
    let sandbox = rig.last_active(talking).sandbox;
    rig.dies_of(sandbox, DeathCause::Oom);
    rig.run();
    rig.running_turn(talking);
    let (paused, _) = rig.session();
    rig.session_work(paused);
    rig.pause(paused);
    rig.run();
    let (fork, _) = rig.fork(paused);
    rig.run();
    let (stopped, _) = rig.session();
    rig.session_work(stopped);
    rig.stop(stopped);
    rig.run();
    // By now no place is left: others are evicted.
    rig.whole_turn(fork);
    let (deleted, sandbox) = rig.session();
    rig.session_work(deleted);
    rig.delete(sandbox);
    rig.run();
    let (copied, _) = rig.fork(fork);
    rig.run();
    let cold = rig.store.sessions[&copied].sandbox.unwrap();
    rig.delete(cold);
    rig.run();
    let _ = rig.apply(Event::PoolDrained { template: name() });
    rig.run();
    rig.whole_turn(deleted);
    rig.resume(stopped);
    rig.run();
    rig.end(fork);
    rig.run();
    let _ = rig.apply(Event::PoolResumed { template: name() });
    rig.run();
    rig.live(2_000_000);
    let moments = rig.moments.take().unwrap();
    assert!(moments.len() > 80, "{}", moments.len());
    (rig.published, moments)
}

fn count_ends(seen: &[LifecycleEvent]) -> BTreeMap<(u128, u64), u32> {
    let mut ends = BTreeMap::new();
    for event in seen {
        if let LifecycleEvent::SandboxTerminated { sandbox_id, generation, .. } = event {
            *ends.entry((sandbox_id.as_u128(), generation.0)).or_default() += 1;
        }
    }
    ends
}

fn turns_ended(seen: &[LifecycleEvent], wanted: TurnId) -> usize {
    let ended = |event: &&LifecycleEvent| matches!(event, LifecycleEvent::TurnEnded { turn, .. } if *turn == wanted);
    seen.iter().filter(ended).count()
}

/// What must be true once the removals after a crash have ended.
fn check_recovered(rig: &mut Rig, before: &[LifecycleEvent], moment: &Moment) {
    let known: BTreeSet<InstanceId> =
        rig.kernel.sandboxes().iter().filter_map(|view| view.instance).collect();
    assert_eq!(rig.existing, known, "nothing exists that is not known, or the other way round");
    let old: Vec<_> = rig.store.sandboxes.values().filter_map(|record| record.instance).collect();
    assert!(old.iter().all(|instance| !moment.existing.contains(instance)));
    assert!(rig.store.doomed.is_empty(), "what was given up is deleted");
    for pool in rig.kernel.pools() {
        let wanted = pool.phase == model::state::PoolPhase::Active;
        assert_eq!(pool.idle, u32::from(wanted), "a pool is full again, unless it is drained");
    }
    let seen: Vec<LifecycleEvent> = before.iter().chain(&rig.published).cloned().collect();
    let ends = count_ends(&seen);
    assert!(ends.values().all(|times| *times == 1), "{ends:?}");
    for event in before {
        if let LifecycleEvent::SandboxActive { sandbox_id, generation, .. } = event {
            let end = ends.get(&(sandbox_id.as_u128(), generation.0));
            assert_eq!(end, Some(&1), "every published sandbox has one published end");
        }
        if let LifecycleEvent::TurnStarted { turn, .. } = event {
            assert_eq!(turns_ended(&seen, *turn), 1);
        }
    }
    for record in moment.store.sessions.values() {
        if let Some(turn) = record.turn {
            assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Interrupted]);
            assert_eq!(turns_ended(&seen, turn), 1);
        }
    }
    check_leases(rig, moment);
    check_sessions(rig, moment);
}

fn check_leases(rig: &mut Rig, moment: &Moment) {
    for record in moment.store.sandboxes.values() {
        let Owner::Lease(lease) = record.owner else { continue };
        let refusal = rig.apply(Event::LeaseRenewed { lease, ttl_ms: None }).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::LeaseLost);
        let returned = rig.apply(Event::LeaseReturned { lease }).map_err(|refusal| refusal.code);
        let expected = match record.lease_end {
            Some(EndCause::Returned | EndCause::Crash | EndCause::Deleted) => Ok(Reply::Noted),
            _ => Err(ErrorCode::LeaseLost),
        };
        assert_eq!(returned, expected, "{:?}", record.lease_end);
        let (request, _) = rig.use_of(UseTarget::Sandbox(record.id), UseKind::Exec);
        assert_eq!(rig.refused(request), ErrorCode::SandboxGone);
    }
}

fn check_sessions(rig: &mut Rig, moment: &Moment) {
    for record in moment.store.sessions.values() {
        let ending = record.sandbox.and_then(|id| moment.store.sandboxes.get(&id)?.ending);
        let ended = ending == Some(EndCause::SessionEnded);
        let Some(seen) = rig.kernel.session(record.id) else {
            let over = matches!(record.status, SessionStatus::Ended | SessionStatus::Starting);
            assert!(over || ended, "{record:?} is forgotten");
            continue;
        };
        assert!(!ended, "{record:?} was ended, and is there again");
        match record.status {
            SessionStatus::Ended => panic!("{record:?} had ended, and is there again"),
            SessionStatus::Stopped => assert_eq!(seen.status, SessionStatus::Stopped),
            SessionStatus::Starting | SessionStatus::Active | SessionStatus::Paused => {
                assert_eq!(seen.status, SessionStatus::Paused);
            }
        }
        let files = record
            .sandbox
            .and_then(|id| moment.store.sandboxes.get(&id))
            .filter(|sandbox| sandbox.has_files && !sandbox.doomed);
        if let Some(doomed) = record.sandbox.and_then(|id| moment.store.sandboxes.get(&id))
            && doomed.doomed
            && doomed.has_files
        {
            assert_eq!(rig.kernel.sandbox(doomed.id), None, "a deletion is finished");
            assert!(seen.state_lost, "and reported");
        }
        let survive = files.is_some_and(|files| !files.dirty) || rig.native();
        let ready = rig.resumed(record.id);
        assert!(ready.generation > record.generation, "{record:?} then {ready:?}");
        if let Some(files) = files
            && survive
        {
            assert_eq!(ready.lost().is_some(), record.state_lost.is_some());
            assert_eq!(rig.store.sandboxes[&ready.sandbox].workspace, files.workspace);
        }
    }
}

impl Rig {
    fn native(&self) -> bool {
        self.store.pools.values().all(|pool| pool.traits.workspace_survives)
    }
}

/// A life after a crash, with its removals over.
fn again(moment: &Moment, alive: bool) -> (Rig, Recovery) {
    let mut rig = Rig::after_crash(config(), moment);
    if !alive {
        rig.existing.clear();
    }
    let alive: Vec<InstanceId> = rig.existing.iter().copied().collect();
    let recovery = rig.restart(&alive);
    (rig, recovery)
}

#[test]
fn instance_is_journalled_before_it_can_exist() {
    for traits in [NATIVE, DOCKER] {
        for moment in story(traits).1 {
            let written: BTreeSet<InstanceId> =
                moment.store.sandboxes.values().filter_map(|record| record.instance).collect();
            assert!(moment.existing.is_subset(&written));
        }
    }
}

#[test]
fn a_crash_at_any_moment_is_recovered_from() {
    for traits in [NATIVE, DOCKER] {
        let (published, moments) = story(traits);
        for moment in &moments {
            for alive in [true, false] {
                let (mut rig, recovery) = again(moment, alive);
                assert_eq!(recovery.orphans, 0);
                assert_eq!(rig.processes(), rig.count(kill) + rig.count(launch));
                rig.run();
                rig.live(5_000);
                check_recovered(&mut rig, &published[..moment.published], moment);
            }
        }
    }
}

#[test]
fn a_crash_in_the_middle_of_a_recovery_is_recovered_from() {
    let (published, moments) = story(NATIVE);
    for (at, moment) in moments.iter().enumerate() {
        let (mut rig, _) = again(moment, true);
        for _ in 0..at % 4 {
            if let Some(effect) = rig.effects.pop_front() {
                rig.end_effect(&effect, Outcome::Done);
            }
        }
        let alive: Vec<InstanceId> = rig.existing.iter().copied().collect();
        let recovery = rig.restart(&alive);
        assert_eq!(recovery.orphans, 0);
        rig.run();
        rig.live(5_000);
        check_recovered(&mut rig, &published[..moment.published], moment);
    }
}

#[test]
fn a_restart_says_what_it_found() {
    let mut rig = Rig::with_pool(template(2, 5), NATIVE);
    rig.lease();
    rig.session();
    rig.slept_session();
    rig.session();
    let orphan = InstanceId::from_u128(999);
    let alive: Vec<_> = rig.existing.iter().copied().chain([orphan]).collect();
    let live = rig.processes() as u32;
    let recovery = rig.restart(&alive);
    assert_eq!(recovery.orphans, 1);
    assert_eq!(recovery.marked_cold + recovery.ended, live);
    assert_eq!(recovery.marked_cold as usize, rig.sessions_live());
}

impl Rig {
    /// Sandboxes of sessions that are being removed.
    fn sessions_live(&self) -> usize {
        let of_session = |owner| matches!(owner, Owner::Session(_));
        let views = self.kernel.sandboxes();
        views.iter().filter(|view| view.instance.is_some() && of_session(view.owner)).count()
    }
}

#[test]
fn an_orphan_takes_a_place_until_it_is_gone() {
    let config = NodeConfig { max_live: 1, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 1), NATIVE);
    let (session, _) = rig.slept_session();
    let orphan = InstanceId::from_u128(999);
    rig.restart(&[orphan]);
    assert_eq!(rig.count(kill), 1);
    let (turn, _) = rig.turn(session);
    assert_eq!(rig.count(launch), 0);
    if rig.pending(turn) {
        rig.finish(kill, trouble());
        assert_eq!(rig.count(launch), 0, "it may still be there");
        rig.pass(1_000);
        assert_eq!(rig.killed(), orphan);
        assert_eq!(rig.count(launch), 1);
    } else {
        // Nothing that is known is ending, so there is nothing to wait for.
        assert_eq!(rig.refused(turn), ErrorCode::CapacityExhausted);
        rig.run();
        rig.whole_turn(session);
    }
}

#[test]
fn a_removal_that_fails_after_a_restart_is_tried_until_it_works() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    rig.restart(&[]);
    for pause_ms in [1_000, 2_000, 4_000] {
        rig.finish(kill, trouble());
        assert_eq!((rig.terminations(sandbox), rig.count(kill)), (vec![], 0));
        rig.pass(pause_ms);
    }
    rig.killed();
    assert_eq!(rig.terminations(sandbox), [(1, EndCause::Restart)]);
    assert_eq!(rig.state(sandbox), SandboxState::Cold);
    assert_eq!(rig.whole_turn(session).sandbox, sandbox);
}

#[test]
fn a_message_that_comes_before_the_old_process_is_gone_waits_for_that() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    let alive = [rig.instance(sandbox)];
    rig.restart(&alive);
    let (request, _) = rig.turn(session);
    assert_eq!((rig.count(kill), rig.count(launch)), (1, 0), "one process per workspace");
    rig.killed();
    assert!(rig.launching().restore);
    rig.run();
    assert_eq!(rig.session_ready(request).generation.0, 2);
}

#[test]
fn queued_turn_is_published_as_ended_after_a_restart() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (session, _) = rig.session();
    let (_, running) = rig.running_turn(session);
    let (_, queued) = rig.turn_with(session, WhenBusy::Queue);
    rig.restart(&[]);
    rig.run();
    assert_eq!(rig.turn_outcomes(running), [TurnOutcome::Interrupted]);
    assert_eq!(rig.turn_outcomes(queued), [TurnOutcome::Interrupted]);
}

#[test]
fn session_that_never_had_files_reports_no_loss() {
    let mut rig = Rig::with_pool(template(0, 2), NATIVE);
    let (session, _) = rig.create_session();
    // It was being launched, so that there is a record but nothing in it.
    rig.restart(&[]);
    rig.run();
    let sandbox = rig.store.sessions[&session].sandbox.expect("a cold record");
    let deleted = rig.delete(sandbox);
    assert_eq!(rig.answered(deleted), Reply::Gone);
    assert_eq!(rig.loss_reasons(session), []);
    assert!(rig.resumed(session).lost().is_none());
}

#[test]
fn deletion_continues_after_a_restart() {
    let mut rig = Rig::with_pool(template(0, 2), NATIVE);
    let (cold, sandbox) = rig.slept_session();
    let (live, running) = rig.session();
    rig.session_work(live);
    let deleted = rig.delete(sandbox);
    assert_eq!(rig.answered(deleted), Reply::Gone);
    rig.delete(running);
    rig.restart(&[]);
    assert_eq!(rig.count(delete_workspace), 1);
    rig.run();
    assert!(rig.store.doomed.is_empty() && rig.store.sandboxes.is_empty());
    assert_eq!(rig.terminations(running), [(1, EndCause::Deleted)]);
    for session in [cold, live] {
        assert_eq!(rig.loss_reasons(session).len(), 1);
        assert!(rig.resumed(session).lost().is_some());
    }
}

#[test]
fn a_copy_that_was_in_progress_is_begun_again() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (parent, _) = rig.session();
    rig.session_work(parent);
    let (fork, _) = rig.fork(parent);
    rig.restart(&[]);
    assert_eq!(rig.count(copy), 1);
    rig.run();
    let ready = rig.whole_turn(fork);
    assert!(ready.lost().is_none());
    assert!(rig.store.sandboxes[&ready.sandbox].copying_from.is_none());
}

#[test]
fn restart_works_with_any_clocks() {
    let day = 86_400_000;
    let clocks: [fn(Now) -> Now; 4] = [
        |now| Now { mono: Mono(5), wall: now.wall },
        |now| Now { mono: Mono(5), wall: now.wall.plus(30 * 86_400_000) },
        |now| Now { mono: now.mono, wall: model::Wall(now.wall.0 - 86_400_000) },
        |now| Now { mono: now.mono.plus(86_400_000), wall: model::Wall(1) },
    ];
    for clock in clocks {
        let mut rig = Rig::with_pool(template(1, 3), NATIVE);
        let (session, sandbox) = rig.session();
        rig.session_work(session);
        let (cold, _) = rig.slept_session();
        rig.whole_turn(session);
        rig.now = clock(rig.now);
        rig.restart(&[]);
        rig.run();
        assert_eq!(rig.kernel.pools()[0].idle, 1);
        assert_eq!(rig.whole_turn(session).sandbox, sandbox);
        rig.whole_turn(cold);
        rig.live(day);
        assert_eq!(rig.state(sandbox), SandboxState::Cold);
        assert_eq!(rig.kernel.pools()[0].idle, 1);
    }
}
