//! The files of sessions in real sandboxes, whatever kind of workspace they have: there after the
//! sandbox, the server and time had their way with them.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::shell::{able, eventually, skipped};
use crate::test_server::{Scratch, TestServer, names};

/// Templates of every kind of workspace that works here.
fn kinds() -> Vec<(&'static str, &'static str)> {
    let mut kinds = vec![
        ("memory", "workspace = { kind = \"memory\" }"),
        ("soft", "workspace = { kind = \"disk\", limit = \"soft\" }"),
    ];
    if rustix::process::geteuid().is_root() {
        kinds.push(("hard", "workspace = { kind = \"disk\", limit = \"hard\" }"));
    } else {
        skipped("no root: no hard limits");
    }
    kinds
}

fn start(scratch: Scratch, flags: &[&str]) -> TestServer {
    let served = TestServer::start_on(scratch, flags).without_spares();
    for (name, workspace) in kinds() {
        let text = format!(
            "name = \"{name}\"\n{workspace}\n[limits]\nworkspace_mb = 24\n[pool]\npool_size = 0\n"
        );
        let said = served.run_with_input(&["templates", "put", "-"], Some(text.as_bytes()));
        assert_eq!(said.code, Some(0), "{said:?}");
    }
    served
}

fn create(served: &TestServer, template: &str) -> String {
    served.text(&["session", "create", "--template", template])
}

fn run(served: &TestServer, session: &str, line: &str) -> String {
    served.text(&["session", "exec", session, "--", "sh", "-c", line])
}

/// How often a session published a loss of files.
fn lost(served: &TestServer, session: &str) -> usize {
    let events = served.text(&["session", "events", session, "--json"]);
    events
        .lines()
        .filter(|line| line.contains("\"state_lost\",") || line.contains(":\"state_lost\""))
        .count()
}

const PLANT: &str = "mkdir -p d/e; echo one > d/e/f; ln -s d/e/f link; chmod 700 d/e/f; \
                     head -c 3000000 /dev/urandom > big; sha256sum big > sum";
const CHECK: &str = "cat link; stat -c %a d/e/f; sha256sum -c sum";
const AS_IT_WAS: &str = "one\n700\nbig: OK";

#[test]
fn files_survive_stop_abort_idleness_and_both_kinds_of_restart() {
    if !able() {
        return;
    }
    let flags = ["--set", "node.idle_timeout_ms=1500", "--set", "node.sweep_interval_ms=500"];
    let mut served = start(Scratch::new(), &flags);
    for (kind, _) in kinds() {
        let session = create(&served, kind);
        run(&served, &session, PLANT);
        served.text(&["session", "stop", &session]);
        served.text(&["session", "resume", &session]);
        assert_eq!(run(&served, &session, CHECK), AS_IT_WAS, "{kind}: stopped");

        let mut turn = served
            .command(&["session", "send", &session, "echo begun > turn; echo begun; sleep 100"])
            .spawn()
            .unwrap();
        eventually("it works on it", || {
            let shown = served.json(&["session", "show", &session, "--json"]);
            shown["turn"].is_string() || shown["turn_id"].is_string()
        });
        std::thread::sleep(Duration::from_millis(300));
        served.text(&["session", "abort", &session]);
        turn.wait().unwrap();
        assert_eq!(run(&served, &session, CHECK), AS_IT_WAS, "{kind}: aborted");
        assert_eq!(run(&served, &session, "cat turn"), "begun", "{kind}: aborted");

        eventually("it was idle for long enough", || {
            let shown = served.json(&["session", "show", &session, "--json"]);
            shown["sandbox_status"] == "disconnected"
        });
        assert_eq!(run(&served, &session, CHECK), AS_IT_WAS, "{kind}: swept");
        assert_eq!(lost(&served, &session), 0, "{kind}");
    }

    // In order: everything is saved.
    let sessions: Vec<(&str, String)> =
        kinds().iter().map(|(kind, _)| (*kind, create(&served, kind))).collect();
    for (_, session) in &sessions {
        run(&served, session, PLANT);
    }
    let (code, scratch) = served.stop(Signal::TERM);
    assert_eq!(code, Some(0));
    served = TestServer::start_on(scratch, &flags);
    for (kind, session) in &sessions {
        assert_eq!(run(&served, session, CHECK), AS_IT_WAS, "{kind}: stopped in order");
        assert_eq!(lost(&served, session), 0, "{kind}");
        served.text(&["session", "pause", session]);
    }
    // Killed: what is on disk is there as it was, what is in memory as it was last saved.
    eventually("all is durable", || {
        sessions.iter().all(|(_, session)| {
            served.text(&["session", "events", session, "--json"]).contains("workspace_durable")
        })
    });
    let (_, scratch) = served.stop(Signal::KILL);
    served = TestServer::start_on(scratch, &flags);
    for (kind, session) in &sessions {
        assert_eq!(run(&served, session, CHECK), AS_IT_WAS, "{kind}: killed");
        assert_eq!(lost(&served, session), 0, "{kind}");
    }
}

#[test]
fn a_fork_has_the_files_of_a_parent_that_works_or_sleeps() {
    if !able() {
        return;
    }
    let served = start(Scratch::new(), &[]);
    for (kind, _) in kinds() {
        for sleeps in [false, true] {
            let parent = create(&served, kind);
            run(&served, &parent, PLANT);
            if sleeps {
                served.text(&["session", "stop", &parent]);
            }
            let fork = served.text(&["session", "fork", &parent]);
            assert_eq!(run(&served, &fork, CHECK), AS_IT_WAS, "{kind}, sleeps: {sleeps}");
            run(&served, &fork, "echo two > d/e/f");
            served.text(&["session", "resume", &parent]);
            assert_eq!(run(&served, &parent, CHECK), AS_IT_WAS, "{kind}, sleeps: {sleeps}");
        }
    }
}

#[test]
fn old_files_go_into_archives_and_come_back_until_they_are_given_up() {
    if !able() {
        return;
    }
    let flags = ["--set", "node.archive_after_ms=1000"];
    let served = start(Scratch::new(), &flags);
    let mut sessions = Vec::new();
    for (kind, _) in kinds() {
        let session = create(&served, kind);
        run(&served, &session, PLANT);
        served.text(&["session", "stop", &session]);
        sessions.push((kind, session));
    }
    let archives = served.data().join("archives");
    let workspaces = served.data().join("workspaces");
    let there = |place: &std::path::Path| {
        let all = names(place);
        all.iter().filter(|name| name.contains('-')).count()
    };
    eventually("all are archived", || {
        there(&archives) == sessions.len() && there(&workspaces) == 0
    });
    let (_, scratch) = served.stop(Signal::KILL);
    let served = TestServer::start_on(scratch, &flags);
    assert_eq!(there(&archives), sessions.len(), "they are named by records");
    for (kind, session) in &sessions {
        served.text(&["session", "resume", session]);
        assert_eq!(run(&served, session, CHECK), AS_IT_WAS, "{kind}");
        assert_eq!(lost(&served, session), 0, "{kind}");
        served.text(&["session", "stop", session]);
    }
    let (_, scratch) = served.stop(Signal::TERM);
    let served = TestServer::start_on(scratch, &["--set", "node.prune_after_ms=1000"]);
    eventually("nothing is left", || there(&archives) + there(&workspaces) == 0);
    for (kind, session) in &sessions {
        assert_eq!(lost(&served, session), 1, "{kind}");
        served.text(&["session", "resume", session]);
        let found: Value = served.json(&["session", "show", session, "--json"]);
        assert_eq!(found["status"], "active", "{kind}: {found}");
    }
}
