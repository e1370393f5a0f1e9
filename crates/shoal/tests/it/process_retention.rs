//! Processes of real sandboxes over the API: what is known of them after the server, and a program
//! that writes more than is kept.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::shell::{able, eventually};
use crate::test_server::TestServer;

/// Asks the server by hand, and gives the status and the body of its answer.
fn asked(served: &TestServer, method: &str, path: &str, body: &str) -> (u16, String) {
    let read = |name: &str| std::fs::read_to_string(served.data().join(name)).unwrap();
    let (address, key) = (read("address"), read("admin.key"));
    let address = address.trim().trim_start_matches("http://");
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        key.trim(),
        body.len()
    );
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

#[track_caller]
fn json(served: &TestServer, method: &str, path: &str, body: &str) -> Value {
    let (status, text) = asked(served, method, path, body);
    assert!((200..300).contains(&status), "{method} {path}: {status} {text}");
    serde_json::from_str(&text).unwrap()
}

fn start(served: &TestServer, sandbox: &str, body: &str) -> Value {
    json(served, "POST", &format!("/v1/sandboxes/{sandbox}/processes"), body)
}

/// What a process wrote, as text.
fn log(served: &TestServer, sandbox: &str, id: &str, query: &str) -> Vec<String> {
    let path = format!("/v1/sandboxes/{sandbox}/processes/{id}/logs?{query}");
    let page = json(served, "GET", &path, "");
    let pieces = page["pieces"].as_array().unwrap().iter();
    pieces.map(|piece| piece["data"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn processes_and_output_survive_kill_9_and_report_the_cause() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let sandbox = served.text(&["create"]);
    let done = start(&served, &sandbox, r#"{"command":"echo done","wait":true}"#);
    let line = r#"{"command":"echo begun; echo trouble >&2; sleep 600","name":"server","keep_alive":true}"#;
    let runs = start(&served, &sandbox, line);
    let (done, runs) = (done["id"].as_str().unwrap(), runs["id"].as_str().unwrap());
    // Output is sent first and stored soon after.
    let logs = served.data().join("processes").join(&sandbox);
    eventually("its output is on the disk", || {
        let files = std::fs::read_dir(logs.join("2")).into_iter().flatten().flatten();
        let texts = files.map(|file| std::fs::read(file.path()).unwrap_or_default());
        texts.into_iter().any(|text| text.windows(7).any(|part| part == b"trouble"))
    });
    let (_, scratch) = served.stop(Signal::KILL);

    let again = TestServer::start_on(scratch, &[]);
    let all = json(&again, "GET", &format!("/v1/sandboxes/{sandbox}/processes"), "");
    assert_eq!(all["processes"].as_array().unwrap().len(), 2, "{all}");
    let left = json(&again, "GET", &format!("/v1/sandboxes/{sandbox}/processes/server"), "");
    assert_eq!((&left["id"], &left["status"]), (&runs.into(), &"killed".into()), "{left}");
    assert!(left.to_string().contains("server_ended"), "{left}");
    assert_eq!(log(&again, &sandbox, runs, "").concat(), "begun\ntrouble\n");
    assert_eq!(log(&again, &sandbox, done, "").concat(), "done\n");
    let over = json(&again, "GET", &format!("/v1/sandboxes/{sandbox}/processes/{done}"), "");
    assert_eq!(over["status"], "completed", "{over}");
}

#[test]
fn process_log_keeps_the_tail_of_a_gigabyte_and_long_lists_work() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let sandbox = served.text(&["create"]);
    let line = r#"{"command":"head -c 1000000000 /dev/zero | tr '\\0' x; echo; echo the end","wait":true,"wait_timeout_ms":300000}"#;
    let big = start(&served, &sandbox, line);
    assert_eq!(big["status"], "completed", "{big}");
    let id = big["id"].as_str().unwrap();
    let tail = log(&served, &sandbox, id, "max_bytes=9").concat();
    assert_eq!(tail, "\nthe end\n");
    let kept: u64 = std::fs::read_dir(served.data().join("processes").join(&sandbox).join("1"))
        .unwrap()
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    assert!((8_000_000..20_000_000).contains(&kept), "{kept}");
    for _ in 0..200 {
        start(&served, &sandbox, r#"{"argv":["true"],"wait":true}"#);
    }
    let path = format!("/v1/sandboxes/{sandbox}/processes?limit=1000");
    let all = json(&served, "GET", &path, "");
    assert_eq!(all["processes"].as_array().unwrap().len(), 201);
}
