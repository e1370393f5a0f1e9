//! Turns over HTTP: told as they go, told again, waited for, and in order.

use serde_json::{Value, json};

use crate::conversation_client::{Piece, names, next, outcome, output, rest, until};
use crate::stage::{Stage, request, text};

#[tokio::test]
async fn turn_is_streamed_and_replayed_from_any_piece() {
    let stage = Stage::start().await;
    let id = stage.session().await;
    let told = stage.talk(&id, "echo one; echo two >&2; exit 3").await;
    let known = ["sandbox_active", "turn_started", "output", "result", "turn_ended"];
    assert!(names(&told).iter().all(|name| known.contains(name)), "{told:?}");
    assert_eq!(names(&told)[..2], known[..2]);
    assert!(told.iter().map(|piece| piece.0).eq(1..=told.len() as u64), "numbers have no gaps");
    let session = stage.shown(&id).await;
    assert_eq!(told[0].2["sandbox_id"], session["sandbox_id"]);
    for (stream, written) in [("stdout", "one\n"), ("stderr", "two\n")] {
        let of_stream = |piece: &&Piece| piece.1 == "output" && piece.2["stream"] == stream;
        let pieces: Vec<_> = told.iter().filter(of_stream).cloned().collect();
        assert_eq!(output(&pieces), written);
    }
    let end = &told.last().unwrap().2;
    assert_eq!((&end["result"]["exit_code"], &end["error"]), (&json!(3), &Value::Null));
    let turn = text(&end["turn"]);
    for after in 0..told.len() as u64 {
        assert_eq!(stage.follow(&id, &turn, after).await, told[after as usize..], "after {after}");
    }
    let events = format!("/v1/sessions/{id}/turns/{turn}/events");
    let last = told.last().unwrap().0;
    let seen = stage
        .raw(&request(&stage.admin, "GET", &events, &format!("last-event-id: {last}\r\n"), b""))
        .await;
    assert_eq!(seen.status, 204, "a client that has seen the end need not reconnect");
    let json = "accept: application/json\r\n";
    let page = stage
        .raw(&request(&stage.admin, "GET", &format!("{events}?after=1&limit=2"), json, b""))
        .await
        .expect(200);
    let pieces: Vec<Piece> = page["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["id"].as_u64().unwrap(), text(&one["event"]), one["data"].clone()))
        .collect();
    assert_eq!((pieces, &page["next"]), (told[1..3].to_vec(), &json!(3)));
    let all = stage.raw(&request(&stage.admin, "GET", &events, json, b"")).await.expect(200);
    assert_eq!((all["events"].as_array().unwrap().len(), &all["next"]), (told.len(), &Value::Null));
    stage.get(&format!("/v1/sessions/{id}/turns/{id}")).await.problem("turn_unknown");
    stage.get(&format!("/v1/sessions/{id}/turns/x")).await.problem("turn_unknown");
}

#[tokio::test]
async fn the_end_of_a_turn_can_be_waited_for() {
    let stage = Stage::start().await;
    let id = stage.session().await;
    let body = json!({"input": {"command": "echo out; echo err >&2"}}).to_string();
    let json = "accept: application/json\r\ncontent-type: application/json\r\n";
    let path = format!("/v1/sessions/{id}/turns");
    let answer = stage.raw(&request(&stage.admin, "POST", &path, json, body.as_bytes())).await;
    let answer = answer.expect(200);
    assert_eq!((&answer["outcome"], &answer["error"]), (&"completed".into(), &Value::Null));
    assert_eq!((&answer["output"], &answer["errors"]), (&"out\n".into(), &"err\n".into()));
    assert_eq!((&answer["truncated"], &answer["session_id"]), (&false.into(), &json!(id)));
    let turn = stage.get(&format!("{path}/{}", text(&answer["id"]))).await.expect(200);
    assert_eq!(turn["result"], answer["result"]);
    assert_eq!(turn["input"], json!({"command": "echo out; echo err >&2"}));
    assert!(turn["started_at"].is_string() && turn["ended_at"].is_string(), "{turn}");
    let history = stage.get(&format!("{path}?include=events")).await.expect(200);
    let events = history["turns"][0]["events"].as_array().unwrap();
    assert_eq!(events[0]["event"], "sandbox_active");
    assert_eq!(history["turns"][0]["events_next"], Value::Null);
    stage.get(&format!("{path}?include=all")).await.problem("bad_request");
}

#[tokio::test]
async fn a_second_turn_is_refused_or_waits_in_order() {
    let stage = Stage::start().await;
    let id = stage.session().await;
    let mut first = stage.say(&id, json!({"input": "sleep 1; echo one"})).await;
    until(&mut first, "turn_started").await;
    stage.act(&id, "turns", json!({"input": "echo no"})).await.problem("turn_in_progress");
    let mut second = stage.say(&id, json!({"input": "echo two", "when_busy": "queue"})).await;
    let mut third = stage.say(&id, json!({"input": "echo three", "when_busy": "queue"})).await;
    let session = stage.shown(&id).await;
    assert_eq!(session["queued_turns"], 2);
    assert!(session["turn"].is_string());
    let (one, two, three) =
        (rest(&mut first).await, rest(&mut second).await, rest(&mut third).await);
    assert_eq!(
        (output(&one), output(&two), output(&three)),
        ("one\n".into(), "two\n".into(), "three\n".into())
    );
    let history = stage.get(&format!("/v1/sessions/{id}/turns")).await.expect(200);
    let turns = history["turns"].as_array().unwrap();
    let times: Vec<_> = turns
        .iter()
        .flat_map(|turn| [text(&turn["started_at"]), text(&turn["ended_at"])])
        .collect();
    assert!(times.is_sorted(), "one after the other: {times:?}");
    let page = stage.get(&format!("/v1/sessions/{id}/turns?limit=2")).await.expect(200);
    let next = page["next"].as_u64().unwrap();
    let last = stage.get(&format!("/v1/sessions/{id}/turns?after={next}")).await.expect(200);
    assert_eq!((&last["turns"][0]["input"], &last["next"]), (&"echo three".into(), &Value::Null));
}

#[tokio::test]
async fn a_client_that_goes_away_in_the_middle_finds_the_rest_when_it_is_back() {
    let stage = Stage::start().await;
    let id = stage.session().await;
    let mut gone = stage.say(&id, json!({"input": "echo begun; sleep 1; echo done"})).await;
    let (seen, _, data) = until(&mut gone, "output").await;
    assert_eq!(data["text"], "begun\n");
    let turn = text(&stage.shown(&id).await["turn"]);
    drop(gone);
    let told = stage.follow(&id, &turn, seen).await;
    assert_eq!((&*output(&told), &*outcome(&told)), ("done\n", "completed"));

    let asked = json!({"template": "default", "on_disconnect": "abort"});
    let id = stage.session_with(asked).await;
    let mut gone = stage.say(&id, json!({"input": "echo begun; sleep 1000"})).await;
    let (seen, _, _) = until(&mut gone, "output").await;
    let turn = text(&stage.shown(&id).await["turn"]);
    drop(gone);
    assert_eq!(outcome(&stage.follow(&id, &turn, seen).await), "aborted");
}

#[tokio::test]
async fn turn_has_two_followers_that_do_not_delay_each_other() {
    let stage = Stage::start().await;
    let id = stage.session().await;
    let mut first = stage.say(&id, json!({"input": "echo a; sleep 1; echo b"})).await;
    until(&mut first, "output").await;
    let turn = text(&stage.shown(&id).await["turn"]);
    let second = stage.follow(&id, &turn, 0).await;
    assert_eq!((&*output(&second), &*outcome(&second)), ("a\nb\n", "completed"));
    assert_eq!(outcome(&rest(&mut first).await), "completed");
}

#[tokio::test]
async fn a_turn_that_a_crash_of_the_server_interrupted_ends_clearly_and_once() {
    let stage = Stage::start().await;
    let id = stage.session().await;
    let mut cut = stage.say(&id, json!({"input": "echo begun; sleep 1000"})).await;
    let (seen, _, _) = until(&mut cut, "output").await;
    let turn = text(&stage.shown(&id).await["turn"]);
    let stage = stage.kill_and_start().await;
    drop(cut);
    let told = stage.follow(&id, &turn, seen).await;
    assert_eq!(outcome(&told), "interrupted");
    assert!(told.iter().all(|piece| piece.0 > seen));
    assert_eq!(told.last().unwrap().2["error"]["code"], "interrupted");
    let record = stage.get(&format!("/v1/sessions/{id}/turns/{turn}")).await.expect(200);
    assert_eq!(
        (&record["outcome"], &record["error"]["code"]),
        (&"interrupted".into(), &"interrupted".into())
    );
    assert_eq!(stage.shown(&id).await["status"], "paused");
    assert_eq!(outcome(&stage.talk(&id, "echo on").await), "completed");
}

#[tokio::test]
async fn a_stream_says_how_to_come_back_and_is_not_to_be_collected_by_proxies() {
    let stage = Stage::start().await;
    let id = stage.session().await;
    let path = format!("/v1/sessions/{id}/turns");
    let body = json!({"input": "echo hi"});
    let mut stream = stage.ask_for_stream("POST", &path, "", &body).await;
    let head = stream.head().await;
    assert_eq!(
        (&*head.headers["cache-control"], &*head.headers["x-accel-buffering"]),
        ("no-cache", "no")
    );
    let first = String::from_utf8(stream.chunk().await.unwrap()).unwrap();
    assert!(first.starts_with("retry: "), "{first}");
    assert_eq!(next(&mut stream).await.unwrap().1, "sandbox_active");
}
