//! The five examples of the lifecycle as they are documented, and what needs real programs of what
//! Blaxel was seen to do wrong: a real server with one sandbox on an address of its own.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::shell::{able, eventually, skipped};
use crate::test_server::{Scratch, TestServer};

fn ready(programs: &[&str]) -> bool {
    if !rustix::process::geteuid().is_root() {
        skipped("no root");
        return false;
    }
    for program in programs {
        if !Path::new(program).exists() {
            skipped(&format!("no {program}"));
            return false;
        }
    }
    able()
}

fn example() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.join("../../examples/blaxel").canonicalize().unwrap()
}

/// A server with one sandbox, which `curl` finds at localhost:8080.
struct Sandbox {
    served: TestServer,
}

impl Sandbox {
    fn start() -> Self {
        let scratch = Scratch::new();
        // Another program may use the port in the examples, so `curl` connects to the real one.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let config = format!("silent\nmax-time = 60\nconnect-to = \"localhost:8080:{address}\"\n");
        std::fs::write(scratch.0.join(".curlrc"), config).unwrap();
        let config = example().join("shoal.toml");
        let flags = [
            "--config",
            config.to_str().unwrap(),
            "--blaxel",
            "web",
            "--blaxel-listen",
            &address,
            "--blaxel-keyless",
        ];
        Self { served: TestServer::start_on(scratch, &flags) }
    }

    /// What a line of a shell prints.
    fn says(&self, line: &str) -> String {
        let mut shell = Command::new("bash");
        shell.args(["-c", line]).env("HOME", &self.served.scratch.0);
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}\n{}", self.served.log());
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn json(&self, line: &str) -> Value {
        let text = self.says(line);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
    }

    fn post(&self, body: &Value) -> Value {
        self.json(&format!("curl -X POST http://localhost:8080/process -d '{body}'"))
    }

    fn put(&self, path: &str, content: &str) {
        let body = json!({"content": content}).to_string().replace('\'', "'\\''");
        self.json(&format!("curl -X PUT http://localhost:8080/filesystem/{path} -d '{body}'"));
    }

    fn with_app(self) -> Self {
        for name in ["package.json", "server.mjs", "server.py"] {
            self.put(name, &std::fs::read_to_string(example().join(name)).unwrap());
        }
        self
    }
}

fn names(status: &Value) -> Vec<&str> {
    let kept = status["keepAliveProcesses"].as_array().unwrap();
    kept.iter().map(|process| process["command"].as_str().unwrap()).collect()
}

const RESTS: &str = r#"{"keepAliveProcesses":[],"scheduledStopAt":null,"state":"auto"}"#;

/// Each line as the documentation of the lifecycle has it.
#[test]
fn the_five_examples_print_what_they_are_said_to() {
    if !ready(&["/usr/bin/npm", "/usr/bin/python3", "/usr/bin/curl"]) {
        return;
    }
    let sandbox = Sandbox::start().with_app();
    let started = sandbox.json(
        r#"curl -X POST http://localhost:8080/process \
  -H "Content-Type: application/json" \
  -d '{"command": "npm run dev", "workingDir": "/app", "keepAlive": true}'"#,
    );
    assert_eq!((&started["status"], &started["keepAlive"]), (&json!("running"), &json!(true)));
    let status = sandbox.json("curl http://localhost:8080/status");
    assert_eq!((&status["state"], names(&status)), (&json!("awake"), vec!["npm run dev"]));
    assert_eq!(status["keepAliveProcesses"][0]["pid"], started["pid"]);
    assert_eq!(status["keepAliveProcesses"][0]["timeout"], 600);
    eventually("the app answers", || {
        sandbox.says("curl http://localhost:8080/port/3000/x") == "you asked for /x\n"
    });

    let started = sandbox.json(
        r#"curl -X POST http://localhost:8080/process \
  -H "Content-Type: application/json" \
  -d '{"command": "python server.py", "keepAlive": true, "timeout": 0}'"#,
    );
    assert_eq!(started["command"], "python server.py");

    let stopped = sandbox.json("curl -X POST http://localhost:8080/stop");
    assert_eq!(stopped.to_string(), RESTS);

    sandbox.post(&json!({"command": "sleep 600", "name": "kept", "keepAlive": true}));
    let scheduled = sandbox.json(
        r#"curl -X POST http://localhost:8080/stop \
  -H "Content-Type: application/json" \
  -d '{"timeout": 300}'"#,
    );
    assert_eq!((&scheduled["state"], names(&scheduled)), (&json!("awake"), vec!["sleep 600"]));
    assert!(scheduled["scheduledStopAt"].as_str().unwrap().ends_with('Z'), "{scheduled}");

    let line = r#"curl -X POST http://localhost:8080/stop -d '{"timeout": 600}'"#;
    assert!(sandbox.json(line)["scheduledStopAt"].is_string());
    assert_eq!(sandbox.json("curl -X POST http://localhost:8080/stop").to_string(), RESTS);
    assert_eq!(sandbox.json("curl http://localhost:8080/status").to_string(), RESTS);
    let kept = sandbox.json("curl http://localhost:8080/process/kept");
    assert_eq!(kept["status"], "running", "nothing is killed");
}

#[test]
fn bug_00_a_working_directory_that_disappears_ends_the_process_and_nothing_else() {
    if !ready(&["/usr/bin/curl"]) {
        return;
    }
    let sandbox = Sandbox::start();
    sandbox.put("x/y", "");
    let ended = sandbox.post(&json!({
        "command": "rm -r /workspace/x; exit 1", "workingDir": "/workspace/x",
        "restartOnFailure": true, "maxRestarts": 3, "waitForCompletion": true,
    }));
    assert_eq!(ended["status"], "failed", "{ended}");
    let after = sandbox.post(&json!({"command": "echo still here", "waitForCompletion": true}));
    assert_eq!(after["stdout"], "still here\n");
    let missing = sandbox.post(&json!({"command": "true", "workingDir": "/workspace/x"}));
    let text = "failed to start process: could not execute command 'true' because folder \
                '/workspace/x' does not exist";
    assert_eq!(missing["error"], text);
}

#[test]
fn bug_01_a_search_with_more_hits_than_are_wanted_answers() {
    if !ready(&["/usr/bin/curl"]) {
        return;
    }
    let sandbox = Sandbox::start();
    sandbox.put("many.txt", &"needle in a line\n".repeat(2000));
    let search = "http://localhost:8080/filesystem-content-search//workspace";
    let found = sandbox.json(&format!("curl '{search}?query=NEEDLE&maxResults=10'"));
    assert_eq!((&found["total"], found["matches"].as_array().unwrap().len()), (&json!(10), 10));
    let none = sandbox.json(&format!("curl '{search}?query=nothing-like-it'"));
    assert_eq!(none["matches"], json!([]), "none is a list, too");
}

#[test]
fn bug_03_a_wait_for_a_port_that_cannot_open_ends() {
    if !ready(&["/usr/bin/python3", "/usr/bin/curl"]) {
        return;
    }
    let sandbox = Sandbox::start();
    let over = sandbox.post(&json!({"command": "exit 4", "waitForPorts": [3000]}));
    assert_eq!((&over["status"], &over["exitCode"]), (&json!("failed"), &json!(4)));
    let serve = json!({
        "command": "exec python3 -m http.server 3000", "name": "web", "waitForPorts": [3000],
    });
    assert_eq!(sandbox.post(&serve)["status"], "running");
    let taken = sandbox.post(&json!({"command": "sleep 600", "waitForPorts": [3000]}));
    assert!(taken["error"].as_str().unwrap().contains("3000"), "{taken}");
}

#[test]
fn bug_06_what_is_written_fast_comes_whole() {
    if !ready(&["/usr/bin/curl"]) {
        return;
    }
    let sandbox = Sandbox::start();
    let line = "curl -H 'Accept: text/event-stream' -X POST http://localhost:8080/process \
                -d '{\"command\":\"seq 1 200000\"}' | wc -l";
    let lines: u64 = sandbox.says(line).trim().parse().unwrap();
    assert!(lines >= 2, "output, and a result");
    let listed = sandbox.json("curl http://localhost:8080/process");
    let name = listed[0]["name"].as_str().unwrap();
    let last =
        sandbox.says(&format!("curl http://localhost:8080/process/{name}/logs/stream | tail -1"));
    assert_eq!(last, "stdout:200000\n");
}

#[test]
fn bug_08_a_stop_ends_what_does_not_listen_and_says_so_when_it_has() {
    if !ready(&["/usr/bin/curl"]) {
        return;
    }
    let sandbox = Sandbox::start();
    let deaf = "trap \"\" TERM; echo deaf; while :; do sleep 0.1; done";
    sandbox.post(&json!({"command": deaf, "name": "deaf"}));
    eventually("it is deaf", || {
        sandbox.json("curl http://localhost:8080/process/deaf")["stdout"] == "deaf\n"
    });
    let stopped = sandbox.json("curl -X DELETE http://localhost:8080/process/deaf");
    assert_eq!(stopped["message"], "Process stopped successfully");
    let over = sandbox.json("curl http://localhost:8080/process/deaf");
    assert_ne!(over["status"], "running", "{over}");
    let again = sandbox.json("curl -X DELETE http://localhost:8080/process/deaf");
    assert!(again["error"].as_str().unwrap().contains("not running"), "{again}");
}

#[test]
fn bug_11_a_watch_is_armed_when_its_answer_begins() {
    if !ready(&["/usr/bin/curl"]) {
        return;
    }
    let sandbox = Sandbox::start();
    sandbox.put("d/first.txt", "x");
    // Something is written only once the head of the answer is there.
    let line = "cd \"$HOME\"; curl -N -D head http://localhost:8080/watch/filesystem//workspace/d \
                >changes & watch=$!
        until grep -q 200 head 2>/dev/null; do sleep 0.05; done
        curl -X PUT http://localhost:8080/filesystem//workspace/d/new.txt -d '{\"content\":\"x\"}'
        until grep -q new.txt changes; do sleep 0.05; done
        kill $watch; cat changes";
    let said = sandbox.says(&format!("timeout 30 bash -c '{}'", line.replace('\'', "'\\''")));
    assert!(said.contains("\"name\":\"new.txt\""), "{said}");
}
