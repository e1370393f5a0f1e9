//! Whatever archive is uploaded, in whatever pieces: the server answers without an internal error,
//! and nothing is written outside of the target directory.
#![no_main]

use std::cell::OnceCell;
use std::sync::Arc;

use api::{Api, Settings};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Request, StatusCode};
use engine::{Engine, EngineConfig, Runtimes};
use libfuzzer_sys::fuzz_target;
use model::template::RuntimeKind;
use model::{Role, Template, TemplateName};
use runtime::fake::{FakeRuntime, FakeSettings};
use store::Retention;
use store::memory::MemoryStore;
use tower::ServiceExt as _;

#[path = "checksums.rs"]
mod checksums;

/// The most bytes of an answer.
const ANSWER_BYTES: usize = 1 << 20;

/// A server with one sandbox that is checked out.
struct Server {
    tokio: tokio::runtime::Runtime,
    router: Router,
    key: String,
    sandbox: String,
    /// Kept as long as there are requests.
    _engine: Engine,
}

impl Server {
    fn start() -> Self {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (engine, api, key) = tokio.block_on(async {
            let fake = Arc::new(FakeRuntime::new(FakeSettings::default()));
            let runtimes = Runtimes::new().with(RuntimeKind::Fake, fake as _);
            let template = Template {
                runtime: RuntimeKind::Fake,
                ..Template::named(TemplateName::new("default").unwrap())
            };
            let config = EngineConfig { templates: vec![template], ..EngineConfig::default() };
            let store = Arc::new(MemoryStore::new(Retention::default()));
            let engine = Engine::start(config, store as _, runtimes).await.unwrap().engine;
            let key = engine.create_key("fuzz", Role::Admin, None).await.unwrap().secret;
            (engine.clone(), Api::new(engine, Settings::default()), key)
        });
        let router = api.router();
        let mut server = Self { tokio, router, key, sandbox: String::new(), _engine: engine };
        let body = r#"{"template":"default","ttl_s":86400}"#;
        let (status, answer) = server.ask("POST", "/v1/checkouts", "application/json", body.into());
        assert_eq!(status, StatusCode::CREATED, "{answer}");
        let (_, after) = answer.split_once(r#""sandbox":{"id":""#).expect("a sandbox");
        server.sandbox = after.split('"').next().expect("an id").to_owned();
        server.files("PUT", "/workspace/beside", "beside".into());
        server
    }

    fn ask(&self, method: &str, path: &str, kind: &str, body: Body) -> (StatusCode, String) {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("authorization", format!("Bearer {}", self.key));
        if !kind.is_empty() {
            request = request.header("content-type", kind);
        }
        let request = request.body(body).unwrap();
        self.tokio.block_on(async {
            let answer = self.router.clone().oneshot(request).await.unwrap();
            let status = answer.status();
            let bytes = to_bytes(answer.into_body(), ANSWER_BYTES).await.unwrap();
            (status, String::from_utf8_lossy(&bytes).into_owned())
        })
    }

    fn files(&self, method: &str, path: &str, body: Body) -> (StatusCode, String) {
        let path = format!("/v1/sandboxes/{}/files?path={path}", self.sandbox);
        let kind = if method == "PUT" { "application/octet-stream" } else { "" };
        self.ask(method, &path, kind, body)
    }
}

thread_local! {
    static SERVER: OnceCell<Server> = const { OnceCell::new() };
}

fuzz_target!(|input: (u8, bool, &[u8])| {
    let (piece_bytes, is_mended, bytes) = input;
    let bytes = if is_mended { checksums::with_checksums(bytes) } else { bytes.to_vec() };
    SERVER.with(|server| {
        let server = server.get_or_init(Server::start);
        let pieces: Vec<Result<Bytes, std::io::Error>> = bytes
            .chunks(usize::from(piece_bytes).max(1) * 8)
            .map(|piece| Ok(Bytes::copy_from_slice(piece)))
            .collect();
        let path = format!("/v1/sandboxes/{}/archive?path=/workspace/in", server.sandbox);
        let body = Body::from_stream(futures_util::stream::iter(pieces));
        let (status, answer) = server.ask("PUT", &path, "application/x-tar", body);
        assert!(!status.is_server_error(), "{status}: {answer}");
        let (_, listed) = server.ask(
            "GET",
            &format!("/v1/sandboxes/{}/files/list?path=/workspace", server.sandbox),
            "",
            Body::empty(),
        );
        assert_eq!(listed.matches(r#""name":"#).count(), 2, "{listed}");
        let (_, beside) = server.files("GET", "/workspace/beside", Body::empty());
        assert_eq!(beside, "beside");
        server.files("DELETE", "/workspace/in&recursive=true", Body::empty());
    });
});
