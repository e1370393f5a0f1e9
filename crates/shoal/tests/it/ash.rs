//! Sessions of Ash with a real server, real sandboxes and a real bridge: rows of what Ash was
//! measured to do wrong that are about files, restarts and the host.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::shell::{able, eventually, skipped};
use crate::test_server::{Scratch, TestServer};

fn agents() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/ash").canonicalize().unwrap()
}

fn ready() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skipped("no root");
        return false;
    }
    if !std::path::Path::new("/usr/bin/node").exists() {
        skipped("no /usr/bin/node");
        return false;
    }
    able()
}

/// A server for clients of Ash.
struct Ash {
    served: TestServer,
}

impl Ash {
    fn start(more: &[&str]) -> Self {
        Self::start_on(Scratch::new(), more)
    }

    fn start_on(scratch: Scratch, more: &[&str]) -> Self {
        let roots = format!("ash.agent_roots={}", agents().display());
        let fixed = [
            "--ash=127.0.0.1:0",
            "--set",
            "ash.bridge_entry=/workspace/bridge.mjs",
            "--set",
            &roots,
        ];
        Self { served: TestServer::start_on(scratch, &[&fixed, more].concat()) }
    }

    fn restart(self, signal: Signal, more: &[&str]) -> Self {
        let (_, scratch) = self.served.stop(signal);
        Self::start_on(scratch, more)
    }

    fn key(&self) -> String {
        let path = self.served.data().join("initial-api-key");
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    }

    /// Status and body of an answer.
    fn call(&self, method: &str, path: &str, body: &Value) -> (u16, String) {
        let address = std::fs::read_to_string(self.served.data().join("address")).unwrap();
        let url = format!("{}/compat/ash{path}", address.trim());
        let bearer = format!("Authorization: Bearer {}", self.key());
        let json = ["-H", "Content-Type: application/json"];
        let mut curl = Command::new("curl");
        curl.args(["-s", "-m", "60", "-X", method, "-H", &bearer]).args(json);
        curl.args(["-w", "\n%{http_code}", &url]);
        if !body.is_null() {
            curl.args(["--data", &body.to_string()]);
        }
        let output = curl.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), body.to_owned())
    }

    #[track_caller]
    fn done(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, text) = self.call(method, path, body);
        assert!(status < 300, "{method} {path}: {status} {text}\n{}", self.served.log());
        serde_json::from_str(&text).unwrap()
    }

    fn session(&self, more: &Value) -> String {
        let path = agents().join("agent");
        self.done("POST", "/api/agents", &json!({"name": "tester", "path": path}));
        let mut body = json!({"agent": "tester"});
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        let made = self.done("POST", "/api/sessions", &body);
        made["session"]["id"].as_str().unwrap().to_owned()
    }

    fn status(&self, session: &str) -> String {
        let shown = self.done("GET", &format!("/api/sessions/{session}"), &Value::Null);
        shown["session"]["status"].as_str().unwrap().to_owned()
    }

    /// The stream of a message, as it came.
    fn send(&self, session: &str, content: &str) -> String {
        let path = format!("/api/sessions/{session}/messages");
        let (status, text) = self.call("POST", &path, &json!({"content": content}));
        assert_eq!(status, 200, "{text}\n{}", self.served.log());
        text
    }

    /// The output of a command that the bridge ran.
    #[track_caller]
    fn ran(&self, session: &str, command: &str) -> String {
        let stream = self.send(session, &format!("$ {command}"));
        let mut lines = stream.lines();
        while let Some(line) = lines.next() {
            if line == "event: turn_complete" {
                let data = lines.next().and_then(|line| line.strip_prefix("data: ")).unwrap();
                let data: Value = serde_json::from_str(data).unwrap();
                return data["result"].as_str().unwrap().to_owned();
            }
        }
        panic!("{command}: {stream}\n{}", self.served.log());
    }
}

/// What every sandbox of this session must have.
const MADE_WITH: &str = "echo $SECRET; cat CLAUDE.md; grep -c docs .mcp.json; cat kept.txt";
const EXPECTED: &str = "s3cret\nBe brief.1\nkept\n";

fn made_with() -> Value {
    json!({
        "extraEnv": {"SECRET": "s3cret"},
        "systemPrompt": "Be brief.",
        "mcpServers": {"docs": {"url": "http://localhost:1"}},
    })
}

#[test]
fn row_02_files_and_settings_survive_the_idle_sweep_a_crash_a_restart_and_an_eviction() {
    if !ready() {
        return;
    }
    let short =
        ["--set", "node.idle_timeout_ms=300", "--set", "node.sweep_interval_ms=100"].as_slice();
    let ash = Ash::start(short);
    let id = ash.session(&made_with());
    ash.ran(&id, "echo kept > kept.txt");
    assert_eq!(ash.ran(&id, MADE_WITH), EXPECTED, "at first");
    eventually("the idle sweep has it", || ash.status(&id) == "paused");
    assert_eq!(ash.ran(&id, MADE_WITH), EXPECTED, "after the idle sweep");

    let one = ["--set", "node.max_live=1"].as_slice();
    let ash = ash.restart(Signal::KILL, one);
    assert_eq!(ash.status(&id), "paused");
    assert_eq!(ash.ran(&id, MADE_WITH), EXPECTED, "after kill -9");
    let other = ash.session(&json!({}));
    assert_eq!(ash.status(&id), "paused", "there is room for one");
    assert_eq!(ash.ran(&other, "cat kept.txt 2>/dev/null || echo none"), "none\n");
    assert_eq!(ash.ran(&id, MADE_WITH), EXPECTED, "after an eviction");

    let ash = ash.restart(Signal::TERM, &[]);
    assert_eq!(ash.ran(&id, MADE_WITH), EXPECTED, "after a restart in order");
    ash.done("POST", &format!("/api/sessions/{id}/stop"), &Value::Null);
    let ash = ash.restart(Signal::KILL, &[]);
    assert_eq!(ash.status(&id), "stopped");
    ash.done("POST", &format!("/api/sessions/{id}/resume"), &Value::Null);
    assert_eq!(ash.ran(&id, MADE_WITH), EXPECTED, "after a stop");
}

#[test]
fn row_04_a_fork_has_its_parents_files_and_changes_only_its_own() {
    if !ready() {
        return;
    }
    let ash = Ash::start(&[]);
    let id = ash.session(&made_with());
    ash.ran(&id, "echo kept > kept.txt");
    let fork = ash.done("POST", &format!("/api/sessions/{id}/fork"), &Value::Null);
    assert_eq!(fork["session"]["parentSessionId"], id.as_str());
    let fork = fork["session"]["id"].as_str().unwrap();
    assert_eq!(ash.ran(fork, MADE_WITH), EXPECTED);
    ash.ran(fork, "echo changed > kept.txt");
    assert_eq!(ash.ran(&id, "cat kept.txt"), "kept\n");
    assert_eq!(ash.ran(fork, "cat kept.txt"), "changed\n");
}

#[test]
fn row_14_neither_the_server_nor_files_of_the_host_are_reached_from_inside() {
    if !ready() {
        return;
    }
    let ash = Ash::start(&[]);
    let id = ash.session(&json!({}));
    let secret = ash.served.scratch.0.join("secret");
    std::fs::write(&secret, "of the host").unwrap();
    let (secret, data) = (secret.display(), ash.served.data());
    let links =
        format!("ln -s {secret} one; ln -s {}/initial-api-key two; ln -s / three", data.display());
    ash.ran(&id, &links);
    for path in ["one", "two", "three/etc/shadow"] {
        let (status, text) =
            ash.call("GET", &format!("/api/sessions/{id}/files/{path}"), &Value::Null);
        assert!((400..500).contains(&status), "{path}: {status} {text}");
        assert!(!text.contains("of the host") && !text.contains(&ash.key()), "{path}: {text}");
    }
    let body = json!({"files": [{"path": "one", "content": "eA=="}]});
    ash.done("POST", &format!("/api/sessions/{id}/files"), &body);
    assert_eq!(
        std::fs::read_to_string(ash.served.scratch.0.join("secret")).unwrap(),
        "of the host"
    );
    let address = std::fs::read_to_string(data.join("address")).unwrap();
    let port = address.trim().rsplit(':').next().unwrap().to_owned();
    let dial = format!(
        "node -e \"require('net').connect({port},'127.0.0.1').on('connect',()=>process.exit(0))\
         .on('error',()=>process.exit(7))\""
    );
    let path = format!("/api/sessions/{id}/exec");
    let ran = ash.done("POST", &path, &json!({"command": dial}));
    assert_eq!(ran["exitCode"], 7, "{ran}");
}

#[test]
fn the_first_key_is_where_ash_leaves_it_and_made_once() {
    if !able() {
        return;
    }
    let ash = Ash::start(&[]);
    let file = ash.served.data().join("initial-api-key");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let key = ash.key();
    ash.done("GET", "/api/api-keys", &Value::Null);
    assert!(!ash.served.log().contains(&key), "a secret in the log");
    std::fs::remove_file(&file).unwrap();
    let ash = ash.restart(Signal::TERM, &[]);
    assert!(!file.exists(), "a removed key file stays removed");
    std::fs::write(&file, key).unwrap();
    ash.done("GET", "/api/agents", &Value::Null);
}
