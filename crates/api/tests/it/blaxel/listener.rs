//! One sandbox at the root of a listener of its own, with and without keys.

use api::{BlaxelSettings, Settings};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::raw_client::{Answer, Connection};
use crate::stage::{Plan, Stage};

struct Listener {
    stage: Stage,
    address: std::net::SocketAddr,
}

impl Listener {
    async fn start(keyless: bool) -> Self {
        let blaxel = BlaxelSettings { keyless, ..BlaxelSettings::default() };
        let settings = Settings { blaxel, ..Settings::default() };
        let stage = Stage::with(Plan { settings, ..Plan::default() }).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = stage.api.as_blaxel();
        let limits = api::ConnectionLimits::default();
        tokio::spawn(async move {
            api::serve(listener, &api, limits, std::future::pending()).await;
        });
        Self { stage, address }
    }

    async fn ask(&self, method: &str, path: &str, headers: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let length = body.len();
        let mut connection = Connection::open(self.address).await;
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost:8080\r\n{headers}");
        connection.send(format!("{head}content-length: {length}\r\n\r\n{body}")).await;
        connection.answer().await
    }
}

#[tokio::test]
async fn keyless_listener_serves_local_programs_and_no_web_page() {
    let listener = Listener::start(true).await;
    assert_eq!(listener.ask("GET", "/health", "", &Value::Null).await.status, 200);
    assert_eq!(listener.stage.engine.sessions_by_status().iter().map(|(_, n)| n).sum::<u32>(), 0);
    let put = listener.ask("PUT", "/filesystem/a", "", &json!({"content": "x"})).await;
    put.expect(200);
    let page = ["origin: http://evil.example\r\n", "sec-fetch-site: cross-site\r\n"];
    for headers in page {
        let refused = listener.ask("GET", "/filesystem/a", headers, &Value::Null).await;
        assert_eq!(refused.status, 403, "{headers}");
        assert!(!refused.headers.contains_key("access-control-allow-origin"));
    }
    let mut connection = Connection::open(listener.address).await;
    connection.send("GET /filesystem/a HTTP/1.1\r\nhost: evil.example:8080\r\n\r\n").await;
    let rebound = connection.answer().await;
    assert!((400..500).contains(&rebound.status), "{rebound:?}");
    let elsewhere =
        listener.stage.raw(b"GET /compat/blaxel/sandboxes HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert_eq!(elsewhere.await.status, 401, "the main listener needs a key as ever");
}

#[tokio::test]
async fn listener_with_keys_has_one_sandbox_for_all_of_them() {
    let listener = Listener::start(false).await;
    assert_eq!(listener.ask("GET", "/filesystem/", "", &Value::Null).await.status, 401);
    let user = listener.stage.key(model::Role::Use).await;
    let put = json!({"content": "x"});
    let key = format!("authorization: Bearer {user}\r\n");
    listener.ask("PUT", "/filesystem/a", &key, &put).await.expect(200);
    let key = format!("x-blaxel-authorization: Bearer {}\r\n", listener.stage.admin);
    let read = listener.ask("GET", "/filesystem/a", &key, &Value::Null).await;
    assert_eq!(read.expect(200)["content"], "x");
}

#[tokio::test]
async fn read_only_request_creates_no_sandbox() {
    let listener = Listener::start(false).await;
    let sessions =
        || listener.stage.engine.sessions_by_status().iter().map(|(_, n)| n).sum::<u32>();
    let reader = listener.stage.key(model::Role::Read).await;
    let reader = format!("authorization: Bearer {reader}\r\n");
    let looked = async |path: &str| listener.ask("GET", path, &reader, &Value::Null).await;
    assert_eq!(looked("/status").await.expect(200)["state"], "auto");
    assert_eq!(looked("/process").await.expect(200), json!([]));
    assert_eq!(looked("/process/1/logs").await.status, 404);
    assert_eq!(looked("/filesystem/").await.status, 403, "a key that only reads makes none");
    assert_eq!(sessions(), 0);
    let user = format!("authorization: Bearer {}\r\n", listener.stage.admin);
    listener.ask("PUT", "/filesystem/a", &user, &json!({"content": "x"})).await.expect(200);
    assert_eq!(looked("/filesystem/a").await.expect(200)["content"], "x");
    assert_eq!(sessions(), 1);
}

#[tokio::test]
async fn a_sandbox_that_ended_for_good_is_made_again() {
    let listener = Listener::start(true).await;
    listener.ask("PUT", "/filesystem/a", "", &json!({"content": "x"})).await.expect(200);
    let page = listener.stage.call("GET", "/v1/sessions", Value::Null).await.expect(200);
    let id = page["sessions"][0]["id"].as_str().unwrap().to_owned();
    let ended = listener.stage.call("DELETE", &format!("/v1/sessions/{id}"), Value::Null).await;
    assert!(ended.status < 300, "{ended:?}");
    let read = listener.ask("GET", "/filesystem/a", "", &Value::Null).await;
    assert_eq!(read.status, 404, "another one has other files");
    listener.ask("PUT", "/filesystem/a", "", &json!({"content": "x"})).await.expect(200);
}
