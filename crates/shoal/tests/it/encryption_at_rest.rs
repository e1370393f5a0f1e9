//! What is on the disk of a data directory: nothing that may be secret in clear text, and a key
//! without which nothing starts.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::shell::{able, eventually, finish};
use crate::test_server::{Scratch, TestServer, isolated_command, output_of};

/// In everything that may be secret.
const MARK: &str = "correct-horse-battery";

/// The files of a data directory that have the mark in them. What programs wrote into their
/// workspaces is theirs.
fn marked(data: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![data.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            if kind.is_dir() {
                if path != data.join("workspaces") {
                    left.push(path);
                }
            } else if kind.is_file() {
                // A log or a page may be gone by now.
                let bytes = fs::read(&path).unwrap_or_default();
                if bytes.windows(MARK.len()).any(|part| part == MARK.as_bytes()) {
                    found.push(path);
                }
            }
        }
    }
    found
}

#[test]
fn no_environment_and_no_command_line_is_on_the_disk_in_clear_text() {
    if !able() {
        return;
    }
    let none = Vec::<PathBuf>::new();
    let served = TestServer::start();
    let data = served.data();
    let env = format!("SECRET={MARK}-env");
    let session = served.text(&["session", "create", "--env", &env]);
    let line = format!("true {MARK}-exec; test -n \"$SECRET\" && echo set");
    assert_eq!(served.text(&["session", "exec", &session, "--", "sh", "-c", &line]), "set");
    served.text(&["session", "send", &session, &format!("true {MARK}-turn")]);
    let id = served.text(&["create", "--env", &env]);
    let started = format!("true {MARK}-process; sleep 600");
    served.text(&["process", "start", &id, "--env", &env, "--shell", &started]);
    eventually("it is stored", || {
        let all = served.text(&["process", "ls", &id, "--json"]);
        all.contains(MARK)
    });
    assert_eq!(marked(&data), none, "while it runs");
    let (code, scratch) = served.stop(Signal::TERM);
    assert_eq!(code, Some(0));
    assert_eq!(marked(&data), none, "after a stop");

    let served = TestServer::start_on(scratch, &[]);
    let is_set = ["session", "exec", &session, "--", "sh", "-c", "echo $SECRET"];
    assert_eq!(served.text(&is_set), format!("{MARK}-env"), "it is there again");
    let other = format!("OTHER={MARK}-other");
    served.text(&["session", "create", "--env", &other]);
    let (_, scratch) = served.stop(Signal::KILL);
    assert_eq!(marked(&data), none, "after kill -9");

    // Without its key it refuses, makes none, and says what to do.
    let key = data.join("node.key");
    let aside = scratch.0.join("node.key");
    fs::rename(&key, &aside).unwrap();
    let words = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()];
    let said = output_of(finish(isolated_command(&words).spawn().unwrap(), &[]));
    assert_ne!(said.code, Some(0));
    assert!(said.stderr.contains("node_key_missing"), "{}", said.stderr);
    assert!(said.stderr.contains("put node.key back"), "{}", said.stderr);
    assert!(!key.exists());
    fs::write(&key, "nonsense\n").unwrap();
    let said = output_of(finish(isolated_command(&words).spawn().unwrap(), &[]));
    assert!(said.stderr.contains("node_key_wrong"), "{}", said.stderr);
    fs::rename(&aside, &key).unwrap();
    let served = TestServer::start_on(scratch, &[]);
    assert_eq!(served.text(&is_set), format!("{MARK}-env"));
}

#[test]
fn node_key_is_replaced_while_no_server_runs_and_nothing_is_lost() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let data = served.data();
    let key = || fs::read(data.join("node.key")).unwrap();
    let session = served.text(&["session", "create", "--env", &format!("SECRET={MARK}-env")]);
    let before = key();
    let refused = served.run(&["rotate-node-key"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("is a server that uses it"), "{refused:?}");
    assert_eq!(key(), before, "while a server runs, nothing changes");

    let (_, scratch) = served.stop(Signal::TERM);
    let words = ["rotate-node-key", "--data-dir", data.to_str().unwrap(), "--json"];
    let said = output_of(finish(isolated_command(&words).spawn().unwrap(), &[]));
    assert_eq!(said.code, Some(0), "{said:?}");
    let said: serde_json::Value = serde_json::from_str(said.text()).unwrap();
    assert!(said["values"].as_u64() > Some(0) && said["left"].is_null(), "{said}");
    assert_ne!(key(), before);
    let served = TestServer::start_on(scratch, &[]);
    let is_set = ["session", "exec", &session, "--", "sh", "-c", "echo $SECRET"];
    assert_eq!(served.text(&is_set), format!("{MARK}-env"));
}

/// Puts an older copy of the database in place, like an operator without a better backup.
#[test]
fn an_older_database_in_place_deletes_no_newer_files() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let data = served.data();
    let (_, scratch) = served.stop(Signal::TERM);
    let older = scratch.0.join("older.db");
    fs::copy(data.join("shoal.db"), &older).unwrap();

    let served = TestServer::start_on(scratch, &[]);
    let session = served.text(&["session", "create"]);
    served.text(&["session", "exec", &session, "--", "sh", "-c", "echo mine > file"]);
    let (_, scratch) = served.stop(Signal::TERM);
    fs::copy(&older, data.join("shoal.db")).unwrap();

    let served = TestServer::start_on(scratch, &[]);
    let lost = data.join("lost+found");
    let kept: Vec<_> = fs::read_dir(&lost).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(kept.len(), 1, "{kept:?}\n{}", served.log());
    assert_eq!(fs::read_to_string(kept[0].join("file")).unwrap(), "mine\n");
    assert!(served.log().contains("moved to lost+found"), "{}", served.log());

    // Neither a stop nor a kill removes it, and pools and leases add nothing to it.
    served.text(&["create"]);
    let (_, scratch) = served.stop(Signal::KILL);
    let served = TestServer::start_on(scratch, &[]);
    assert_eq!(fs::read_dir(&lost).unwrap().count(), 1, "{}", served.log());
    assert!(served.text(&["clean", "--lost-found"]).contains("removed 1 thing"));
    assert_eq!(fs::read_dir(&lost).unwrap().count(), 0);
}

/// Where nothing is lost, nothing is found.
#[test]
fn a_killed_server_leaves_nothing_in_lost_found() {
    if !able() {
        return;
    }
    let mut scratch = Scratch::new();
    for _ in 0..3 {
        let served = TestServer::start_on(scratch, &[]);
        let session = served.text(&["session", "create"]);
        served.text(&["session", "exec", &session, "--", "sh", "-c", "echo mine > file"]);
        let id = served.text(&["create"]);
        served.text(&["exec", &id, "--stdin=no", "--", "sh", "-c", "echo other > file"]);
        scratch = served.stop(Signal::KILL).1;
    }
    let served = TestServer::start_on(scratch, &[]);
    assert!(!served.data().join("lost+found").exists(), "{}", served.log());
}
