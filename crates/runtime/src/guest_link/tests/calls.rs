//! Answers, deadlines, drops, and how a connection ends.

use std::sync::Arc;
use std::time::Duration;

use guest_protocol::Env;
use guest_protocol::message::{ExitStatus, Fault, FaultCode, Port, Reply, Request, VERSION};
use model::InstanceId;
use tokio::time::timeout;

use super::peer::{Scenery, pair, ready_pair};
use crate::contract::Inside as _;
use crate::deaths::Died;
use crate::error::RuntimeErrorCode;
use crate::guest_link::LinkSettings;

#[tokio::test]
async fn guest_readiness_or_the_failed_step_is_reported() {
    for (said, code) in [
        (Reply::Ready { version: VERSION }, None),
        (Reply::Ready { version: VERSION + 1 }, Some(RuntimeErrorCode::LaunchFailed)),
        (
            Reply::SetupFailed { step: "mount /proc".to_owned(), errno: 1 },
            Some(RuntimeErrorCode::LaunchFailed),
        ),
        (Reply::Done, Some(RuntimeErrorCode::Protocol)),
    ] {
        let (link, mut peer) = pair(LinkSettings::default(), Scenery::default());
        peer.say(0, &said).await;
        let ready = timeout(Duration::from_secs(5), link.ready()).await.unwrap();
        assert_eq!(ready.as_ref().err().map(|error| error.code), code, "{said:?}");
        if let Reply::SetupFailed { step, errno } = said {
            let error = ready.unwrap_err();
            assert_eq!((error.step.as_ref(), error.errno), (step.as_str(), Some(errno)));
        }
    }
}

#[tokio::test]
async fn guest_answers_find_their_calls_in_any_order() {
    let (link, mut peer) = ready_pair().await;
    let (pinger, lister) = (Arc::clone(&link), Arc::clone(&link));
    let ping = tokio::spawn(async move { pinger.ping().await });
    let (ping_channel, request) = peer.request().await;
    assert_eq!(request, Request::Ping);
    let ports = tokio::spawn(async move { lister.ports().await });
    let (ports_channel, request) = peer.request().await;
    assert_eq!(request, Request::Ports);
    assert!(ports_channel > ping_channel);
    let port = Port { port: 80, loopback_only: false };
    peer.say(ports_channel, &Reply::Ports(vec![port])).await;
    assert_eq!(ports.await.unwrap().unwrap(), [port]);
    let fault = Fault { code: FaultCode::Denied, errno: 13, message: "no".to_owned() };
    peer.say(ping_channel, &Reply::Failed(fault)).await;
    let error = ping.await.unwrap().unwrap_err();
    assert_eq!((error.code, error.errno), (RuntimeErrorCode::Denied, Some(13)));
    let held = link.connection.lock().parts(0).0.held_bytes();
    assert!(held <= 512, "an idle connection holds {held} bytes");
}

#[tokio::test]
async fn a_guest_starts_again_on_a_new_connection() {
    let (link, mut peer) = ready_pair().await;
    let ender = Arc::clone(&link);
    let ended = tokio::spawn(async move { ender.end_all().await });
    let (channel, request) = peer.request().await;
    assert_eq!(request, Request::EndAll);
    peer.say(channel, &Reply::Done).await;
    ended.await.unwrap().unwrap();
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    link.begin_again(theirs.into()).unwrap();
    assert_eq!(peer.request().await.1, Request::BeginAgain);
    assert_eq!(peer.descriptors.len(), 1);
    drop(peer);
    // The other end is not kept open here.
    assert_eq!(std::io::Read::read(&mut ours, &mut [0]).unwrap(), 0);

    let settings = LinkSettings { pass_descriptors: false, ..LinkSettings::default() };
    let (link, _peer) = pair(settings, Scenery::default());
    let (_, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let refused = link.begin_again(theirs.into()).unwrap_err();
    assert_eq!(refused.code, RuntimeErrorCode::Unsupported);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_an_answer_ends_at_its_deadline() {
    let (link, mut peer) = ready_pair().await;
    let error = link.ping().await.unwrap_err();
    assert_eq!(error.code, RuntimeErrorCode::DeadlineExceeded);
    assert!(error.retryable());
    // The late answer disturbs no other call.
    let (late, _) = peer.request().await;
    peer.say(late, &Reply::Done).await;
    let next = Arc::clone(&link);
    let claim = tokio::spawn(async move { next.claim(Env(vec![])).await });
    let (channel, request) = peer.request().await;
    assert_eq!(request, Request::Claim { env: Env(vec![]) });
    peer.say(channel, &Reply::Done).await;
    claim.await.unwrap().unwrap();
}

#[tokio::test]
async fn cancelled_calls_count_until_the_guest_is_done_with_them() {
    let (link, mut peer) = ready_pair().await;
    let mut refused = 0;
    for _ in 0..1100 {
        match timeout(Duration::ZERO, link.ping()).await {
            Err(_) => {}
            Ok(answer) => {
                assert_eq!(answer.unwrap_err().code, RuntimeErrorCode::LimitReached);
                refused += 1;
            }
        }
    }
    assert_eq!(refused, 1100 - 1024);
    for _ in 0..1024 {
        let (channel, _) = peer.request().await;
        peer.endpoint.send(channel, &Reply::Done).unwrap();
        peer.endpoint.close(channel);
    }
    peer.flush().await;
    let next = Arc::clone(&link);
    let ping = tokio::spawn(async move {
        while next.connection.lock().open_calls() > 0 {
            tokio::task::yield_now().await;
        }
        next.ping().await
    });
    let (channel, _) = peer.request().await;
    peer.say(channel, &Reply::Done).await;
    ping.await.unwrap().unwrap();
}

#[tokio::test]
async fn broken_connection_fails_every_waiting_caller_with_the_reason() {
    for out_of_memory in [false, true] {
        let instance = InstanceId::from_u128(1);
        let died = Died::alone(instance, Some(ExitStatus::Signal(9)), out_of_memory);
        let scenery = Scenery { died: Some(died), ..Scenery::default() };
        let (link, mut peer) = pair(LinkSettings::default(), scenery);
        let link = Arc::new(link);
        let other = Arc::clone(&link);
        let ping = tokio::spawn(async move { other.ping().await });
        peer.request().await;
        drop(peer);
        let expected = if out_of_memory {
            RuntimeErrorCode::OutOfMemory
        } else {
            RuntimeErrorCode::SandboxGone
        };
        let error = ping.await.unwrap().unwrap_err();
        assert_eq!((error.code, error.step.as_ref()), (expected, "ping"));
        assert_eq!(link.ready().await.unwrap_err().code, expected);
        assert_eq!(link.ping().await.unwrap_err().code, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_exit_reason_is_not_waited_for_long() {
    let (link, peer) = ready_pair().await;
    drop(peer);
    let error = timeout(Duration::from_secs(1), link.ping()).await.unwrap().unwrap_err();
    assert_eq!(error.code, RuntimeErrorCode::SandboxGone);
    assert!(error.cause.contains("closed"), "{error}");
}

#[tokio::test]
async fn a_guest_that_breaks_the_protocol_is_given_up() {
    let (link, mut peer) = ready_pair().await;
    peer.raw(&[0xff; 64]).await;
    let error = timeout(Duration::from_secs(5), link.ping()).await.unwrap().unwrap_err();
    assert_eq!(error.code, RuntimeErrorCode::Protocol);
    peer.closed().await;
}

#[tokio::test]
async fn a_guest_that_answers_twice_or_wrongly_is_refused() {
    let (link, mut peer) = ready_pair().await;
    let other = Arc::clone(&link);
    let ping = tokio::spawn(async move { other.ping().await });
    let (channel, _) = peer.request().await;
    peer.say(channel, &Reply::Ports(vec![])).await;
    let error = ping.await.unwrap().unwrap_err();
    assert_eq!(error.code, RuntimeErrorCode::Protocol);
    let other = Arc::clone(&link);
    let ping = tokio::spawn(async move { other.ping().await });
    let (channel, _) = peer.request().await;
    peer.endpoint.send(channel, &Reply::Done).unwrap();
    peer.endpoint.send(channel, &Reply::Done).unwrap();
    peer.flush().await;
    assert!(ping.await.unwrap().is_ok());
    peer.closed().await;
}

#[tokio::test]
async fn dropping_the_link_closes_the_connection() {
    let (link, mut peer) = ready_pair().await;
    drop(link);
    peer.closed().await;
}
