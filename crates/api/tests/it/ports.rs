//! Ports inside: listed, waited for, and reached.

use serde_json::json;

use crate::raw_client::Connection;
use crate::stage::{Stage, request};

/// A program that listens and says back what it hears.
async fn listening(stage: &Stage, id: &str, port: u16) -> Connection {
    let mut connection = stage.connect().await;
    let body = json!({"command": format!("listen {port}")}).to_string();
    let headers = "accept: application/x-ndjson\r\n";
    let path = format!("/v1/sandboxes/{id}/exec");
    connection.send(request(&stage.admin, "POST", &path, headers, body.as_bytes())).await;
    connection.head().await;
    let path = format!("/v1/sandboxes/{id}/ports?wait_for={port}");
    let ports = stage.get(&path).await.expect(200);
    assert_eq!(ports["ports"], json!([{"port": port, "loopback_only": true}]));
    connection
}

async fn forward(stage: &Stage, path: &str) -> Connection {
    let mut connection = stage.connect().await;
    let headers = "connection: upgrade\r\nupgrade: shoal-tcp\r\n";
    connection.send(request(&stage.admin, "GET", path, headers, b"")).await;
    connection
}

#[tokio::test]
async fn tunnel_passes_bytes_both_ways() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let _server = listening(&stage, &id, 3000).await;
    let mut connection = forward(&stage, &format!("/v1/sandboxes/{id}/forward/3000")).await;
    let head = connection.head().await;
    assert_eq!((head.status, head.headers["upgrade"].as_str()), (101, "shoal-tcp"));
    for word in [&b"hello"[..], b"\0\xff\r\n\r\n"] {
        connection.send(word).await;
        assert_eq!(connection.exactly(word.len()).await, word);
    }
    stage.engine.revoke_key(stage.engine.keys()[0].id).await.unwrap();
    assert!(connection.is_closed().await, "a tunnel ends with its key");
}

#[tokio::test]
async fn a_tunnel_ends_with_the_server_and_holds_it_up_for_nothing() {
    let mut stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let server = listening(&stage, &id, 3000).await;
    let mut connection = forward(&stage, &format!("/v1/sandboxes/{id}/forward/3000")).await;
    assert_eq!(connection.head().await.status, 101);
    drop(server);
    let served = stage.stop();
    assert!(connection.is_closed().await);
    assert_eq!(served.await.unwrap().cut, 0);
}

#[tokio::test]
async fn port_without_a_server_is_refused() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let sandbox = format!("/v1/sandboxes/{id}");
    let mut connection = forward(&stage, &format!("{sandbox}/forward/4000")).await;
    connection.answer().await.problem("port_closed");
    for (method, path) in [("GET", ""), ("GET", "/"), ("POST", "/a/b?c=d"), ("DELETE", "/x")] {
        let path = format!("{sandbox}/ports/4000{path}");
        stage.call(method, &path, json!({})).await.problem("port_closed");
    }
    let _server = listening(&stage, &id, 4000).await;
    let echoed = stage.get(&format!("{sandbox}/ports/4000/")).await;
    let problem = echoed.problem("port_closed");
    assert!(problem["detail"].as_str().unwrap().contains("HTTP"), "{problem}");
    stage
        .get(&format!("{sandbox}/ports?wait_for=4001&timeout_ms=30"))
        .await
        .problem("deadline_exceeded");
    for (path, code, field) in [
        ("/forward/4000", "upgrade_required", json!("Upgrade")),
        ("/forward/0", "not_found", json!(null)),
        ("/ports/65536/", "not_found", json!(null)),
        ("/ports/x/", "not_found", json!(null)),
        ("/ports?wait_for=x", "bad_request", json!("wait_for")),
        ("/ports?timeout_ms=0", "bad_request", json!("timeout_ms")),
        ("/terminal", "upgrade_required", json!("Upgrade")),
        ("/terminal?rows=0", "bad_request", json!("rows")),
    ] {
        let problem = stage.get(&format!("{sandbox}{path}")).await.problem(code);
        assert_eq!(problem.get("field").unwrap_or(&json!(null)), &field, "{path}: {problem}");
    }
}
