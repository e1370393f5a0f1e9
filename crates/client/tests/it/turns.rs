//! Turns that are followed over broken connections, to their end and not beyond.

use client::{ClientError, Patience, TurnRequest, TurnStream};
use model::ErrorCode;
use serde_json::json;

use crate::script::{Act, Server};

const STREAM: &str = "text/event-stream";
const SESSION: &str = "0192f3a0-0000-7000-8000-000000000005";

fn piece(id: u64, name: &str) -> Vec<u8> {
    format!(": beat\n\nid: {id}\nevent: {name}\ndata: {{\"n\":{id}}}\n\n").into_bytes()
}

async fn send(server: &Server) -> Result<TurnStream, ClientError> {
    let session = server.client().session(SESSION.parse().unwrap());
    session.send(TurnRequest::text("hello")).await
}

async fn rest(stream: &mut TurnStream) -> Vec<(u64, String)> {
    let mut seen = Vec::new();
    while let Some(event) = stream.next().await.unwrap() {
        assert_eq!(event.data, json!({"n": event.id}));
        seen.push((event.id, event.event));
    }
    seen
}

#[tokio::test]
async fn turn_stream_resumes_where_it_broke() {
    let server = Server::with([
        Act::CutAfter(STREAM, vec![piece(1, "turn_started"), piece(2, "output")]),
        Act::Cut,
        Act::CutAfter(STREAM, vec![piece(3, "output")]),
        Act::Pieces(STREAM, vec![piece(4, "result"), piece(5, "turn_ended")]),
    ])
    .await;
    let mut stream = send(&server).await.unwrap();
    let seen: Vec<_> = rest(&mut stream).await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(seen, [1, 2, 3, 4, 5]);
    assert_eq!(stream.next().await, Ok(None), "nothing comes after the end");
    let turn = stream.turn();
    let asked = server.asked();
    assert_eq!(asked[0].json()["id"], json!(turn), "it can be found again by the id we gave it");
    assert_eq!(asked[0].line, format!("POST /v1/sessions/{SESSION}/turns HTTP/1.1"));
    for (asked, last) in asked[1..].iter().zip(["2", "2", "3"]) {
        let line = format!("GET /v1/sessions/{SESSION}/turns/{turn}/events HTTP/1.1");
        assert_eq!((asked.line.as_str(), asked.header("last-event-id")), (&*line, Some(last)));
    }
}

#[tokio::test]
async fn turn_whose_start_was_cut_off_is_found_and_not_sent_twice() {
    let server = Server::with([
        Act::Cut,
        Act::Pieces(STREAM, vec![piece(1, "output"), piece(2, "turn_ended")]),
    ])
    .await;
    let mut stream = send(&server).await.unwrap();
    assert_eq!(rest(&mut stream).await.len(), 2);
    assert_eq!(server.lines().iter().filter(|line| line.starts_with("POST")).count(), 1);
    let server = Server::with([Act::Cut, Act::problem(404, "turn_unknown", false)]).await;
    let mut stream = send(&server).await.unwrap();
    assert_eq!(stream.next().await.unwrap_err().code(), Some(ErrorCode::TurnUnknown));
}

#[tokio::test]
async fn turn_refusal_is_reported_at_once_and_a_seen_end_only_once() {
    let server = Server::with([Act::problem(409, "turn_in_progress", true)]).await;
    let refused = send(&server).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::TurnInProgress));
    let server = Server::with([Act::Answer(204, STREAM, String::new())]).await;
    let session = server.client().session(SESSION.parse().unwrap());
    let mut over = session.follow(SESSION.parse().unwrap(), 9);
    assert_eq!(over.next().await, Ok(None));
}

#[tokio::test]
async fn turn_stream_fails_when_the_server_does_not_come_back() {
    let server =
        Server::with([Act::CutAfter(STREAM, vec![piece(1, "output")]), Act::Cut, Act::Cut]).await;
    let resume = std::time::Duration::from_millis(150);
    let patient = server.client().patient(Patience { resume, retries: 0, ..Patience::default() });
    let session = patient.session(SESSION.parse().unwrap());
    let mut stream = session.send(TurnRequest::text("hello")).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().id, 1);
    assert!(stream.next().await.unwrap_err().retryable());
    assert_eq!(stream.last_seen(), 1);
}
