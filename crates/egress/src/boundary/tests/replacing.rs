//! Values go out in their header to their hosts, and nowhere else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Method, Request, Response};

use super::support::*;
use crate::boundary::{BoundaryNote, Place};

fn elsewhere(place: Place) -> BoundaryNote {
    BoundaryNote::PlaceholderElsewhere { secret: "openai".to_owned(), place }
}

fn replaced(secret: &str) -> BoundaryNote {
    BoundaryNote::Replaced { secret: secret.to_owned() }
}

#[tokio::test]
async fn a_placeholder_in_its_header_is_replaced() {
    let real = real(&["http/1.1"], tell).await;
    let between = Between::usual(&real);
    let mut client = between.http1().await;
    let request = get("/v1?a=b").header("authorization", format!("Bearer {PLACEHOLDER}"));
    let told = text(client.send_request(request.body(full("")).unwrap()).await.unwrap()).await;
    assert!(told.starts_with("GET /v1?a=b HTTP/1.1\n"), "{told}");
    assert!(told.contains(&format!("authorization: Bearer {VALUE}\n")), "{told}");
    assert!(told.contains(&format!("host: {HOST}\n")), "{told}");
    assert_eq!(between.notes(), [replaced("openai")]);
}

#[tokio::test]
async fn a_header_without_a_placeholder_passes_unchanged() {
    let real = real(&["http/1.1"], tell).await;
    let between = Between::usual(&real);
    let mut client = between.http1().await;
    let request = get("/").header("authorization", "Bearer own").body(full("")).unwrap();
    let told = text(client.send_request(request).await.unwrap()).await;
    assert!(told.contains("authorization: Bearer own\n"), "{told}");
    assert_eq!(between.notes(), []);
}

#[tokio::test]
async fn a_placeholder_within_basic_is_replaced() {
    let real = real(&["http/1.1"], tell).await;
    let between = Between::usual(&real);
    let mut client = between.http1().await;
    for (before, after) in [
        (format!("git:{PLACEHOLDER}"), format!("git:{VALUE}")),
        (format!("{PLACEHOLDER}:x"), format!("{VALUE}:x")),
    ] {
        let request =
            get("/").header("authorization", format!("basic {}", STANDARD.encode(before)));
        let told = text(client.send_request(request.body(full("")).unwrap()).await.unwrap()).await;
        let wanted = format!("authorization: basic {}\n", STANDARD.encode(after));
        assert!(told.contains(&wanted), "{told}");
    }
    assert_eq!(between.notes(), [replaced("openai"), replaced("openai")]);
}

#[tokio::test]
async fn a_placeholder_elsewhere_stays_and_is_noted() {
    let real = real(&["http/1.1"], tell).await;
    let between = Between::usual(&real);
    let mut client = between.http1().await;
    let request = Request::post(format!("/{PLACEHOLDER}?q={PLACEHOLDER}"))
        .header("host", HOST)
        .header("x-other", format!("{PLACEHOLDER} {PLACEHOLDER}"))
        .body(full(format!("body {PLACEHOLDER} {}", STANDARD.encode(PLACEHOLDER))))
        .unwrap();
    let told = text(client.send_request(request).await.unwrap()).await;
    assert!(!told.contains(VALUE), "{told}");
    assert_eq!(told.matches(PLACEHOLDER).count(), 5, "{told}");
    let header = Place::Header("x-other".to_owned());
    assert_eq!(
        between.notes(),
        [elsewhere(Place::Target), elsewhere(header), elsewhere(Place::Body)]
    );
}

#[tokio::test]
async fn a_placeholder_across_pieces_of_a_body_is_noted_once() {
    let real = real(&["h2"], tell).await;
    let between = Between::usual(&real);
    let mut client = between.http2().await;
    let pieces = PLACEHOLDER.bytes().chain(PLACEHOLDER.bytes()).map(|byte| {
        Ok::<_, std::io::Error>(http_body::Frame::data(bytes::Bytes::copy_from_slice(&[byte])))
    });
    let stream = futures_util::stream::iter(pieces.collect::<Vec<_>>());
    let body = http_body_util::BodyExt::boxed(http_body_util::StreamBody::new(stream));
    let request = Request::post(format!("https://{HOST}/")).body(body).unwrap();
    let told = text(client.send_request(request).await.unwrap()).await;
    assert!(told.ends_with(&PLACEHOLDER.repeat(2)), "{told}");
    assert_eq!(between.notes(), [elsewhere(Place::Body)]);
}

#[tokio::test]
async fn a_placeholder_of_another_host_goes_out_as_it_is() {
    let real = real(&["http/1.1"], tell).await;
    let mut foreign = secret("openai", "authorization", PLACEHOLDER, VALUE);
    foreign.hosts = vec![model::HostName::parse("other.shoal.test").unwrap()];
    let between = Between::new(&real, vec![foreign]);
    let mut client = between.http1().await;
    let request = get("/").header("authorization", PLACEHOLDER).body(full("")).unwrap();
    let told = text(client.send_request(request).await.unwrap()).await;
    assert!(told.contains(&format!("authorization: {PLACEHOLDER}\n")), "{told}");
    assert_eq!(between.notes(), [elsewhere(Place::Header("authorization".to_owned()))]);
}

#[tokio::test]
async fn two_secrets_go_into_their_own_headers() {
    let real = real(&["http/1.1"], tell).await;
    let secrets = vec![
        secret("one", "authorization", "placeholder-of-one", "value-of-one"),
        secret("two", "x-api-key", "placeholder-of-two", "value-of-two"),
    ];
    let between = Between::new(&real, secrets);
    let mut client = between.http1().await;
    let request = get("/")
        .header("authorization", "placeholder-of-one placeholder-of-two")
        .header("x-api-key", "placeholder-of-two placeholder-of-one")
        .body(full(""))
        .unwrap();
    let told = text(client.send_request(request).await.unwrap()).await;
    assert!(told.contains("authorization: value-of-one placeholder-of-two\n"), "{told}");
    assert!(told.contains("x-api-key: value-of-two placeholder-of-one\n"), "{told}");
    assert!(between.notes().ends_with(&[replaced("one"), replaced("two")]));
}

#[tokio::test]
async fn trace_and_connect_are_refused_and_options_gets_no_value() {
    let real = real(&["http/1.1"], tell).await;
    let between = Between::usual(&real);
    let mut client = between.http1().await;
    let trace = Request::builder().method(Method::TRACE).uri("/").header("host", HOST);
    let trace = trace.header("authorization", PLACEHOLDER).body(full("")).unwrap();
    assert_eq!(client.send_request(trace).await.unwrap().status(), 405);
    let options = Request::builder().method(Method::OPTIONS).uri("/").header("host", HOST);
    let options = options.header("authorization", PLACEHOLDER).body(full("")).unwrap();
    client.ready().await.unwrap();
    let told = text(client.send_request(options).await.unwrap()).await;
    assert!(told.contains(&format!("authorization: {PLACEHOLDER}\n")), "{told}");
    let mut client = between.http2().await;
    let connect = Request::builder().method(Method::CONNECT).uri(format!("{HOST}:443"));
    let refused = client.send_request(connect.body(full("")).unwrap()).await.unwrap();
    assert_eq!(refused.status(), 405);
}

#[tokio::test]
async fn values_in_headers_of_answers_become_placeholders() {
    let real = real(&["http/1.1"], |request: Request<_>| async move {
        let sent = request.headers()["authorization"].to_str().unwrap().to_owned();
        Response::builder()
            .header("x-echo", &sent)
            .header("x-basic", STANDARD.encode(format!("git:{sent}")))
            .header("x-path", format!("a/{}", STANDARD.encode(format!("u:{sent}:more"))))
            .header("set-cookie", format!("k={sent}; k2={sent}"))
            .body(full(""))
            .unwrap()
    })
    .await;
    let between = Between::usual(&real);
    let mut client = between.http1().await;
    let request = get("/").header("authorization", PLACEHOLDER).body(full("")).unwrap();
    let response = client.send_request(request).await.unwrap();
    let header = |name| response.headers()[name].to_str().unwrap();
    assert_eq!(header("x-echo"), PLACEHOLDER);
    let shown = STANDARD.encode(format!("git:{PLACEHOLDER}"));
    assert_eq!(header("x-basic").trim_end_matches('='), shown.trim_end_matches('='));
    assert!(!header("x-path").contains(&STANDARD.encode(format!("u:{VALUE}"))[..20]));
    assert_eq!(header("set-cookie"), format!("k={PLACEHOLDER}; k2={PLACEHOLDER}"));
    let echo = BoundaryNote::EchoRedacted { secret: "openai".to_owned() };
    assert_eq!(between.notes(), [replaced("openai"), echo]);
}

#[tokio::test]
async fn a_value_that_no_header_can_have_is_not_sent() {
    let real = real(&["http/1.1"], tell).await;
    let broken = secret("broken", "authorization", PLACEHOLDER, "a\r\nx-injected: b");
    let between = Between::new(&real, vec![broken]);
    let mut client = between.http1().await;
    let request = get("/").header("authorization", PLACEHOLDER).body(full("")).unwrap();
    let response = client.send_request(request).await.unwrap();
    assert_eq!(response.status(), 502);
    let said = text(response).await;
    assert!(said.contains("secret broken") && !said.contains("injected"), "{said}");
}

#[test]
fn a_secret_in_debug_output_has_no_value() {
    let shown = format!("{:?}", secret("openai", "authorization", PLACEHOLDER, VALUE));
    assert!(shown.contains("openai") && !shown.contains(VALUE) && !shown.contains(PLACEHOLDER));
}
