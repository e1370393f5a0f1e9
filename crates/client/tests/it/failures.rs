//! What becomes of refusals, broken connections, silence and nonsense.

use std::time::Duration;

use client::{Client, ClientError, ExecRequest, Patience};
use model::ErrorCode;
use serde_json::json;

use crate::script::{Act, SANDBOX, Server, checkout};

fn health() -> Act {
    let pool = json!({
        "total": 0, "cold": 0, "warming": 0, "warm": 0, "waiting": 0, "running": 0,
        "max_capacity": 9, "resume_warm_hits": 0, "resume_cold_hits": 0,
    });
    let health =
        json!({ "status": "ok", "reasons": [], "version": "0", "uptime_s": 1, "pool": pool });
    Act::json(200, &health)
}

#[tokio::test]
async fn refusal_carries_the_problem_of_the_server() {
    let server = Server::with([
        Act::problem(503, "capacity_exhausted", true),
        Act::problem(410, "said_by_a_newer_server", false),
    ])
    .await;
    let error = server.client().checkout(client::template("t").unwrap()).await.unwrap_err();
    assert_eq!(error.code().map(ErrorCode::as_str), Some("capacity_exhausted"));
    assert!(error.retryable());
    assert_eq!(error.retry_after(), Some(Duration::from_millis(1500)));
    assert_eq!(server.asked().len(), 1, "the caller decides whether to ask again");
    let error = server.client().stats().await.unwrap_err();
    assert_eq!((error.code(), error.retryable()), (None, false));
    assert_eq!(error.to_string(), "said_by_a_newer_server: because");
}

#[tokio::test]
async fn retry_happens_for_idempotent_requests_only() {
    let server = Server::with([Act::Cut, health()]).await;
    assert_eq!(server.client().health().await.unwrap().pool.unwrap().max_capacity, 9);
    assert_eq!(server.asked().len(), 2);

    let server = Server::with([Act::Cut, Act::Cut, checkout()]).await;
    let lease = server.client().checkout(client::template("t").unwrap()).await.unwrap();
    let _ = lease.keep();
    let marks: Vec<_> = server
        .asked()
        .iter()
        .map(|asked| asked.header("idempotency-key").unwrap().to_owned())
        .collect();
    assert_eq!(marks.len(), 3);
    assert!(marks.iter().all(|mark| *mark == marks[0]), "one request, one mark: {marks:?}");

    let server = Server::with([Act::Cut, Act::Cut]).await;
    let sandbox = server.client().sandbox(SANDBOX.parse().unwrap());
    let error = sandbox.exec(ExecRequest::shell("rm x")).await.unwrap_err();
    assert!(matches!(error, ClientError::Cut { .. }) && error.retryable(), "{error:?}");
    assert_eq!(server.asked().len(), 1, "it may have run");
}

#[tokio::test]
async fn retries_have_an_end() {
    let server = Server::with(vec![Act::Cut; 10]).await;
    assert!(server.client().stats().await.is_err());
    assert_eq!(server.asked().len(), 4);
}

#[tokio::test]
async fn missing_server_differs_from_a_broken_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let client = Client::new(&address, None).unwrap();
    let client = client.patient(Patience { retries: 0, ..Patience::default() });
    let error = client.health().await.unwrap_err();
    assert!(matches!(&error, ClientError::Connect { .. }), "{error:?}");
    assert!(error.to_string().starts_with(&format!("no server at http://{address}")), "{error}");
    assert!(error.retryable());
}

#[tokio::test]
async fn request_without_an_answer_ends_at_its_deadline() {
    let server = Server::with([Act::Silence]).await;
    let error = server.hasty().stats().await.unwrap_err();
    assert!(matches!(&error, ClientError::Timeout { .. }), "{error:?}");
    assert!(error.to_string().contains("GET /v1/stats"), "{error}");
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn invalid_answers_are_unexpected_errors() {
    let cases = [
        Act::Answer(200, "text/html", "<html>".to_owned()),
        Act::Answer(502, "text/html", "<html>".to_owned()),
        Act::json(200, &json!({ "status": "excellent" })),
    ];
    for act in cases {
        let server = Server::with([act.clone()]).await;
        let error = server.client().health().await.unwrap_err();
        assert!(matches!(error, ClientError::Unexpected { .. }), "{act:?} gave {error:?}");
        assert!(!error.retryable());
    }
}

#[test]
fn client_secrets_are_not_in_debug_output() {
    let client = Client::new("127.0.0.1:1", Some("hunter2")).unwrap();
    assert!(!format!("{client:?}").contains("hunter2"));
    let error = Client::new("127.0.0.1:1", Some("hunter2\n")).unwrap_err();
    assert!(!error.to_string().contains("hunter2"), "{error}");
}
