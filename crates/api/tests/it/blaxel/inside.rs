//! Servers and terminals inside, reached through the API of their sandbox; ports that are waited
//! for.

use serde_json::{Value, json};

use super::Sandbox;
use crate::raw_client::Connection;

#[tokio::test]
async fn closed_port_is_refused_in_the_form_of_blaxel() {
    let sandbox = Sandbox::new().await;
    let refused = sandbox.get("/port/3000/x").await;
    assert!(refused.status >= 400);
    assert!(refused.json()["error"].as_str().unwrap().contains("3000"), "{refused:?}");
    assert_eq!(sandbox.get("/port/0/x").await.status, 404);
}

#[tokio::test]
async fn bug_03_ports_are_waited_for_until_they_are_open_or_the_process_has_ended() {
    let sandbox = Sandbox::new().await;
    let listen = json!({"command": "listen 3000", "name": "web", "waitForPorts": [3000]});
    let started = sandbox.call("POST", "/process", listen).await.expect(200);
    assert_eq!(started["status"], "running");
    let over = json!({"command": "exit 4", "waitForPorts": [3001]});
    let over = sandbox.call("POST", "/process", over).await.expect(200);
    assert_eq!((&over["status"], &over["exitCode"]), (&json!("failed"), &json!(4)));
    let taken = json!({"command": "sleep 600", "waitForPorts": [3000]});
    Sandbox::refused(&sandbox.call("POST", "/process", taken).await, 422);
    let late = json!({"command": "sleep 600", "waitForPorts": [3002], "timeout": 1});
    let late = sandbox.call("POST", "/process", late).await;
    assert_eq!(Sandbox::refused(&late, 422), "process timed out after 1 seconds");
    let pid = started["pid"].as_str().unwrap();
    let sockets = sandbox.get(&format!("/network/process/{pid}/ports")).await.expect(200);
    assert_eq!(sockets["pid"].to_string(), pid);
    let socket = &sockets["ports"][0];
    assert_eq!((&socket["localPort"], &socket["state"]), (&json!(3000), &json!("LISTEN")));
    Sandbox::refused(&sandbox.get("/network/process/x/ports").await, 400);
}

#[tokio::test]
async fn file_watch_reports_changes_from_when_the_answer_begins() {
    let sandbox = Sandbox::new().await;
    sandbox.call("PUT", "/filesystem/d/a", json!({"content": "x"})).await.expect(200);
    let path = "/compat/blaxel/box/watch/filesystem//workspace/d?ignore=secret";
    let mut connection = sandbox.stage.connect().await;
    connection.send(crate::stage::request(&sandbox.stage.admin, "GET", path, "", b"")).await;
    assert_eq!(connection.head().await.status, 200);
    for name in ["secret", "b"] {
        let path = format!("/filesystem/d/{name}");
        sandbox.call("PUT", &path, json!({"content": "x"})).await.expect(200);
    }
    let line = String::from_utf8(connection.chunk().await.unwrap()).unwrap();
    let change: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
    assert_eq!((&change["op"], &change["name"]), (&json!("CREATE"), &json!("b")), "{line}");
    assert_eq!((&change["path"], &change["error"]), (&json!("/workspace/d"), &Value::Null));
    Sandbox::refused(&sandbox.get("/watch/filesystem//workspace/d/a").await, 400);
    Sandbox::refused(&sandbox.get("/watch/filesystem//nosuch").await, 404);
}

#[tokio::test]
async fn files_are_found_by_name_and_by_what_is_in_them() {
    let sandbox = Sandbox::new().await;
    for name in ["a.rs", "sub/b.rs", "sub/c.txt", "node_modules/d.rs", ".hidden/e.rs"] {
        let path = format!("/filesystem/{name}");
        sandbox.call("PUT", &path, json!({"content": "one\nNeedle here\n"})).await.expect(200);
    }
    let paths = async |rest: &str| -> Vec<String> {
        let found = sandbox.get(rest).await.expect(200);
        let matches = found["matches"].as_array().unwrap();
        assert_eq!(found["total"], matches.len());
        matches.iter().map(|one| one["path"].as_str().unwrap().to_owned()).collect()
    };
    let of = "/filesystem-find//workspace";
    assert_eq!(paths(&format!("{of}?patterns=*.rs")).await, ["a.rs", "sub/b.rs"]);
    assert_eq!(paths(&format!("{of}?patterns=*.rs,*.txt&maxResults=1")).await, ["a.rs"]);
    let hidden = paths(&format!("{of}?patterns=e.rs&excludeHidden=false&maxResults=0")).await;
    assert_eq!(hidden, [".hidden/e.rs"]);
    let directories = paths(&format!("{of}?type=directory")).await;
    assert_eq!(directories, [".", "sub"], "the first is where they are searched");
    assert_eq!(paths(&format!("{of}?type=directory&maxResults=1")).await, ["."]);
    let wrong = sandbox.get(&format!("{of}?type=link")).await;
    assert!(Sandbox::refused(&wrong, 400).contains("link"));
    assert_eq!(paths("/filesystem-search//workspace?query=subc&maxResults=1").await, ["sub/c.txt"]);
    let of = "/filesystem-content-search//workspace";
    let found = sandbox.get(&format!("{of}?query=needle&filePattern=*.txt")).await.expect(200);
    let hit = &found["matches"][0];
    assert_eq!((&hit["path"], &hit["line"]), (&json!("sub/c.txt"), &json!(2)), "{found}");
    assert_eq!((&hit["column"], &hit["text"]), (&json!(1), &json!("Needle here")));
    let none = sandbox.get(&format!("{of}?query=needle&caseSensitive=true")).await.expect(200);
    assert_eq!(none, json!({"query": "needle", "matches": [], "total": 0}));
    assert_eq!(paths(&format!("{of}?query=e&maxResults=1")).await.len(), 1);
    Sandbox::refused(&sandbox.get(of).await, 400);
}

#[tokio::test]
async fn the_tools_of_a_sandbox_are_beside_its_routes() {
    let sandbox = Sandbox::new().await;
    let headers =
        "accept: application/json, text/event-stream\r\ncontent-type: application/json\r\n";
    let ask = async |method: &str, params: Value| {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let answer = sandbox.send("POST", "/mcp", headers, body.to_string().as_bytes()).await;
        answer.expect(200)
    };
    let began = json!({
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    });
    assert!(ask("initialize", began).await["result"]["serverInfo"].is_object());
    let tools = ask("tools/list", json!({})).await;
    let tools = tools["result"]["tools"].as_array().unwrap();
    for name in ["status", "stop", "processExecute"] {
        assert!(tools.iter().any(|tool| tool["name"] == name), "{name}: {tools:?}");
    }
    let status = ask("tools/call", json!({"name": "status", "arguments": {}})).await;
    assert_eq!(status["result"]["structuredContent"]["state"], "auto", "{status}");
    assert_eq!(sandbox.get("/mcp").await.status, 405);
}

/// One text, masked as clients must.
fn frame(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap();
    assert!(length < 126);
    let mut frame = vec![0x81, 0x80 | length, 0, 0, 0, 0];
    frame.extend_from_slice(text.as_bytes());
    frame
}

/// The next text of the server.
async fn heard(connection: &mut Connection) -> Value {
    loop {
        let head = connection.exactly(2).await;
        let length = match head[1] {
            126 => {
                let long = connection.exactly(2).await;
                usize::from(u16::from_be_bytes([long[0], long[1]]))
            }
            short => usize::from(short),
        };
        let bytes = connection.exactly(length).await;
        if head[0] == 0x81 {
            return serde_json::from_slice(&bytes).unwrap();
        }
    }
}

async fn terminal(sandbox: &Sandbox) -> Connection {
    let path = "/compat/blaxel/box/terminal/ws?shell=cat&cols=100&rows=30&sessionId=s1";
    let headers = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let mut connection = sandbox.stage.connect().await;
    connection.send(crate::stage::request(&sandbox.stage.admin, "GET", path, headers, b"")).await;
    let head = connection.head().await;
    assert_eq!(head.status, 101, "{head:?}");
    connection
}

async fn until_shown(connection: &mut Connection, wanted: &str) {
    let mut shown = String::new();
    while !shown.contains(wanted) {
        let word = heard(connection).await;
        assert_eq!(word["type"], "output", "{word}");
        shown.push_str(word["data"].as_str().unwrap());
    }
}

#[tokio::test]
async fn terminal_is_kept_for_a_client_that_reconnects() {
    let sandbox = Sandbox::new().await;
    let mut one = terminal(&sandbox).await;
    one.send(frame(r#"{"type":"input","data":"hello ü\n"}"#)).await;
    one.send(frame(r#"{"type":"resize","cols":50,"rows":10}"#)).await;
    one.send(frame(r#"{"type":"nonsense"}"#)).await;
    until_shown(&mut one, "hello ü").await;
    drop(one);
    let mut other = terminal(&sandbox).await;
    until_shown(&mut other, "hello ü").await;
    let listed = sandbox.get("/process").await.expect(200);
    assert_eq!(listed.as_array().unwrap().len(), 1, "the same one: {listed}");
    assert_eq!(listed[0]["name"], "terminal-s1");
    let plain = sandbox.get("/terminal/ws").await;
    Sandbox::refused(&plain, 400);
}

#[tokio::test]
async fn terminals_count_as_streams_of_their_key() {
    let mut plan = crate::stage::Plan::default();
    plan.settings.web.max_lasting_per_key = 2;
    let sandbox = Sandbox::with(plan).await;
    let held = [terminal(&sandbox).await, terminal(&sandbox).await];
    let path = "/terminal/ws?shell=cat&sessionId=s2";
    let headers = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let path = format!("/compat/blaxel/box{path}");
    let third = crate::stage::request(&sandbox.stage.admin, "GET", &path, headers, b"");
    let refused = sandbox.stage.raw(&third).await;
    assert!(matches!(refused.status, 429 | 503), "{refused:?}");
    drop(held);
}
