//! Talking to sessions over HTTP, as a client in the middle of a conversation does.

use serde_json::{Value, json};

use crate::raw_client::{Answer, Connection};
use crate::stage::{Stage, request, text};

pub(crate) const STREAM: &str = "text/event-stream";

/// One piece of a turn: its number, name and data.
pub(crate) type Piece = (u64, String, Value);

impl Stage {
    /// A new session.
    pub(crate) async fn session(&self) -> String {
        self.session_with(json!({"template": "default"})).await
    }

    pub(crate) async fn session_with(&self, asked: Value) -> String {
        text(&self.call("POST", "/v1/sessions", asked).await.expect(201)["id"])
    }

    /// The session as it is now.
    pub(crate) async fn shown(&self, id: &str) -> Value {
        self.get(&format!("/v1/sessions/{id}")).await.expect(200)
    }

    /// Does something with a session.
    pub(crate) async fn act(&self, id: &str, what: &str, body: Value) -> Answer {
        self.call("POST", &format!("/v1/sessions/{id}/{what}"), body).await
    }

    /// Sends a request for a stream, and reads nothing of the answer.
    pub(crate) async fn ask_for_stream(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &Value,
    ) -> Connection {
        let mut connection = self.connect().await;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers = format!("accept: {STREAM}\r\n{headers}");
        connection.send(request(&self.admin, method, path, &headers, body.as_bytes())).await;
        connection
    }

    /// Says something; its stream is open when this is done.
    pub(crate) async fn say(&self, id: &str, body: Value) -> Connection {
        let path = format!("/v1/sessions/{id}/turns");
        let mut connection = self.ask_for_stream("POST", &path, "", &body).await;
        let head = connection.head().await;
        assert_eq!((head.status, &*head.headers["content-type"]), (200, STREAM));
        connection
    }

    /// Says something and reads it to its end.
    pub(crate) async fn talk(&self, id: &str, line: &str) -> Vec<Piece> {
        rest(&mut self.say(id, json!({"input": line})).await).await
    }

    /// Follows a turn after a piece.
    pub(crate) async fn follow(&self, id: &str, turn: &str, after: u64) -> Vec<Piece> {
        let path = format!("/v1/sessions/{id}/turns/{turn}/events");
        let header = format!("last-event-id: {after}\r\n");
        let mut connection = self.ask_for_stream("GET", &path, &header, &Value::Null).await;
        assert_eq!(connection.head().await.status, 200);
        rest(&mut connection).await
    }

    /// What happened to a session.
    pub(crate) async fn happened(&self, id: &str) -> Vec<Value> {
        let path = format!("/v1/sessions/{id}/events?after=0&limit=1000");
        let bytes = request(&self.admin, "GET", &path, "accept: application/json\r\n", b"");
        let page = self.raw(&bytes).await.expect(200);
        page["events"].as_array().unwrap().clone()
    }

    /// Events of a session with this name.
    pub(crate) async fn told(&self, id: &str, name: &str) -> Vec<Value> {
        let mut events = self.happened(id).await;
        events.retain(|event| event["type"] == name);
        events
    }
}

/// The next piece of a turn.
pub(crate) async fn next(connection: &mut Connection) -> Option<Piece> {
    let (id, name, data) = connection.event().await?;
    Some((id.unwrap(), name, data))
}

/// Everything up to the end of the stream.
pub(crate) async fn rest(connection: &mut Connection) -> Vec<Piece> {
    let mut pieces = Vec::new();
    while let Some(piece) = next(connection).await {
        pieces.push(piece);
    }
    pieces
}

/// Reads up to a piece of this name and gives it.
pub(crate) async fn until(connection: &mut Connection, name: &str) -> Piece {
    loop {
        let piece = next(connection).await.unwrap_or_else(|| panic!("no {name} came"));
        if piece.1 == name {
            return piece;
        }
    }
}

pub(crate) fn names(pieces: &[Piece]) -> Vec<&str> {
    pieces.iter().map(|(_, name, _)| name.as_str()).collect()
}

/// What was written, all of it.
pub(crate) fn output(pieces: &[Piece]) -> String {
    let texts = pieces.iter().filter(|(_, name, _)| name == "output");
    texts.map(|(_, _, data)| text(&data["text"])).collect()
}

/// What was said of the sandbox, before anything was written.
#[track_caller]
pub(crate) fn active(pieces: &[Piece]) -> Value {
    let place = |name: &str| pieces.iter().position(|(_, known, _)| known == name);
    let at = place("sandbox_active").unwrap_or_else(|| panic!("no sandbox: {pieces:?}"));
    assert!(place("output").is_none_or(|output| at < output), "{pieces:?}");
    pieces[at].2.clone()
}

/// How it ended: the last piece says so, and only that.
#[track_caller]
pub(crate) fn outcome(pieces: &[Piece]) -> String {
    let ends = pieces.iter().filter(|(_, name, _)| name == "turn_ended").count();
    let (_, name, data) = pieces.last().expect("an end");
    assert_eq!((name.as_str(), ends), ("turn_ended", 1), "{pieces:?}");
    text(&data["outcome"])
}
