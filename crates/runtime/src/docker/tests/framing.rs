//! The engine's framing, through the library: whatever the pieces are in which it arrives, what
//! guests said comes out, whole and in order, and nothing else does.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use guest_protocol::message::{Reply, Request};
use model::InstanceId;
use proptest::prelude::*;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::fake_engine::{FakeEngine, Guest, STDERR, STDOUT, frame};
use crate::conformance::cut;
use crate::contract::Inside as _;
use crate::deaths::Died;
use crate::docker::attach::{AttachedSocket, StderrTail, as_socket, attach};
use crate::docker::engine::Engine;
use crate::guest_link::{GuestLink, LinkSettings, Surroundings};

const PATIENCE: Duration = Duration::from_secs(10);

struct Attached {
    link: AttachedSocket,
    guest: Guest,
    stderr: StderrTail,
}

async fn attached(fake: &mut FakeEngine) -> Attached {
    let engine = Engine::new(fake.config().endpoint);
    let stderr = StderrTail::default();
    let results = attach(&engine, "box", true).await.unwrap();
    let link = as_socket(results, InstanceId::from_u128(1), stderr.clone()).unwrap();
    Attached { link, guest: fake.attached().await, stderr }
}

/// Reads to the end.
async fn read_all(link: AttachedSocket) -> Vec<u8> {
    let stream = std::os::unix::net::UnixStream::from(link.socket);
    stream.set_nonblocking(true).unwrap();
    let mut stream = UnixStream::from_std(stream).unwrap();
    let mut all = Vec::new();
    match timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("it ends") {
        Ok(_) => all,
        Err(error) => panic!("{error}"),
    }
}

/// Messages across frames, noise between, and frames of nothing.
fn conversation() -> (Vec<u8>, &'static [u8]) {
    let frames = [
        frame(STDOUT, b"first li"),
        frame(STDERR, b"noise\n"),
        frame(STDOUT, b""),
        frame(STDOUT, b"ne\nsecond line\n\x01\x00\x00\x00"),
        frame(STDERR, b""),
        frame(STDOUT, b"x"),
    ];
    (frames.concat(), b"first line\nsecond line\n\x01\x00\x00\x00x")
}

#[tokio::test]
async fn docker_frames_may_be_cut_at_every_byte() {
    let mut fake = FakeEngine::start();
    let (bytes, expected) = conversation();
    for at in 0..=bytes.len() {
        let Attached { link, mut guest, stderr } = attached(&mut fake).await;
        for part in [&bytes[..at], &bytes[at..]] {
            guest.raw(part).await;
            // So that the first part is read alone.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(guest);
        assert_eq!(read_all(link).await, expected, "cut at {at}");
        assert_eq!(stderr.text().as_deref(), Some("noise"), "cut at {at}");
    }
}

#[tokio::test]
async fn guest_messages_may_arrive_byte_by_byte() {
    let mut fake = FakeEngine::start();
    let (bytes, expected) = conversation();
    let Attached { link, mut guest, .. } = attached(&mut fake).await;
    for byte in bytes {
        guest.raw(&[byte]).await;
        tokio::task::yield_now().await;
    }
    drop(guest);
    assert_eq!(read_all(link).await, expected);
}

#[tokio::test]
async fn broken_docker_stream_ends_the_connection() {
    let whole = frame(STDOUT, b"whole");
    let huge = [&[STDOUT, 0, 0, 0, 0xff, 0xff, 0xff, 0xff][..], b"some of it"].concat();
    let torn: [(&str, Vec<u8>); 7] = [
        ("in a header", vec![STDOUT, 0, 0]),
        ("after a header", frame(STDOUT, b"four")[..8].to_vec()),
        ("in a payload", frame(STDOUT, b"four")[..10].to_vec()),
        ("in a payload of standard error", frame(STDERR, b"four")[..10].to_vec()),
        ("in a payload that is never whole", huge),
        ("of no known kind", frame(3, b"what\n")),
        ("not framed at all", b"plain text\n".to_vec()),
    ];
    let mut fake = FakeEngine::start();
    for (what, bytes) in torn {
        let Attached { link, mut guest, .. } = attached(&mut fake).await;
        guest.raw(&whole).await;
        guest.raw(&bytes).await;
        // A byte that is no frame ends it at once; the rest ends with the stream.
        let open = Some(guest).filter(|_| bytes[0] > STDERR);
        assert_eq!(read_all(link).await, b"whole", "{what}");
        drop(open);
    }
}

#[tokio::test]
async fn a_guest_without_a_first_message_is_reported_as_such() {
    let mut fake = FakeEngine::start();
    let Attached { link, mut guest, stderr } = attached(&mut fake).await;
    guest.raw(&frame(STDERR, b"no such file")).await;
    drop(guest);
    assert!(timeout(PATIENCE, link.spoke).await.expect("in time").is_err(), "it sent no message");
    assert_eq!(stderr.text().as_deref(), Some("no such file"));
    let Attached { link, mut guest, .. } = attached(&mut fake).await;
    guest.raw(&frame(STDOUT, b"x")).await;
    timeout(PATIENCE, link.spoke).await.expect("in time").expect("its first message");
}

#[tokio::test]
async fn only_the_end_of_long_standard_error_is_kept() {
    let mut fake = FakeEngine::start();
    let Attached { link, mut guest, stderr } = attached(&mut fake).await;
    for n in 0..100 {
        guest.raw(&frame(STDERR, format!("{n:0>100}\n").as_bytes())).await;
    }
    drop(guest);
    read_all(link).await;
    let text = stderr.text().unwrap();
    assert!(text.len() <= 1024 && text.ends_with("99"), "{text}");
}

struct NoRuntime;

#[async_trait]
impl Surroundings for NoRuntime {
    fn memory_ran_out(&self) -> bool {
        false
    }

    async fn death(&self) -> Died {
        Died::alone(InstanceId::from_u128(1), None, false)
    }
}

#[tokio::test]
async fn fake_calls_dropped_at_every_await_lose_nothing() {
    let mut fake = FakeEngine::start();
    let Attached { link, mut guest, .. } = attached(&mut fake).await;
    let settings = LinkSettings { pass_descriptors: false, ..LinkSettings::default() };
    let link = GuestLink::new(link.socket, settings, Arc::new(NoRuntime)).unwrap();
    let answering = tokio::spawn(async move {
        guest.ready().await;
        let mut answered = 0_usize;
        while let Some((channel, request)) = guest.request().await {
            assert!(matches!(request, Request::Ping), "{request:?}");
            let bytes = guest.message(channel, &Reply::Done);
            // Each answer in two frames with noise between, cut somewhere else each time.
            let at = answered % (bytes.len() + 1);
            let frames =
                [frame(STDOUT, &bytes[..at]), frame(STDERR, b"noise"), frame(STDOUT, &bytes[at..])]
                    .concat();
            let at = answered * 7 % (frames.len() + 1);
            guest.raw(&frames[..at]).await;
            tokio::task::yield_now().await;
            guest.raw(&frames[at..]).await;
            answered += 1;
        }
        answered
    });
    for polls in 0..40 {
        cut(polls, link.ping()).await.transpose().unwrap();
        timeout(PATIENCE, link.ping()).await.expect("in time").expect("it still answers");
    }
    drop(link);
    assert!(answering.await.unwrap() >= 40);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn docker_frames_in_any_pieces_decode_the_same(
        frames in prop::collection::vec((prop::bool::ANY, prop::collection::vec(any::<u8>(), 0..300)), 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (mut bytes, mut expected) = (Vec::new(), Vec::<u8>::new());
        for (noise, payload) in &frames {
            bytes.extend(frame(if *noise { STDERR } else { STDOUT }, payload));
            if !noise {
                expected.extend(payload);
            }
        }
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let said: Result<_, io::Error> = runtime.block_on(async {
            let mut fake = FakeEngine::start();
            let Attached { link, mut guest, .. } = attached(&mut fake).await;
            let mut from = 0;
            for at in cuts.into_iter().chain([bytes.len()]) {
                guest.raw(&bytes[from..at]).await;
                tokio::task::yield_now().await;
                from = at;
            }
            drop(guest);
            Ok(read_all(link).await)
        });
        prop_assert_eq!(said.unwrap(), expected);
    }
}
