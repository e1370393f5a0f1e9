//! A disk without space: on a small file system in memory, in a mount namespace of its own. Needs
//! root; without it the test reports that it was skipped, and in CI that is a failure.

use std::fs;
use std::path::Path;
use std::process::Command;

use store::conformance::fixtures::{sandbox, whole};
use store::sqlite::SqliteStore;
use store::{Batch, Retention, Store as _, StoreError, StoreErrorCode};

use crate::child;
use crate::temp_dir::TempDir;

const BALLAST: &str = "ballast";

fn private_mounts() -> Result<(), String> {
    let tried =
        Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    match tried {
        Err(error) => Err(format!("no unshare: {error}")),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("not root: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

#[test]
fn full_disk_loses_nothing() {
    if let Err(why) = private_mounts() {
        assert!(std::env::var_os("CI").is_none(), "{why}: in CI nothing may be skipped");
        println!("!!!! skipped: {why} !!!!");
        return;
    }
    let place = TempDir::new();
    let (program, arguments) = child::command("disk_full::child_on_a_small_disk");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs -o size=4m none \"$0\" && exec \"$@\""]);
    command.arg(place.path()).arg(program).args(arguments);
    let output = child::with_directory(&mut command, place.path()).output().expect("run");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    assert!(String::from_utf8_lossy(&said).contains("was full 3 times"));
}

#[test]
fn child_on_a_small_disk() {
    let Some(directory) = child::directory() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let mut number = 0;
        for round in 0..3 {
            let ballast = directory.join(BALLAST);
            fs::write(&ballast, vec![1; 2 << 20]).expect("space is taken");
            let store = SqliteStore::open(&directory, Retention::default()).expect("opened");
            let (refused, error) = fill(&store, &mut number).await;
            assert_eq!(error.code, StoreErrorCode::DiskFull, "{error}");
            let loaded = store.load().await.expect("reading goes on");
            assert_eq!(loaded.last_event, number - 1);
            assert_eq!(loaded.journal.sandboxes, [sandbox(1, number as u32 - 1)]);
            let store = if round == 1 { reopened(&directory, store) } else { store };
            fs::remove_file(&ballast).expect("space is freed");
            store.commit(&refused).await.expect("the same batch, later");
            store.close().await.expect("closed");
        }
        println!("was full 3 times");
    });
}

#[test]
fn store_opened_on_a_full_disk_reads_and_continues_by_itself() {
    if let Err(why) = private_mounts() {
        assert!(std::env::var_os("CI").is_none(), "{why}: in CI nothing may be skipped");
        println!("!!!! skipped: {why} !!!!");
        return;
    }
    let place = TempDir::new();
    let (program, arguments) = child::command("disk_full::child_that_starts_on_a_full_disk");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs -o size=16m none \"$0\" && exec \"$@\""]);
    command.arg(place.path()).arg(program).args(arguments);
    let output = child::with_directory(&mut command, place.path()).output().expect("run");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    assert!(String::from_utf8_lossy(&said).contains("started on a full disk"));
}

#[test]
fn child_that_starts_on_a_full_disk() {
    let Some(directory) = child::directory() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().build().expect("a runtime");
    runtime.block_on(async {
        for orderly in [true, false] {
            let store = SqliteStore::open(&directory, Retention::default()).expect("opened");
            let first = store.load().await.expect("loaded").last_event;
            for number in first + 1..=first + 50 {
                store.commit(&whole(number)).await.expect("written");
            }
            let last = first + 50;
            if orderly {
                store.close().await.expect("closed");
            } else {
                // As a kill leaves it: with a log, and with shared memory.
                let copies = ["shoal.db", "shoal.db-wal", "shoal.db-shm", "shoal.db-mark"];
                for name in copies {
                    fs::copy(directory.join(name), directory.join(format!("{name}.copy")))
                        .expect("copied");
                }
                store.close().await.expect("closed");
                for name in copies {
                    fs::rename(directory.join(format!("{name}.copy")), directory.join(name))
                        .expect("put back");
                }
            }
            fill_up(&directory);
            let store = SqliteStore::open(&directory, Retention::default()).expect("to read");
            assert!(store.condition().waits_for_space, "orderly {orderly}");
            assert_eq!(store.load().await.expect("read").last_event, last);
            let error = store.commit(&whole(last + 1)).await.expect_err("there is no space");
            assert_eq!(error.code, StoreErrorCode::DiskFull, "{error}");
            assert!(error.retryable());
            assert_eq!(store.load().await.expect("read").last_event, last, "reading goes on");
            // Closed and opened again while the disk is full.
            store.close().await.expect("closed");
            let store = SqliteStore::open(&directory, Retention::default()).expect("to read");
            assert!(store.condition().waits_for_space);
            fs::remove_file(directory.join(BALLAST)).expect("space is freed");
            if orderly {
                store.commit(&whole(last + 1)).await.expect("the first write opens it");
            } else {
                while store.condition().waits_for_space {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                store.commit(&whole(last + 1)).await.expect("the store opened by itself");
            }
            assert!(!store.condition().waits_for_space);
            assert_eq!(store.load().await.expect("read").last_event, last + 1);
            store.close().await.expect("closed");
        }
        println!("started on a full disk");
    });
}

/// Takes all space that there is.
fn fill_up(directory: &Path) {
    use std::io::Write as _;
    let mut ballast = fs::File::create(directory.join(BALLAST)).expect("made");
    for size in [64 << 10, 4 << 10, 1] {
        while ballast.write_all(&vec![1; size]).is_ok() {}
    }
}

/// As after a kill while the disk is full.
fn reopened(directory: &Path, store: SqliteStore) -> SqliteStore {
    drop(store);
    fs::remove_file(directory.join(BALLAST)).expect("space is freed");
    fs::write(directory.join(BALLAST), "").expect("written");
    SqliteStore::open(directory, Retention::default()).expect("opened")
}

/// Commits until nothing more fits. Returns what did not.
async fn fill(store: &SqliteStore, number: &mut u64) -> (Batch, StoreError) {
    for _ in 0..100_000 {
        *number += 1;
        let batch = whole(*number);
        if let Err(error) = store.commit(&batch).await {
            return (batch, error);
        }
    }
    panic!("a small disk is full at some time");
}
