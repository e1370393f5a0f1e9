//! `shoal secret` against a real server: values come from standard input, a file or a person, and
//! none is ever shown.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::json;

use crate::shell::{able, eventually, finish};
use crate::terminal::Terminal;
use crate::test_server::{TestServer, output_of};

/// The bytes of each secret, by name.
fn sizes(served: &TestServer) -> serde_json::Value {
    let listed = served.json(&["secret", "ls", "--json"]);
    let secrets = listed["secrets"].as_array().unwrap().iter();
    secrets.map(|one| (one["name"].as_str().unwrap().to_owned(), one["bytes"].clone())).collect()
}

#[test]
fn secret_values_come_from_standard_input_or_a_file_and_are_never_shown() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    assert!(served.run(&["secret"]).stderr.contains("there are no secrets"));
    let put = |name: &str, value: &str| {
        served.run_with_input(&["secret", "put", name], Some(value.as_bytes()))
    };
    assert_eq!(put("one", "hunter2").text(), "one\n");
    put("newline", "hunter2\n");
    put("newlines", "hunter2\n\n");
    let file = served.scratch.0.join("typed");
    std::fs::write(&file, "hunter2\n").unwrap();
    served.text(&["secret", "put", "file", "--from-file", file.to_str().unwrap()]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(sizes(&served), json!({"file": 8, "newline": 7, "newlines": 8, "one": 7}));
    for (value, cause) in [("", "1 to 65536"), ("\n", "1 to 65536"), ("a\0", "NUL")] {
        let refused = put("wrong", value);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(cause), "{refused:?}");
    }
    assert_eq!(put("wrong", &"x".repeat(65_537)).code, Some(2));
    assert_eq!(put("most", &format!("{}\n", "x".repeat(65_536))).code, Some(0));
    assert_eq!(put("a/b", "x").code, Some(2), "no name of a secret");

    let node = served.run_with_input(&["secret", "put", "all", "--node"], Some(b"hunter2"));
    assert_eq!(node.code, Some(0), "{node:?}");
    let table = served.text(&["secret", "ls", "--node"]);
    assert!(table.contains("all") && table.contains("node"), "{table}");
    assert_eq!(served.text(&["secret", "rm", "one", "newline"]), "one\nnewline");
    let refused = served.run(&["secret", "rm", "one"]);
    assert_eq!((refused.code, refused.stderr.contains("has no secret")), (Some(1), true));

    let said = [served.text(&["secret", "ls"]), table, served.text(&["secret", "ls", "--json"])];
    assert!(!said.concat().contains("hunter2") && !served.log().contains("hunter2"), "{said:?}");
    let data = served.data();
    let (_, scratch) = served.stop(Signal::KILL);
    for name in ["shoal.db", "shoal.db-wal"] {
        let bytes = std::fs::read(data.join(name)).unwrap_or_default();
        assert!(!bytes.windows(7).any(|part| part == b"hunter2"), "{name}");
    }
    let served = TestServer::start_on(scratch, &[]);
    assert_eq!(sizes(&served), json!({"file": 8, "most": 65_536, "newlines": 8}));
}

#[test]
fn secret_that_is_typed_at_a_terminal_is_not_shown() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let mut terminal = Terminal::new(24, 80);
    for (keys, code) in [("hunter2\n", Some(0)), ("hunt\u{3}\n", Some(2))] {
        let mut command = served.command(&["secret", "put", "typed"]);
        command.stdin(terminal.end()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        eventually("nothing that is typed is shown", || !terminal.shows_keys());
        terminal.keys(keys);
        assert_eq!(output_of(finish(child, &[])).code, code, "{keys:?}");
        assert!(terminal.shows_keys(), "the terminal is as it was before");
    }
    let screen = terminal.screen();
    assert!(!screen.contains("hunt"), "{screen}");
    assert_eq!(sizes(&served), json!({"typed": 7}));
}
