//! Processes as clients of Blaxel start, follow, feed and end them; and some of what Blaxel was
//! seen to do wrong with them, by its number there.

use serde_json::{Value, json};

use super::Sandbox;
use crate::raw_client::Connection;
use crate::stage::request;

impl Sandbox {
    async fn start(&self, body: Value) -> Value {
        self.call("POST", "/process", body).await.expect(200)
    }

    async fn run(&self, command: &str) -> Value {
        self.start(json!({"command": command, "waitForCompletion": true})).await
    }

    /// The whole stream of a log.
    async fn log(&self, id: &str) -> String {
        let answer = self.get(&format!("/process/{id}/logs/stream")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.headers["content-type"], "text/plain; charset=utf-8");
        String::from_utf8(answer.body).unwrap()
    }

    /// The lines of a process that is watched from its start.
    async fn watch(&self, body: &Value, accept: &str) -> Vec<Value> {
        let headers = format!("accept: {accept}\r\ncontent-type: application/json\r\n");
        let answer = self.send("POST", "/process", &headers, body.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.headers["content-type"], "application/x-ndjson");
        let text = String::from_utf8(answer.body).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    async fn status(&self) -> Value {
        self.get("/status").await.expect(200)
    }

    async fn stop(&self, body: Value) -> Value {
        self.call("POST", "/stop", body).await.expect(200)
    }

    /// Keeps the sandbox awake; gives its id.
    async fn keep(&self, name: &str) -> String {
        let body = json!({"command": "sleep 600", "name": name, "keepAlive": true});
        self.start(body).await["pid"].as_str().unwrap().to_owned()
    }
}

fn names(status: &Value) -> Vec<&str> {
    let kept = status["keepAliveProcesses"].as_array().unwrap();
    kept.iter().map(|process| process["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn malformed_process_requests_are_refused() {
    let sandbox = Sandbox::new().await;
    for body in [json!({}), json!({"command": ""}), json!({"command": 7})] {
        let refused = sandbox.call("POST", "/process", body).await;
        assert!(Sandbox::refused(&refused, 400).starts_with("invalid request body"));
    }
    let nonsense = sandbox.send("POST", "/process", "", b"nonsense").await;
    Sandbox::refused(&nonsense, 400);
    for path in ["/process/nosuch", "/process/nosuch/logs", "/process/77777/logs"] {
        assert_eq!(Sandbox::refused(&sandbox.get(path).await, 404), "process not found");
    }
}

#[tokio::test]
async fn process_with_a_wait_is_answered_whole() {
    let sandbox = Sandbox::new().await;
    let ran = sandbox.run("echo out; echo err >&2; exit 3").await;
    assert_eq!((&ran["status"], &ran["exitCode"]), (&json!("failed"), &json!(3)));
    assert_eq!((&ran["stdout"], &ran["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!(ran["logs"], "out\nerr\n");
    assert!(ran["completedAt"].as_str().unwrap().ends_with(" GMT"), "{ran}");
    assert_eq!((&ran["keepAlive"], &ran["workingDir"]), (&json!(false), &json!("")));
    let pid = ran["pid"].as_str().unwrap();
    assert_eq!(sandbox.get(&format!("/process/{pid}")).await.expect(200), ran);
    let name = ran["name"].as_str().unwrap();
    assert_eq!(sandbox.get(&format!("/process/{name}")).await.expect(200), ran);
    let logs = sandbox.get(&format!("/process/{pid}/logs")).await.expect(200);
    assert_eq!(logs, json!({"stdout": "out\n", "stderr": "err\n", "logs": "out\nerr\n"}));
    let listed = sandbox.get("/process").await.expect(200);
    assert_eq!(listed[0]["pid"], pid);
    assert_eq!(listed.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn process_without_a_wait_has_no_logs_and_no_end_yet() {
    let sandbox = Sandbox::new().await;
    let body = json!({"command": "sleep 600", "name": "my-app", "cwd": "/ignored"});
    let started = sandbox.start(body.clone()).await;
    assert_eq!((&started["status"], &started["logs"]), (&json!("running"), &Value::Null));
    assert_eq!((&started["completedAt"], &started["exitCode"]), (&json!(""), &json!(0)));
    assert_eq!(sandbox.get("/process").await.expect(200)[0]["completedAt"], Value::Null);
    let taken = sandbox.call("POST", "/process", body).await;
    let text = "process with name 'my-app' already exists and is running";
    assert_eq!(Sandbox::refused(&taken, 400), text);
    let killed = sandbox.call("DELETE", "/process/my-app/kill", Value::Null).await.expect(200);
    assert_eq!(killed, json!({"message": "Process killed successfully"}));
    let over = sandbox.get("/process/my-app").await.expect(200);
    assert_eq!((&over["status"], &over["exitCode"]), (&json!("killed"), &json!(-1)));
    let again = sandbox.call("DELETE", "/process/my-app/kill", Value::Null).await;
    assert!(Sandbox::refused(&again, 404).contains("not running"));
}

#[tokio::test]
async fn without_keep_alive_a_timeout_only_ends_the_wait() {
    let sandbox = Sandbox::new().await;
    let body =
        json!({"command": "sleep 600", "name": "n", "waitForCompletion": true, "timeout": 1});
    let late = sandbox.call("POST", "/process", body).await;
    assert_eq!(Sandbox::refused(&late, 422), "process timed out after 1 seconds");
    assert_eq!(sandbox.get("/process/n").await.expect(200)["status"], "running");
    let body = json!({
        "command": "sleep 600", "waitForCompletion": true, "timeout": 1, "keepAlive": true,
    });
    let killed = sandbox.start(body).await;
    assert_eq!((&killed["status"], &killed["exitCode"]), (&json!("killed"), &json!(-1)));
    assert_eq!(killed["keepAlive"], false);
}

#[tokio::test]
async fn streamed_process_sends_json_lines_and_itself_at_the_end() {
    let sandbox = Sandbox::new().await;
    for accept in ["text/event-stream", "application/x-ndjson"] {
        let body = json!({"command": "echo out; echo err >&2; exit 2"});
        let lines = sandbox.watch(&body, accept).await;
        let of = |kind: &str| -> String {
            let fits = lines.iter().filter(|line| line["type"] == kind);
            fits.map(|line| line["data"].as_str().unwrap()).collect()
        };
        assert_eq!((of("stdout"), of("stderr")), ("out\n".to_owned(), "err\n".to_owned()));
        let last = lines.last().unwrap();
        assert_eq!(last["type"], "result");
        let result: Value = serde_json::from_str(last["data"].as_str().unwrap()).unwrap();
        assert_eq!((&result["exitCode"], &result["stdout"]), (&json!(2), &json!("out\n")));
    }
    let taken = json!({"command": "sleep 600", "name": "n"});
    sandbox.start(taken.clone()).await;
    let lines = sandbox.watch(&taken, "text/event-stream").await;
    assert_eq!((lines.len(), &lines[0]["type"]), (1, &json!("error")), "no status, but an event");
}

#[tokio::test]
async fn input_is_written_and_closed() {
    let sandbox = Sandbox::new().await;
    sandbox.start(json!({"command": "cat", "name": "c", "stdin": true})).await;
    for text in ["one\n", "two\n"] {
        let headers = "content-type: application/octet-stream\r\n";
        let sent = sandbox.send("POST", "/process/c/stdin", headers, text.as_bytes()).await;
        sent.expect(200);
    }
    sandbox.call("DELETE", "/process/c/stdin", Value::Null).await.expect(200);
    assert_eq!(sandbox.log("c").await, "stdout:one\nstdout:two\n");
    let over = sandbox.send("POST", "/process/c/stdin", "", b"x").await;
    Sandbox::refused(&over, 409);
    sandbox.start(json!({"command": "sleep 600", "name": "closed"})).await;
    Sandbox::refused(&sandbox.send("POST", "/process/closed/stdin", "", b"x").await, 409);
    Sandbox::refused(&sandbox.send("POST", "/process/nosuch/stdin", "", b"x").await, 404);
}

#[tokio::test]
async fn sandbox_without_processes_has_no_keep_alive() {
    let sandbox = Sandbox::new().await;
    let rests = json!({"state": "auto", "scheduledStopAt": null, "keepAliveProcesses": []});
    assert_eq!(sandbox.status().await, rests);
    assert_eq!(sandbox.stop(Value::Null).await, rests);
    assert_eq!(sandbox.stop(json!({"timeout": 300})).await, rests);
    sandbox.start(json!({"command": "sleep 600"})).await;
    assert_eq!(sandbox.status().await, rests, "it does not keep it awake");
}

#[tokio::test]
async fn a_process_keeps_its_sandbox_awake_until_it_ends() {
    let sandbox = Sandbox::new().await;
    let pid = sandbox.keep("my-app").await;
    let status = sandbox.status().await;
    assert_eq!((&status["state"], &status["scheduledStopAt"]), (&json!("awake"), &Value::Null));
    let kept = &status["keepAliveProcesses"][0];
    assert_eq!((&kept["pid"], &kept["timeout"]), (&json!(pid), &json!(600)));
    assert_eq!((&kept["name"], &kept["command"]), (&json!("my-app"), &json!("sleep 600")));
    let at = kept["startedAt"].as_str().unwrap();
    assert!(at.len() == 20 && at.ends_with('Z'), "{at}");
    let for_ever = json!({"command": "sleep 600", "name": "ever", "keepAlive": true, "timeout": 0});
    sandbox.start(for_ever).await;
    let status = sandbox.status().await;
    let ever = status["keepAliveProcesses"].as_array().unwrap();
    assert_eq!(ever.iter().find(|it| it["name"] == "ever").unwrap()["timeout"], 0);
    for name in ["my-app", "ever"] {
        sandbox.call("DELETE", &format!("/process/{name}/kill"), Value::Null).await.expect(200);
    }
    assert_eq!(sandbox.status().await["state"], "auto");
}

fn seconds(text: &Value) -> i64 {
    let time: wire::Time = text.as_str().unwrap().parse().unwrap();
    time.0 / 1000
}

/// Of two stops, which one counts.
async fn latest_counts(first: u64, second: u64) {
    let sandbox = Sandbox::new().await;
    sandbox.keep("app").await;
    let one = sandbox.stop(json!({"timeout": first})).await;
    let other = sandbox.stop(json!({"timeout": second})).await;
    assert_eq!((&other["state"], names(&other)), (&json!("awake"), vec!["app"]));
    let between = seconds(&other["scheduledStopAt"]) - seconds(&one["scheduledStopAt"]);
    let wanted = i64::try_from(second).unwrap() - i64::try_from(first).unwrap();
    assert!((wanted..wanted + 30).contains(&between), "{between}");
    assert_eq!(sandbox.status().await["scheduledStopAt"], other["scheduledStopAt"]);
}

#[tokio::test]
async fn stop_300_then_200_stops_in_200() {
    latest_counts(300, 200).await;
}

#[tokio::test]
async fn stop_200_then_300_stops_in_300() {
    latest_counts(200, 300).await;
}

#[tokio::test]
async fn a_process_started_after_the_call_keeps_its_hold() {
    let sandbox = Sandbox::new().await;
    sandbox.keep("before").await;
    sandbox.stop(json!({"timeout": 1})).await;
    sandbox.keep("after").await;
    let deadline = tokio::time::Instant::now() + crate::raw_client::PATIENCE;
    while names(&sandbox.status().await) != ["after"] {
        assert!(tokio::time::Instant::now() < deadline, "{}", sandbox.status().await);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let status = sandbox.status().await;
    assert_eq!((&status["state"], &status["scheduledStopAt"]), (&json!("awake"), &Value::Null));
    let before = sandbox.get("/process/before").await.expect(200);
    assert_eq!((&before["status"], &before["keepAlive"]), (&json!("running"), &json!(false)));
}

#[tokio::test]
async fn an_immediate_stop_cancels_a_scheduled_one() {
    let sandbox = Sandbox::new().await;
    sandbox.keep("one").await;
    assert!(sandbox.stop(json!({"timeout": 600})).await["scheduledStopAt"].is_string());
    let rests = json!({"state": "auto", "scheduledStopAt": null, "keepAliveProcesses": []});
    assert_eq!(sandbox.stop(Value::Null).await, rests);
    sandbox.keep("two").await;
    let status = sandbox.status().await;
    assert_eq!((&status["scheduledStopAt"], names(&status)), (&Value::Null, vec!["two"]));
    assert_eq!(sandbox.get("/process/one").await.expect(200)["status"], "running");
}

#[tokio::test]
async fn bug_02_a_process_that_was_started_again_is_found_and_stopped_by_its_first_pid() {
    let sandbox = Sandbox::new().await;
    let first = json!({
        "command": "cat marker && sleep 600; echo x > marker; exit 1", "name": "twice",
        "restartOnFailure": true, "maxRestarts": 1,
    });
    let started = sandbox.start(first).await;
    let pid = started["pid"].as_str().unwrap().to_owned();
    let deadline = tokio::time::Instant::now() + crate::raw_client::PATIENCE;
    loop {
        let now = sandbox.get(&format!("/process/{pid}")).await.expect(200);
        if now["restartCount"] == 1 && now["stdout"].as_str().unwrap().contains('x') {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{now}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let now = sandbox.get("/process/twice").await.expect(200);
    assert_eq!((&now["pid"], &now["status"]), (&json!(pid), &json!("running")));
    sandbox.call("DELETE", &format!("/process/{pid}"), Value::Null).await.expect(200);
    let over = sandbox.get("/process/twice").await.expect(200);
    assert_eq!(over["status"], "stopped", "{over}");
}

#[tokio::test]
async fn bug_04_a_name_that_is_used_again_has_logs_of_its_own() {
    let sandbox = Sandbox::new().await;
    let run = |text: &str| json!({"command": format!("echo {text}"), "name": "n", "waitForCompletion": true});
    let first = sandbox.start(run("first")).await;
    let second = sandbox.start(run("second")).await;
    assert_eq!(sandbox.log("n").await, "stdout:second\n");
    assert_eq!(sandbox.log(first["pid"].as_str().unwrap()).await, "stdout:first\n");
    assert_eq!(second["stdout"], "second\n");
}

#[tokio::test]
async fn bug_05_lines_are_whole_and_each_says_whose_it_is() {
    let sandbox = Sandbox::new().await;
    sandbox.start(json!({"command": "cat", "name": "c", "stdin": true})).await;
    let path = "/compat/blaxel/box/process/c/logs/stream";
    let mut connection: Connection = sandbox.stage.connect().await;
    connection.send(request(&sandbox.stage.admin, "GET", path, "", b"")).await;
    assert_eq!(connection.head().await.status, 200);
    sandbox.send("POST", "/process/c/stdin", "", b"a\nb\nc\n").await.expect(200);
    let mut live = Vec::new();
    while live.len() < 3 * "stdout:a\n".len() {
        live.extend(connection.chunk().await.unwrap());
    }
    assert_eq!(String::from_utf8(live).unwrap(), "stdout:a\nstdout:b\nstdout:c\n");
    sandbox.call("DELETE", "/process/c/stdin", Value::Null).await.expect(200);
    assert_eq!(connection.chunk().await, None);
    assert_eq!(sandbox.log("c").await, "stdout:a\nstdout:b\nstdout:c\n", "the same again");
}

#[tokio::test]
async fn bug_07_there_is_nothing_to_upgrade_and_so_nothing_to_lose() {
    let sandbox = Sandbox::new().await;
    sandbox.keep("app").await;
    let refused = sandbox.call("POST", "/upgrade", json!({"version": "latest"})).await;
    assert!(refused.status >= 400 && refused.json()["error"].is_string());
    assert_eq!(names(&sandbox.status().await), ["app"]);
    assert_eq!(sandbox.get("/process/app").await.expect(200)["keepAlive"], true);
}

#[tokio::test]
async fn bug_10_a_name_that_is_a_path_is_refused() {
    let sandbox = Sandbox::new().await;
    for name in ["../evil", "a/b", "/etc/x"] {
        let body = json!({"command": "true", "name": name});
        Sandbox::refused(&sandbox.call("POST", "/process", body).await, 400);
    }
}

#[tokio::test]
async fn bug_11_the_log_of_an_unknown_process_is_not_found() {
    let sandbox = Sandbox::new().await;
    let missing = sandbox.get("/process/nosuch/logs/stream").await;
    assert_eq!(Sandbox::refused(&missing, 404), "process not found");
}
