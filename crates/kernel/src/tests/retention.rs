//! Limits on the files of sleeping sessions: nothing is deleted unless configured; then the least
//! recently used files go, of the key that is above its share, and each loss is reported.

use model::{KeyId, NodeConfig, SessionId, TerminatedReason, WorkspaceId};

use super::rig::{ON_DISK, Rig, delete_workspace, template};
use super::rig_steps::tight;
use super::shelved_sessions::workspace_of;
use crate::{Event, SessionSettings};

const ONE: KeyId = KeyId::from_u128(1);
const TWO: KeyId = KeyId::from_u128(2);
const MIB: u64 = 1 << 20;

/// A session of a key, stopped, with files of this size.
fn sleeper(rig: &mut Rig, tenant: KeyId, bytes: u64) -> SessionId {
    let session = unmeasured(rig, tenant);
    measure(rig, session, bytes);
    session
}

fn unmeasured(rig: &mut Rig, tenant: KeyId) -> SessionId {
    let (session, _) =
        rig.create_session_with(SessionSettings { tenant, ..SessionSettings::default() });
    rig.run();
    rig.session_work(session);
    rig.stop(session);
    rig.run();
    rig.pass(1);
    session
}

fn measure(rig: &mut Rig, session: SessionId, bytes: u64) {
    let workspace = workspace_of(rig, session);
    let _ = rig.apply(Event::FilesMeasured { workspace, bytes });
}

/// Which of these sessions lost their files.
fn given_up(rig: &Rig, all: &[SessionId]) -> Vec<usize> {
    let lost = |session: &SessionId| rig.loss_reasons(*session) == [TerminatedReason::Policy];
    (0..all.len()).filter(|at| lost(&all[*at])).collect()
}

fn node(change: impl FnOnce(&mut NodeConfig)) -> Rig {
    // Half of the sleeping sessions have an entry, the others are shelved.
    let mut config = tight(2, 9);
    change(&mut config);
    Rig::with(config, template(0, 9), ON_DISK)
}

#[test]
fn retention_deletes_and_measures_nothing_unless_configured() {
    let mut rig = node(|_| {});
    let all: Vec<_> = (0..4).map(|_| sleeper(&mut rig, ONE, u64::MAX / 8)).collect();
    assert_eq!(rig.kernel.unmeasured_files(10), []);
    let _ = rig.apply(Event::DiskMeasured { free_bytes: 0 });
    rig.live(30 * 86_400_000);
    assert_eq!((given_up(&rig, &all), rig.kernel.files_given_up()), (vec![], 0));
    assert!(rig.store.doomed.is_empty());
}

#[test]
fn retention_above_a_keys_limit_deletes_its_least_recently_used_files() {
    let mut rig = node(|config| config.kept_bytes_per_key = Some(100));
    let all: Vec<_> = (0..4).map(|_| unmeasured(&mut rig, ONE)).collect();
    let others: Vec<_> = (0..2).map(|_| sleeper(&mut rig, TWO, 50)).collect();
    let shelved = |session: &SessionId| rig.store.sessions[session].files.is_some();
    assert_eq!(all.iter().map(shelved).collect::<Vec<_>>(), [true; 4]);
    // A use makes the first the most recent of all.
    rig.resumed(all[0]);
    rig.stop(all[0]);
    rig.run();
    for session in &all[..2] {
        measure(&mut rig, *session, 50);
    }
    assert_eq!(given_up(&rig, &all), [0_usize; 0], "exactly as much as it may");
    let doomed = workspace_of(&rig, all[1]);
    measure(&mut rig, all[2], 1);
    assert_eq!(given_up(&rig, &all), [1]);
    assert!(rig.store.doomed.contains(&doomed) && rig.count(delete_workspace) == 1);
    measure(&mut rig, all[3], 99);
    assert_eq!(given_up(&rig, &all), [1, 2, 3], "until it is enough");
    assert_eq!(given_up(&rig, &others), [0_usize; 0], "another key pays for nothing");
    assert_eq!(rig.kernel.files_given_up(), 3);
    rig.run();
    assert_eq!(rig.resumed(all[2]).state_lost, Some(TerminatedReason::Policy));
    assert_eq!(rig.resumed(all[0]).state_lost, None);
}

#[test]
fn retention_above_the_total_deletes_files_of_the_key_furthest_above_its_share() {
    let mut rig = node(|config| config.kept_bytes_total = Some(100));
    let small: Vec<_> = (0..3).map(|_| unmeasured(&mut rig, TWO)).collect();
    let large: Vec<_> = (0..4).map(|_| unmeasured(&mut rig, ONE)).collect();
    for (session, bytes) in
        small[..2].iter().map(|id| (id, 10)).chain(large.iter().map(|id| (id, 20)))
    {
        measure(&mut rig, *session, bytes);
    }
    assert_eq!((given_up(&rig, &large), given_up(&rig, &small)), (vec![], vec![]));
    measure(&mut rig, small[2], 1);
    assert_eq!((given_up(&rig, &large), given_up(&rig, &small)), (vec![0], vec![]));
    measure(&mut rig, small[2], 100);
    assert_eq!(given_up(&rig, &small), [0, 1, 2], "now that key takes most");
    assert_eq!(given_up(&rig, &large), [0]);
}

#[test]
fn retention_skips_wanted_files_and_counts_them() {
    let config = NodeConfig { kept_bytes_total: Some(100), ..tight(1, 9) };
    let mut rig = Rig::with(config, template(0, 9), ON_DISK);
    let large = unmeasured(&mut rig, ONE);
    let small = unmeasured(&mut rig, TWO);
    let (blocker, _) = rig.session();
    rig.end(blocker);
    let resumed = rig.resume(large);
    assert!(rig.pending(resumed), "its place is not free yet");
    measure(&mut rig, large, 80);
    assert_eq!(given_up(&rig, &[large, small]), [0_usize; 0]);
    measure(&mut rig, small, 30);
    assert_eq!(given_up(&rig, &[large, small]), [1]);
    rig.run();
    assert_eq!(rig.session_ready(resumed).lost(), None);
}

#[test]
fn retention_at_the_disk_floor_deletes_one_at_a_time_if_configured() {
    for allowed in [false, true] {
        let mut rig = node(|config| {
            config.give_up_at_floor = allowed;
            config.workspace_free_floor_mb = 100;
        });
        let small = [sleeper(&mut rig, TWO, 10)];
        let large = [sleeper(&mut rig, ONE, 20), sleeper(&mut rig, ONE, 20)];
        for expected in [&[0][..], &[0, 1], &[0, 1]] {
            let _ = rig.apply(Event::DiskMeasured { free_bytes: 99 * MIB });
            let expected = if allowed { expected } else { &[] };
            assert_eq!(given_up(&rig, &large), expected);
        }
        assert_eq!(given_up(&rig, &small).len(), usize::from(allowed));
        assert_eq!(rig.kernel.files_given_up(), if allowed { 3 } else { 0 });
        rig.run();
        assert!(rig.store.doomed.is_empty());
    }
    let mut rig = node(|config| config.give_up_at_floor = true);
    let session = sleeper(&mut rig, ONE, 20);
    let _ = rig.apply(Event::DiskMeasured { free_bytes: u64::MAX });
    assert_eq!(given_up(&rig, &[session]), [0_usize; 0], "there is room");
}

#[test]
fn retention_lists_unmeasured_files_again_after_they_moved() {
    let mut rig = node(|config| config.kept_bytes_total = Some(1_000));
    let all: Vec<_> = (0..3).map(|_| unmeasured(&mut rig, ONE)).collect();
    let sorted = |rig: &Rig| {
        let mut found = rig.kernel.unmeasured_files(10);
        found.sort_unstable();
        found
    };
    let mut expected: Vec<WorkspaceId> = all.iter().map(|id| workspace_of(&rig, *id)).collect();
    expected.sort_unstable();
    assert_eq!(sorted(&rig), expected);
    assert_eq!(rig.kernel.unmeasured_files(1).len(), 1);
    for session in &all {
        measure(&mut rig, *session, 1);
    }
    assert_eq!(sorted(&rig), []);
    // Into an archive, where it takes another room; and a restart knows nothing of sizes.
    rig.live(90_000_000);
    assert!(!sorted(&rig).is_empty());
    rig.restart(&[]);
    assert_eq!(sorted(&rig).len(), 3);
    let unknown = WorkspaceId::from_u128(404);
    let _ = rig.apply(Event::FilesMeasured { workspace: unknown, bytes: u64::MAX });
    assert_eq!(given_up(&rig, &all), [0_usize; 0]);
}

#[test]
fn retention_deletes_nothing_while_the_server_stops() {
    let mut rig = node(|config| {
        config.kept_bytes_total = Some(10);
        config.give_up_at_floor = true;
    });
    let session = unmeasured(&mut rig, ONE);
    rig.shut_down(1_000);
    measure(&mut rig, session, 100);
    let _ = rig.apply(Event::DiskMeasured { free_bytes: 0 });
    assert_eq!(given_up(&rig, &[session]), [0_usize; 0]);
    rig.restart(&[]);
    measure(&mut rig, session, 100);
    assert_eq!(given_up(&rig, &[session]), [0]);
}
