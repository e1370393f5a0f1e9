//! `shoal attach --harness`: lines both ways at once, however many, and an end whenever it is asked
//! for.

use std::io::Write as _;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::shell::{able, eventually, finish};
use crate::test_server::{TestServer, output_of};

/// More than all the buffers between two programs hold.
const LINES: usize = 300;
const LINE_BYTES: usize = 60_000;

/// Writes each line three times: a client that reads one line for each that it writes falls behind,
/// until both sides block.
const ECHO: &str = r#"exec python3 -c 'import socket
channel = socket.socket(fileno=3)
says = channel.makefile("w")
for line in channel.makefile("r"):
    says.write(line * 3)
    says.flush()
    if line == "bye\n":
        break'"#;

/// A sandbox whose harness is this line of a shell, after it has said that it is ready.
fn harnessed(served: &TestServer, line: &str) -> String {
    let script = format!("echo '{{\"type\":\"ready\",\"protocol\":1}}' >&3; {line}");
    let template = format!(
        "name = \"spoken\"\n[limits]\nbest_effort = true\n[pool]\npool_size = 0\n\
         [harness.jsonl]\ncommand = [\"sh\", \"-c\", '''{script}\n''']\n"
    );
    let put = served.run_with_input(&["templates", "put", "-"], Some(template.as_bytes()));
    assert_eq!(put.code, Some(0), "{put:?}");
    served.text(&["create", "--template", "spoken"])
}

fn lines() -> String {
    let line = |n: usize| format!("{n:0LINE_BYTES$}\n");
    (0..LINES).map(line).collect()
}

#[test]
fn attach_harness_reads_while_it_writes() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let id = harnessed(&served, ECHO);
    let said = lines() + "bye\n";
    let heard = served.run_with_input(&["attach", &id, "--harness"], Some(said.as_bytes()));
    let echo: String = said.lines().flat_map(|line| [line, "\n"].repeat(3)).collect();
    assert!(heard.text() == echo, "{} of {} bytes", heard.text().len(), echo.len());
    assert!(heard.stderr.contains("harness_died"), "{}", heard.stderr);
}

#[test]
fn attach_harness_can_leave_a_harness_that_does_not_read() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let id = harnessed(&served, "echo up >&3; exec sleep 1000");
    let mut command = served.command(&["attach", &id, "--harness"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let (fed, stuck) = std::sync::mpsc::channel();
    let feeding = std::thread::spawn(move || {
        for line in lines().lines() {
            // Who was ended takes nothing more.
            if writeln!(stdin, "{line}").is_err() {
                break;
            }
            let _ = fed.send(());
        }
    });
    let mut taken = 0;
    eventually("nothing more is taken", || {
        let before = taken;
        std::thread::sleep(std::time::Duration::from_millis(300));
        taken += stuck.try_iter().count();
        taken > 0 && taken == before
    });
    assert!(taken < LINES, "there is no end to what it takes");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let left = output_of(finish(child, &[]));
    assert_eq!((left.code, left.text()), (Some(130), "up\n"), "{left:?}");
    feeding.join().unwrap();
}
