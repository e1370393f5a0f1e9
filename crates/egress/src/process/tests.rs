//! Tests of the process, run as tasks of this one: plain listeners stand for the sockets of sandboxes,
//! and a table says which address each client dialled.

mod bed;
mod names;
mod secrets;
mod ways;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bed::{Bed, echo, hello, read_all, served};

use super::key_gate::KeyGate;
use crate::event::{EventKind, Verdict};
use crate::limits::EgressLimits;

#[tokio::test]
async fn an_allowed_name_is_reached_and_both_halves_close() {
    let host = echo().await;
    let bed = Bed::new(&[&format!("up.test:{}", host.port()), "127.0.0.1"], None);
    let mut client = bed.dial_name("up.test", host.port()).await;
    bed::write(&mut client, b"hello").await;
    tokio::io::AsyncWriteExt::shutdown(&mut client).await.unwrap();
    assert_eq!(read_all(&mut client).await, b"hello and the end");
    let opened = bed.event(EventKind::Connection).await;
    assert_eq!(opened.verdict, Verdict::Allowed);
    assert_eq!(opened.rule.unwrap(), format!("up.test:{}", host.port()));
    let closed = bed.event(EventKind::Closed).await;
    assert_eq!((closed.sent, closed.received, closed.verdict), (5, 17, Verdict::Allowed));
}

#[tokio::test]
async fn a_long_stream_passes_whole_through_pipes() {
    let host = echo().await;
    let bed = Bed::new(&[&format!("up.test:{}", host.port()), "127.0.0.1"], None);
    let client = bed.dial_name("up.test", host.port()).await;
    let (mut read, mut write) = client.into_split();
    let sent: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let expected = [&sent[..], b" and the end"].concat();
    let writing = tokio::spawn(async move {
        tokio::io::AsyncWriteExt::write_all(&mut write, &sent).await.unwrap();
        tokio::io::AsyncWriteExt::shutdown(&mut write).await.unwrap();
    });
    let mut received = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut read, &mut received).await.unwrap();
    writing.await.unwrap();
    assert!(received == expected, "{} bytes came back", received.len());
}

#[tokio::test]
async fn addresses_that_no_rule_names_are_closed() {
    let host = echo().await;
    let bed = Bed::new(&["other.test", "10.1.0.0/16:8000"], None);
    for (case, address) in [
        ("a public address", "1.2.3.4:443"),
        ("a port that the rule does not have", "10.1.2.3:9000"),
        ("metadata", "169.254.169.254:80"),
        ("a synthetic address without a name", "198.18.9.9:443"),
    ] {
        let mut client = bed.dial(address.parse().unwrap()).await;
        let _ = read_all(&mut client).await;
        let event = bed.event(EventKind::Connection).await;
        assert_eq!(event.verdict, Verdict::Refused, "{case}");
    }
    let mut client = bed.dial(host).await;
    assert!(read_all(&mut client).await.is_empty(), "loopback is not a way out");
}

#[tokio::test]
async fn a_connection_waits_for_what_the_server_has_said_before_it() {
    let host = echo().await;
    let rule = format!("up.test:{}", host.port());
    let bed = Bed::new(&[&rule, "127.0.0.1"], None);
    bed.shared.order.begin();
    let mut client = bed.dial_name("up.test", host.port()).await;
    // It is taken from the kernel meanwhile.
    while bed.sandbox.places.available_permits() == bed.sandbox.limits.connections as usize {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    bed.sandbox.change(&bed::allow(&["other.test"]).into(), None).await;
    bed.shared.order.end();
    assert!(read_all(&mut client).await.is_empty());
    assert_eq!(bed.event(EventKind::Connection).await.verdict, Verdict::Refused);
}

#[tokio::test]
async fn a_name_that_leads_to_a_private_address_needs_a_rule_for_it() {
    let host = echo().await;
    let rule = format!("up.test:{}", host.port());
    let bed = Bed::new(&[&rule], None);
    let mut client = bed.dial_name("up.test", host.port()).await;
    assert!(read_all(&mut client).await.is_empty());
    let event = bed.event(EventKind::Connection).await;
    assert_eq!(event.verdict, Verdict::Refused);
    assert!(event.reason.unwrap().contains("127.0.0.1"));
}

#[tokio::test]
async fn a_greeting_must_name_the_host() {
    let host = echo().await;
    let rule = format!("up.test:{}/tls", host.port());
    let bed = Bed::new(&[&rule, "127.0.0.1"], None);
    let mut client = bed.dial_name("up.test", host.port()).await;
    let greeting = hello("up.test");
    bed::write(&mut client, &greeting).await;
    tokio::io::AsyncWriteExt::shutdown(&mut client).await.unwrap();
    assert_eq!(read_all(&mut client).await, [&greeting[..], b" and the end"].concat());
    assert_eq!(bed.event(EventKind::Connection).await.verdict, Verdict::Allowed);

    for (case, bytes) in [("another name", hello("evil.test")), ("no TLS", b"GET / HTTP".to_vec())]
    {
        let mut client = bed.dial_name("up.test", host.port()).await;
        bed::write(&mut client, &bytes).await;
        assert!(read_all(&mut client).await.is_empty(), "{case}");
        assert_eq!(bed.event(EventKind::Connection).await.verdict, Verdict::Refused, "{case}");
    }
}

#[tokio::test]
async fn every_request_on_a_connection_names_the_host() {
    let (host, mut seen) = served().await;
    let rule = format!("up.test:{}/http", host.port());
    let bed = Bed::new(&[&rule, "127.0.0.1"], None);
    let port = host.port();
    let mut client = bed.dial_name("up.test", port).await;
    let good = format!("GET /one HTTP/1.1\r\nHost: up.test:{port}\r\n\r\n");
    let bad = format!("GET /two HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n");
    bed::write(&mut client, format!("{good}{bad}").as_bytes()).await;
    let _ = read_all(&mut client).await;
    let reached = seen.recv().await.unwrap();
    assert!(reached.starts_with("GET /one ") && !reached.contains("two"), "{reached}");
    assert_eq!(bed.event(EventKind::Connection).await.verdict, Verdict::Allowed);
    assert_eq!(bed.event(EventKind::Connection).await.verdict, Verdict::Refused);

    let mut client = bed.dial_name("up.test", port).await;
    bed::write(&mut client, bad.as_bytes()).await;
    let answer = String::from_utf8(read_all(&mut client).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
}

#[tokio::test]
async fn a_change_cuts_what_it_refuses_and_nothing_else() {
    let host = echo().await;
    let (port, node) = (host.port(), "127.0.0.1");
    let (one, two) = (format!("one.test:{port}"), format!("two.test:{port}"));
    let bed = Bed::new(&[&one, &two, node], None);
    let mut kept = bed.dial_name("one.test", port).await;
    let mut cut = bed.dial_name("two.test", port).await;
    for client in [&mut kept, &mut cut] {
        bed::write(client, b"x").await;
        assert_eq!(bed::read_some(client).await, b"x");
    }
    bed.sandbox.change(&bed::allow(&[&one, node]).into(), None).await;
    assert_eq!(bed::read_some(&mut cut).await, b"", "it is cut");
    let mut again = bed.dial_name("two.test", port).await;
    assert!(read_all(&mut again).await.is_empty());
    bed::write(&mut kept, b"y").await;
    assert_eq!(bed::read_some(&mut kept).await, b"y");
    // A rule that was there for the address alone is missing now.
    bed.sandbox.change(&bed::allow(&[&one]).into(), None).await;
    assert_eq!(bed::read_some(&mut kept).await, b"");
}

#[tokio::test]
async fn connections_count_for_the_key_of_the_latest_change() {
    let host = echo().await;
    let rules = [format!("up.test:{}", host.port()), "127.0.0.1".to_owned()];
    let policy = bed::allow(&rules.each_ref().map(String::as_str));
    let bed = Bed::new(&rules.each_ref().map(String::as_str), None);
    let limits = EgressLimits { connections_of_key: 3, ..EgressLimits::default() };
    let gate = Arc::new(KeyGate::new(limits, 1));
    let free = || std::iter::from_fn(|| gate.try_place()).collect::<Vec<_>>().len();
    let mut clients = Vec::new();
    for (key, left) in [(None, 3), (Some(gate.clone()), 2), (None, 2)] {
        bed.sandbox.change(&policy.clone().into(), key).await;
        let mut client = bed.dial_name("up.test", host.port()).await;
        bed::write(&mut client, b"x").await;
        assert_eq!(bed::read_some(&mut client).await, b"x");
        assert_eq!(free(), left);
        clients.push(client);
    }
}

#[tokio::test]
async fn a_sandbox_that_stops_closes_its_connections_and_gives_its_sockets_back() {
    let host = echo().await;
    let bed = Bed::new(&[&format!("up.test:{}", host.port()), "127.0.0.1"], None);
    let mut client = bed.dial_name("up.test", host.port()).await;
    bed::write(&mut client, b"x").await;
    assert_eq!(bed::read_some(&mut client).await, b"x");
    let sockets = bed.sandbox.stop().await.expect("the sockets");
    assert_eq!(bed::read_some(&mut client).await, b"");
    let address = std::net::TcpListener::from(sockets.connections).local_addr().unwrap();
    assert_eq!(address, bed.connections);
    assert!(sockets.names.is_some());
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn the_rates_of_a_key_hold_for_its_sandboxes_together() {
    let host = echo().await;
    let rules = [format!("up.test:{}", host.port()), "127.0.0.1".to_owned()];
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let limits = EgressLimits {
        new_connections_per_second_of_key: Some(1),
        bytes_per_second_of_key: Some(1000),
        ..EgressLimits::default()
    };
    let one = Bed::new(&rules, None);
    let two = Bed::with(&rules, None, EgressLimits::default(), Some(&one));
    // A small share, so that nothing comes back while this runs.
    let gate = Arc::new(KeyGate::new(limits, 1_000_000));
    let mut waiting = Vec::new();
    for bed in [&one, &two] {
        bed.sandbox.change(&bed::allow(&rules).into(), Some(gate.clone())).await;
        for _ in 0..5 {
            waiting.push(bed.dial_name("up.test", host.port()).await);
        }
    }
    let number = |number: &AtomicU64| number.load(Relaxed);
    let outbox = &one.shared.outbox;
    tokio::time::timeout(bed::PATIENCE, async {
        while number(&outbox.waits_of_key) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("both wait for their turn");
    assert_eq!((number(&outbox.accepted), number(&outbox.waits_of_sandbox)), (1, 0));
    assert!(one.sandbox.moved(1).unwrap().is_zero());
    assert!(!two.sandbox.moved(1).unwrap().is_zero(), "the other has used the bytes");
}

#[tokio::test]
async fn a_sandbox_that_is_full_does_not_hurt_another() {
    let host = echo().await;
    let rules = [format!("up.test:{}/tls", host.port()), "127.0.0.1".to_owned()];
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let limits = EgressLimits { connections: 4, ..EgressLimits::default() };
    let full = Bed::with(&rules, None, limits, None);
    let other = Bed::with(&rules, None, limits, Some(&full));
    let mut idle = Vec::new();
    for _ in 0..40 {
        idle.push(full.dial_name("up.test", host.port()).await);
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let taken = full.shared.outbox.accepted.load(Relaxed);
    assert_eq!(taken, 4, "the others wait in the backlog");
    let mut client = other.dial_name("up.test", host.port()).await;
    bed::write(&mut client, &hello("up.test")).await;
    assert!(!bed::read_some(&mut client).await.is_empty());
}
