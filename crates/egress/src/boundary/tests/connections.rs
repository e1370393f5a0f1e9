//! Connections: bodies that flow, upgrades, kept connections, and ends that leave.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot};

use super::support::*;

/// A body whose pieces a test sends one by one.
fn pieces() -> (mpsc::Sender<Bytes>, Body) {
    let (sender, mut receiver) = mpsc::channel(1);
    let stream = futures_util::stream::poll_fn(move |cx| {
        receiver.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    });
    (sender, StreamBody::new(stream).boxed())
}

/// Reads a head, and says what it was.
async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => read.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn events_arrive_one_by_one() {
    for (alpn, client2) in [("http/1.1", false), ("http/1.1", true), ("h2", false), ("h2", true)] {
        let (sender, body) = pieces();
        let body = Arc::new(Mutex::new(Some(body)));
        let real = real(&[alpn], move |_| {
            let body = body.lock().unwrap().take().unwrap();
            let response = Response::builder().header("content-type", "text/event-stream");
            async move { response.body(body).unwrap() }
        })
        .await;
        let between = Between::usual(&real);
        let mut body = if client2 {
            let request = Request::get(format!("https://{HOST}/")).body(full("")).unwrap();
            between.http2().await.send_request(request).await.unwrap().into_body()
        } else {
            let request = get("/").body(full("")).unwrap();
            between.http1().await.send_request(request).await.unwrap().into_body()
        };
        // The next event is sent only when the one before it has arrived.
        for event in ["data: one\n\n", "data: two\n\n", "data: three\n\n"] {
            sender.send(Bytes::from(event)).await.unwrap();
            let arrived = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(arrived, event);
        }
        drop(sender);
        let rest = body.collect().await.map(http_body_util::Collected::to_bytes);
        assert!(rest.as_ref().is_ok_and(Bytes::is_empty), "{alpn} {client2} {rest:?}");
    }
}

#[tokio::test]
async fn an_end_without_notice_is_an_error_except_for_events() {
    for (kind, passes) in [("text/event-stream", true), ("application/json", false)] {
        let real = real_tls(certified(HOST, false, &[]), move |mut stream| async move {
            head(&mut stream).await;
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n\r\ndata: 1\n\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            stream.get_mut().0.shutdown().await.unwrap();
        })
        .await;
        let between = Between::usual(&real);
        let request = Request::get(format!("https://{HOST}/")).body(full("")).unwrap();
        let response = between.http2().await.send_request(request).await.unwrap();
        assert_eq!(response.into_body().collect().await.is_ok(), passes, "{kind}");
    }
}

#[tokio::test]
async fn a_websocket_gets_the_value_and_then_bytes_pass_untouched() {
    // The host prefers HTTP/2, which has no upgrades: the boundary must ask for HTTP/1.1.
    let heads = Arc::new(Mutex::new(String::new()));
    let seen = Arc::clone(&heads);
    let real = real_tls(certified(HOST, false, &["h2", "http/1.1"]), move |mut stream| {
        let seen = Arc::clone(&seen);
        async move {
            *seen.lock().unwrap() = head(&mut stream).await;
            let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                          upgrade: websocket\r\nsec-websocket-accept: x\r\n\r\nfirst";
            stream.write_all(answer.as_bytes()).await.unwrap();
            let mut bytes = vec![0; PLACEHOLDER.len()];
            stream.read_exact(&mut bytes).await.unwrap();
            stream.write_all(&bytes).await.unwrap();
            stream.shutdown().await.ok();
        }
    })
    .await;
    let between = Between::usual(&real);
    let mut client = between.http1().await;
    let request = get("/socket").header("connection", "Upgrade").header("upgrade", "WebSocket");
    let request = request.header("authorization", PLACEHOLDER).header("sec-websocket-key", "k");
    let mut response = client.send_request(request.body(full("")).unwrap()).await.unwrap();
    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["sec-websocket-accept"], "x");
    let upgraded = hyper::upgrade::on(&mut response).await.unwrap();
    let mut upgraded = TokioIo::new(upgraded);
    upgraded.write_all(PLACEHOLDER.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    upgraded.read_to_end(&mut read).await.unwrap();
    assert_eq!(read, format!("first{PLACEHOLDER}").as_bytes());
    let head = heads.lock().unwrap().clone();
    assert!(head.contains(&format!("authorization: {VALUE}\r\n")), "{head}");
    assert!(head.contains("upgrade: websocket\r\n") && head.contains("sec-websocket-key: k"));
}

#[tokio::test]
async fn other_upgrades_are_not_passed_on() {
    let real = real(&["http/1.1"], tell).await;
    let between = Between::usual(&real);
    let mut client = between.http1().await;
    let request = get("/").header("connection", "upgrade, http2-settings").header("upgrade", "h2c");
    let request = request.header("http2-settings", "x").body(full("")).unwrap();
    let told = text(client.send_request(request).await.unwrap()).await;
    assert!(!told.contains("upgrade") && !told.contains("http2-settings"), "{told}");
}

#[tokio::test]
async fn a_hundred_requests_need_one_connection() {
    for alpn in ["http/1.1", "h2"] {
        let real = real(&[alpn], tell).await;
        let between = Between::usual(&real);
        let mut client = between.http1().await;
        for number in 0..100 {
            client.ready().await.unwrap();
            let request = get(&format!("/{number}")).header("authorization", PLACEHOLDER);
            let response = client.send_request(request.body(full("")).unwrap()).await.unwrap();
            assert!(text(response).await.contains(VALUE));
        }
        assert_eq!(real.connections.load(Ordering::Relaxed), 1);
        // Another client never gets the connection of this one.
        let request = get("/").body(full("")).unwrap();
        text(between.http1().await.send_request(request).await.unwrap()).await;
        assert_eq!(real.connections.load(Ordering::Relaxed), 2);
    }
}

#[tokio::test]
async fn requests_at_the_same_time_reach_a_host_that_has_only_http1() {
    let real = real(&["http/1.1"], tell).await;
    let between = Between::usual(&real);
    let client = between.http2().await;
    let requests = (0..50).map(|number| {
        let mut client = client.clone();
        async move {
            let request = Request::get(format!("https://{HOST}/{number}")).body(full("")).unwrap();
            text(client.send_request(request).await.unwrap()).await
        }
    });
    for (number, told) in futures_util::future::join_all(requests).await.iter().enumerate() {
        assert!(told.starts_with(&format!("GET /{number} ")), "{told}");
    }
}

#[tokio::test]
async fn a_host_that_closes_between_requests_is_dialled_again() {
    let (closed, mut closes) = mpsc::unbounded_channel();
    let real = real_tls(certified(HOST, false, &[]), move |mut stream| {
        let closed = closed.clone();
        async move {
            head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
            stream.shutdown().await.ok();
            drop(stream);
            closed.send(()).unwrap();
        }
    })
    .await;
    let between = Between::usual(&real);
    let mut client = between.http1().await;
    for _ in 0..5 {
        client.ready().await.unwrap();
        let response = client.send_request(get("/").body(full("")).unwrap()).await.unwrap();
        assert_eq!(text(response).await, "ok");
        closes.recv().await.unwrap();
    }
    assert_eq!(real.connections.load(Ordering::Relaxed), 5);
}

#[tokio::test]
async fn a_request_that_was_sent_is_not_sent_again() {
    let received = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&received);
    let real = real_tls(certified(HOST, false, &[]), move |mut stream| {
        let count = Arc::clone(&count);
        async move {
            while !head(&mut stream).await.is_empty() {
                if count.fetch_add(1, Ordering::Relaxed) > 0 {
                    return;
                }
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                stream.write_all(answer).await.unwrap();
            }
        }
    })
    .await;
    let between = Between::usual(&real);
    let mut client = between.http1().await;
    let mut answers = Vec::new();
    for _ in 0..2 {
        client.ready().await.unwrap();
        let request = get("/").body(full("")).unwrap();
        let response = client.send_request(request).await.unwrap();
        answers.push(response.status().as_u16());
        text(response).await;
    }
    assert_eq!(answers, [200, 502]);
    assert_eq!(received.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn large_bodies_pass_and_wait_for_the_receiver() {
    const PIECES: usize = 256;
    for alpn in ["http/1.1", "h2"] {
        let (go, waits) = oneshot::channel::<()>();
        let waits = Arc::new(Mutex::new(Some(waits)));
        let real = real(&[alpn], move |request: Request<Incoming>| {
            let waits = waits.lock().unwrap().take().unwrap();
            async move {
                waits.await.unwrap();
                Response::new(request.into_body().map_err(io::Error::other).boxed())
            }
        })
        .await;
        let between = Between::usual(&real);
        let (sender, body) = pieces();
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let sending = tokio::spawn(async move {
            for number in 0..PIECES {
                sender.send(vec![(number % 251) as u8; 64 * 1024].into()).await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let request = Request::post(format!("https://{HOST}/")).body(body).unwrap();
        let mut client = between.http2().await;
        let answering = tokio::spawn(async move { client.send_request(request).await.unwrap() });
        // Until the host reads, only what fits into buffers on the way is taken.
        let mut before = usize::MAX;
        while before != sent.load(Ordering::Relaxed) {
            before = sent.load(Ordering::Relaxed);
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
        assert!(before < PIECES / 2, "{before} pieces were taken without a reader");
        go.send(()).unwrap();
        let mut body = answering.await.unwrap().into_body();
        let mut received = 0_usize;
        while let Some(frame) = body.frame().await {
            let data = frame.unwrap().into_data().unwrap();
            for byte in &data {
                assert_eq!(usize::from(*byte), received / (64 * 1024) % 251);
                received += 1;
            }
        }
        assert_eq!(received, PIECES * 64 * 1024);
        sending.await.unwrap();
    }
}

#[tokio::test]
async fn a_client_that_goes_away_takes_its_connections_with_it() {
    for client2 in [false, true] {
        let (ended, mut ends) = mpsc::unbounded_channel();
        let (started, mut starts) = mpsc::unbounded_channel();
        let real = real_tls(certified(HOST, false, &[]), move |mut stream| {
            let (started, ended) = (started.clone(), ended.clone());
            async move {
                head(&mut stream).await;
                started.send(()).unwrap();
                // No answer: the next bytes are the end.
                let mut rest = Vec::new();
                stream.read_to_end(&mut rest).await.ok();
                ended.send(rest.len()).unwrap();
            }
        })
        .await;
        let between = Between::usual(&real);
        let alpn = if client2 { "h2" } else { "http/1.1" };
        let Client { stream, serving } = between.client(HOST, &[alpn]).await.unwrap();
        let asking = tokio::spawn(async move {
            let io = TokioIo::new(stream);
            if client2 {
                let executor = hyper_util::rt::TokioExecutor::new();
                let (mut client, connection) =
                    hyper::client::conn::http2::handshake(executor, io).await.unwrap();
                let request = Request::get(format!("https://{HOST}/")).body(full("")).unwrap();
                tokio::join!(client.send_request(request), connection).1.ok();
            } else {
                let (mut client, connection) =
                    hyper::client::conn::http1::handshake(io).await.unwrap();
                let request = get("/").body(full("")).unwrap();
                tokio::join!(client.send_request(request), connection).1.ok();
            }
        });
        starts.recv().await.unwrap();
        asking.abort();
        assert_eq!(ends.recv().await, Some(0));
        serving.await.unwrap().unwrap();
        let moved = [&between.moved.out, &between.moved.back];
        assert!(moved.iter().all(|count| count.load(Ordering::Relaxed) > 0));
    }
}

#[tokio::test]
async fn a_connection_that_is_cut_takes_those_to_the_host_with_it() {
    let (ended, mut ends) = mpsc::unbounded_channel();
    let (started, mut starts) = mpsc::unbounded_channel();
    let real = real_tls(certified(HOST, false, &[]), move |mut stream| {
        let (started, ended) = (started.clone(), ended.clone());
        async move {
            head(&mut stream).await;
            started.send(()).unwrap();
            stream.read_u8().await.unwrap_err();
            ended.send(()).unwrap();
        }
    })
    .await;
    let between = Between::usual(&real);
    let Client { mut stream, serving } = between.client(HOST, &["http/1.1"]).await.unwrap();
    stream.write_all(format!("GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n").as_bytes()).await.unwrap();
    starts.recv().await.unwrap();
    serving.abort();
    ends.recv().await.unwrap();
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let real = real(&["http/1.1"], tell).await;
    let between = Between::usual(&real);
    let large = get("/").header("x-large", "a".repeat(70 * 1024)).body(full("")).unwrap();
    let response = between.http1().await.send_request(large).await.unwrap();
    assert_eq!(response.status(), 431);
    assert_eq!(real.connections.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn plain_bytes_are_no_greeting() {
    let real = real(&["http/1.1"], tell).await;
    let between = Between::usual(&real);
    let answer = between.plain(b"GET / HTTP/1.1\r\nhost: api.shoal.test\r\n\r\n").await;
    assert!(answer.is_err());
    assert_eq!(real.connections.load(Ordering::Relaxed), 0);
}
