//! The engine's framing, through the library: whatever the pieces are in which it arrives, what guests
//! said comes out, whole and in order, and nothing else does.

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
use crate::docker::attach::{AsSocket, LastWords, as_socket, attach};
use crate::docker::engine::Engine;
use crate::guest_link::{GuestLink, LinkSettings, Surroundings};

const PATIENCE: Duration = Duration::from_secs(10);

struct Attached {
    link: AsSocket,
    guest: Guest,
    words: LastWords,
}

async fn attached(fake: &mut FakeEngine) -> Attached {
    let engine = Engine::new(fake.config().endpoint);
    let words = LastWords::default();
    let results = attach(&engine, "box", true).await.unwrap();
    let link = as_socket(results, InstanceId::from_u128(1), words.clone()).unwrap();
    Attached { link, guest: fake.attached().await, words }
}

/// Reads to the end.
async fn read_all(link: AsSocket) -> Vec<u8> {
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
async fn frames_may_be_cut_at_every_byte() {
    let mut fake = FakeEngine::start();
    let (bytes, expected) = conversation();
    for at in 0..=bytes.len() {
        let Attached { link, mut guest, words } = attached(&mut fake).await;
        for part in [&bytes[..at], &bytes[at..]] {
            guest.raw(part).await;
            // So that the first part is read alone.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(guest);
        assert_eq!(read_all(link).await, expected, "cut at {at}");
        assert_eq!(words.text().as_deref(), Some("noise"), "cut at {at}");
    }
}

#[tokio::test]
async fn bytes_may_come_one_by_one() {
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
async fn what_is_torn_ends_the_connection_and_is_not_passed_on() {
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
        // What is not framed ends it by itself; the rest when there is no more.
        let open = Some(guest).filter(|_| bytes[0] > STDERR);
        assert_eq!(read_all(link).await, b"whole", "{what}");
        drop(open);
    }
}

#[tokio::test]
async fn who_never_spoke_is_told_apart() {
    let mut fake = FakeEngine::start();
    let Attached { link, mut guest, words } = attached(&mut fake).await;
    guest.raw(&frame(STDERR, b"no such file")).await;
    drop(guest);
    assert!(timeout(PATIENCE, link.spoke).await.expect("in time").is_err(), "it said nothing");
    assert_eq!(words.text().as_deref(), Some("no such file"));
    let Attached { link, mut guest, .. } = attached(&mut fake).await;
    guest.raw(&frame(STDOUT, b"x")).await;
    timeout(PATIENCE, link.spoke).await.expect("in time").expect("it spoke");
}

#[tokio::test]
async fn only_the_end_of_long_last_words_is_remembered() {
    let mut fake = FakeEngine::start();
    let Attached { link, mut guest, words } = attached(&mut fake).await;
    for n in 0..100 {
        guest.raw(&frame(STDERR, format!("{n:0>100}\n").as_bytes())).await;
    }
    drop(guest);
    read_all(link).await;
    let text = words.text().unwrap();
    assert!(text.len() <= 1024 && text.ends_with("99"), "{text}");
}

struct Nobody;

#[async_trait]
impl Surroundings for Nobody {
    fn memory_ran_out(&self) -> bool {
        false
    }

    async fn death(&self) -> Died {
        Died { instance: InstanceId::from_u128(1), status: None, out_of_memory: false }
    }
}

#[tokio::test]
async fn dropped_at_every_await_nothing_is_lost() {
    let mut fake = FakeEngine::start();
    let Attached { link, mut guest, .. } = attached(&mut fake).await;
    let settings = LinkSettings { pass_descriptors: false, ..LinkSettings::default() };
    let link = GuestLink::new(link.socket, settings, Arc::new(Nobody)).unwrap();
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
    fn any_frames_in_any_pieces_say_the_same(
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
