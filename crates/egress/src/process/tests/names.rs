//! Questions of sandboxes for names, and questions of ours: a resolver on loopback that changes its
//! mind.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tokio::net::UdpSocket;

use super::bed::{self, Bed, echo, host, read_all};
use crate::event::{EventKind, Verdict};

fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&[0, 1]);
    bytes
}

#[tokio::test]
async fn allowed_names_have_an_address_and_others_do_not_exist() {
    let bed = Bed::new(&["*.wild.test"], None);
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut answer = [0; 512];
    for (name, code, verdict) in
        [("a.wild.test", 0, Verdict::Allowed), ("evil.test", 3, Verdict::Refused)]
    {
        client.send_to(&question(name, 1), bed.names).await.unwrap();
        let count = client.recv(&mut answer).await.unwrap();
        assert_eq!(answer[3] & 15, code, "{name}");
        let event = bed.event(EventKind::Name).await;
        assert_eq!((event.name, event.verdict), (Some(host(name)), verdict));
        if verdict == Verdict::Allowed {
            assert_eq!(answer[count - 4], 198);
        }
    }
    let mut stream = bed.dial("127.0.0.1:53".parse().unwrap()).await;
    for _ in 0..2 {
        let asked = question("a.wild.test", 1);
        bed::write(&mut stream, &[&[0, asked.len() as u8][..], &asked].concat()).await;
        let answer = bed::read_some(&mut stream).await;
        assert_eq!(usize::from(answer[1]) + 2, answer.len());
    }
}

/// A resolver that gives each of these answers for one question after the other, and then the last.
async fn resolver(answers: Vec<Vec<Ipv4Addr>>) -> (SocketAddr, Arc<AtomicUsize>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let (count, answers) = (asked.clone(), Mutex::new(answers));
    tokio::spawn(async move {
        let mut buffer = [0; 512];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            let message = &buffer[..length];
            let end = 12 + message[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
            let is_v4 = message[end - 3] == 1;
            let mut addresses = Vec::new();
            if is_v4 {
                count.fetch_add(1, SeqCst);
                let mut answers = answers.lock().unwrap();
                addresses = if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
            }
            let mut answer = message[..end].to_vec();
            answer[2] = 0x85;
            answer[3] = 0x80;
            answer[7] = addresses.len() as u8;
            answer[8..12].fill(0);
            for address in addresses {
                answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
                answer.extend_from_slice(&address.octets());
            }
            socket.send_to(&answer, from).await.unwrap();
        }
    });
    (address, asked)
}

const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;
const PRIVATE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

#[tokio::test]
async fn a_name_that_changes_its_address_is_judged_each_time() {
    let target = echo().await;
    let port = target.port();
    let (resolver, asked) = resolver(vec![vec![LOCAL], vec![PRIVATE]]).await;
    let bed = Bed::new(&[&format!("moves.test:{port}"), "127.0.0.1"], Some(resolver));
    let mut first = bed.dial_name("moves.test", port).await;
    let mut second = bed.dial_name("moves.test", port).await;
    for client in [&mut first, &mut second] {
        bed::write(client, b"x").await;
        assert_eq!(bed::read_some(client).await, b"x");
        assert_eq!(bed.event(EventKind::Connection).await.verdict, Verdict::Allowed);
    }
    assert_eq!(asked.load(SeqCst), 1, "one question for both");
    tokio::time::sleep(std::time::Duration::from_millis(1200)).await;
    let mut client = bed.dial_name("moves.test", port).await;
    assert!(read_all(&mut client).await.is_empty());
    let event = bed.event(EventKind::Connection).await;
    assert_eq!(event.verdict, Verdict::Refused);
    assert!(event.reason.unwrap().contains("127.0.0.2"));
}

#[tokio::test]
async fn of_a_mixed_answer_only_what_is_admitted_is_tried() {
    let target = echo().await;
    let port = target.port();
    let (resolver, _) = resolver(vec![vec![PRIVATE, LOCAL]]).await;
    let bed = Bed::new(&[&format!("mixed.test:{port}"), "127.0.0.1"], Some(resolver));
    let mut client = bed.dial_name("mixed.test", port).await;
    bed::write(&mut client, b"x").await;
    assert_eq!(bed::read_some(&mut client).await, b"x");
    let event = bed.event(EventKind::Connection).await;
    assert_eq!(event.address, Some(LOCAL.into()));
}
