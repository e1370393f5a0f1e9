//! The Model Context Protocol as a client meets it that sends plain messages: the server's tools,
//! those of a sandbox, and who is let in.

use model::Role;
use serde_json::{Value, json};

use crate::raw_client::Answer;
use crate::stage::{Stage, request, text};

/// A client of one place where the protocol is spoken.
struct Client<'a> {
    stage: &'a Stage,
    key: String,
    path: String,
}

impl<'a> Client<'a> {
    fn of_server(stage: &'a Stage) -> Self {
        Self { stage, key: stage.admin.clone(), path: "/mcp".to_owned() }
    }

    fn of_sandbox(stage: &'a Stage, id: &str) -> Self {
        let path = format!("/v1/sandboxes/{id}/mcp");
        Self { stage, key: stage.admin.clone(), path }
    }

    async fn send(&self, headers: &str, message: &Value) -> Answer {
        let headers = format!("content-type: application/json\r\n{headers}");
        let body = message.to_string();
        self.stage.raw(&request(&self.key, "POST", &self.path, &headers, body.as_bytes())).await
    }

    async fn ask(&self, method: &str, params: Value) -> Value {
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        let answer = self.send("", &message).await.expect(200);
        assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(7)), "{answer}");
        answer
    }

    async fn call(&self, tool: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", json!({"name": tool, "arguments": arguments})).await;
        answer["result"].clone()
    }

    /// What a tool gave: the same as text and as structure.
    async fn done(&self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments).await;
        assert_ne!(result["isError"], true, "{tool}: {result}");
        let told: Value = serde_json::from_str(&text(&result["content"][0]["text"])).unwrap();
        assert_eq!(told, result["structuredContent"], "{tool}");
        told
    }

    /// Why a tool did not do it.
    async fn refused(&self, tool: &str, arguments: Value, code: &str) -> Value {
        let result = self.call(tool, arguments).await;
        assert_eq!(result["isError"], true, "{tool}: {result}");
        let problem = result["structuredContent"].clone();
        assert_eq!(problem["code"], code, "{tool}: {result}");
        let said = text(&result["content"][0]["text"]);
        for part in [code, &text(&problem["detail"]), &text(&problem["remedy"])] {
            assert!(said.contains(part), "{said}");
        }
        problem
    }

    async fn tools(&self) -> Vec<String> {
        let answer = self.ask("tools/list", json!({})).await;
        let tools = answer["result"]["tools"].as_array().unwrap().clone();
        tools.iter().map(|tool| text(&tool["name"])).collect()
    }
}

#[tokio::test]
async fn mcp_server_lists_its_tools() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    for (client, name) in
        [(Client::of_server(&stage), "shoal"), (Client::of_sandbox(&stage, &id), "shoal-sandbox")]
    {
        let params = json!({
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "test", "version": "0"},
        });
        let said = client.ask("initialize", params).await;
        assert_eq!(said["result"]["protocolVersion"], "2025-06-18");
        assert_eq!(said["result"]["serverInfo"]["name"], name);
        assert!(said["result"]["capabilities"]["tools"].is_object());
        let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(client.send("", &note).await.status, 202);
        let listed = client.ask("tools/list", json!({})).await;
        for tool in listed["result"]["tools"].as_array().unwrap() {
            let name = text(&tool["name"]);
            assert!(!text(&tool["description"]).is_empty(), "{name}");
            assert_eq!(tool["inputSchema"]["type"], "object", "{name}");
            assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{name}");
            assert_eq!(tool["outputSchema"]["type"], "object", "{name}");
            assert!(tool["annotations"]["readOnlyHint"].is_boolean(), "{name}");
            for (field, schema) in tool["inputSchema"]["properties"].as_object().unwrap() {
                let is_told = schema.to_string().contains("description");
                assert!(is_told, "{name}: {field} has no description: {schema}");
            }
        }
        // The server sends no messages of its own.
        let get = request(&client.key, "GET", &client.path, "accept: text/event-stream\r\n", b"");
        stage.raw(&get).await.problem("method_not_allowed");
    }
}

#[tokio::test]
async fn a_sandbox_is_made_used_and_given_back() {
    let stage = Stage::start().await;
    let client = Client::of_server(&stage);
    let made = client.done("checkout", json!({"template": "default"})).await;
    let id = text(&made["sandbox"]["id"]);
    assert_eq!(stage.leased(), 1);
    let of = |mut rest: Value| {
        rest["sandbox_id"] = json!(id);
        rest
    };
    let ran = client.done("exec", of(json!({"command": "echo hi"}))).await;
    assert_eq!((&ran["exit_code"], &ran["stdout"]), (&json!(0), &json!("hi\n")));
    let file = json!({"path": "/workspace/d/a.txt", "content": "one two\n"});
    assert_eq!(client.done("write_file", of(file)).await["size"], 8);
    let edit = json!({"path": "/workspace/d/a.txt", "old_text": "two", "new_text": "three"});
    assert_eq!(client.done("edit_file", of(edit)).await["replaced"], 1);
    let at = || of(json!({"path": "/workspace/d/a.txt"}));
    let read = client.done("read_file", at()).await;
    assert_eq!((&read["content"], &read["next_offset"]), (&json!("one three\n"), &Value::Null));
    let part = of(json!({"path": "/workspace/d/a.txt", "offset": 4, "length": 5}));
    let read = client.done("read_file", part).await;
    assert_eq!((&read["content"], &read["next_offset"]), (&json!("three"), &json!(9)));
    assert_eq!(client.done("stat_file", at()).await["size"], 10);
    let listed = client.done("list_files", of(json!({"path": "/workspace/d", "limit": 5}))).await;
    assert_eq!(listed["entries"][0]["name"], "a.txt");
    client.done("make_directory", of(json!({"path": "/workspace/e"}))).await;
    let to = json!({"from": "/workspace/d/a.txt", "to": "/workspace/e/b.txt"});
    client.done("move_file", of(to)).await;
    client.refused("read_file", at(), "path_not_found").await;
    let gone = json!({"path": "/workspace/e", "recursive": true});
    assert_eq!(client.done("delete_file", of(gone)).await, json!({"done": true}));
    assert_eq!(client.done("get_sandbox", of(json!({}))).await["id"], made["sandbox"]["id"]);
    assert_eq!(client.done("why_sandbox", of(json!({}))).await["status"], "alive");
    client.done("renew_sandbox", of(json!({"ttl_s": 60}))).await;
    let all = client.done("list_sandboxes", json!({"template": "default", "limit": 9})).await;
    assert!(all["sandboxes"].as_array().unwrap().iter().any(|one| one["id"] == id.as_str()));
    assert_eq!(client.done("return_sandbox", of(json!({}))).await, json!({"done": true}));
    assert_eq!(stage.leased(), 0);
    assert_eq!(client.done("why_sandbox", of(json!({}))).await["status"], "ended");
    client.refused("exec", of(json!({"command": "true"})), "sandbox_gone").await;
    let other = text(&client.done("create_sandbox", json!({"template": "default"})).await["id"]);
    client.done("delete_sandbox", json!({"sandbox_id": other})).await;
}

#[tokio::test]
async fn the_server_tells_of_its_pools_and_sessions() {
    let stage = Stage::start().await;
    let client = Client::of_server(&stage);
    assert!(client.done("get_stats", json!({})).await["pools"].is_array());
    let pools = client.done("list_pools", json!({})).await;
    assert_eq!(pools["pools"][0]["template"], "default");
    let pool = client.done("get_pool", json!({"template": "default"})).await;
    assert_eq!(pool["template"], "default");
    let templates = client.done("list_templates", json!({})).await;
    assert_eq!(templates["templates"][0]["name"], "default");
    client.refused("get_template", json!({"name": "other"}), "template_unknown").await;
    let made = client.done("create_session", json!({"template": "default"})).await;
    let of = || json!({"session_id": made["id"]});
    assert_eq!(client.done("get_session", of()).await["id"], made["id"]);
    let listed = client.done("list_sessions", json!({"limit": 5})).await;
    assert_eq!(listed["sessions"][0]["id"], made["id"]);
    client.done("pause_session", of()).await;
    client.done("resume_session", of()).await;
    assert_eq!(client.done("list_turns", of()).await["turns"], json!([]));
    client.done("end_session", of()).await;
    client
        .refused("get_turn", json!({"session_id": made["id"], "turn_id": "x"}), "turn_unknown")
        .await;
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_refused_by_name() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let server = Client::of_server(&stage);
    let sandbox = Client::of_sandbox(&stage, &id);
    for (client, tool, arguments, field) in [
        (&server, "exec", json!({"sandbox_id": id, "comand": "true"}), "comand"),
        (&server, "exec", json!({"command": "true"}), "sandbox_id"),
        (&server, "exec", json!({"sandbox_id": id}), "command"),
        (&server, "exec", json!({"sandbox_id": id, "command": 5}), "command"),
        (&server, "checkout", json!({"template": "default", "more": 1}), "more"),
        (&server, "list_sandboxes", json!({"limit": {}}), "limit"),
        (&server, "list_sandboxes", json!({"limit": 0}), "limit"),
        (&server, "read_file", json!({"sandbox_id": id}), "path"),
        (&server, "write_file", json!({"sandbox_id": id, "path": "a"}), "content"),
        (&sandbox, "fsReadFile", json!({"path": ""}), "path"),
        (&sandbox, "fsReadFile", json!({"path": "a", "id": 1}), "id"),
        (&sandbox, "fsWriteFile", json!({"path": "a", "permissions": "9"}), "permissions"),
        (&sandbox, "processExecute", json!({"command": "a\0"}), "command"),
        (&sandbox, "processExecute", json!({"command": "a", "timeout": "5"}), "timeout"),
        (&sandbox, "stop", json!({"after": 5}), "after"),
    ] {
        let result = client.call(tool, arguments.clone()).await;
        assert_eq!(result["isError"], true, "{tool} {arguments}: {result}");
        let problem = &result["structuredContent"];
        let named = problem["field"] == field || text(&problem["detail"]).contains(field);
        assert!(named, "{tool} {arguments}: {problem}");
    }
    server.refused("exec", json!({"sandbox_id": "x", "command": "a"}), "sandbox_unknown").await;
    let unknown = server.ask("tools/call", json!({"name": "nosuch", "arguments": {}})).await;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    let unknown = server.ask("nosuch/method", json!({})).await;
    assert_eq!(unknown["error"]["code"], -32601, "{unknown}");
}

#[tokio::test]
async fn files_of_a_sandbox_by_the_names_that_its_clients_know() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let client = Client::of_sandbox(&stage, &id);
    let cwd = client.done("fsGetWorkingDirectory", json!({})).await;
    assert_eq!(cwd, json!({"path": "/workspace"}));
    let content = "fn main() {}\n// two\n// three\n";
    let file = json!({"path": "src/main.rs", "content": content});
    client.done("fsWriteFile", file).await;
    client.done("fsWriteFile", json!({"path": "/workspace/dir", "isDirectory": true})).await;
    let read = client.done("fsReadFile", json!({"path": "/workspace/src/main.rs"})).await;
    assert_eq!((&read["content"], &read["encoding"]), (&json!(content), &json!("utf-8")));
    assert_eq!((&read["name"], &read["permissions"]), (&json!("main.rs"), &json!("644")));
    let listed = client.done("fsListDirectory", json!({"path": "/workspace"})).await;
    let names = |of: &Value| {
        of.as_array().unwrap().iter().map(|one| text(&one["path"])).collect::<Vec<_>>()
    };
    let below = names(&listed["directory"]["subdirectories"]);
    assert_eq!(below, ["/workspace/dir", "/workspace/src"]);
    let same = client.done("codegenListDir", json!({"relativeWorkspacePath": "src"})).await;
    assert_eq!(names(&same["directory"]["files"]), ["/workspace/src/main.rs"]);
    let range = |first: u64, last: u64| {
        json!({
            "targetFile": "src/main.rs", "startLineOneIndexed": first,
            "endLineOneIndexedInclusive": last,
        })
    };
    let lines = client.done("codegenReadFileRange", range(2, 99)).await;
    assert_eq!(
        (&lines["content"], &lines["totalLines"]),
        (&json!("// two\n// three\n"), &json!(3))
    );
    client.refused("codegenReadFileRange", range(4, 5), "invalid_argument").await;
    let edit = |old: &str| json!({"path": "src/main.rs", "oldString": old, "newString": "x"});
    client.refused("fsEditFile", edit("//"), "invalid_argument").await;
    client.refused("fsEditFile", edit("nowhere"), "invalid_argument").await;
    client.refused("fsEditFile", edit(""), "invalid_argument").await;
    let edited = client.done("fsEditFile", edit("// two")).await;
    assert_eq!(edited["occurrencesReplaced"], 1);
    let gone = json!({"path": "/workspace/src/main.rs", "isDirectory": true});
    client.refused("fsDeleteFileOrDirectory", gone, "invalid_argument").await;
    let gone = json!({"path": "/workspace/src", "recursive": true});
    let told = client.done("fsDeleteFileOrDirectory", gone).await;
    assert_eq!(told["message"], "Directory deleted successfully");
}

#[tokio::test]
async fn a_key_sees_and_calls_only_what_it_may() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let reader = stage.key(Role::Read).await;
    let server = Client { key: reader.clone(), ..Client::of_server(&stage) };
    let seen = server.tools().await;
    assert!(seen.contains(&"list_pools".to_owned()) && !seen.contains(&"exec".to_owned()));
    let ran = json!({"sandbox_id": id, "command": "true"});
    server.refused("exec", ran, "forbidden").await;
    server.refused("checkout", json!({"template": "default"}), "forbidden").await;
    server.done("list_pools", json!({})).await;
    // What belongs to another key does not exist.
    server.refused("get_sandbox", json!({"sandbox_id": id}), "sandbox_unknown").await;
    let other = Client { key: stage.key(Role::Use).await, ..Client::of_sandbox(&stage, &id) };
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    other.send("", &list).await.problem("sandbox_unknown");
    let unknown = Client { key: "no".to_owned(), ..Client::of_server(&stage) };
    unknown.send("", &list).await.problem("unauthorized");
}

#[tokio::test]
async fn mcp_refuses_pages_of_other_origins() {
    let stage = Stage::start().await;
    let client = Client::of_server(&stage);
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    for origin in ["http://evil.example", "null", "http://localhost.evil.example"] {
        let headers = format!("origin: {origin}\r\n");
        let problem = client.send(&headers, &ping).await.problem("forbidden");
        assert_eq!(problem["field"], "Origin");
    }
    for origin in ["http://localhost:5173", "http://127.0.0.1", "http://[::1]:80"] {
        client.send(&format!("origin: {origin}\r\n"), &ping).await.expect(200);
    }
    let bytes = String::from_utf8(request(&stage.admin, "POST", "/mcp", "", b"{}")).unwrap();
    let bytes = bytes.replace("host: localhost", "host: evil.example");
    stage.raw(bytes.as_bytes()).await.problem("host_refused");
}

#[tokio::test]
async fn mcp_refuses_malformed_messages() {
    let stage = Stage::start().await;
    for body in [&b""[..], b"{", b"[]", b"{}", b"null", b"{\"jsonrpc\":\"2.0\"}", b"\xff"] {
        let headers = "content-type: application/json\r\n";
        let answer = stage.raw(&request(&stage.admin, "POST", "/mcp", headers, body)).await;
        assert!((400..500).contains(&answer.status), "{body:?}: {}", answer.status);
    }
    let large = vec![b' '; 30 << 20];
    let announced = request(&stage.admin, "POST", "/mcp", "", &large);
    stage.raw(&announced[..1024]).await.problem("too_large");
}

#[tokio::test]
async fn mcp_takes_back_what_was_created_for_a_disconnected_client() {
    let stage = Stage::start().await;
    let message = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "checkout", "arguments": {"template": "default"}},
    });
    for _ in 0..20 {
        let mut connection = stage.connect().await;
        let body = message.to_string();
        connection.send(request(&stage.admin, "POST", "/mcp", "", body.as_bytes())).await;
        drop(connection);
    }
    // A program ends with the client that started it.
    let (_, id) = stage.checkout().await;
    stage.until("only one is checked out", |stage| stage.leased() == 1).await;
    let mut connection = stage.connect().await;
    let message = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "exec", "arguments": {"sandbox_id": id, "command": "sleep 30"}},
    });
    connection
        .send(request(&stage.admin, "POST", "/mcp", "", message.to_string().as_bytes()))
        .await;
    let is_running = |stage: &Stage| stage.engine.stats().running == 1;
    stage.until("it runs", is_running).await;
    drop(connection);
    stage.until("the program has ended", |stage| !is_running(stage)).await;
}

#[tokio::test]
async fn processes_of_a_sandbox_by_the_names_that_its_clients_know() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let client = Client::of_sandbox(&stage, &id);
    let ran = json!({"command": "echo hi; exit 3", "waitForCompletion": true});
    let ran = client.done("processExecute", ran).await;
    assert_eq!((&ran["status"], &ran["exitCode"]), (&json!("failed"), &json!(3)));
    assert_eq!((&ran["logs"], &ran["pollRequired"]), (&json!("hi\n"), &Value::Null));
    // The wait ends after a second, and the process continues.
    let slow = json!({
        "command": "sleep 30", "name": "slow", "waitForCompletion": true, "timeout": 1,
    });
    let slow = client.done("processExecute", slow).await;
    assert_eq!((&slow["status"], &slow["pollRequired"]), (&json!("running"), &json!(true)));
    let kept = json!({"command": "sleep 30", "name": "kept", "keepAlive": true, "timeout": 3600});
    let kept = client.done("processExecute", kept).await;
    assert_eq!((&kept["status"], &kept["exitCode"]), (&json!("running"), &Value::Null));
    let named = |name: &str| json!({"identifier": name});
    client
        .refused("processExecute", json!({"command": "a", "name": "kept"}), "process_name_taken")
        .await;
    client.refused("processGet", named("nosuch"), "process_unknown").await;
    let got = client.done("processGet", json!({"identifier": kept["pid"]})).await;
    assert_eq!((&got["name"], &got["keepAlive"]), (&json!("kept"), &json!(true)));
    let status = client.done("status", json!({})).await;
    assert_eq!((&status["state"], &status["scheduledStopAt"]), (&json!("awake"), &Value::Null));
    let one = &status["keepAliveProcesses"][0];
    assert_eq!((&one["pid"], &one["timeout"]), (&kept["pid"], &json!(3600)), "{status}");
    let later = client.done("stop", json!({"timeout": 300})).await;
    assert!(text(&later["scheduledStopAt"]).ends_with('Z'), "{later}");
    let now = client.done("stop", json!({})).await;
    assert_eq!(now, json!({"state": "auto", "scheduledStopAt": null, "keepAliveProcesses": []}));
    assert_eq!(client.done("processStop", named("kept")).await, json!({"status": "stopped"}));
    assert_eq!(client.done("processKill", named("slow")).await, json!({"status": "killed"}));
    client.refused("processKill", named("slow"), "process_over").await;
    assert_eq!(client.done("processGetLogs", named("slow")).await["logs"], "");
    let listed = client.done("processesList", json!({})).await;
    let listed = listed["processes"].as_array().unwrap();
    let names: Vec<_> = listed.iter().map(|one| text(&one["name"])).collect();
    assert_eq!(names[..2], ["kept", "slow"]);
}
