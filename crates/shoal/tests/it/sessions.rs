//! Conversations at the command line, against a real server with real sandboxes.

use std::io::Read as _;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::shell::{able, eventually, finish};
use crate::test_server::{Scratch, TestServer, output_of};

#[test]
fn a_conversation_keeps_its_files_and_its_history() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let id = served.text(&["session", "create", "-m", "user=ada", "-e", "TOKEN=t"]);
    let said = served.run(&["session", "send", &id, "echo $TOKEN > f; cat f; echo e >&2; exit 42"]);
    assert_eq!((said.code, said.text()), (Some(42), "t\n"), "{said:?}");
    assert_eq!(said.stderr, "e\n");
    served.text(&["session", "pause", &id]);
    assert_eq!(served.json(&["session", "show", "--json", &id])["status"], "paused");
    assert_eq!(served.text(&["session", "send", &id, "cat f"]), "t");
    assert_eq!(served.text(&["session", "exec", "--stdin=no", &id, "--", "cat", "f"]), "t");
    assert_eq!(served.text(&["session", "ls", "-q", "-m", "user=ada"]), id);
    assert_eq!(served.text(&["session", "ls", "-q", "-m", "user=eve"]), "");
    let table = served.text(&["session", "ls"]);
    assert!(table.contains(&id) && table.contains("user=ada"), "{table}");
    assert!(served.text(&["ps"]).contains(&format!("session {id}")));
    let history = served.text(&["session", "history", &id]);
    assert!(history.contains("cat f") && history.contains("completed"), "{history}");
    let lines = served.text(&["session", "history", &id, "--events", "--json"]);
    let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(first["result"]["exit_code"], 42);
    assert!(first["events"].as_array().unwrap().len() >= 3, "{first}");
    assert_eq!(served.text(&["session", "follow", &id]), "t", "the last turn, printed again");
    let events = served.text(&["session", "events", &id]);
    assert!(events.contains("turn_ended") && events.contains("session_changed"), "{events}");
    let object = r#"{"command":"pwd","cwd":"/tmp"}"#;
    assert_eq!(served.text(&["session", "send", "--object", &id, object]), "/tmp");
    let piped = served.run_with_input(&["session", "send", &id, "-"], Some(b"echo piped"));
    assert_eq!((piped.code, piped.text()), (Some(0), "piped\n"), "{piped:?}");
    assert_eq!(served.text(&["session", "end", &id]), id);
    let over = served.run(&["session", "send", &id, "true"]);
    assert!(over.code == Some(1) && over.stderr.contains("session_ended"), "{over:?}");
}

#[test]
fn files_go_in_and_out_of_a_session() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let id = served.text(&["session", "create"]);
    let here = served.scratch.0.join("notes");
    std::fs::write(&here, "hello\n").unwrap();
    served.text(&["session", "cp", here.to_str().unwrap(), &format!("{id}:in.txt")]);
    assert_eq!(served.text(&["session", "send", &id, "cat in.txt; cp in.txt out.txt"]), "hello");
    assert_eq!(served.text(&["session", "cp", &format!("{id}:out.txt"), "-"]), "hello");
}

#[test]
fn an_interrupt_aborts_the_turn_and_the_conversation_goes_on() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let id = served.text(&["session", "create"]);
    let line = "echo kept > f; echo begun; sleep 600";
    let mut child = served.command(&["session", "send", &id, line]).spawn().unwrap();
    let mut seen = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut seen).unwrap();
    let busy = served.run(&["session", "send", &id, "echo no"]);
    assert!(busy.code == Some(1) && busy.stderr.contains("turn_in_progress"), "{busy:?}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let interrupted = output_of(finish(child, &[]));
    assert_eq!(interrupted.code, Some(130), "{interrupted:?}");
    let session = served.json(&["session", "show", "--json", &id]);
    assert_eq!(session["turn"], json!(null), "the abort had ended before the command");
    assert_eq!(served.text(&["session", "send", &id, "cat f"]), "kept");
    let history = served.text(&["session", "history", &id]);
    assert!(history.contains("aborted"), "{history}");
}

#[test]
fn a_queued_message_waits_for_the_one_before_it() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let id = served.text(&["session", "create"]);
    let line = "echo begun; sleep 1; echo first > f";
    let mut first = served.command(&["session", "send", &id, line]).spawn().unwrap();
    let mut seen = [0; 6];
    first.stdout.as_mut().unwrap().read_exact(&mut seen).unwrap();
    assert_eq!(served.text(&["session", "send", "--queue", &id, "cat f"]), "first");
    assert_eq!(output_of(finish(first, &[])).code, Some(0));
}

#[test]
fn a_conversation_outlives_the_server() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let id = served.text(&["session", "create"]);
    served.text(&["session", "send", &id, "echo here > f"]);
    let (_, scratch) = served.stop(Signal::TERM);
    let served = TestServer::start_on(scratch, &[]);
    eventually("the session is known again", || {
        served.run(&["session", "show", &id]).code == Some(0)
    });
    assert_eq!(served.text(&["session", "send", &id, "cat f"]), "here");
}

/// The three manual tests of the plan that began it: stop and go on, switch, and come back late.
#[test]
fn session_files_survive_abort_and_idleness_and_stay_private() {
    if !able() {
        return;
    }
    let flags = ["--set", "node.idle_timeout_ms=700", "--set", "node.sweep_interval_ms=100"];
    let served = TestServer::start_on(Scratch::new(), &flags);
    let id = served.text(&["session", "create"]);
    let shown = || served.json(&["session", "show", "--json", &id]);
    let line = "echo mine > f; echo begun; sleep 600";
    let mut child = served.command(&["session", "send", &id, line]).spawn().unwrap();
    let mut seen = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut seen).unwrap();
    let aborted = served.json(&["session", "abort", "--json", &id]);
    assert_eq!(aborted["sandbox_kept"], false, "{aborted}");
    assert_eq!(output_of(finish(child, &[])).code, Some(1), "a follower gets its end");
    assert_eq!(shown()["sandbox_status"], "disconnected");
    assert_eq!(served.text(&["session", "send", &id, "cat f"]), "mine");

    let other = served.text(&["session", "create"]);
    assert_ne!(served.run(&["session", "send", &other, "cat f"]).code, Some(0));

    eventually("it is put to sleep", || shown()["status"] == "paused");
    assert_eq!(shown()["sandbox_id"], json!(null));
    assert_eq!(served.text(&["session", "send", &id, "cat f"]), "mine");
    let events = served.text(&["session", "events", "--json", &id]);
    let ends: Vec<serde_json::Value> = events
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|event: &serde_json::Value| event["type"] == "sandbox_terminated")
        .collect();
    let reasons: Vec<_> = ends.iter().map(|end| end["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["user_abort", "idle"], "once for each: {ends:?}");
    let fork = served.text(&["session", "fork", &id]);
    assert_eq!(served.text(&["session", "send", &fork, "cat f; echo other > f"]), "mine");
    assert_eq!(served.text(&["session", "send", &id, "cat f"]), "mine", "a copy is a copy");
}

/// A session whose sandbox went to sleep: what its user reads about that at each command.
#[test]
fn session_says_that_its_sandbox_slept_and_was_replaced() {
    if !able() {
        return;
    }
    let flags = ["--set", "node.idle_timeout_ms=4000", "--set", "node.sweep_interval_ms=100"];
    let served = TestServer::start_on(Scratch::new(), &flags);
    let id = served.text(&["session", "create"]);
    let shown = || served.json(&["session", "show", "--json", &id]);
    let sandbox = shown()["sandbox_id"].as_str().unwrap().to_owned();
    let alive = served.text(&["why", &id]);
    assert!(alive.contains(&format!("its sandbox is {sandbox}")), "{alive}");
    eventually("it is put to sleep", || shown()["status"] == "paused");

    let said = served.text(&["session", "show", &id]);
    let line = said.lines().find(|line| line.starts_with("sandbox")).unwrap();
    let parts = ["none", &*sandbox, "ended", "ago", "cause idle"];
    assert!(parts.iter().all(|part| line.contains(part)), "{said}");

    let why = served.text(&["why", &id]);
    assert!(why.contains("the session is paused") && why.contains(&sandbox), "{why}");
    assert!(why.contains("ended because it was idle for too long"), "{why}");
    assert!(served.json(&["why", "--json", &id])["summary"].is_string());
    let help = served.text(&["why", "--help"]);
    assert!(help.contains("SANDBOX|SESSION"), "{help}");

    let sent = served.run(&["session", "send", &id, "echo hi"]);
    assert_eq!((sent.code, sent.text()), (Some(0), "hi\n"), "{sent:?}");
    assert_eq!(sent.stderr.lines().count(), 1, "{sent:?}");
    let parts = ["was cold", "a new one without processes", "saved last"];
    assert!(parts.iter().all(|part| sent.stderr.contains(part)), "{sent:?}");
    let again = served.run(&["session", "send", &id, "echo hi"]);
    assert_eq!(again.stderr, "", "it has the same sandbox now");

    let unknown = served.run(&["why", "0192f3a0-0000-7000-8000-000000000001"]);
    assert!(unknown.code == Some(1) && unknown.stderr.contains("sandbox_unknown"), "{unknown:?}");
}

/// What the guide says can be typed is typed, as it stands there.
#[test]
fn the_guide_works_as_it_is_written() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let guide = include_str!("../../../../docs/guides/sessions.md");
    let mut blocks = guide.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let (typed, by_hand) = (blocks.next().unwrap(), blocks.next().unwrap());
    let address = std::fs::read_to_string(served.data().join("address")).unwrap();
    let address = address.trim().trim_start_matches("http://").to_owned();
    let key = served.data().join("admin.key");
    let by_hand = by_hand
        .replace("/var/lib/shoal/admin.key", key.to_str().unwrap())
        .replace("127.0.0.1:7600", &address);
    for (block, expected) in [(typed, "hello"), (&*by_hand, "event: turn_ended")] {
        let mut command = std::process::Command::new("sh");
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_shoal"));
        let path =
            format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
        command.args(["-euc", block]).env("PATH", path).env("SHOAL_DATA_DIR", served.data());
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let said = output_of(finish(command.spawn().unwrap(), &[]));
        assert!(
            said.code == Some(0) && said.text().contains(expected),
            "{said:?}\n{}",
            served.log()
        );
    }
}
