//! A disk without space: on a small file system of memory, in a mount namespace of its own. Needs
//! root; without it the test says loudly that it was skipped, and in CI that is a failure.

use std::fs;
use std::path::Path;
use std::process::Command;

use store::conformance::material::{sandbox, whole};
use store::sqlite::SqliteStore;
use store::{Batch, Retention, Store as _, StoreError, StoreErrorCode};

use crate::child;
use crate::place::Place;

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
fn a_full_disk_loses_nothing() {
    if let Err(why) = private_mounts() {
        assert!(std::env::var_os("CI").is_none(), "{why}: in CI nothing may be skipped");
        println!("!!!! skipped: {why} !!!!");
        return;
    }
    let place = Place::new();
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

/// As after a kill while the disk is full.
fn reopened(directory: &Path, store: SqliteStore) -> SqliteStore {
    drop(store);
    fs::remove_file(directory.join(BALLAST)).expect("space is freed");
    fs::write(directory.join(BALLAST), "").expect("written");
    SqliteStore::open(directory, Retention::default()).expect("opened")
}

/// Commits until nothing more fits. Gives what did not.
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
