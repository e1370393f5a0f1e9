//! Processes, ports and files from the inside, with real sandboxes: the verbs, and a server inside
//! as it is reached from outside.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use crate::shell::{able, eventually, finish};
use crate::test_server::{TestServer, output_of};

/// Answers HTTP with what it was asked, and says back what it hears after an upgrade.
const SERVER: &str = r#"
import socket, threading

def serve(connection):
    with connection:
        head = b""
        while b"\r\n\r\n" not in head:
            piece = connection.recv(4096)
            if not piece:
                return
            head += piece
        head, rest = head.split(b"\r\n\r\n", 1)
        if b"upgrade: echo" in head.lower():
            connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n" + rest)
            while piece := connection.recv(4096):
                connection.sendall(piece)
            return
        body = head + b"\n"
        connection.sendall(b"HTTP/1.1 200 OK\r\nx-inside: yes\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

listener = socket.create_server(("127.0.0.1", 3000))
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
"#;

/// A server inside, under the name `web`.
fn serving(served: &TestServer) -> String {
    let id = served.text(&["create"]);
    let said =
        served.run_with_input(&["cp", "-", &format!("{id}:server.py")], Some(SERVER.as_bytes()));
    assert_eq!(said.code, Some(0), "{said:?}");
    let start =
        ["process", "start", &id, "--name", "web", "--keep-alive", "--wait-for-port", "3000"];
    assert_eq!(served.text(&[&start[..], &["--", "python3", "server.py"]].concat()), "web");
    id
}

fn connect(served: &TestServer) -> TcpStream {
    let address = std::fs::read_to_string(served.data().join("address")).unwrap();
    let address = address.trim().trim_start_matches("http://").to_owned();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

fn key(served: &TestServer) -> String {
    std::fs::read_to_string(served.data().join("admin.key")).unwrap().trim().to_owned()
}

/// Sends a request, and reads until what is expected came.
fn ask(served: &TestServer, path: &str, headers: &str, expected: &str) -> (TcpStream, String) {
    let mut stream = connect(served);
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n{headers}\r\n",
        key(served)
    );
    stream.write_all(head.as_bytes()).unwrap();
    let answer = read_until(&mut stream, expected);
    (stream, answer)
}

fn read_until(stream: &mut TcpStream, expected: &str) -> String {
    let (mut answer, mut buffer) = (String::new(), [0; 4096]);
    while !answer.contains(expected) {
        let length = stream.read(&mut buffer).unwrap();
        assert!(length > 0, "{expected:?} did not come: {answer}");
        answer.push_str(&String::from_utf8_lossy(&buffer[..length]));
    }
    answer
}

#[test]
fn a_server_inside_is_reached_in_every_way_and_keeps_its_sandbox_awake() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let id = serving(&served);
    let status = served.json(&["status", &id, "--json"]);
    assert_eq!(
        (&status["state"], &status["keep_alive_processes"][0]["name"]),
        (&"awake".into(), &"web".into())
    );

    let path = format!("/v1/sandboxes/{id}/ports/3000/a%20b?c=d");
    let (_, answer) = ask(&served, &path, "x-mine: 1\r\n", "x-forwarded-prefix");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("x-inside: yes"), "{answer}");
    assert!(answer.contains("GET /a%20b?c=d HTTP/1.1") && answer.contains("x-mine: 1"), "{answer}");
    assert!(answer.contains("host: localhost:3000"), "{answer}");
    assert!(!answer.contains(&key(&served)), "our key stays outside");

    let upgrade = "connection: upgrade\r\nupgrade: echo\r\n";
    let (mut stream, answer) = ask(&served, &path, upgrade, "\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    stream.write_all(b"hello tunnel").unwrap();
    read_until(&mut stream, "hello tunnel");
    drop(stream);

    let mut command = served.command(&["forward", &id, "3000:0"]);
    let mut forward = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let mut byte = [0];
        forward.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    let line = String::from_utf8(line).unwrap();
    let mut direct = TcpStream::connect(line.split(' ').next().unwrap()).unwrap();
    direct.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    direct.write_all(b"GET /direct HTTP/1.1\r\n\r\n").unwrap();
    read_until(&mut direct, "GET /direct");
    drop(direct);
    let pid = rustix::process::Pid::from_child(&forward);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(output_of(finish(forward, &[])).code, Some(0));

    assert!(served.text(&["stop", &id, "--after", "5m"]).contains("processes ends in"));
    let status = served.json(&["stop", &id, "--json"]);
    assert_eq!(
        (&status["state"], &status["scheduled_stop_at"]),
        (&"auto".into(), &serde_json::Value::Null)
    );
    let frozen = || {
        let listed = served.json(&["ps", "--json"]);
        let all = listed["sandboxes"].as_array().unwrap();
        all.iter().any(|one| one["id"] == *id && one["frozen"] == true)
    };
    let (_, freeze) = ask_post(&served, &format!("/v1/sandboxes/{id}/freeze"));
    assert!(freeze.starts_with("HTTP/1.1 200"), "{freeze}");
    eventually("it is frozen", frozen);
    let (_, answer) = ask(&served, &path, "", "x-forwarded-prefix");
    assert!(answer.starts_with("HTTP/1.1 200"), "a frozen sandbox wakes on access: {answer}");
    let closed = format!("/v1/sandboxes/{id}/ports/3001/");
    let (_, answer) = ask(&served, &closed, "", "port_closed");
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
}

fn ask_post(served: &TestServer, path: &str) -> (TcpStream, String) {
    let mut stream = connect(served);
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: 0\r\n\r\n",
        key(served)
    );
    stream.write_all(head.as_bytes()).unwrap();
    let answer = read_until(&mut stream, "\r\n\r\n");
    (stream, answer)
}

#[test]
fn processes_are_started_followed_fed_and_ended() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let id = served.text(&["create"]);
    let waited = served.run(&[
        "process",
        "start",
        &id,
        "--wait",
        "--shell",
        "echo out; echo err >&2; exit 5",
    ]);
    assert_eq!((waited.code, waited.text(), &*waited.stderr), (Some(5), "out\n", "err\n"));
    let start =
        ["process", "start", &id, "--name", "upper", "--open-stdin", "--", "tr", "a-z", "A-Z"];
    assert_eq!(served.text(&start), "upper");
    let fed = served.run_with_input(&["process", "stdin", &id, "upper"], Some(b"hello\n"));
    assert_eq!(fed.code, Some(0), "{fed:?}");
    assert_eq!(served.text(&["process", "logs", &id, "upper", "--follow"]), "HELLO");
    assert_eq!(served.text(&["process", "logs", &id, "upper", "--stderr"]), "");
    served.text(&["process", "start", &id, "--name", "long", "--", "sleep", "1000"]);
    let listed = served.text(&["process", "ls", &id, "--running"]);
    assert!(listed.contains("long") && !listed.contains("upper"), "{listed}");
    assert!(served.text(&["process", "show", &id, "long"]).contains("running"));
    assert!(served.text(&["process", "stop", &id, "long"]).contains("stopped"));
    assert_eq!(served.run(&["process", "wait", &id, "long"]).code, Some(143));
    let unknown = served.run(&["process", "show", &id, "nosuch"]);
    assert!(unknown.code == Some(1) && unknown.stderr.contains("process_unknown"), "{unknown:?}");
    served.text(&["rm", &id]);
    assert_eq!(served.text(&["process", "logs", &id, "upper"]), "HELLO", "also after its sandbox");
}

#[test]
fn files_are_found_searched_and_watched() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let id = served.text(&["create"]);
    let line = "mkdir -p src/deep && echo 'let needle = 1' > src/a.rs && touch src/deep/b.rs c.txt";
    served.text(&["exec", &id, "--stdin=no", "--shell", line]);
    assert_eq!(served.text(&["find", &id, "-n", "*.rs"]), "src/a.rs\nsrc/deep/b.rs");
    assert_eq!(served.text(&["find", &id, "src", "--kind", "directory"]), "deep");
    assert_eq!(served.text(&["grep", &id, "-i", "NEEDLE"]), "src/a.rs:1:let needle = 1");
    assert_eq!(served.run(&["grep", &id, "nothing like it"]).code, Some(1));
    let writing = "while sleep 0.1; do echo x >> src/deep/b.rs; done";
    served.text(&["process", "start", &id, "--name", "writer", "--shell", writing]);
    let mut watch = served.command(&["watch", &id, "-r", "--json"]).spawn().unwrap();
    let mut beginning = [0; 8];
    watch.stdout.as_mut().unwrap().read_exact(&mut beginning).unwrap();
    assert_eq!(&beginning, b"{\"type\":");
    let pid = rustix::process::Pid::from_child(&watch);
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let rest = output_of(finish(watch, &[]));
    assert!(rest.text().contains("/workspace/src/deep/b.rs"), "{rest:?}");
}
