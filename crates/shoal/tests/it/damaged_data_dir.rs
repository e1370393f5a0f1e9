//! What an operator meets after something happened to the data directory: a server that lacks
//! commits does not start, says why and what to do, and changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::shell::{able, finish};
use crate::test_server::{Scratch, TestServer, isolated_command, output_of};

/// Every file with what is in it, besides the lock, which has the number of the last process.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.insert(path.clone(), Vec::new());
            found.extend(files(&path));
        } else if kind.is_file() && entry.file_name() != "lock" {
            let seen = fs::metadata(&path).unwrap();
            let mut content = fs::read(&path).unwrap();
            content.extend(format!("{} {}", seen.ino(), seen.mode()).bytes());
            found.insert(path, content);
        }
    }
    found
}

/// A data directory with a session and its file, as `kill -9` leaves it.
fn killed() -> Scratch {
    let served = TestServer::start();
    let id = served.json(&["session", "create", "--json"]);
    let id = id["id"].as_str().or_else(|| id["session"]["id"].as_str()).unwrap().to_owned();
    let write = ["session", "exec", &id, "--", "sh", "-c", "echo precious > kept"];
    served.text(&write);
    served.stop(Signal::KILL).1
}

fn serve(scratch: &Scratch, more: &[&str]) -> crate::shell::CommandOutput {
    let data = scratch.0.join("data");
    let fixed = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()];
    output_of(finish(isolated_command(&[&fixed, more].concat()).spawn().unwrap(), &[]))
}

type Damage = fn(&Path);

#[test]
fn a_server_that_lacks_commits_does_not_start_and_changes_nothing() {
    if !able() {
        return;
    }
    let cases: [(&str, Damage, &str); 6] = [
        (
            "the log is damaged in the middle",
            |data| {
                let log = data.join("shoal.db-wal");
                let mut bytes = fs::read(&log).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle..middle + 200].fill(0x55);
                fs::write(log, bytes).unwrap();
            },
            "incomplete",
        ),
        (
            "the log is gone",
            |data| fs::remove_file(data.join("shoal.db-wal")).unwrap(),
            "incomplete",
        ),
        ("the database is empty", |data| fs::write(data.join("shoal.db"), "").unwrap(), "missing"),
        (
            "the database is gone",
            |data| {
                for name in ["shoal.db", "shoal.db-wal", "shoal.db-shm", "shoal.db-mark"] {
                    fs::remove_file(data.join(name)).unwrap();
                }
            },
            "missing",
        ),
        (
            "the database is garbled",
            |data| {
                let file = data.join("shoal.db");
                let bytes = fs::read(&file).unwrap().len();
                fs::write(&file, vec![0x55; bytes]).unwrap();
                fs::write(data.join("shoal.db-wal"), "").unwrap();
            },
            "corrupt",
        ),
        (
            "a name is garbled",
            |data| fs::write(data.join("node.id"), "\u{fffd}").unwrap(),
            "node.id",
        ),
    ];
    for (what, damage, code) in cases {
        let scratch = killed();
        let data = scratch.0.join("data");
        damage(&data);
        let before = files(&data);
        for _ in 0..2 {
            let said = serve(&scratch, &[]);
            assert_eq!(said.code, Some(2), "{what}: {said:?}");
            assert!(said.stderr.contains(code), "{what}: {}", said.stderr);
            assert!(said.stderr.contains("nothing was changed") || code == "corrupt", "{said:?}");
            let after = files(&data);
            let changed: Vec<_> =
                before.keys().filter(|name| before.get(*name) != after.get(*name)).collect();
            assert!(changed.is_empty() && before.len() == after.len(), "{what}: {changed:?}");
        }
    }
}

#[test]
fn a_loss_that_is_accepted_starts_and_is_reported() {
    if !able() {
        return;
    }
    let scratch = killed();
    let data = scratch.0.join("data");
    let log = data.join("shoal.db-wal");
    let mut bytes = fs::read(&log).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 200].fill(0x55);
    fs::write(log, bytes).unwrap();
    assert!(serve(&scratch, &[]).stderr.contains("--accept-loss"));
    let key = fs::read(data.join("admin.key")).unwrap();
    let served = TestServer::start_on(scratch, &["--accept-loss"]);
    assert!(served.log().contains("the database lacks commits"), "{}", served.log());
    assert_eq!(fs::read(data.join("admin.key")).unwrap(), key);
    let metrics = crate::full_disk::get(&served, "/metrics");
    let lost = metrics.lines().find_map(|line| line.strip_prefix("shoal_store_lost_commits "));
    assert!(lost.unwrap().parse::<u64>().unwrap() > 0, "{metrics}");
    let health = crate::full_disk::health(&served);
    assert_eq!(health["lost_commits"].to_string(), lost.unwrap(), "{health}");
    // What is missing is missing once.
    let (_, scratch) = served.stop(Signal::KILL);
    let served = TestServer::start_on(scratch, &[]);
    assert_eq!(crate::full_disk::health(&served)["lost_commits"], 0);
}
