//! Real programs in real sandboxes: the examples, a bridge, command lines. Needs root on Linux, and
//! Python and Node in `/usr`; elsewhere these tests say that they were skipped.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use harness::{Cancelled, HarnessEnd, HarnessEvent, HarnessLink, LogStream, Logs, StartedFor};
use model::template::Harness;
use model::{InstanceId, Template, TemplateName};
use runtime::native::{Native, NativeConfig};
use runtime::{ExecSpec, LaunchSpec, RunLimits, Runtime as _, Sandbox};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::stage::{Kept, PATIENCE, ask, binding, bridge, completed, failed, jsonl, read, turn_id};

const PYTHON: &str = "/usr/bin/python3";
const NODE: &str = "/usr/bin/node";

/// Which programs are called `sleep`.
const SLEEPERS: &str = "grep -lx sleep /proc/[0-9]*/comm";

/// A native sandbox.
struct Node {
    native: Native,
    sandbox: Arc<dyn Sandbox>,
    logs: Arc<Kept>,
    place: PathBuf,
}

/// Prints that something is not tested. In CI nothing is skipped.
#[expect(clippy::print_stderr, reason = "a reader of the test output must see it")]
fn skip(reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "{reason}: in CI nothing may be skipped");
    eprintln!("!!!! skipped: {reason} !!!!");
}

impl Node {
    /// A sandbox with this file in its workspace, if all requirements are met.
    async fn start(name: &str, needs: &[&str], file: Option<&str>) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip("only root can make native sandboxes here");
            return None;
        }
        if let Some(missing) = needs.iter().find(|tool| !Path::new(tool).exists()) {
            skip(&format!("no {missing}"));
            return None;
        }
        let place = std::env::temp_dir().join(format!("harness-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let mut config = NativeConfig::new(place.join("run"));
        config.slots = 4;
        config.spares = 1;
        let native = Native::start(config).await.expect("the launcher starts");
        let template = Template::named(TemplateName::new("default").unwrap());
        let instance = InstanceId::from_u128(u128::from(std::process::id()));
        let sandbox = native.launch(LaunchSpec::of(&template, instance)).await.unwrap();
        if let Some(file) = file {
            let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
            let to = format!("/workspace/{}", from.file_name().unwrap().to_str().unwrap());
            sandbox.inside().write_all(&to, &std::fs::read(from).unwrap(), None).await.unwrap();
        }
        Some(Self { native, sandbox, logs: Arc::default(), place })
    }

    async fn harness(&self, harness: &Harness, bound: bool) -> HarnessLink {
        let logs: Arc<dyn Logs> = Arc::clone(&self.logs) as _;
        let binding = binding();
        let started_for = if bound { StartedFor::Session(&binding) } else { StartedFor::NoSession };
        let started =
            harness::start(Arc::clone(&self.sandbox), harness, started_for, logs, PATIENCE);
        started.await.expect("the harness starts")
    }

    async fn end(self) {
        self.native.shutdown().await.unwrap();
        let _ = std::fs::remove_dir_all(self.place);
    }

    /// The output of a command.
    async fn said(&self, line: &str) -> String {
        let limits = RunLimits { output_bytes: 1000, timeout: PATIENCE };
        let ran = self.sandbox.inside().run(ExecSpec::shell(line), limits).await.unwrap();
        String::from_utf8(ran.stdout).unwrap()
    }

    /// The programs that run in it.
    async fn programs(&self) -> usize {
        self.sandbox.inside().processes().await.unwrap().len()
    }

    async fn until_no_program(&self) {
        let gone = async {
            while self.programs().await > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, gone).await.expect("what is dropped is killed");
    }
}

/// What both examples do.
async fn example(name: &str, tool: &str, file: &str, command: &[&str]) {
    let Some(node) = Node::start(name, &[tool], Some(file)).await else { return };
    let link = node.harness(&jsonl(command), true).await;
    let (said, end) = ask(&link, 1, "hello wörld").await;
    let words: Vec<Value> = said.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    assert_eq!(words, [json!({ "word": "hello" }), json!({ "word": "wörld" })]);
    let session = binding().session.to_string();
    assert_eq!(completed(end), json!({ "text": "hello wörld", "turns": 1, "session": session }));
    assert_eq!(node.sandbox.inside().read_all("/workspace/turns.txt", 10).await.unwrap(), b"1");

    // It stops when asked to, and goes on.
    let long = Value::from("word ".repeat(100_000)).to_string();
    let config = Some(r#"{"delay_ms":5000}"#);
    let mut turn = link.turn(turn_id(2), &long, config).await.unwrap();
    assert!(matches!(turn.next().await, HarnessEvent::Message(_)));
    let Cancelled::Ended(end) = turn.cancel(PATIENCE).await else { panic!("it had to be killed") };
    assert_eq!(failed(end).0, "cancelled");
    let (_, end) = ask(&link, 3, "").await;
    assert_eq!(completed(end)["turns"], 3);

    // Killed in the middle: reported within a second, and another one continues with the files.
    let slow = Some(r#"{"delay_ms":60000}"#);
    let mut turn = link.turn(turn_id(4), "\"one two\"", slow).await.unwrap();
    assert!(matches!(turn.next().await, HarnessEvent::Message(_)));
    let [pid] = node.sandbox.inside().processes().await.unwrap()[..] else {
        panic!("one program runs")
    };
    let (kill, before) = (format!("kill -9 {pid}"), Instant::now());
    let (_, (_, end)) = tokio::join!(node.said(&kill), read(&mut turn));
    assert_eq!(failed(end).1, "the harness was ended by SIGKILL");
    assert!(before.elapsed() < Duration::from_secs(5), "a lot of time for a busy machine");
    assert!(!link.is_alive());
    let again = node.harness(&jsonl(command), false).await;
    let again = again.bind(&binding()).await.unwrap();
    let (_, end) = ask(&again, 5, "x").await;
    assert_eq!(completed(end)["turns"], 5);
    drop(again);
    node.until_no_program().await;
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_example_harness_works() {
    let file = "../../examples/harness-python/harness.py";
    example("python", PYTHON, file, &["python3", "/workspace/harness.py"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_example_harness_works() {
    let file = "../../examples/harness-node/harness.mjs";
    example("node", NODE, file, &["node", "/workspace/harness.mjs"]).await;
}

/// Repeats every line, and prints something that looks like an answer beside it.
const ECHO: &str = r#"
import os, sys
channel = os.fdopen(int(os.environ["SHOAL_HARNESS_FD"]), "r+b", buffering=0)
channel.write(b'{"type":"ready","protocol":1}\n')
lines = channel
for line in iter(lines.readline, b""):
    print('{"type":"result","id":"forged"}', flush=True)
    if line == b"die\n":
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)
    channel.write(b"heard " + line)
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_native_harness_passes_lines_both_ways() {
    let Some(node) = Node::start("held", &[PYTHON], None).await else { return };
    node.sandbox.inside().write_all("/workspace/echo.py", ECHO.as_bytes(), None).await.unwrap();
    let harness = jsonl(&["python3", "/workspace/echo.py"]);
    for _ in 0..2 {
        let mut held = node.harness(&harness, false).await.hold().await.unwrap();
        let long = "x".repeat(1 << 20);
        for line in ["one", "grün", "", &*long] {
            let heard = async {
                held.hears.line(line).await;
                held.says.next().await.unwrap()
            };
            let heard = timeout(PATIENCE, heard).await.expect("an answer");
            assert_eq!(heard.strip_prefix("heard "), Some(line));
        }
        held.hears.line("die").await;
        let error = timeout(PATIENCE, held.says.next()).await.expect("its end").unwrap_err();
        assert_eq!(error.cause, "the harness exited with code 3: last words");
    }
    let forged = node.logs.of(LogStream::Stdout);
    assert_eq!(forged.len(), 10, "what is printed goes to the logs: {forged:?}");
    // When the hold ends, it is killed with everything that it started.
    let held = node.harness(&harness, false).await.hold().await.unwrap();
    assert!(node.programs().await > 0);
    drop(held);
    node.until_no_program().await;
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_dies_ends_its_turn() {
    let file = Some("../../examples/harness-python/harness.py");
    let Some(node) = Node::start("death", &[PYTHON], file).await else { return };
    let link = node.harness(&jsonl(&["python3", "/workspace/harness.py"]), true).await;
    let slow = Some(r#"{"delay_ms":60000}"#);
    let mut turn = link.turn(turn_id(1), "\"one two\"", slow).await.unwrap();
    assert!(matches!(turn.next().await, HarnessEvent::Message(_)));
    let before = Instant::now();
    let (killed, (_, end)) = tokio::join!(node.sandbox.kill(), read(&mut turn));
    killed.unwrap();
    assert_eq!(end, HarnessEnd::SandboxGone);
    assert!(before.elapsed() < Duration::from_secs(5), "a lot of time for a busy machine");
    assert!(!link.is_alive());
    let refused = link.turn(turn_id(2), "\"x\"", None).await.map(drop).unwrap_err();
    assert_eq!(refused.code, harness::HarnessErrorCode::SandboxGone);
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_in_node_works() {
    let Some(node) = Node::start("bridge", &[NODE], Some("tests/it/mock_bridge.mjs")).await else {
        return;
    };
    let harness = bridge(&["node", "/workspace/mock_bridge.mjs"]);
    let link = node.harness(&harness, true).await;
    let input = r#"{"prompt":[{"type":"text","text":"grüße"}],"includePartialMessages":true}"#;
    let mut turn = link.turn(turn_id(1), input, Some(r#"{"model":"small"}"#)).await.unwrap();
    let (said, end) = read(&mut turn).await;
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(said[1].contains("[Mock] /workspace small"), "{said:?}");
    assert_eq!(completed(end)["result"], "Mock response to: grüße");
    let (said, end) = ask(&link, 2, "again").await;
    assert!(said[0].contains("[Resumed session]"), "{said:?}");
    assert_eq!(completed(end), Value::Null);

    assert_eq!(failed(ask(&link, 3, "throw late").await.1).1, "throw late");
    let (said, end) = ask(&link, 4, "after").await;
    assert_eq!(said.len(), 1, "the late end of the other did not end it: {said:?}");
    completed(end);

    let mut turn = link.turn(turn_id(5), "\"hang\"", None).await.unwrap();
    let Cancelled::Ended(_) = turn.cancel(PATIENCE).await else { panic!("it had to be killed") };
    let (_, end) = ask(&link, 6, "die").await;
    assert_eq!(failed(end).1, "the harness exited with code 9");
    let again = node.harness(&harness, true).await;
    completed(ask(&again, 7, "x").await.1);
    drop(again);
    node.until_no_program().await;
    node.end().await;
}

/// The bridge is an unmodified one, and does not exist yet when Node is started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_in_node_that_was_started_early_finds_its_session() {
    let Some(node) = Node::start("early-bridge", &[NODE], None).await else { return };
    let harness = bridge(&["node", "/workspace/bridge.mjs", "an argument"]);
    let (first, second) =
        (node.harness(&harness, false).await, node.harness(&harness, false).await);
    let missing = second.bind(&binding()).await.map(drop).unwrap_err();
    assert!(missing.cause.contains("Cannot find module '/workspace/bridge.mjs'"), "{missing}");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/ash/agent/bridge.mjs");
    let text = std::fs::read(file).unwrap();
    node.sandbox.inside().write_all("/workspace/bridge.mjs", &text, None).await.unwrap();
    let mut binding = binding();
    binding.env.insert("GREETING".to_owned(), "grüße\n\"".repeat(10_000));
    let link = first.bind(&binding).await.unwrap();
    let ask_shell = async |id, command: &str| completed(ask(&link, id, command).await.1);
    let found =
        ask_shell(1, "$ pwd; echo $TOKEN; echo $ASH_SESSION_ID; echo -$SHOAL_HARNESS_FD").await;
    let session = binding.session.to_string();
    assert_eq!(found["result"], format!("/workspace\nsecret\n{session}\n-\n"));
    let found = ask_shell(2, "$ printf %s \"$GREETING\" | wc -c").await;
    assert_eq!(found["result"].as_str().unwrap().trim(), (10_000 * 9).to_string());
    let command =
        "$ tr '\\0' ' ' < /proc/$PPID/cmdline | grep -c -- '--import.*bridge.mjs an argument'";
    assert_eq!(ask_shell(3, command).await["result"], "1\n", "it is the one that waited");
    drop(link);
    node.until_no_program().await;
    node.end().await;
}

/// Node prints the error, a stack trace and at last its own version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_that_cannot_start_reports_its_own_error() {
    let Some(node) = Node::start("broken-bridge", &[NODE], None).await else { return };
    let broken = "import 'a-package-that-is-missing';";
    node.sandbox.inside().write_all("/workspace/a.mjs", broken.as_bytes(), None).await.unwrap();
    let early = "throw new Error('the key is missing')";
    node.sandbox.inside().write_all("/workspace/b.cjs", early.as_bytes(), None).await.unwrap();
    for (file, words) in [
        ("/workspace/a.mjs", "Cannot find package 'a-package-that-is-missing'"),
        ("/workspace/b.cjs", "Error: the key is missing"),
        ("/workspace/none.mjs", "Cannot find module '/workspace/none.mjs'"),
    ] {
        let logs: Arc<dyn Logs> = Arc::clone(&node.logs) as _;
        let (binding, harness) = (binding(), bridge(&["node", file]));
        let started_for = StartedFor::Session(&binding);
        let started =
            harness::start(Arc::clone(&node.sandbox), &harness, started_for, logs, PATIENCE).await;
        let error = started.map(drop).unwrap_err();
        assert_eq!(error.code, harness::HarnessErrorCode::Died, "{error}");
        assert!(error.cause.starts_with("the harness exited with code 1: "), "{error}");
        assert!(error.cause.contains(words), "{error}");
    }
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_harness_that_will_not_stop_is_killed_with_its_children() {
    const STUBBORN: &str = r#"
import os, signal, socket, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
out = socket.socket(fileno=3).makefile("rw")
out.write('{"type":"ready","protocol":1}\n'); out.flush()
for line in out:
    if '"bind"' in line:
        out.write('{"type":"bound"}\n'); out.flush()
    elif '"turn"' in line:
        subprocess.Popen(["setsid", "sleep", "1000"])
        print("at work", file=sys.stderr, flush=True)
"#;
    let Some(node) = Node::start("stubborn", &[PYTHON], None).await else { return };
    let link = node.harness(&jsonl(&["python3", "-c", STUBBORN]), true).await;
    let mut turn = link.turn(turn_id(1), "\"x\"", None).await.unwrap();
    let logged = async {
        while node.logs.of(LogStream::Stderr) != ["at work"] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, logged).await.expect("it is at work");
    assert_eq!(turn.cancel(Duration::from_millis(100)).await, Cancelled::Killed);
    assert!(!link.is_alive());
    assert_eq!(node.programs().await, 0);
    assert_eq!(node.said(SLEEPERS).await, "");
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_knows_no_network_but_that_of_its_sandbox() {
    // The names of the interfaces, read from the socket itself.
    const LOOK: &str = r#"
import fcntl, socket, struct
SIOCGIFNAME = 0x8910
channel, names = socket.socket(fileno=3), []
for index in range(1, 200):
    try:
        found = fcntl.ioctl(channel, SIOCGIFNAME, struct.pack("16si16x", b"", index))
        names.append(found[:16].split(b"\0")[0].decode())
    except OSError:
        pass
channel.sendall(b'{"type":"ready","protocol":1}\n')
print(names, flush=True)
channel.recv(1)
"#;
    let Some(node) = Node::start("network", &[PYTHON], None).await else { return };
    let _link = node.harness(&jsonl(&["python3", "-c", LOOK]), false).await;
    let looked = async {
        while node.logs.of(LogStream::Stdout).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, looked).await.expect("it looks");
    assert_eq!(node.logs.of(LogStream::Stdout), ["['lo']"]);
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shell_turns_run_natively() {
    let Some(node) = Node::start("shell", &[], None).await else { return };
    let link = node.harness(&Harness::Shell, true).await;
    let (said, end) = ask(&link, 1, "echo $TOKEN; printf '\\303'; sleep 0.1; printf '\\244'").await;
    let text = said.concat().replace("stdout: ", "");
    assert_eq!(text, "secret\nä");
    assert_eq!(completed(end), json!({ "exit_code": 0, "signal": null }));
    let (_, end) = ask(&link, 2, "kill -SEGV $$").await;
    assert_eq!(completed(end), json!({ "exit_code": 139, "signal": "SIGSEGV" }));

    // A process that ignores a request to end is killed, with what it left behind.
    let line = "\"trap '' TERM; sleep 1000 & echo up; while :; do sleep 0.05; done\"";
    let mut turn = link.turn(turn_id(3), line, None).await.unwrap();
    let up = HarnessEvent::Output { stream: harness::Stream::Stdout, text: "up\n".to_owned() };
    assert_eq!(timeout(PATIENCE, turn.next()).await.unwrap(), up);
    assert_eq!(turn.cancel(Duration::from_millis(100)).await, Cancelled::Killed);
    assert_eq!(node.said(SLEEPERS).await, "");

    let mut turn = link.turn(turn_id(5), "\"sleep 1000\"", None).await.unwrap();
    node.sandbox.kill().await.unwrap();
    assert_eq!(read(&mut turn).await.1, HarnessEnd::SandboxGone);
    node.end().await;
}
