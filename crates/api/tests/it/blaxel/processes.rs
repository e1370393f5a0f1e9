//! Requests about processes that need none to run.

use serde_json::{Value, json};

use super::Sandbox;

#[tokio::test]
async fn requests_that_make_no_sense_are_refused() {
    let sandbox = Sandbox::new().await;
    for body in [json!({}), json!({"command": ""}), json!({"command": 7})] {
        let refused = sandbox.call("POST", "/process", body).await;
        assert!(Sandbox::refused(&refused, 400).starts_with("invalid request body"));
    }
    let nonsense = sandbox.send("POST", "/process", "", b"nonsense").await;
    Sandbox::refused(&nonsense, 400);
}

#[tokio::test]
async fn a_sandbox_where_nothing_runs_rests() {
    let sandbox = Sandbox::new().await;
    let rests = json!({"state": "auto", "scheduledStopAt": null, "keepAliveProcesses": []});
    assert_eq!(sandbox.get("/status").await.expect(200), rests);
    assert_eq!(sandbox.call("POST", "/stop", Value::Null).await.expect(200), rests);
    let later = sandbox.send("POST", "/stop", "", b"{\"timeout\": 300}").await;
    assert_eq!(later.expect(200), rests);
}
