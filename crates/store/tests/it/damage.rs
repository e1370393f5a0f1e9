//! The files of a killed server are damaged, lost or exchanged before the next start: a database
//! that lacks acknowledged commits is refused and nothing is changed, and what a power cut takes is
//! reported.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use store::conformance::fixtures::{key, whole};
use store::sqlite::{DatabaseLocation as Directory, FILE, LossPolicy, MARK_FILE, SqliteStore};
use store::{Retention, Store as _, StoreError, StoreErrorCode};

use crate::child;
use crate::temp_dir::TempDir;

const LOG: &str = "shoal.db-wal";
const COMMITS: u64 = 60;
/// Of a log with pages of 4 KiB.
const FRAME_BYTES: usize = 4_096 + 24;
const LOG_HEADER_BYTES: usize = 32;

#[test]
fn child_that_is_killed_with_a_log() {
    let Some(directory) = child::directory() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let store = SqliteStore::open(&directory, Retention::default()).expect("opened");
        store.put_key(&key(1, 1)).await.expect("written");
        for number in 1..=COMMITS {
            store.commit(&whole(number)).await.expect("written");
        }
        writeln!(std::io::stdout(), "\nall written").expect("the parent reads");
        loop {
            std::thread::park();
        }
    });
}

/// A directory as left by a server that is killed right after its commits.
fn killed() -> TempDir {
    let place = TempDir::new();
    let (program, arguments) = child::command("damage::child_that_is_killed_with_a_log");
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = child::with_directory(&mut command, place.path()).spawn().expect("started");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line == "all written")));
    child.kill().expect("killed");
    child.wait().expect("gone");
    place
}

fn open(place: &TempDir) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(place.path(), Retention::default())
}

fn files(place: &TempDir) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(place.path()).expect("a directory").map(|entry| {
        let entry = entry.expect("an entry");
        let bytes = fs::read(entry.path()).expect("read");
        (entry.file_name().into_string().expect("text"), bytes)
    });
    entries.collect()
}

fn change(place: &TempDir, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(place.file(name)).expect("read");
    change(&mut bytes);
    fs::write(place.file(name), bytes).expect("written");
}

/// As if the machine had been rebooted since.
fn another_boot(place: &TempDir) {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot");
    let text = fs::read_to_string(place.file(MARK_FILE)).expect("a mark");
    let slots = text.lines().map(|slot| {
        let (said, _) = slot.rsplit_once(" sum=").expect("a sum");
        let said = said.replace(boot.trim(), "another-boot");
        let sum = said.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        format!("{:<255}\n", format!("{said} sum={sum:016x}"))
    });
    let slots: String = slots.collect();
    fs::write(place.file(MARK_FILE), slots).expect("written");
}

fn remove(place: &TempDir, name: &str) {
    fs::remove_file(place.file(name)).expect("removed");
}

#[tokio::test]
async fn database_after_a_kill_is_complete() {
    let place = killed();
    let store = open(&place).expect("opened");
    assert_eq!(store.lost(), None);
    assert_eq!(store.load().await.expect("loaded").last_event, COMMITS);
    store.close().await.expect("closed");
    assert!(!place.file(LOG).exists(), "an orderly stop leaves no log");
    assert_eq!(open(&place).expect("opened").lost(), None);
}

#[tokio::test]
async fn database_that_lacks_commits_is_refused_and_not_touched() {
    type Damage = fn(&TempDir);
    let cases: [(&str, Damage, StoreErrorCode, &str); 9] = [
        (
            "the log is damaged in the middle",
            |place| {
                change(place, LOG, |log| {
                    let frames = (log.len() - LOG_HEADER_BYTES) / FRAME_BYTES;
                    log[LOG_HEADER_BYTES + frames / 2 * FRAME_BYTES + 500] ^= 0xff;
                });
            },
            StoreErrorCode::Incomplete,
            "damaged after frame",
        ),
        (
            "the same, and there is no mark",
            |place| {
                remove(place, MARK_FILE);
                change(place, LOG, |log| {
                    log[LOG_HEADER_BYTES + 20 * FRAME_BYTES + 500] ^= 0xff;
                });
            },
            StoreErrorCode::Incomplete,
            "whole commits behind the damage",
        ),
        (
            "the log begins with something else",
            |place| change(place, LOG, |log| log[..100].fill(0x55)),
            StoreErrorCode::Incomplete,
            "the beginning of its log",
        ),
        ("the log is gone", |place| remove(place, LOG), StoreErrorCode::Incomplete, "not there"),
        (
            "the log is empty",
            |place| change(place, LOG, Vec::clear),
            StoreErrorCode::Incomplete,
            "are missing",
        ),
        (
            "the database is empty",
            |place| change(place, FILE, Vec::clear),
            StoreErrorCode::Missing,
            "is empty",
        ),
        ("the database is gone", |place| remove(place, FILE), StoreErrorCode::Missing, "not there"),
        (
            "the database and its log are gone",
            |place| {
                remove(place, FILE);
                remove(place, LOG);
                remove(place, "shoal.db-shm");
            },
            StoreErrorCode::Missing,
            MARK_FILE,
        ),
        (
            "the database is garbled",
            |place| change(place, FILE, |file| file.fill(0x55)),
            StoreErrorCode::Corrupt,
            "malformed",
        ),
    ];
    for (what, damage, code, cause) in cases {
        let place = killed();
        damage(&place);
        let before = files(&place);
        for _ in 0..2 {
            let error = open(&place).expect_err(what);
            assert_eq!(error.code, code, "{what}: {error}");
            assert!(error.cause.contains(cause), "{what}: {error}");
            assert!(!error.retryable() && error.remedy().contains("--accept-loss"), "{what}");
            assert!(files(&place) == before, "{what}: something was changed");
        }
    }
}

#[tokio::test]
async fn accepted_loss_is_reported_and_the_damaged_log_kept() {
    let place = killed();
    change(&place, LOG, |log| log[LOG_HEADER_BYTES + 20 * FRAME_BYTES + 500] ^= 0xff);
    let damaged = fs::read(place.file(LOG)).expect("read");
    let accept = |directory: &Path| {
        let directory = directory.to_owned();
        let place = Directory { directory, loss: LossPolicy::Accept, ..Directory::default() };
        let inspected = SqliteStore::inspect(&place, Retention::default()).expect("accepted");
        SqliteStore::open_inspected(inspected, Retention::default()).expect("opened")
    };
    let store = accept(place.path());
    let lost = store.lost().expect("a reported loss").clone();
    let there = store.load().await.expect("loaded").last_event;
    // The key was a commit, too.
    assert_eq!(lost.commits, Some(COMMITS - there), "{lost:?}");
    assert!(there < COMMITS);
    assert!(fs::read(place.file("shoal.db-wal.damaged")).expect("kept") == damaged);
    store.commit(&whole(there + 1)).await.expect("the store goes on");
    drop(store);
    assert_eq!(open(&place).expect("nothing is missing now").lost(), None);

    let gone = killed();
    remove(&gone, FILE);
    let store = accept(gone.path());
    assert_eq!(store.lost().and_then(|lost| lost.commits), Some(COMMITS + 1));
    assert_eq!(store.keys().await, Ok(Vec::new()));
    drop(store);
    assert_eq!(open(&gone).expect("a new database").lost(), None);
}

#[tokio::test]
async fn power_cut_loss_is_reported_once_and_exactly() {
    let place = killed();
    change(&place, LOG, |log| log.truncate(log.len() - 3 * FRAME_BYTES - 100));
    another_boot(&place);
    let store = open(&place).expect("a torn tail is normal");
    let lost = store.lost().expect("a reported loss").clone();
    let there = store.load().await.expect("loaded").last_event;
    assert_eq!(lost.commits, Some(COMMITS - there), "{lost:?}");
    assert!((COMMITS - 4..COMMITS).contains(&there), "{there}");
    store.commit(&whole(there + 1)).await.expect("the store goes on");
    store.close().await.expect("closed");
    assert_eq!(open(&place).expect("opened").lost(), None, "the loss is reported once");

    // After an orderly stop everything is in the database itself: missing commits then mean that an
    // older copy was put in place, which is reported.
    let older = fs::read(place.file(FILE)).expect("read");
    let store = open(&place).expect("opened");
    store.commit(&whole(there + 2)).await.expect("written");
    store.close().await.expect("closed");
    fs::write(place.file(FILE), older).expect("an older copy");
    another_boot(&place);
    let store = open(&place).expect("an older copy");
    let lost = store.lost().expect("a reported loss");
    assert!(lost.commits == Some(1) && lost.cause.contains("older copy"), "{lost:?}");
}

#[test]
fn missing_database_beside_other_data_is_refused_and_an_empty_directory_is_fine() {
    let place = TempDir::new();
    let directory = Directory {
        directory: place.path().to_owned(),
        beside: Some("admin.key".to_owned()),
        loss: LossPolicy::Refuse,
    };
    for make_empty in [false, true] {
        if make_empty {
            fs::write(place.file(FILE), "").expect("made");
        }
        let error = SqliteStore::inspect(&directory, Retention::default()).expect_err("missing");
        assert_eq!(error.code, StoreErrorCode::Missing, "{error}");
        assert!(error.cause.contains("admin.key"), "{error}");
    }
    // A first start that was killed at once leaves as much.
    assert!(open(&place).is_ok());
}

/// The files of a machine that was copied do not show whether there was a power cut.
#[test]
fn torn_log_end_starts_and_is_reported_also_in_the_same_boot() {
    let place = killed();
    change(&place, LOG, |log| log.truncate(log.len() - 5_000));
    let store = open(&place).expect("a torn end is normal");
    let lost = store.lost().expect("a reported loss");
    assert!(lost.commits.is_some_and(|commits| commits > 0), "{lost:?}");
}
