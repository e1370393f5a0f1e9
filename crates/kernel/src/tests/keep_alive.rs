//! What keeps a sandbox alive: keepAlive processes and the scale file, what a stop does to them,
//! and that none of it outlives the sandbox.

use model::process::RestartPolicy;
use model::state::Wakefulness;
use model::{NodeConfig, ProcessId, ProcessStatus, SandboxId, SandboxState, SessionId};

use super::rig::{
    DOCKER, NATIVE, Rig, freeze, kill_process, persist, restart_process, template, trouble,
};
use crate::{
    Action, DeathCause, Event, FreezeStatus, KeepAliveProcess, KeepAliveReport, Outcome,
    StartedProcess,
};

const ALWAYS: Option<RestartPolicy> = Some(RestartPolicy { max_restarts: None });

/// A session's sandbox that has been used.
fn scene() -> (Rig, SessionId, SandboxId) {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    (rig, session, sandbox)
}

fn report(rig: &Rig, sandbox: SandboxId) -> KeepAliveReport {
    rig.kernel.keep_alive_report(sandbox).expect("a sandbox that is known")
}

fn awake(rig: &Rig, sandbox: SandboxId) -> bool {
    report(rig, sandbox).wakefulness == Wakefulness::Awake
}

fn kept(rig: &Rig, sandbox: SandboxId) -> Vec<u128> {
    report(rig, sandbox).processes.iter().map(|kept| kept.process.as_u128()).collect()
}

const NOTHING: KeepAliveReport = KeepAliveReport {
    wakefulness: Wakefulness::Auto,
    scheduled_stop_at: None,
    processes: Vec::new(),
    scale: 0,
    because: FreezeStatus::Quiet,
};

#[test]
fn keep_alive_process_or_scale_prevents_freeze_until_it_ends() {
    type Act = fn(&mut Rig, SandboxId);
    let holds: [(Act, Act); 2] = [
        (|rig, sandbox| rig.starts(sandbox, 1, Some(0)), |rig, sandbox| rig.exits(sandbox, 1)),
        (|rig, sandbox| rig.scale(sandbox, 1), |rig, sandbox| rig.scale(sandbox, 0)),
    ];
    for (begin, end) in holds {
        let config = NodeConfig { max_live: 1, ..NodeConfig::default() };
        let mut rig = Rig::with(config, template(0, 5), NATIVE);
        let (session, sandbox) = rig.session();
        rig.session_work(session);
        begin(&mut rig, sandbox);
        rig.pass(7_200_000);
        assert!(rig.effects.is_empty(), "{:?}", rig.effects);
        rig.session_wait_ms = Some(0);
        let (_, refused) = rig.create_session();
        assert_eq!(rig.refused(refused), model::ErrorCode::CapacityExhausted);
        let request = rig.ask_freeze(sandbox);
        assert_eq!(rig.refused(request), model::ErrorCode::SandboxBusy);
        end(&mut rig, sandbox);
        assert_eq!(report(&rig, sandbox), NOTHING);
        rig.pass(9_999);
        assert!(rig.effects.is_empty(), "the end of a hold is its last use");
        rig.pass(1);
        assert_eq!(rig.count(freeze), 1);
        rig.live(1_700_000);
        assert_ne!(rig.state(sandbox), SandboxState::Cold);
        rig.live(200_000);
        assert_eq!(rig.state(sandbox), SandboxState::Cold);
    }
}

#[test]
fn process_is_killed_when_its_time_expires_and_keeps_nothing_alive() {
    for (asked, lives) in [(None, 600_000), (Some(5_000), 5_000)] {
        let (mut rig, _, sandbox) = scene();
        rig.starts(sandbox, 1, asked);
        let kept = report(&rig, sandbox).processes;
        let process = ProcessId::from_u128(1);
        assert_eq!(
            kept,
            [KeepAliveProcess { process, started_at: rig.now.wall, timeout_ms: lives }]
        );
        rig.pass(lives - 1);
        assert_eq!((rig.count(kill_process), awake(&rig, sandbox)), (0, true));
        rig.pass(1);
        assert_eq!((rig.count(kill_process), awake(&rig, sandbox)), (1, false));
        let effect = rig.finish(kill_process, Outcome::Done);
        assert!(matches!(effect.action, Action::KillProcess { process: of, instance }
            if of == process && instance == rig.instance(sandbox)));
        rig.exits(sandbox, 1);
        rig.pass(9_000);
        assert_eq!(rig.count(kill_process), 0);
    }
}

#[test]
fn a_process_for_ever_is_never_killed() {
    let (mut rig, _, sandbox) = scene();
    rig.starts(sandbox, 1, Some(0));
    assert_eq!(report(&rig, sandbox).processes[0].timeout_ms, 0);
    rig.pass(86_400_000);
    assert_eq!((rig.count(kill_process), awake(&rig, sandbox)), (0, true));
}

#[test]
fn a_kill_that_fails_is_tried_again_but_not_for_ever() {
    for heard in [true, false] {
        let (mut rig, _, sandbox) = scene();
        rig.starts(sandbox, 1, Some(1_000));
        rig.pass(1_000);
        let mut kills = 0;
        for _ in 0..20 {
            rig.effects.retain(|effect| kill_process(&effect.action));
            while let Some(effect) = rig.effects.pop_front() {
                kills += 1;
                if heard {
                    rig.end_effect(&effect, trouble());
                }
            }
            rig.pass(5_000);
        }
        assert_eq!(kills, 3);
        assert!(!awake(&rig, sandbox), "it holds nothing, whatever it does");
    }
}

#[test]
fn a_process_whose_program_is_started_again_starts_its_clock_again() {
    let (mut rig, _, sandbox) = scene();
    rig.starts_as(sandbox, 1, true, 10_000, ALWAYS);
    rig.pass(8_000);
    rig.fails(sandbox, 1);
    rig.pass(1_000);
    rig.finish(restart_process, Outcome::Done);
    assert_eq!(kept(&rig, sandbox), [1], "it is counted once");
    rig.pass(9_999);
    assert_eq!(rig.count(kill_process), 0);
    rig.pass(1);
    assert_eq!(rig.count(kill_process), 1);
}

#[test]
fn a_process_without_keep_alive_holds_nothing() {
    let (mut rig, _, sandbox) = scene();
    rig.starts_as(sandbox, 1, false, 0, None);
    assert_eq!(report(&rig, sandbox), NOTHING);
}

#[test]
fn keep_alive_processes_have_a_limit() {
    let config = NodeConfig { max_processes: 1, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 1), NATIVE);
    let (_, sandbox) = rig.session();
    rig.starts(sandbox, 1, None);
    rig.starts(sandbox, 1, None);
    let started = StartedProcess {
        sandbox,
        instance: rig.instance(sandbox),
        process: ProcessId::from_u128(2),
        keep_alive: true,
        timeout_ms: 0,
        restart: None,
    };
    let refusal = rig.apply(Event::ProcessStarted(started)).unwrap_err();
    assert_eq!(refusal.code, model::ErrorCode::LimitReached);
    assert_eq!(rig.over(2).1.status, ProcessStatus::Failed, "it is ended all the same");
}

#[test]
fn stop_takes_the_holds_of_the_processes_that_exist_and_kills_nothing() {
    let (mut rig, _, sandbox) = scene();
    rig.starts(sandbox, 1, None);
    rig.starts(sandbox, 2, Some(0));
    assert_eq!(rig.stop_processes(sandbox, 0), NOTHING);
    assert_eq!(rig.count(kill_process), 0);
    rig.starts(sandbox, 3, None);
    assert_eq!(kept(&rig, sandbox), [3], "it was not there yet");
    // What a process was given to live stays what it was given.
    rig.pass(600_000);
    let killed = rig.effects.iter().filter(|effect| kill_process(&effect.action)).count();
    assert_eq!(killed, 2);
}

#[test]
fn a_scheduled_stop_affects_those_that_existed_when_it_was_asked_for() {
    let (mut rig, _, sandbox) = scene();
    rig.starts(sandbox, 1, Some(0));
    rig.starts_as(sandbox, 2, true, 0, ALWAYS);
    let at = rig.now.wall.plus(300_000);
    let seen = rig.stop_processes(sandbox, 300_000);
    assert_eq!((seen.scheduled_stop_at, seen.wakefulness), (Some(at), Wakefulness::Awake));
    assert_eq!(seen.processes.len(), 2);
    rig.starts(sandbox, 3, Some(0));
    // The id of a process stays the same when it restarts.
    rig.fails(sandbox, 2);
    rig.pass(1_000);
    rig.finish(restart_process, Outcome::Done);
    rig.pass(298_999);
    assert_eq!(kept(&rig, sandbox), [1, 2, 3]);
    rig.pass(1);
    assert_eq!(kept(&rig, sandbox), [3]);
    assert_eq!(report(&rig, sandbox).scheduled_stop_at, None);
    assert!(awake(&rig, sandbox));
}

#[test]
fn the_latest_stop_counts_in_either_order() {
    for (first, second) in [(300_000, 200_000), (200_000, 300_000)] {
        let (mut rig, _, sandbox) = scene();
        rig.starts(sandbox, 1, Some(0));
        rig.stop_processes(sandbox, first);
        rig.stop_processes(sandbox, second);
        assert_eq!(report(&rig, sandbox).scheduled_stop_at, Some(rig.now.wall.plus(second)));
        rig.pass(second - 1);
        assert!(awake(&rig, sandbox));
        rig.pass(1);
        assert!(!awake(&rig, sandbox));
    }
}

#[test]
fn a_stop_cancels_the_scheduled_one_also_when_there_is_nothing_to_stop() {
    let (mut rig, _, sandbox) = scene();
    rig.starts(sandbox, 1, Some(0));
    rig.stop_processes(sandbox, 300_000);
    assert_eq!(rig.stop_processes(sandbox, 0), NOTHING);
    rig.starts(sandbox, 2, Some(0));
    rig.pass(400_000);
    assert_eq!(kept(&rig, sandbox), [2], "the earlier stop is void");
    rig.stop_processes(sandbox, 300_000);
    rig.exits(sandbox, 2);
    assert_eq!(rig.stop_processes(sandbox, 500_000).scheduled_stop_at, None);
}

#[test]
fn scale_above_zero_keeps_a_sandbox_alive_without_any_process() {
    let (mut rig, _, sandbox) = scene();
    for scale in [0, 1, 3, u32::MAX, 0] {
        rig.scale(sandbox, scale);
        let seen = report(&rig, sandbox);
        let state = if scale > 0 { Wakefulness::Awake } else { Wakefulness::Auto };
        assert_eq!((seen.scale, seen.wakefulness), (scale, state));
        assert!(seen.processes.is_empty());
    }
}

#[test]
fn a_reset_drops_every_hold_and_a_stop_only_those_of_processes() {
    let (mut rig, _, sandbox) = scene();
    rig.starts(sandbox, 1, Some(0));
    rig.scale(sandbox, 2);
    let seen = rig.stop_processes(sandbox, 0);
    assert_eq!((seen.wakefulness, seen.scale), (Wakefulness::Awake, 2));
    assert!(seen.processes.is_empty());
    rig.starts(sandbox, 2, Some(0));
    rig.write_scale(rig.instance(sandbox), 0, true);
    assert_eq!(report(&rig, sandbox), NOTHING);
    rig.starts(sandbox, 3, Some(0));
    rig.write_scale(rig.instance(sandbox), 3, true);
    assert_eq!((kept(&rig, sandbox), report(&rig, sandbox).scale), (vec![], 3));
}

#[test]
fn a_stop_with_nothing_to_stop_is_no_use() {
    let (mut rig, _, sandbox) = scene();
    let used = rig.kernel.sandbox(sandbox).unwrap().last_used_at;
    rig.pass(5_000);
    rig.stop_processes(sandbox, 0);
    assert_eq!(rig.kernel.sandbox(sandbox).unwrap().last_used_at, used);
}

#[test]
fn keep_alive_does_not_survive_a_death_a_sleep_or_a_restart() {
    let ends: [fn(&mut Rig, SessionId, SandboxId); 4] = [
        |rig, _, sandbox| rig.dies_of(sandbox, DeathCause::Crash),
        |rig, session, _| {
            rig.stop(session);
        },
        |rig, session, _| {
            rig.running_turn(session);
            rig.abort(session, false);
        },
        |rig, _, _| {
            let alive: Vec<_> = rig.existing.iter().copied().collect();
            rig.restart(&alive);
        },
    ];
    for end in ends {
        let (mut rig, session, sandbox) = scene();
        rig.starts(sandbox, 1, Some(0));
        rig.scale(sandbox, 3);
        rig.stop_processes(sandbox, 600_000);
        end(&mut rig, session, sandbox);
        rig.run();
        let next = rig.resumed(session).sandbox;
        assert_eq!(report(&rig, next), NOTHING);
        rig.live(3_600_000);
        assert_eq!(rig.state(next), SandboxState::Cold, "it can sleep");
    }
}

#[test]
fn keep_alive_does_not_survive_a_return() {
    for traits in [NATIVE, DOCKER] {
        let mut rig = Rig::with_pool(template(1, 0), traits);
        let lease = rig.lease();
        rig.use_once(lease.sandbox);
        rig.starts(lease.sandbox, 1, Some(5_000));
        rig.scale(lease.sandbox, 3);
        rig.stop_processes(lease.sandbox, 600_000);
        rig.give_back(lease.lease);
        rig.run();
        let next = rig.lease();
        assert_eq!(report(&rig, next.sandbox), NOTHING);
        rig.pass(5_000);
        assert_eq!(rig.count(kill_process), 0, "that process is not there any more");
        // What the last use of an instance did late is not this one's.
        let instance = lease.instance;
        rig.write_scale(instance, 0, true);
        rig.live(10_000);
        assert!(rig.frozen(next.sandbox));
    }
}

#[test]
fn what_an_instance_that_is_gone_writes_is_ignored() {
    let (mut rig, session, sandbox) = scene();
    let old = rig.instance(sandbox);
    rig.stop(session);
    rig.run();
    rig.resumed(session);
    rig.write_scale(old, 1, false);
    let process = ProcessId::from_u128(9);
    let (keep_alive, timeout_ms, restart) = (true, 0, None);
    let late = StartedProcess { sandbox, instance: old, process, keep_alive, timeout_ms, restart };
    let _ = rig.apply(Event::ProcessStarted(late));
    assert_eq!(report(&rig, sandbox), NOTHING);
}

#[test]
fn a_kill_that_worked_is_not_repeated_and_one_that_failed_soon_is() {
    let (mut rig, _, sandbox) = scene();
    rig.starts(sandbox, 1, Some(1_000));
    rig.pass(1_000);
    rig.finish(kill_process, trouble());
    rig.pass(999);
    assert_eq!(rig.count(kill_process), 0);
    rig.pass(1);
    // Its end is reported by an event, which may come late.
    rig.finish(kill_process, Outcome::Done);
    rig.pass(60_000);
    assert_eq!(rig.count(kill_process), 0);
}

#[test]
fn process_whose_time_expired_counts_as_the_last_use() {
    let (mut rig, _, sandbox) = scene();
    rig.starts(sandbox, 1, Some(30_000));
    rig.pass(30_000);
    rig.finish(kill_process, Outcome::Done);
    rig.pass(9_999);
    assert_eq!(rig.count(freeze), 0);
    rig.pass(1);
    assert_eq!(rig.count(freeze), 1);
}

#[test]
fn files_of_a_kept_alive_sandbox_stay_dirty_after_a_save() {
    let (mut rig, session, sandbox) = scene();
    rig.session_work(session);
    rig.starts(sandbox, 1, Some(0));
    rig.pause(session);
    rig.finish(persist, Outcome::Done);
    rig.exits(sandbox, 1);
    rig.stop(session);
    assert_eq!(rig.count(persist), 1, "the process went on writing while it was saved");
}

#[test]
fn process_time_stops_while_its_sandbox_is_frozen() {
    let (mut rig, session, sandbox) = scene();
    rig.starts_as(sandbox, 1, false, 60_000, None);
    assert!(!awake(&rig, sandbox), "a timeout is no hold");
    rig.pass(10_000);
    rig.finish(freeze, Outcome::Done);
    rig.pass(500_000);
    assert_eq!(rig.count(kill_process), 0, "it had ten seconds so far");
    assert_eq!(report(&rig, sandbox).because, FreezeStatus::Frozen);
    let use_id = rig.session_exec(session);
    rig.pass(49_999);
    assert_eq!(rig.count(kill_process), 0);
    rig.pass(1);
    assert_eq!(rig.count(kill_process), 1);
    rig.use_ended(use_id);
    assert_eq!(rig.count(freeze), 0);
    let request = rig.ask_freeze(sandbox);
    assert_eq!(rig.refused(request), model::ErrorCode::SandboxBusy);
    rig.finish(kill_process, Outcome::Done);
    rig.pass(10_000);
    assert_eq!(rig.count(freeze), 1, "until then it must be able to run");
}

#[test]
fn sandbox_that_may_be_frozen_is_thawed_before_a_process_is_killed() {
    let (mut rig, _, sandbox) = scene();
    rig.starts_as(sandbox, 1, false, 60_000, None);
    rig.pass(10_000);
    rig.finish(freeze, Outcome::TimedOut);
    rig.pass(50_000);
    assert_eq!(rig.count(kill_process), 0);
    rig.finish(|action| matches!(action, Action::Thaw { .. }), Outcome::Done);
    rig.pass(1);
    assert_eq!(rig.count(kill_process), 1);
}

#[test]
fn a_hold_that_was_taken_away_does_not_come_back_by_a_restart() {
    let (mut rig, _, sandbox) = scene();
    rig.starts_as(sandbox, 1, true, 0, ALWAYS);
    rig.stop_processes(sandbox, 0);
    rig.fails(sandbox, 1);
    rig.pass(1_000);
    rig.finish(restart_process, Outcome::Done);
    assert!(!awake(&rig, sandbox));
    let process = ProcessId::from_u128(1);
    assert!(!rig.kernel.process_keeps_alive(rig.instance(sandbox), process));
}

#[test]
fn scale_file_is_notified_of_every_keep_alive_change() {
    let (mut rig, _, sandbox) = scene();
    rig.starts(sandbox, 1, Some(0));
    rig.starts(sandbox, 2, Some(0));
    assert_eq!(std::mem::take(&mut rig.shown), [(1, 0), (2, 0)]);
    rig.scale(sandbox, 3);
    assert_eq!(std::mem::take(&mut rig.shown), [(2, 1)], "what was written is acknowledged");
    rig.exits(sandbox, 1);
    rig.write_scale(rig.instance(sandbox), 0, true);
    assert_eq!(rig.shown, [(1, 1), (0, 1)]);
}

#[test]
fn sandbox_kept_alive_during_its_freeze_is_thawed_again() {
    for early in [true, false] {
        let (mut rig, _, sandbox) = scene();
        rig.pass(10_000);
        if early {
            rig.scale(sandbox, 1);
        }
        rig.finish(freeze, Outcome::Done);
        if !early {
            rig.scale(sandbox, 1);
        }
        rig.finish(|action| matches!(action, Action::Thaw { .. }), Outcome::Done);
        assert!(!rig.frozen(sandbox));
        rig.pass(3_600_000);
        assert_eq!(rig.count(freeze), 0);
    }
}
