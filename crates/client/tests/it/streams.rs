//! Output that streams, events that resume, files that are cut off.

use client::{
    ClientError, EventUpdate, EventsQuery, ExecEvent, ExecRequest, Handle, Patience, Upload,
};
use model::ErrorCode;
use serde_json::json;

use crate::script::{Act, SANDBOX, Server, file};

const LINES: &str = "application/x-ndjson";
const STREAM: &str = "text/event-stream";

async fn in_sandbox(act: Act) -> (Server, Handle) {
    let server = Server::with([act]).await;
    let handle = server.client().sandbox(SANDBOX.parse().unwrap());
    (server, handle)
}

/// What a program wrote, and how it was found to end.
async fn watched(handle: &Handle) -> (Vec<u8>, Result<Option<i32>, ClientError>) {
    let mut written = Vec::new();
    let mut stream = handle.exec_stream(ExecRequest::shell("x")).await.unwrap();
    loop {
        match stream.next().await {
            Ok(Some(ExecEvent::Stdout(output) | ExecEvent::Stderr(output))) => {
                written.extend(output.bytes().unwrap());
            }
            Ok(Some(ExecEvent::Exit(exit))) => {
                assert_eq!(stream.next().await, Ok(None), "nothing comes after the end");
                return (written, Ok(Some(exit.exit_code)));
            }
            Ok(Some(ExecEvent::Started | ExecEvent::Error { .. })) => {}
            Ok(None) => return (written, Ok(None)),
            Err(error) => return (written, Err(error)),
        }
    }
}

fn exit_line() -> String {
    let exit = json!({
        "type": "exit", "exit_code": 3, "signal": null, "truncated": false,
        "stdout_truncated": false, "stderr_truncated": false, "timed_out": false, "oom": false,
        "duration_ms": 1.0,
    });
    format!("{exit}\n")
}

fn split(text: &str, size: usize) -> Vec<Vec<u8>> {
    text.as_bytes().chunks(size).map(<[u8]>::to_vec).collect()
}

#[tokio::test]
async fn exec_output_arrives_complete_however_it_is_split() {
    let text = format!(
        "{{\"type\":\"started\"}}\n{{\"type\":\"stdout\",\"data\":\"grün\"}}\n\n{{\"type\":\"stderr\",\
         \"data_base64\":\"/w==\"}}\n{}",
        exit_line()
    );
    for size in [1, 7, 1000] {
        let (server, handle) = in_sandbox(Act::Pieces(LINES, split(&text, size))).await;
        let (written, ended) = watched(&handle).await;
        assert_eq!((written, ended), ([("grün").as_bytes(), &[0xff]].concat(), Ok(Some(3))));
        assert_eq!(server.asked()[0].header("accept"), Some(LINES));
    }
}

#[tokio::test]
async fn exec_stream_without_an_exit_is_an_error() {
    let output = b"{\"type\":\"stdout\",\"data\":\"a\"}\n".to_vec();
    for act in [Act::CutAfter(LINES, vec![output.clone()]), Act::Pieces(LINES, vec![output])] {
        let (_server, handle) = in_sandbox(act.clone()).await;
        let (written, ended) = watched(&handle).await;
        assert_eq!(written, b"a");
        assert!(matches!(ended, Err(ClientError::Cut { .. })), "{act:?} gave {ended:?}");
    }
}

#[tokio::test]
async fn exec_in_a_dying_sandbox_reports_the_problem_of_the_server() {
    let Act::Answer(_, _, problem) = Act::problem(502, "oom", false) else { unreachable!() };
    let line = format!("{{\"type\":\"error\",\"problem\":{problem}}}\n");
    let (_server, handle) = in_sandbox(Act::Pieces(LINES, vec![line.into_bytes()])).await;
    let (_, ended) = watched(&handle).await;
    assert_eq!(ended.unwrap_err().code().map(ErrorCode::as_str), Some("oom"));
}

fn event(id: u64) -> String {
    let event = json!({
        "id": id, "at": "2026-01-02T03:04:05.678Z", "type": "sandbox_frozen",
        "sandbox_id": SANDBOX, "generation": 1, "frozen": true,
    });
    format!("event: sandbox_frozen\nid: {id}\ndata: {event}\n\n")
}

#[tokio::test]
async fn event_stream_resumes_where_it_broke() {
    let first = format!(": beat\n\n{}{}", event(4), event(5));
    let second = format!("event: reset\ndata: {{\"oldest\":9}}\n\n{}", event(9));
    let server = Server::with([
        Act::CutAfter(STREAM, split(&first, 10)),
        Act::Cut,
        Act::problem(503, "shutting_down", true),
        Act::Pieces(STREAM, split(&second, 10)),
        Act::Pieces(STREAM, split(&event(10), 10)),
        Act::problem(401, "unauthorized", false),
    ])
    .await;
    let mut stream = server.client().watch_events(EventsQuery::default());
    let mut seen = Vec::new();
    let error = loop {
        match stream.next().await {
            Ok(EventUpdate::Event(event)) => seen.push(event.id),
            Ok(EventUpdate::Gap { oldest }) => seen.push(1000 + oldest),
            Err(error) => break error,
        }
    };
    assert_eq!(seen, [4, 5, 1009, 9, 10]);
    assert_eq!(error.code().map(ErrorCode::as_str), Some("unauthorized"));
    let from: Vec<_> = server
        .asked()
        .iter()
        .map(|asked| asked.header("last-event-id").map(str::to_owned))
        .collect();
    let expected = [None, Some("5"), Some("5"), Some("5"), Some("9"), Some("10")];
    assert_eq!(from, expected.map(|id| id.map(str::to_owned)));
}

#[tokio::test]
async fn event_stream_that_cannot_resume_fails_in_the_end() {
    let server = Server::with([Act::CutAfter(STREAM, vec![event(1).into_bytes()])]).await;
    let patience = Patience {
        answer: std::time::Duration::from_millis(50),
        resume: std::time::Duration::from_millis(200),
        ..Patience::default()
    };
    let mut stream = server.client().patient(patience).watch_events(EventsQuery::default());
    assert!(matches!(stream.next().await, Ok(EventUpdate::Event(_))));
    let error = stream.next().await.unwrap_err();
    assert!(error.retryable(), "{error:?}");
    assert_eq!(stream.last_seen(), Some(1));
}

#[tokio::test]
async fn file_download_in_chunks_notices_a_missing_end() {
    let pieces = vec![b"abc".to_vec(), b"def".to_vec()];
    let (_server, handle) = in_sandbox(Act::Pieces("x/y", pieces.clone())).await;
    assert_eq!(handle.read_small("/a", 6).await.unwrap(), b"abcdef");
    let (_server, handle) = in_sandbox(Act::Pieces("x/y", pieces.clone())).await;
    assert!(handle.read_small("/a", 5).await.is_err(), "more than asked for");
    let (_server, handle) = in_sandbox(Act::CutAfter("x/y", pieces)).await;
    let cut = handle.read_small("/a", 100).await;
    assert!(matches!(cut, Err(ClientError::Cut { .. })), "{cut:?}");
}

#[tokio::test]
async fn uploads_are_streamed_and_not_sent_twice() {
    let (server, handle) = in_sandbox(file()).await;
    let entry = handle.upload_file("/a", Upload::reader(&b"hello"[..]), None).await.unwrap();
    assert_eq!(entry.size, 5);
    assert_eq!(server.asked()[0].body, b"5\r\nhello\r\n0\r\n\r\n");
    let (server, handle) = in_sandbox(Act::Cut).await;
    let upload = Upload::reader(&b"hello"[..]).of_length(5);
    let error = handle.upload_file("/a", upload, None).await.unwrap_err();
    assert!(matches!(error, ClientError::Cut { .. }), "{error:?}");
    assert_eq!((server.asked().len(), &server.asked()[0].body[..]), (1, &b"hello"[..]));
}
