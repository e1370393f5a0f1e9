//! Workspaces on disk: a sandbox that wrote too much ends and says why, and nothing is launched
//! while the disk is short.

use model::template::{RuntimeTraits, WorkspaceLimit};
use model::why::Why;
use model::{EndCause, ErrorCode, InstanceId, NodeConfig, SandboxState, TerminatedReason};

use super::rig::{NATIVE, Rig, launch, refusal, template};
use crate::{CheckoutPolicy, Event, Measured, Reply, UseKind, UseTarget};

const SOFT: RuntimeTraits = RuntimeTraits { disk: Some(WorkspaceLimit::Soft), ..NATIVE };
const HARD: RuntimeTraits = RuntimeTraits { disk: Some(WorkspaceLimit::Hard), ..NATIVE };

const MIB: u64 = 1 << 20;
const SMALL: Measured = Measured { bytes: MIB, files: 10, hidden: false };

fn measure(rig: &mut Rig, instance: InstanceId, measured: Measured) {
    assert_eq!(rig.apply(Event::WorkspaceMeasured { instance, measured }), Ok(Reply::Noted));
}

fn free(rig: &mut Rig, mb: u64) {
    assert_eq!(rig.apply(Event::DiskMeasured { free_bytes: mb * MIB }), Ok(Reply::Noted));
}

#[test]
fn disk_limit_ends_only_the_sandbox_that_wrote_too_much() {
    let limit = 512 * MIB;
    let table = [
        (SOFT, SMALL, None),
        (SOFT, Measured { bytes: limit, files: limit / 8192, hidden: false }, None),
        (SOFT, Measured { bytes: limit + 1, ..SMALL }, Some("512 MB")),
        (SOFT, Measured { files: limit / 8192 + 1, ..SMALL }, Some("65536 files")),
        (SOFT, Measured { hidden: true, ..SMALL }, None),
        // The file system keeps these, and nothing is on disk here.
        (HARD, Measured { bytes: limit + 1, ..SMALL }, None),
        (NATIVE, Measured { bytes: limit + 1, ..SMALL }, None),
    ];
    for (traits, measured, ends) in table {
        let mut rig = Rig::with_pool(template(1, 0), traits);
        let out = rig.lease();
        let using = rig.exec(out.sandbox);
        measure(&mut rig, out.instance, measured);
        rig.run();
        let Some(words) = ends else {
            assert!(rig.broken.is_empty(), "{traits:?} {measured:?}");
            continue;
        };
        assert_eq!(rig.end_cause(out.sandbox), EndCause::DiskLimit);
        let (broken, refusal) = &rig.broken[0];
        assert_eq!((*broken, refusal.code), (using, ErrorCode::DiskLimit));
        let Some(Why::Ended(ended)) = rig.kernel.why(rig.now, out.sandbox) else {
            panic!("it ended")
        };
        assert_eq!(ended.cause.reason(), TerminatedReason::DiskLimit);
        assert!(ended.detail.is_some_and(|detail| detail.contains(words)), "{measured:?}");
        // It was its user's fault: the return comes in time.
        rig.give_back(out.lease);
    }
}

#[test]
fn disk_limit_ends_a_sandbox_whose_files_stay_unmeasurable() {
    let hidden = Measured { hidden: true, ..SMALL };
    let mut rig = Rig::with_pool(template(1, 0), SOFT);
    let out = rig.lease();
    let _using = rig.exec(out.sandbox);
    for looked in [hidden, hidden, SMALL, hidden, hidden] {
        measure(&mut rig, out.instance, looked);
        rig.run();
        assert!(rig.broken.is_empty());
    }
    measure(&mut rig, out.instance, hidden);
    rig.run();
    assert_eq!(rig.end_cause(out.sandbox), EndCause::DiskLimit);
    let Some(Why::Ended(ended)) = rig.kernel.why(rig.now, out.sandbox) else { panic!("it ended") };
    assert!(ended.detail.is_some_and(|detail| detail.contains("cannot be measured")));
}

#[test]
fn a_late_measurement_says_nothing_about_the_next() {
    let mut rig = Rig::with_pool(template(1, 0), SOFT);
    let out = rig.lease();
    rig.use_once(out.sandbox);
    rig.give_back(out.lease);
    rig.run();
    measure(&mut rig, out.instance, Measured { bytes: u64::MAX, ..SMALL });
    assert_eq!(rig.pool().idle, 1);
    let next = rig.lease();
    assert_ne!(next.instance, out.instance);
    assert_eq!(rig.kernel.soft_workspaces().len(), 1);
    assert_eq!(rig.kernel.soft_workspaces()[0].instance, next.instance);
    assert_eq!(rig.kernel.soft_workspaces()[0].limit_bytes, 512 * MIB);
}

#[test]
fn why_tells_what_limits_a_workspace_and_what_it_holds() {
    for (traits, limit, bytes) in
        [(SOFT, Some(WorkspaceLimit::Soft), Some(MIB)), (NATIVE, None, None)]
    {
        let mut rig = Rig::with_pool(template(1, 0), traits);
        let out = rig.lease();
        measure(&mut rig, out.instance, SMALL);
        let Some(Why::Alive(alive)) = rig.kernel.why(rig.now, out.sandbox) else {
            panic!("it lives")
        };
        assert_eq!((alive.workspace_limit, alive.workspace_bytes), (limit, bytes));
    }
}

#[test]
fn a_session_that_wrote_too_much_keeps_its_files_and_gets_another_sandbox() {
    let mut rig = Rig::with_pool(template(1, 0), SOFT);
    let (session, sandbox) = rig.session();
    rig.whole_turn(session);
    let instance = rig.instance(sandbox);
    measure(&mut rig, instance, Measured { bytes: u64::MAX, ..SMALL });
    rig.run();
    assert_eq!(rig.end_cause(sandbox), EndCause::DiskLimit);
    rig.whole_turn(session);
    let lost =
        rig.published.iter().any(|event| matches!(event, model::LifecycleEvent::StateLost { .. }));
    assert!(!lost, "its files are still there");
}

#[test]
fn a_disk_that_is_short_takes_nothing_more_until_there_is_room_again() {
    for traits in [SOFT, HARD] {
        let mut rig = Rig::with_pool(template(1, 4), traits);
        free(&mut rig, 1_024);
        let first = rig.lease();
        rig.run();
        free(&mut rig, 1_023);
        assert!(rig.kernel.is_disk_short());
        let idle = rig.lease();
        assert_eq!(rig.count(launch), 0, "the pool is not refilled");
        for policy in [CheckoutPolicy::Wait, CheckoutPolicy::FailFast] {
            let request = rig.checkout_with(|asked| asked.policy = policy);
            rig.run();
            assert_eq!(rig.refused(request), ErrorCode::DiskFull, "{policy:?}");
        }
        // A little more is not enough, or it would go to and fro.
        free(&mut rig, 1_024);
        assert!(rig.kernel.is_disk_short());
        for out in [first, idle] {
            rig.use_once(out.sandbox);
            rig.give_back(out.lease);
        }
        rig.run();
        assert_eq!(rig.pool().idle, 0, "what was used is not made anew");
        free(&mut rig, 1_152);
        assert!(!rig.kernel.is_disk_short());
        rig.run();
        assert_eq!(rig.pool().idle, 1);
    }
}

#[test]
fn waiters_are_refused_when_the_disk_runs_short() {
    let mut rig =
        Rig::with(NodeConfig { max_live: 1, ..NodeConfig::default() }, template(1, 4), SOFT);
    let out = rig.lease();
    let waiting = rig.checkout();
    assert!(rig.pending(waiting));
    free(&mut rig, 0);
    assert_eq!(rig.refused(waiting), ErrorCode::DiskFull);
    rig.use_once(out.sandbox);
}

#[test]
fn templates_in_memory_do_not_care_for_the_disk() {
    let mut rig = Rig::with_pool(template(1, 4), NATIVE);
    free(&mut rig, 0);
    rig.lease();
    rig.run();
    rig.lease();
    assert_eq!(rig.kernel.stats().running, 0);
}

#[test]
fn sessions_are_refused_while_the_disk_is_short() {
    let mut rig = Rig::with_pool(template(0, 4), SOFT);
    free(&mut rig, 0);
    let (_, request) = rig.create_session();
    rig.run();
    assert_eq!(rig.refused(request), ErrorCode::DiskFull);
}

#[test]
fn short_disk_ends_the_largest_sandbox_first_one_at_a_time() {
    let mut rig = Rig::with_pool(template(1, 4), SOFT);
    let mut outs = Vec::new();
    for mb in [20, 300, 15, 200] {
        let out = rig.lease();
        rig.run();
        measure(&mut rig, out.instance, Measured { bytes: mb * MIB, ..SMALL });
        outs.push(out);
    }
    let alive = |rig: &Rig| -> Vec<bool> {
        let lives = |out: &crate::CheckedOut| {
            let view = rig.kernel.sandbox(out.sandbox);
            view.is_some_and(|view| view.ending.is_none() && view.state != SandboxState::Cold)
        };
        outs.iter().map(lives).collect()
    };
    free(&mut rig, 10);
    assert_eq!(alive(&rig), [true, false, true, true]);
    free(&mut rig, 10);
    assert_eq!(alive(&rig), [true, false, true, true], "what it frees is not there yet");
    rig.run();
    free(&mut rig, 10);
    rig.run();
    assert_eq!(alive(&rig), [true, false, true, false]);
    free(&mut rig, 10);
    rig.run();
    assert_eq!(alive(&rig), [false, false, true, false]);
    for _ in 0..2 {
        free(&mut rig, 10);
        rig.run();
    }
    assert_eq!(alive(&rig), [false, false, true, false], "ending that one would free nothing");
    free(&mut rig, 4_000);
    let Some(Why::Ended(ended)) = rig.kernel.why(rig.now, outs[1].sandbox) else {
        panic!("it ended")
    };
    let detail = ended.detail.expect("why");
    assert!(detail.contains("10 MB left") && detail.contains("300 MB"), "{detail}");
}

#[test]
fn a_short_disk_takes_no_writes_and_gives_what_it_has() {
    for traits in [SOFT, HARD, NATIVE] {
        let mut rig = Rig::with_pool(template(1, 5), traits);
        let (session, sandbox) = rig.session();
        let lease = rig.lease();
        free(&mut rig, 10);
        let targets = [
            UseTarget::Session(session),
            UseTarget::Sandbox(sandbox),
            UseTarget::Sandbox(lease.sandbox),
        ];
        for target in targets {
            for kind in [UseKind::Files, UseKind::Read, UseKind::Exec, UseKind::Port] {
                let (request, use_id) = rig.use_of(target, kind);
                rig.run();
                if kind == UseKind::Files && traits.disk.is_some() {
                    let refusal = refusal(&rig, request);
                    assert_eq!(refusal.code, ErrorCode::DiskFull, "{target:?} {traits:?}");
                    assert!(refusal.retry_after_ms.is_some());
                } else {
                    rig.granted(request);
                    rig.use_ended(use_id);
                }
            }
        }
        free(&mut rig, 100_000);
        for target in targets {
            let (request, _) = rig.use_of(target, UseKind::Files);
            rig.granted(request);
        }
    }
}
