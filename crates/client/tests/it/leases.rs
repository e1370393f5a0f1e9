//! Leases: checked out, used, returned in every way; and what requests look like.

use client::{ClientError, ExecRequest, SandboxFilter};
use serde_json::json;

use crate::script::{Act, LEASE, SANDBOX, Server, checkout, file};

fn ran() -> Act {
    Act::json(
        200,
        &json!({
            "exit_code": 0, "signal": null, "stdout": "hi\n", "stderr": "", "truncated": false,
            "stdout_truncated": false, "stderr_truncated": false, "timed_out": false, "oom": false,
            "duration_ms": 0.6,
        }),
    )
}

fn nothing() -> Act {
    Act::Answer(204, "text/plain", String::new())
}

#[tokio::test]
async fn a_sandbox_is_checked_out_used_and_given_back() {
    let server = Server::with([checkout(), ran(), nothing()]).await;
    let lease = server.client().checkout(client::template("default").unwrap()).await.unwrap();
    assert_eq!(lease.lease_id().to_string(), LEASE);
    let ran = lease.exec(ExecRequest::shell("echo hi")).await.unwrap();
    assert_eq!((ran.exit_code, ran.stdout.as_deref()), (0, Some("hi\n")));
    lease.give_back().await.unwrap();
    let asked = server.asked();
    let lines: Vec<_> = asked.iter().map(|asked| asked.line.as_str()).collect();
    let exec = format!("POST /v1/sandboxes/{SANDBOX}/exec HTTP/1.1");
    let back = format!("DELETE /v1/checkouts/{LEASE} HTTP/1.1");
    assert_eq!(lines, ["POST /v1/checkouts HTTP/1.1", &exec, &back]);
    assert_eq!(asked[0].json(), json!({ "template": "default" }));
    assert_eq!(asked[1].json(), json!({ "command": "echo hi" }));
    assert!(asked.iter().all(|asked| asked.header("authorization") == Some("Bearer secret")));
}

#[tokio::test]
async fn a_dropped_lease_is_returned_and_a_kept_one_is_not() {
    let server = Server::with([checkout(), nothing(), checkout()]).await;
    let client = server.client();
    drop(client.checkout(client::template("default").unwrap()).await.unwrap());
    server.until_asked(2).await;
    assert_eq!(server.lines()[1], format!("DELETE /v1/checkouts/{LEASE} HTTP/1.1"));
    let kept = client.checkout(client::template("default").unwrap()).await.unwrap().keep();
    assert_eq!(kept.id.to_string(), LEASE);
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert_eq!(server.asked().len(), 3, "{:?}", server.lines());
}

#[tokio::test]
async fn lease_return_that_is_dropped_midway_is_still_sent() {
    let server = Server::with([checkout(), Act::Silence, nothing()]).await;
    let lease = server.client().checkout(client::template("default").unwrap()).await.unwrap();
    let waiting = tokio::time::timeout(std::time::Duration::from_millis(50), lease.give_back());
    assert!(waiting.await.is_err(), "the server did not answer");
    server.until_asked(3).await;
}

#[tokio::test]
async fn checkout_whose_answer_is_dropped_is_returned() {
    let server = Server::with([Act::Silence, nothing(), checkout()]).await;
    let client = server.client();
    let waiting = client.checkout(client::template("default").unwrap());
    let waiting = tokio::time::timeout(std::time::Duration::from_millis(50), waiting);
    assert!(waiting.await.is_err(), "the server did not answer");
    server.until_asked(2).await;
    let asked = server.asked();
    assert_eq!(asked[1].line, "DELETE /v1/checkouts HTTP/1.1");
    let marks = [&asked[0], &asked[1]].map(|asked| asked.header("idempotency-key"));
    assert!(marks[0].is_some() && marks[0] == marks[1], "{marks:?}");
    client.checkout(client::template("default").unwrap()).await.unwrap().keep();
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert_eq!(server.asked().len(), 3, "{:?}", server.lines());
}

#[tokio::test]
async fn filters_and_paths_are_escaped() {
    let list = || Act::json(200, &json!({ "sandboxes": [], "next": "x" }));
    let entries = || Act::json(200, &json!({ "entries": [] }));
    let server = Server::with([list(), entries(), file()]).await;
    let client = server.client();
    let filter = SandboxFilter {
        labels: vec![("a b".to_owned(), "c&d".to_owned())],
        limit: Some(5),
        ..SandboxFilter::default()
    };
    assert_eq!(client.sandboxes(&filter).await.unwrap().next.as_deref(), Some("x"));
    let sandbox = client.sandbox(SANDBOX.parse().unwrap());
    sandbox.list_files("/work space", Some("ü"), None).await.unwrap();
    sandbox.write_file("/a#b", "x", Some(0o755)).await.unwrap();
    let lines = server.lines();
    assert_eq!(lines[0], "GET /v1/sandboxes?limit=5&label=a%20b%3Dc%26d HTTP/1.1");
    assert!(lines[1].ends_with("/files/list?path=%2Fwork%20space&after=%C3%BC HTTP/1.1"));
    assert!(lines[2].ends_with("/files?path=%2Fa%23b&mode=0755 HTTP/1.1"), "{}", lines[2]);
}

#[test]
fn a_template_that_cannot_exist_is_refused_here() {
    let refused = client::template("No Such").map(|_| ());
    assert!(matches!(refused, Err(ClientError::Invalid { .. })), "{refused:?}");
}
