//! Clients and hosts that speak different versions of HTTP, and requests that name another host.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::support::*;
use crate::boundary::{BoundaryNote, Place};

#[tokio::test]
async fn every_version_reaches_every_version() {
    for alpn in [&["http/1.1"][..], &["h2"], &["h2", "http/1.1"], &[]] {
        let real = real(alpn, tell).await;
        let between = Between::usual(&real);
        let http2 = alpn.first() == Some(&"h2");
        let line = if http2 { format!("https://{HOST}/p HTTP/2.0") } else { "/p HTTP/1.1".into() };
        let line = format!("POST {line}\n");
        let mut client = between.http1().await;
        let request =
            Request::post("/p").header("host", HOST).header("connection", "x-drop, close");
        let request = request.header("x-drop", "1").header("te", "trailers").header("x-keep", "1");
        let request = request.header("authorization", PLACEHOLDER).body(full("abc")).unwrap();
        let told = text(client.send_request(request).await.unwrap()).await;
        assert!(told.starts_with(&line) && told.ends_with("\n\nabc"), "{told}");
        assert!(told.contains(VALUE) && told.contains("x-keep") && !told.contains("x-drop"));
        assert_eq!(told.contains("host: "), !http2, "{told}");

        let mut client = between.http2().await;
        let request = Request::post(format!("https://{HOST}/p")).header("te", "trailers");
        let request = request.header("authorization", PLACEHOLDER);
        let request = request.header("cookie", "a=1").header("cookie", "b=2");
        let request = request.body(full("abc")).unwrap();
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.version(), Version::HTTP_2);
        let told = text(response).await;
        assert!(told.starts_with(&line) && told.ends_with("\n\nabc"), "{told}");
        assert!(told.contains(VALUE), "{told}");
        assert_eq!(told.contains("te: trailers"), http2, "{told}");
        assert_eq!(told.contains("cookie: a=1; b=2\n"), !http2, "{told}");
    }
}

#[tokio::test]
async fn a_request_that_names_another_host_is_misdirected() {
    let real = real(&["http/1.1"], tell).await;
    let between = Between::usual(&real);
    let mut wrong = Vec::new();
    for named in [
        "other.shoal.test",
        "api.shoal.test:8443",
        "evil@api.shoal.test",
        "api.shoal.test.evil",
        "127.0.0.1",
        "",
        "[api.shoal.test]",
        "api%2eshoal.test",
    ] {
        wrong.push(Request::get("/").header("host", named));
    }
    wrong.push(Request::get("/"));
    wrong.push(Request::get("https://other.shoal.test/").header("host", HOST));
    wrong.push(Request::get("http://api.shoal.test/").header("host", HOST));
    wrong.push(get("/").header("host", HOST));
    wrong.push(get("/").header("host", "other.shoal.test"));
    for request in wrong {
        let mut client = between.http1().await;
        let request = request.header("authorization", PLACEHOLDER).body(full("")).unwrap();
        let shown = format!("{request:?}");
        assert_eq!(client.send_request(request).await.unwrap().status(), 421, "{shown}");
    }
    let mut client = between.http2().await;
    for (uri, host) in [
        ("https://other.shoal.test/", None),
        ("https://api.shoal.test/", Some("other.shoal.test")),
        ("http://api.shoal.test/", None),
    ] {
        let mut request = Request::get(uri);
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let response = client.send_request(request.body(full("")).unwrap()).await.unwrap();
        assert_eq!(response.status(), 421, "{uri} {host:?}");
    }
    // The same connections, and names that are the same name.
    let mut request = Request::get("https://API.shoal.test:443/").header("x", "1");
    request = request.header("host", "api.SHOAL.test.");
    let response = client.send_request(request.body(full("")).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    let wrong = |note: &BoundaryNote| matches!(note, BoundaryNote::WrongHost { .. });
    assert!(between.notes().iter().all(wrong));
    assert_eq!(between.notes().len(), 16);
}

#[tokio::test]
async fn every_request_of_a_connection_is_checked() {
    let real = real(&["http/1.1"], tell).await;
    let between = Between::usual(&real);
    let mut client = between.http1().await;
    let good = || get("/").header("authorization", PLACEHOLDER).body(full("")).unwrap();
    assert!(text(client.send_request(good()).await.unwrap()).await.contains(VALUE));
    let wrong = Request::get("/").header("host", "other.shoal.test").body(full("")).unwrap();
    client.ready().await.unwrap();
    assert_eq!(client.send_request(wrong).await.unwrap().status(), 421);
}

#[tokio::test]
async fn trailers_pass_without_values() {
    let real = real(&["h2"], |request: Request<hyper::body::Incoming>| async move {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        trailers.insert("x-echo", request.headers()["authorization"].clone());
        let received = request.into_body().collect().await.unwrap();
        trailers.insert("x-received", received.trailers().unwrap()["x-sent"].clone());
        let frames = [Ok(Frame::data(Bytes::from("data"))), Ok(Frame::trailers(trailers))];
        Response::new(StreamBody::new(futures_util::stream::iter(frames)).boxed())
    })
    .await;
    let between = Between::usual(&real);
    let mut client = between.http2().await;
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sent", HeaderValue::from_static("yes"));
    let frames = [Ok(Frame::data(Bytes::from("data"))), Ok(Frame::trailers(trailers))];
    let body = StreamBody::new(futures_util::stream::iter(frames)).boxed();
    let request = Request::post(format!("https://{HOST}/")).header("te", "trailers");
    let request = request.header("authorization", PLACEHOLDER).body(body).unwrap();
    let response = client.send_request(request).await.unwrap();
    let collected = response.into_body().collect().await.unwrap();
    let trailers = collected.trailers().unwrap();
    assert_eq!(trailers["grpc-status"], "0");
    assert_eq!(trailers["x-received"], "yes");
    assert_eq!(trailers["x-echo"], PLACEHOLDER);
}

#[tokio::test]
async fn placeholders_in_trailers_of_requests_are_noted() {
    for version in ["h2", "http/1.1"] {
        let real = real(&[version], tell).await;
        let between = Between::usual(&real);
        let mut client = between.http2().await;
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sent", HeaderValue::from_static(PLACEHOLDER));
        let frames = [Ok(Frame::data(Bytes::from("data"))), Ok(Frame::trailers(trailers))];
        let body = StreamBody::new(futures_util::stream::iter(frames)).boxed();
        let request = Request::post(format!("https://{HOST}/")).body(body).unwrap();
        text(client.send_request(request).await.unwrap()).await;
        let place = Place::Body;
        let noted = BoundaryNote::PlaceholderElsewhere { secret: "openai".to_owned(), place };
        assert_eq!(between.notes(), [noted], "{version}");

        // The same with chunks.
        let between = Between::usual(&real);
        let Client { mut stream, .. } = between.client(HOST, &["http/1.1"]).await.unwrap();
        let sent = format!(
            "POST / HTTP/1.1\r\nhost: {HOST}\r\ntrailer: x-sent\r\nconnection: close\r\n\
             transfer-encoding: chunked\r\n\r\n4\r\ndata\r\n0\r\nx-sent: {PLACEHOLDER}\r\n\r\n"
        );
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut told = String::new();
        stream.read_to_string(&mut told).await.ok();
        assert!(told.starts_with("HTTP/1.1 200"), "{told}");
        let place = Place::Body;
        let noted = BoundaryNote::PlaceholderElsewhere { secret: "openai".to_owned(), place };
        assert_eq!(between.notes(), [noted], "{version}");
    }
}
