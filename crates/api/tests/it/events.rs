//! What happened, as a page and as a stream.

use model::Role;
use serde_json::{Value, json};

use crate::raw_client::Connection;
use crate::stage::{Plan, Stage, request, text};

async fn watch(stage: &Stage, key: &str, path: &str, headers: &str) -> Connection {
    let mut connection = stage.connect().await;
    let headers = format!("accept: text/event-stream\r\n{headers}");
    connection.send(request(key, "GET", path, &headers, b"")).await;
    let head = connection.head().await;
    assert_eq!((head.status, head.headers["content-type"].as_str()), (200, "text/event-stream"));
    connection
}

async fn page(stage: &Stage, key: &str, path: &str) -> Value {
    let bytes = request(key, "GET", path, "accept: application/json\r\n", b"");
    stage.raw(&bytes).await.expect(200)
}

/// Checks out and returns, which is two events.
async fn use_once(stage: &Stage, key: &str) -> String {
    let body = json!({"template": "default"});
    let made = stage.call_as(key, "POST", "/v1/checkouts", body).await.expect(201);
    let id = text(&made["sandbox"]["id"]);
    let exec = format!("/v1/sandboxes/{id}/exec");
    stage.call_as(key, "POST", &exec, json!({"command": "true"})).await.expect(200);
    let one = format!("/v1/checkouts/{}", text(&made["id"]));
    stage.call_as(key, "DELETE", &one, Value::Null).await.expect(204);
    id
}

#[tokio::test]
async fn event_stream_resumes_where_it_was_left() {
    let stage = Stage::start().await;
    let key = stage.key(Role::Use).await;
    let mut live = watch(&stage, &key, "/v1/events", "").await;
    let sandbox = use_once(&stage, &key).await;
    let (first, name, data) = live.event().await.unwrap();
    assert_eq!((name.as_str(), &data["sandbox_id"]), ("sandbox_active", &sandbox.clone().into()));
    assert_eq!(data["id"], first.unwrap());
    let (second, name, data) = live.event().await.unwrap();
    assert_eq!((name.as_str(), &data["reason"]), ("sandbox_terminated", &"deleted".into()));
    assert_eq!(data["type"], "sandbox_terminated");
    assert!(second > first);
    drop(live);
    let other = use_once(&stage, &key).await;
    let back = format!("last-event-id: {}\r\n", first.unwrap());
    let mut again = watch(&stage, &key, "/v1/events", &back).await;
    assert_eq!(again.event().await.unwrap().0, second);
    assert_eq!(again.event().await.unwrap().2["sandbox_id"], other);
    let path = format!("/v1/events?after={}", first.unwrap());
    let mut again = watch(&stage, &key, &path, "").await;
    assert_eq!(again.event().await.unwrap().0, second);
    let path = format!("/v1/sandboxes/{sandbox}/events?after=0");
    let mut one = watch(&stage, &key, &path, "").await;
    assert_eq!(one.event().await.unwrap().0, first);
    assert_eq!(one.event().await.unwrap().0, second);
}

/// The next change of a state: from where, to where and why.
async fn change(stream: &mut Connection) -> (String, String, Value) {
    loop {
        let (id, name, data) = stream.any_event().await.unwrap();
        assert_eq!(data["id"].as_u64(), id, "{data}");
        if name == "sandbox_state" {
            assert_eq!((&data["skipped"], &data["type"]), (&json!(0), &json!("sandbox_state")));
            return (text(&data["from"]), text(&data["to"]), data["cause"].clone());
        }
    }
}

#[tokio::test]
async fn state_transitions_are_streamed_and_are_in_no_page() {
    let stage = Stage::start().await;
    let (alice, bob) = (stage.key(Role::Use).await, stage.key(Role::Use).await);
    // One that is launched for a caller who waits is that caller's before it is warm.
    stage.until("warm", |stage| stage.engine.stats().warm == 2).await;
    let mut all = watch(&stage, &alice, "/v1/events", "").await;
    let mut of_bob = watch(&stage, &bob, "/v1/events", "").await;
    let sandbox = use_once(&stage, &alice).await;
    let changes = [
        ("warm", "running", Value::Null),
        ("running", "waiting", Value::Null),
        ("waiting", "cold", json!("returned")),
    ];
    for (from, to, cause) in &changes {
        let expected = ((*from).to_owned(), (*to).to_owned(), cause.clone());
        assert_eq!(change(&mut all).await, expected);
    }
    // A later stream has them between the events of the history, as long as they are kept.
    let path = format!("/v1/sandboxes/{sandbox}/events?after=0");
    let mut one = watch(&stage, &alice, &path, "").await;
    let mut names = Vec::new();
    let mut last = 0;
    for _ in 0..5 {
        let (id, name, data) = one.any_event().await.unwrap();
        assert_eq!(data["sandbox_id"], sandbox, "{data}");
        assert!(id.unwrap() >= last, "numbers never go back");
        last = id.unwrap();
        names.push(name);
    }
    assert_eq!(names[0], "sandbox_active");
    let states = names.iter().filter(|name| *name == "sandbox_state").count();
    assert_eq!(states, 3, "{names:?}");
    let listed = page(&stage, &alice, "/v1/events").await.to_string();
    assert!(listed.contains("sandbox_terminated") && !listed.contains("sandbox_state"));
    let other = use_once(&stage, &bob).await;
    let (_, _, data) = of_bob.any_event().await.unwrap();
    assert_eq!(data["sandbox_id"], other, "a key sees its own changes alone");
}

#[tokio::test]
async fn event_pages_have_only_the_callers_events() {
    let stage = Stage::start().await;
    let (alice, bob) = (stage.key(Role::Use).await, stage.key(Role::Use).await);
    let mut mine = Vec::new();
    for _ in 0..3 {
        mine.push(use_once(&stage, &alice).await);
        use_once(&stage, &bob).await;
    }
    let ended = |stage: &Stage| {
        let warm = stage.engine.stats();
        warm.warm == 2 && warm.total == 2
    };
    stage.until("all returned", ended).await;
    let mut seen = Vec::new();
    let mut after = 0;
    loop {
        let list = page(&stage, &alice, &format!("/v1/events?limit=2&after={after}")).await;
        for event in list["events"].as_array().unwrap() {
            if event["type"] == "sandbox_terminated" {
                seen.push(text(&event["sandbox_id"]));
            }
        }
        let Some(next) = list["next"].as_u64() else { break };
        assert!(next > after);
        after = next;
    }
    assert_eq!(seen, mine);
    let one = page(&stage, &alice, &format!("/v1/sandboxes/{}/events", mine[1])).await;
    assert_eq!(one["events"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn event_stream_resets_a_client_that_was_away_too_long() {
    let mut plan = Plan::default();
    plan.retention.events = 4;
    let stage = Stage::with(plan).await;
    let admin = stage.admin.clone();
    for _ in 0..10 {
        use_once(&stage, &admin).await;
    }
    let mut stream = watch(&stage, &admin, "/v1/events", "last-event-id: 1\r\n").await;
    let (_, name, data) = stream.event().await.unwrap();
    assert_eq!(name, "reset");
    let oldest = data["oldest"].as_u64().unwrap();
    assert!(oldest > 2);
    assert_eq!(stream.event().await.unwrap().0, Some(oldest));
    let list = page(&stage, &admin, "/v1/events?after=1").await;
    assert!(list["oldest"].as_u64().unwrap() > 2);
}

#[tokio::test]
async fn event_stream_resets_a_client_of_another_history() {
    let stage = Stage::start().await;
    let admin = stage.admin.clone();
    use_once(&stage, &admin).await;
    for (path, headers) in
        [("/v1/events", "last-event-id: 5000\r\n"), ("/v1/events?after=5000", "")]
    {
        let mut stream = watch(&stage, &admin, path, headers).await;
        let (_, name, data) = stream.event().await.unwrap();
        assert_eq!(name, "reset");
        assert_eq!(stream.event().await.unwrap().0, data["oldest"].as_u64());
    }
}

#[tokio::test]
async fn event_streams_end_when_the_server_stops() {
    let mut stage = Stage::start().await;
    let admin = stage.admin.clone();
    let mut stream = watch(&stage, &admin, "/v1/events", "").await;
    let served = stage.stop();
    assert!(stream.event().await.is_none());
    assert_eq!(served.await.unwrap().cut, 0);
}
