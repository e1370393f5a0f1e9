//! The proxy: CONNECT, SOCKS5 and plain requests.

use super::bed::{self, Bed, echo, hello, read_all, served};
use crate::event::{EventKind, Verdict};

#[tokio::test]
async fn a_tunnel_leads_to_an_allowed_name_only() {
    let host = echo().await;
    let port = host.port();
    let bed = Bed::new(&[&format!("up.test:{port}/tls"), "127.0.0.1"], None);
    let mut client = bed.dial_proxy().await;
    bed::write(&mut client, format!("CONNECT up.test:{port} HTTP/1.1\r\n\r\n").as_bytes()).await;
    assert!(bed::read_some(&mut client).await.starts_with(b"HTTP/1.1 200"));
    bed::write(&mut client, &hello("up.test")).await;
    assert_eq!(bed::read_some(&mut client).await, hello("up.test"));

    let mut client = bed.dial_proxy().await;
    bed::write(&mut client, format!("CONNECT up.test:{port} HTTP/1.1\r\n\r\n").as_bytes()).await;
    assert!(bed::read_some(&mut client).await.starts_with(b"HTTP/1.1 200"));
    bed::write(&mut client, &hello("evil.test")).await;
    assert!(read_all(&mut client).await.is_empty(), "another name in the greeting");

    for target in ["evil.test:443", "1.2.3.4:443", "169.254.169.254:80", "127.0.0.1:3128"] {
        let bed = Bed::new(&["up.test:443"], None);
        let mut client = bed.dial_proxy().await;
        bed::write(&mut client, format!("CONNECT {target} HTTP/1.1\r\n\r\n").as_bytes()).await;
        let answer = String::from_utf8(read_all(&mut client).await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 403"), "{target}: {answer}");
        assert!(answer.contains("X-Shoal-Reason: no rule allows"), "{target}: {answer}");
        assert_eq!(bed.event(EventKind::Connection).await.verdict, Verdict::Refused, "{target}");
    }
}

#[tokio::test]
async fn socks_leads_to_an_allowed_name_only() {
    let host = echo().await;
    let port = host.port();
    let bed = Bed::new(&[&format!("up.test:{port}"), "127.0.0.1"], None);
    for (name, code) in [("up.test", 0), ("evil.test", 2)] {
        let mut client = bed.dial_proxy().await;
        bed::write(&mut client, &[5, 1, 0]).await;
        assert_eq!(bed::read_some(&mut client).await, [5, 0]);
        let mut request = vec![5, 1, 0, 3, name.len() as u8];
        request.extend_from_slice(name.as_bytes());
        request.extend_from_slice(&port.to_be_bytes());
        bed::write(&mut client, &request).await;
        assert_eq!(bed::read_some(&mut client).await[1], code, "{name}");
        if code == 0 {
            bed::write(&mut client, b"x").await;
            assert_eq!(bed::read_some(&mut client).await, b"x");
        }
    }
}

#[tokio::test]
async fn a_plain_request_through_the_proxy_is_judged_like_any_other() {
    let (host, mut seen) = served().await;
    let port = host.port();
    let bed = Bed::new(&[&format!("up.test:{port}/http"), "127.0.0.1"], None);
    let mut client = bed.dial_proxy().await;
    let request = format!("GET http://up.test:{port}/x HTTP/1.1\r\nHost: up.test:{port}\r\n\r\n");
    bed::write(&mut client, request.as_bytes()).await;
    assert!(bed::read_some(&mut client).await.starts_with(b"HTTP/1.1 200"));
    drop(client);
    assert!(seen.recv().await.unwrap().starts_with("GET /x "));
    let mut client = bed.dial_proxy().await;
    let request = "GET http://evil.test/x HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    bed::write(&mut client, request.as_bytes()).await;
    let answer = String::from_utf8(read_all(&mut client).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}
