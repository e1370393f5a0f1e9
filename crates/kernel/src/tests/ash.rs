//! Known defects of Ash that are decisions, as tests of this kernel. The number in a comment is
//! that of the defect in our notes on Ash: 2.x its pool and sessions, 6.1 #n its known weaknesses.

use std::sync::Arc;

use model::{
    ClaimSettings, EndCause, ErrorCode, SandboxId, SandboxState, SessionId, SessionStatus,
};

use super::rig::{DOCKER, NATIVE, Rig, launch, name, persist, template, wipe};
use super::rig_steps::{Cases, claiming, env, tight};
use crate::{Action, Event, UseKind, UseTarget};

const HOUR_MS: u64 = 3_600_000;

/// A pool that keeps one sandbox ready, as Ash does.
fn prewarmed() -> Rig {
    Rig::with_pool(template(1, 5), NATIVE)
}

/// A pool that keeps none.
fn unwarmed() -> Rig {
    Rig::with_pool(template(0, 5), NATIVE)
}

/// What was bound to each instance by a claim or a launch, in order of the effects.
fn bound(rig: &Rig) -> Vec<Option<Arc<ClaimSettings>>> {
    let of = |action: &Action| match action {
        Action::Claim { settings, .. } => Some(settings.clone()),
        Action::Launch(launch) => Some(launch.settings.clone()),
        _ => None,
    };
    rig.effects.iter().filter_map(|effect| of(&effect.action)).collect()
}

// 2.2: `warming` was never seen there: the number was always 0.
#[test]
fn warming_is_a_state_that_can_be_seen() {
    let mut rig = unwarmed();
    rig.create_session();
    assert_eq!(rig.kernel.stats().warming, 1);
}

// 2.5 and 6.1 #4: with a limit of 2, fourteen creates one after the other left 8 processes.
#[test]
fn capacity_does_not_drift_over_sequential_creates() {
    for pool_size in [0, 1] {
        let mut rig = Rig::with(tight(2, 2), template(pool_size, 20), NATIVE);
        for _ in 0..14 {
            let (session, request) = rig.create_session();
            rig.run_within_limits();
            rig.session_ready(request);
            rig.whole_turn(session);
            rig.run_within_limits();
        }
    }
}

// 2.5 and 6.1 #4: eight creates at once with a limit of 2 gave 9 processes.
#[test]
fn capacity_does_not_overshoot_under_concurrent_creates() {
    let mut rig = Rig::with(tight(2, 2), template(1, 20), NATIVE);
    rig.session_wait_ms = Some(0);
    let requests: Vec<_> = (0..8).map(|_| rig.create_session().1).collect();
    rig.run_within_limits();
    let ready = requests.iter().filter(|r| matches!(rig.answer(**r), Some(Ok(_)))).count();
    assert_eq!(ready, 2);
    for request in requests {
        if let Some(Err(refusal)) = rig.answer(request) {
            assert_eq!(refusal.code, ErrorCode::CapacityExhausted);
        }
    }
}

// 2.4 and 6.1 #4: a claim of a prewarmed sandbox skipped the check, and its replacement was extra.
#[test]
fn claiming_a_prewarmed_one_and_replacing_it_keeps_to_the_limits() {
    let mut rig = Rig::with(tight(3, 3), template(2, 20), NATIVE);
    for _ in 0..6 {
        rig.create_session();
        rig.within_limits();
        rig.run_within_limits();
    }
}

// 2.9 and 6.1 #3: the settings of a session were dropped by the claim and reached the next one.
#[test]
fn settings_reach_exactly_the_session_they_were_given_for() {
    let mut rig = prewarmed();
    rig.create_session_with(claiming("first"));
    let settings = bound(&rig);
    assert_eq!(settings[0], Some(env("first")), "bound by the claim");
    assert_eq!(settings[1..], [None], "the replacement knows nothing of it");
    rig.run();
    rig.create_session();
    assert_eq!(bound(&rig), [None, None], "nor does the next session");
    rig.run();
    // Without one that is warm they are bound at the launch, and to every use.
    let mut rig = unwarmed();
    let (session, _) = rig.create_session_with(claiming("second"));
    assert_eq!(bound(&rig), [Some(env("second"))]);
    rig.run();
    let (request, _) = rig.use_of(UseTarget::Session(session), UseKind::Exec);
    assert_eq!(rig.granted(request).settings, Some(env("second")));
    // A lease is no different, also where the sandbox itself is used again.
    let mut rig = Rig::with_pool(template(1, 0), DOCKER);
    let request = rig.checkout_with(|checkout| checkout.claim = Some(env("third")));
    assert_eq!(bound(&rig), [Some(env("third"))]);
    rig.run();
    let lease = rig.checked_out(request);
    rig.give_back(lease.lease);
    assert_eq!(rig.count(wipe), 1, "settings are a touch");
    rig.run();
    rig.checkout();
    assert_eq!(bound(&rig), [None]);
}

// 2.9: a redeployed agent went on handing out sandboxes with the old files, and each deploy added
// one more.
#[test]
fn a_replaced_template_is_not_served_from_the_old_pool() {
    let mut rig = prewarmed();
    let old = rig.only().id;
    let mut changed = template(1, 5);
    changed.limits.memory_mb = 1024;
    rig.put(changed, NATIVE);
    let (_, request) = rig.create_session();
    rig.run();
    assert_ne!(rig.session_ready(request).sandbox, old);
    assert_eq!(rig.ended(old).cause, EndCause::TemplateReplaced);
    for _ in 0..3 {
        let mut same = template(1, 5);
        same.limits.memory_mb = 1024;
        rig.put(same, NATIVE);
        rig.run();
    }
    assert_eq!(rig.kernel.pool_stats(&name()).unwrap().idle, 1);
}

// 2.5 and 6.1 #12: a session evicted before its first message stayed active and failed.
#[test]
fn a_session_evicted_while_warm_is_paused_and_resumes_on_its_next_message() {
    let mut rig = Rig::with(tight(100, 1), template(0, 5), NATIVE);
    let (session, sandbox) = rig.session();
    rig.session();
    assert_eq!(
        (rig.status(session), rig.state(sandbox)),
        (SessionStatus::Paused, SandboxState::Cold)
    );
    assert_eq!(rig.whole_turn(session).sandbox, sandbox);
    assert_eq!(rig.status(session), SessionStatus::Active);
}

// 2.6: a session that was never messaged was never swept.
#[test]
fn the_sweep_takes_the_warm_ones_of_sessions_and_leaves_those_of_the_pool() {
    let mut rig = prewarmed();
    let (session, sandbox) = rig.session();
    rig.live(HOUR_MS);
    assert_eq!(
        (rig.state(sandbox), rig.status(session)),
        (SandboxState::Cold, SessionStatus::Paused)
    );
    assert_eq!(rig.alive(sandbox).slept, Some(EndCause::Idle));
    assert_eq!(rig.in_state(SandboxState::Warm).len(), 1);
}

// 2.6: a session in use only through exec or files was swept.
#[test]
fn execs_and_file_calls_count_as_activity() {
    for kind in [UseKind::Exec, UseKind::Files, UseKind::Port] {
        let mut rig = unwarmed();
        let (session, sandbox) = rig.waiting_session();
        for _ in 0..4 {
            rig.live(HOUR_MS / 3);
            let (request, use_id) = rig.use_of(UseTarget::Session(session), kind);
            rig.run();
            assert_eq!(rig.granted(request).sandbox, sandbox);
            assert_eq!(rig.alive(sandbox).last_used_at, rig.now.wall, "{kind:?}");
            rig.use_ended(use_id);
        }
        assert_eq!(rig.terminations(sandbox), [], "{kind:?}");
        // One that goes on for longer than the idle timeout is not swept either.
        let (_, use_id) = rig.use_of(UseTarget::Session(session), kind);
        rig.live(HOUR_MS);
        assert_eq!(rig.terminations(sandbox), [], "{kind:?}");
        rig.use_ended(use_id);
        rig.live(HOUR_MS);
        assert_eq!(rig.terminations(sandbox), [(1, EndCause::Idle)], "{kind:?}");
    }
}

// 2.6 and 6.1 #11: a swept session answered 400 until it was resumed by a call.
#[test]
fn an_idle_swept_session_resumes_by_itself_on_its_next_message() {
    let mut rig = unwarmed();
    let (session, sandbox) = rig.waiting_session();
    rig.live(HOUR_MS);
    assert_eq!(rig.status(session), SessionStatus::Paused);
    let (request, _) = rig.turn(session);
    rig.run();
    let ready = rig.session_ready(request);
    assert_eq!((ready.sandbox, ready.generation.0), (sandbox, 2));
    assert_eq!(
        (rig.status(session), rig.kernel.stats().resume_cold_hits),
        (SessionStatus::Active, 1)
    );
}

// 2.7 and 6.1 #11: files were deleted two hours after the last message.
#[test]
fn cold_files_are_kept_while_no_sandbox_needs_their_place() {
    let mut rig = unwarmed();
    let (session, sandbox) = rig.waiting_session();
    rig.live(30 * 24 * HOUR_MS);
    assert_eq!(rig.state(sandbox), SandboxState::Cold);
    rig.turn(session);
    assert!(rig.launches()[0].restore);
    assert_eq!(rig.losses(session), []);
}

// 2.8: a turn that started between the choice of a victim and its kill was killed.
#[test]
fn a_turn_that_starts_while_the_sweep_saves_its_sandbox_is_safe() {
    let mut rig = unwarmed();
    let (session, sandbox) = rig.waiting_session();
    while rig.count(persist) == 0 {
        rig.pass(60_000);
    }
    let (request, _) = rig.turn(session);
    assert_eq!(rig.state(sandbox), SandboxState::Running);
    rig.run();
    assert_eq!(rig.session_ready(request).sandbox, sandbox);
    assert_eq!(rig.terminations(sandbox), []);
}

/// Ways to make a session's sandbox cold, or dead.
const SETBACKS: Cases<fn(&mut Rig, SessionId, SandboxId)> = &[
    ("an idle sweep", |rig, _, _| rig.live(HOUR_MS)),
    ("a stop", |rig, session, _| {
        rig.stop(session);
        rig.run();
    }),
    ("its death", |rig, _, sandbox| {
        rig.dies(sandbox);
        rig.run();
    }),
    ("a crash of the server", |rig, _, sandbox| {
        let alive = [rig.instance(sandbox)];
        assert_eq!(rig.restart(&alive).marked_cold, 1);
        rig.run();
    }),
    ("a crash of the machine", |rig, _, _| {
        assert_eq!(rig.restart(&[]).marked_cold, 1);
        rig.run();
    }),
    ("an orderly restart", |rig, _, _| {
        let _ = rig.apply(Event::ShutdownBegan { grace_ms: 1_000 });
        rig.run();
        assert!(rig.stopped);
        rig.restart(&[]);
        rig.run();
    }),
];

// 6.1 #2 a to d, and #16: cold resume failed, took a prewarmed sandbox without the files, or lost
// the environment, in nearly every case.
#[test]
fn cold_resume_works_after_every_setback_with_its_own_files_and_settings() {
    for pool_size in [0, 1] {
        for (what, strikes) in SETBACKS {
            let mut rig = Rig::with_pool(template(pool_size, 5), NATIVE);
            let (session, request) = rig.create_session_with(claiming("me"));
            rig.run();
            let sandbox = rig.session_ready(request).sandbox;
            rig.whole_turn(session);
            let workspace = rig.store.sandboxes[&sandbox].workspace;
            strikes(&mut rig, session, sandbox);
            assert_eq!(rig.count(launch), 0, "{what}");
            let resume = rig.resume(session);
            let launches = rig.launches();
            let own = launches.iter().find(|launch| launch.workspace == workspace);
            let own = own.unwrap_or_else(|| panic!("{what}: its files are not found"));
            assert!(own.restore, "{what}");
            assert_eq!(own.settings, Some(env("me")), "{what}");
            rig.run();
            let ready = rig.session_ready(resume);
            assert_eq!(ready.sandbox, own.sandbox, "{what}");
            assert!(ready.generation.0 > 1 && ready.lost().is_none(), "{what}");
            assert_eq!(rig.losses(session), [], "{what}");
            assert_eq!(rig.kernel.stats().resume_cold_hits, 1, "{what}");
            rig.whole_turn(session);
        }
    }
}
