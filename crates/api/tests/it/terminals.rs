//! Terminals and watches over web sockets.

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::raw_client::PATIENCE;
use crate::stage::{Stage, text};

struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    async fn try_open(stage: &Stage, path: &str, key: &str) -> Result<Self, Error> {
        let address = stage.address;
        let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
        let offered = format!("shoal, shoal.key.{key}").parse().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", offered);
        let stream = TcpStream::connect(address).await.unwrap();
        let (socket, answer) = client_async(request, stream).await?;
        assert_eq!(answer.headers()["sec-websocket-protocol"], "shoal", "and never the key");
        Ok(Self(socket))
    }

    async fn open(stage: &Stage, path: &str) -> Self {
        Self::try_open(stage, path, &stage.admin).await.unwrap()
    }

    async fn next(&mut self) -> Message {
        loop {
            let next = timeout(PATIENCE, self.0.next()).await.expect("a message");
            match next.expect("not closed").unwrap() {
                Message::Ping(_) | Message::Pong(_) => {}
                message @ (Message::Text(_)
                | Message::Binary(_)
                | Message::Close(_)
                | Message::Frame(_)) => return message,
            }
        }
    }

    async fn word(&mut self) -> Value {
        let message = self.next().await;
        serde_json::from_str(message.to_text().unwrap()).unwrap()
    }

    async fn say(&mut self, message: Message) {
        self.0.send(message).await.unwrap();
    }

    /// Bytes until there are as many as expected.
    async fn shows(&mut self, expected: &str) {
        let mut seen = Vec::new();
        while seen.len() < expected.len() {
            seen.extend_from_slice(&self.next().await.into_data());
        }
        assert_eq!(String::from_utf8_lossy(&seen), expected);
    }
}

#[tokio::test]
async fn a_terminal_passes_bytes_both_ways_and_ends_with_its_client() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let sandbox = format!("/v1/sandboxes/{id}");
    let mut socket =
        Socket::open(&stage, &format!("{sandbox}/terminal?command=cat&name=t&rows=30")).await;
    let first = socket.word().await;
    assert_eq!(
        (&first["process"]["name"], &first["process"]["terminal"]),
        (&"t".into(), &true.into())
    );
    for word in ["hello\n", "grün\n"] {
        socket.say(Message::Binary(word.as_bytes().to_vec().into())).await;
        socket.shows(word).await;
    }
    socket
        .say(Message::Text(json!({"resize": {"rows": 40, "columns": 100}}).to_string().into()))
        .await;
    socket.say(Message::Binary(b"still\n".to_vec().into())).await;
    socket.shows("still\n").await;
    let mut second = Socket::open(&stage, &format!("{sandbox}/processes/t/attach?offset=6")).await;
    second.word().await;
    second.shows("grün\nstill\n").await;
    drop(socket);
    let end = second.word().await;
    let status = text(&end["exit"]["status"]);
    assert!(status == "stopped" || status == "failed" || status == "killed", "{end}");
    assert!(matches!(second.next().await, Message::Close(Some(_))));
}

#[tokio::test]
async fn terminal_reports_the_end_of_its_process() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let path = format!("/v1/sandboxes/{id}/terminal?command=echo%20hi;%20exit%207&keep");
    let mut socket = Socket::open(&stage, &path).await;
    socket.word().await;
    socket.shows("hi\n").await;
    assert_eq!(socket.word().await["exit"]["exit_code"], 7);
    let mut wrong = Socket::open(&stage, &format!("/v1/sandboxes/{id}/terminal?command=cat")).await;
    wrong.word().await;
    wrong.say(Message::Text("{\"resize\":{\"rows\":0,\"columns\":1}}".into())).await;
    assert_eq!(wrong.word().await["error"]["code"], "bad_request");
}

#[tokio::test]
async fn websocket_is_refused_before_the_upgrade() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let reader = stage.key(model::Role::Read).await;
    let terminal = format!("/v1/sandboxes/{id}/terminal");
    let attach = format!("/v1/sandboxes/{id}/processes/nosuch/attach");
    let admin = stage.admin.clone();
    for (path, key, status) in
        [(&terminal, "shoal_wrong", 401), (&terminal, &*reader, 403), (&attach, &*admin, 404)]
    {
        match Socket::try_open(&stage, path, key).await {
            Err(Error::Http(answer)) => assert_eq!(answer.status(), status, "{path}"),
            Err(other) => panic!("{path}: {other}"),
            Ok(_) => panic!("{path}: it was opened"),
        }
    }
}

#[tokio::test]
async fn watch_reports_changes_on_a_websocket() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let path = format!("/v1/sandboxes/{id}/files/watch?path=/workspace");
    let mut socket = Socket::open(&stage, &path).await;
    assert_eq!(socket.word().await, json!({"type": "armed"}));
    let made = json!({"path": "/workspace/new"});
    stage.call("POST", &format!("/v1/sandboxes/{id}/files/directory"), made).await;
    let told = socket.word().await;
    assert_eq!(
        (&told["type"], &told["path"], &told["directory"]),
        (&"created".into(), &"/workspace/new".into(), &true.into())
    );
}
