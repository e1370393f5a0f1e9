//! Backup and restore as their operators meet them: while the server works, and while it is
//! stopped; what comes back is what was there, and what is damaged is refused whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use serde_json::Value;

use crate::shell::{CommandOutput, able, finish};
use crate::test_server::{Scratch, TestServer, isolated_command, names, output_of};

fn say(words: &[&str]) -> CommandOutput {
    output_of(finish(isolated_command(words).spawn().unwrap(), &[]))
}

fn create(served: &TestServer, template: &str) -> String {
    served.text(&["session", "create", "--template", template])
}

fn run(served: &TestServer, session: &str, line: &str) -> String {
    served.text(&["session", "exec", session, "--", "sh", "-c", line])
}

/// A server with a template for each kind of workspace.
fn start(scratch: Scratch) -> TestServer {
    let served = TestServer::start_on(scratch, &[]).without_spares();
    let mut kinds = vec![("memory", "memory", ""), ("soft", "disk", ", limit = \"soft\"")];
    if rustix::process::geteuid().is_root() {
        kinds.push(("hard", "disk", ", limit = \"hard\""));
    }
    for (name, kind, limit) in kinds {
        let text = format!(
            "name = \"{name}\"\nworkspace = {{ kind = \"{kind}\"{limit} }}\n\
             [limits]\nworkspace_mb = 24\nbest_effort = true\n[pool]\npool_size = 0\n"
        );
        let said = served.run_with_input(&["templates", "put", "-"], Some(text.as_bytes()));
        assert_eq!(said.code, Some(0), "{said:?}");
    }
    served
}

/// Restores a backup to a new place, and starts a server there.
fn restored(backup: &Path) -> TestServer {
    let scratch = Scratch::new();
    let data = scratch.0.join("data");
    let words = ["restore", backup.to_str().unwrap(), "--data-dir", data.to_str().unwrap()];
    let said = say(&words);
    assert_eq!(said.code, Some(0), "{said:?}");
    // The original may run on this machine.
    fs::remove_file(data.join("node.id")).unwrap();
    TestServer::start_on(scratch, &[])
}

const PLANT: &str = "mkdir -p d/e; echo one > d/e/f; ln -s d/e/f link; chmod 700 d/e/f; \
                     head -c 3000000 /dev/urandom > big; sha256sum big > sum; echo $SECRET > env";
const CHECK: &str = "cat link; stat -c %a d/e/f; sha256sum -c sum; cat env; echo $SECRET";
const AS_IT_WAS: &str = "one\n700\nbig: OK\nhunter2\nhunter2";

#[test]
fn backup_of_a_running_and_of_a_stopped_server_restores_everything() {
    if !able() {
        return;
    }
    let served = start(Scratch::new());
    let mut sessions = Vec::new();
    let hard = rustix::process::geteuid().is_root().then_some("hard");
    for kind in ["memory", "soft"].into_iter().chain(hard) {
        let words = ["session", "create", "--template", kind, "--env", "SECRET=hunter2"];
        let (live, asleep) = (served.text(&words), served.text(&words));
        for session in [&live, &asleep] {
            run(&served, session, PLANT);
        }
        served.text(&["session", "stop", &asleep]);
        // In memory only what was saved is durable.
        if kind != "memory" {
            sessions.push(live);
        }
        sessions.push(asleep);
    }
    let scratch = Scratch::new();
    let file = scratch.0.join("running.tar.zst");
    let made = served.json(&["backup", file.to_str().unwrap(), "--json"]);
    assert_eq!((&made["node_key"], &made["without_files"]), (&true.into(), &Value::Array(vec![])));
    let (_, stopped) = served.stop(Signal::TERM);
    let data = stopped.0.join("data");
    let directory = scratch.0.join("stopped");
    let words = ["backup", directory.to_str().unwrap(), "--data-dir", data.to_str().unwrap()];
    let said = say(&words);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stderr.contains("includes the key of the node"), "{}", said.stderr);

    for backup in [file, directory] {
        let served = restored(&backup);
        for session in &sessions {
            served.text(&["session", "resume", session]);
            assert_eq!(run(&served, session, CHECK), AS_IT_WAS, "{}", backup.display());
        }
        assert!(!served.data().join("lost+found").exists());
    }
}

/// Ends the writer when dropped, also after a failure.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sessions come, write and go while backups are made: each of them is in a backup with its files,
/// or not at all.
#[test]
fn backup_has_no_half_session() {
    if !able() {
        return;
    }
    let served = start(Scratch::new());
    let kept: Vec<_> = (0..3).map(|_| create(&served, "soft")).collect();
    for session in &kept {
        run(&served, session, "echo 0 > count");
    }
    let over = AtomicBool::new(false);
    let scratch = Scratch::new();
    let mut backups: Vec<PathBuf> = Vec::new();
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        // Several, so that one is being created or ended whenever a backup looks.
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let session = create(&served, "soft");
                    run(&served, &session, "echo mine > file; head -c 2000000 /dev/zero > big");
                    served.text(&["session", "end", &session]);
                }
            });
        }
        scope.spawn(|| {
            for count in 1.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                run(&served, &kept[0], &format!("echo {count} > next; mv next count"));
            }
        });
        for n in 0..3 {
            let file = scratch.0.join(format!("{n}.tar.zst"));
            let made = served.json(&["backup", file.to_str().unwrap(), "--json"]);
            assert_eq!(made["without_files"], Value::Array(vec![]), "{made}");
            backups.push(file);
        }
    });
    let spooled = |name: &String| name.starts_with("6261636b-7570");
    let archives = served.data().join("archives");
    assert!(!names(&archives).iter().any(spooled), "{:?}", names(&archives));
    assert_eq!(names(&archives.join("new")), Vec::<String>::new(), "nothing is left of backups");
    drop(served);
    for backup in backups {
        let served = restored(&backup);
        let all = served.json(&["session", "ls", "--json"]);
        let all = all["sessions"].as_array().unwrap().clone();
        assert!(all.len() >= kept.len(), "{all:?}");
        for session in all {
            let id = session["id"].as_str().unwrap();
            if session["status"] == "ended" {
                continue;
            }
            let said = run(&served, id, "cat count file 2> /dev/null; true");
            let whole = said.parse::<u32>().is_ok() || said == "mine" || said.is_empty();
            assert!(whole, "{id}: {said}");
            assert!(!kept.contains(&id.to_owned()) || !said.is_empty(), "{id} lost its file");
            let events = served.text(&["session", "events", id, "--json"]);
            assert!(!events.contains("\"state_lost\":true"), "{events}");
        }
    }
}

#[test]
fn restore_refuses_a_damaged_backup_and_leaves_nothing() {
    if !able() {
        return;
    }
    let served = start(Scratch::new());
    let session = create(&served, "soft");
    run(&served, &session, "echo mine > file");
    let scratch = Scratch::new();
    let path = |name: &str| scratch.0.join(name);
    let good = path("good.tar.zst");
    served.text(&["backup", good.to_str().unwrap(), "--without-node-key"]);
    let again = served.run(&["backup", good.to_str().unwrap()]);
    assert!(again.code == Some(2) && again.stderr.contains("exists"), "{again:?}");
    let tree = path("tree");
    served.text(&["backup", tree.to_str().unwrap()]);

    let restore = |from: &Path, to: &Path| {
        say(&["restore", from.to_str().unwrap(), "--data-dir", to.to_str().unwrap()])
    };
    let bytes = fs::read(&good).unwrap();
    let mut flipped = bytes.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0x10;
    for (name, bytes) in [("cut", &bytes[..bytes.len() - 100]), ("flipped", &flipped)] {
        fs::write(path(name), bytes).unwrap();
        let said = restore(&path(name), &path("new"));
        assert_ne!(said.code, Some(0), "{name}");
        assert!(said.stderr.contains("nothing was restored"), "{name}: {}", said.stderr);
    }
    let archive = fs::read_dir(tree.join("archives")).unwrap().next().unwrap().unwrap().path();
    let was = fs::read(&archive).unwrap();
    fs::remove_file(&archive).unwrap();
    assert!(restore(&tree, &path("new")).stderr.contains("is missing"));
    fs::write(&archive, b"something else").unwrap();
    assert!(restore(&tree, &path("new")).stderr.contains("is not what was written"));
    fs::write(&archive, was).unwrap();
    fs::write(tree.join("more"), "").unwrap();
    assert!(restore(&tree, &path("new")).stderr.contains("nothing that a backup has"));
    fs::remove_file(tree.join("more")).unwrap();

    fs::create_dir(path("used")).unwrap();
    fs::write(path("used").join("file"), "").unwrap();
    let said = restore(&tree, &path("used"));
    assert!(said.code == Some(2) && said.stderr.contains("not empty"), "{said:?}");
    let left: Vec<_> = fs::read_dir(&scratch.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 5, "{left:?}");

    // Without the key of the node it is restored, says so, and does not start.
    let said = restore(&good, &path("new"));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stderr.contains("put node.key into"), "{}", said.stderr);
    let data = path("new");
    let words = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()];
    assert!(say(&words).stderr.contains("node_key_missing"));
    drop(served);
    let served = restored(&tree);
    assert_eq!(run(&served, &session, "cat file"), "mine");
}
