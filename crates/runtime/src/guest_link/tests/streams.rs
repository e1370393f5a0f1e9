//! Bytes of files and connections.

use std::sync::Arc;

use guest_protocol::Incoming;
use guest_protocol::endpoint::INITIAL_WINDOW_BYTES;
use guest_protocol::message::{Entry, EntryKind, Fault, FaultCode, Reply, Request, lane};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::peer::{Peer, ready_pair};
use crate::contract::Inside as _;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::files::FileReader;
use crate::guest_link::GuestLink;

fn entry(size: u64) -> Entry {
    let (name, kind) = (b"f".to_vec(), EntryKind::File);
    Entry { name, kind, size, mode: 0o644, modified_ms: 0, target: None, shared: None }
}

async fn open(link: &Arc<GuestLink>, peer: &mut Peer) -> (u32, FileReader) {
    let link = Arc::clone(link);
    let reading = tokio::spawn(async move { link.read_file("f", 0, None).await });
    let (channel, request) = peer.request().await;
    assert!(matches!(request, Request::ReadFile { .. }));
    peer.say(channel, &Reply::Entry(entry(3))).await;
    (channel, reading.await.unwrap().unwrap())
}

#[tokio::test]
async fn a_stalled_reader_holds_up_no_other_stream() {
    let (link, mut peer) = ready_pair().await;
    let (slow, mut slow_reader) = open(&link, &mut peer).await;
    let window = vec![1; INITIAL_WINDOW_BYTES as usize];
    assert_eq!(peer.endpoint.send_data(slow, lane::MAIN, &window), window.len());
    peer.flush().await;
    let (quick, quick_reader) = open(&link, &mut peer).await;
    peer.endpoint.send_data(quick, lane::MAIN, b"abc");
    peer.endpoint.end(quick, lane::MAIN);
    peer.endpoint.send(quick, &Reply::Done).unwrap();
    peer.flush().await;
    assert_eq!(quick_reader.collect(10).await.unwrap(), b"abc");
    let pinger = Arc::clone(&link);
    let ping = tokio::spawn(async move { pinger.ping().await });
    let (channel, _) = peer.request().await;
    peer.say(channel, &Reply::Done).await;
    ping.await.unwrap().unwrap();
    // As it is read, the window opens again.
    assert_eq!(peer.endpoint.window(slow, lane::MAIN), 0);
    let mut half = vec![0; INITIAL_WINDOW_BYTES as usize / 2];
    slow_reader.read_exact(&mut half).await.unwrap();
    assert_eq!(peer.next().await, Incoming::Writable { channel: slow, lane: lane::MAIN });
    assert_eq!(peer.endpoint.window(slow, lane::MAIN), half.len());
}

#[tokio::test]
async fn a_dropped_reader_closes_its_lane() {
    let (link, mut peer) = ready_pair().await;
    let (channel, mut reader) = open(&link, &mut peer).await;
    peer.endpoint.send_data(channel, lane::MAIN, b"abc");
    peer.flush().await;
    let mut byte = [0];
    reader.read_exact(&mut byte).await.unwrap();
    drop(reader);
    assert_eq!(peer.next().await, Incoming::Reset { channel, lane: lane::MAIN });
    assert_eq!(link.connection.lock().open_calls(), 1, "until the guest is done");
    peer.say(channel, &Reply::Done).await;
    while link.connection.lock().open_calls() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn read_failure_comes_after_the_bytes_before_it() {
    let (link, mut peer) = ready_pair().await;
    let (channel, mut reader) = open(&link, &mut peer).await;
    peer.endpoint.send_data(channel, lane::MAIN, b"abc");
    let fault = Fault { code: FaultCode::System, errno: 5, message: "bad disk".to_owned() };
    peer.say(channel, &Reply::Failed(fault)).await;
    let mut three = [0; 3];
    reader.read_exact(&mut three).await.unwrap();
    let error = reader.read(&mut three).await.unwrap_err();
    let error = RuntimeError::from_io("", error);
    assert_eq!((error.code, error.errno), (RuntimeErrorCode::System, Some(5)));
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_hangs_is_given_up_at_the_deadline() {
    let (link, mut peer) = ready_pair().await;
    let (_, mut reader) = open(&link, &mut peer).await;
    let error = RuntimeError::from_io("", reader.read(&mut [0; 3]).await.unwrap_err());
    assert_eq!(error.code, RuntimeErrorCode::DeadlineExceeded);
    let mut writer = link.write_file("f", None).await.unwrap();
    let error = writer.write_all(&vec![0; 4 << 20]).await.unwrap_err();
    assert_eq!(RuntimeError::from_io("", error).code, RuntimeErrorCode::DeadlineExceeded);
    assert_eq!(writer.finish().await.unwrap_err().code, RuntimeErrorCode::DeadlineExceeded);
}

#[tokio::test]
async fn file_write_works_through_a_narrow_socket_and_window() {
    let (link, mut peer) = ready_pair().await;
    let bytes: Vec<u8> = (0..2_000_000_u32).map(|n| (n % 251) as u8).collect();
    let sent = bytes.clone();
    let writing = tokio::spawn(async move {
        let mut writer = link.write_file("f", Some(0o600)).await.unwrap();
        writer.write_all(&sent).await.unwrap();
        writer.finish().await
    });
    let (channel, request) = peer.request().await;
    let path = "f".to_owned();
    assert_eq!(request, Request::WriteFile { path, mode: Some(0o600), parents: true });
    assert!(peer.data(bytes.len()).await == bytes);
    assert_eq!(peer.next().await, Incoming::End { channel, lane: lane::MAIN });
    peer.say(channel, &Reply::Entry(entry(2_000_000))).await;
    assert_eq!(writing.await.unwrap().unwrap().size, 2_000_000);
}

#[tokio::test]
async fn a_dropped_file_writer_never_finishes_its_file() {
    let (link, mut peer) = ready_pair().await;
    let mut writer = link.write_file("f", None).await.unwrap();
    writer.write_all(b"abc").await.unwrap();
    drop(writer);
    let (channel, _) = peer.request().await;
    assert_eq!(peer.data(3).await, b"abc");
    assert_eq!(peer.next().await, Incoming::Reset { channel, lane: lane::MAIN });
    peer.hears_nothing().await;
}

#[tokio::test]
async fn a_file_writer_gets_the_guests_refusal() {
    let (link, mut peer) = ready_pair().await;
    let mut writer = link.write_file("f", None).await.unwrap();
    let (channel, _) = peer.request().await;
    let fault = Fault { code: FaultCode::Limit, errno: 28, message: "full".to_owned() };
    peer.endpoint.reset(channel, lane::MAIN);
    peer.say(channel, &Reply::Failed(fault)).await;
    let error = loop {
        match writer.write_all(b"abc").await {
            Ok(()) => tokio::task::yield_now().await,
            Err(error) => break RuntimeError::from_io("", error),
        }
    };
    assert_eq!((error.code, error.errno), (RuntimeErrorCode::LimitReached, Some(28)));
    assert_eq!(writer.finish().await.unwrap_err().code, RuntimeErrorCode::LimitReached);
}

#[tokio::test]
async fn port_connection_goes_both_ways_and_ends_in_each() {
    let (link, mut peer) = ready_pair().await;
    let dialer = Arc::clone(&link);
    let dialing = tokio::spawn(async move { dialer.dial(80).await });
    let (channel, request) = peer.request().await;
    assert_eq!(request, Request::Dial { port: 80 });
    peer.say(channel, &Reply::Started { pid: None }).await;
    let mut connection = dialing.await.unwrap().unwrap();
    connection.write_all(b"ping").await.unwrap();
    assert_eq!(peer.data(4).await, b"ping");
    connection.shutdown().await.unwrap();
    assert_eq!(peer.next().await, Incoming::End { channel, lane: lane::MAIN });
    peer.endpoint.send_data(channel, lane::MAIN, b"pong");
    peer.endpoint.end(channel, lane::MAIN);
    peer.endpoint.send(channel, &Reply::Done).unwrap();
    peer.flush().await;
    let mut all = Vec::new();
    connection.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"pong");
    drop(connection);
    assert_eq!(link.connection.lock().open_calls(), 0);
    peer.hears_nothing().await;
}

#[tokio::test]
async fn port_connection_that_is_dropped_is_reset() {
    let (link, mut peer) = ready_pair().await;
    let dialer = Arc::clone(&link);
    let dialing = tokio::spawn(async move { dialer.dial(80).await });
    let (channel, _) = peer.request().await;
    peer.say(channel, &Reply::Started { pid: None }).await;
    let connection = dialing.await.unwrap().unwrap();
    drop(connection);
    assert_eq!(peer.next().await, Incoming::Reset { channel, lane: lane::MAIN });
}
