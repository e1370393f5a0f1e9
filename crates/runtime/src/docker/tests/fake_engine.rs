//! An engine on a Unix socket that keeps a list of containers and runs nothing. The test gets each
//! attached connection, and plays the guest. The test can change the engine's answers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use guest_protocol::message::{Reply, Request, VERSION};
use guest_protocol::{Endpoint as Protocol, Incoming, decode};
use model::{Template, TemplateName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::docker::{DockerConfig, Endpoint};
use crate::spec::{LaunchSpec, Root};

static PLACES: AtomicU64 = AtomicU64::new(0);

/// Standard output and standard error, as the first byte of a frame says it.
pub(super) const STDOUT: u8 = 1;
pub(super) const STDERR: u8 = 2;

/// A frame as the engine writes it.
pub(super) fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    let mut frame = vec![kind, 0, 0, 0];
    frame.extend(length.to_be_bytes());
    frame.extend(payload);
    frame
}

/// What was asked.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    /// Method and path, without the query.
    pub what: String,
    pub query: String,
    pub body: Vec<u8>,
}

/// An answer other than the usual one.
#[derive(Debug, Clone)]
pub(super) enum Odd {
    /// This code and message.
    Refuse(u16, &'static str),
    /// The usual one, after a while.
    Late(Duration),
    /// It is done, and the connection breaks before the answer.
    Break,
}

type Oddity = Box<dyn Fn(&Asked) -> Option<Odd> + Send>;

#[derive(Default)]
struct State {
    containers: BTreeMap<String, Value>,
    images: BTreeMap<String, Value>,
    asked: Vec<Asked>,
    oddity: Option<Oddity>,
}

/// The engine.
pub(super) struct FakeEngine {
    place: PathBuf,
    state: Arc<Mutex<State>>,
    attaches: mpsc::UnboundedSender<UnixStream>,
    attached: mpsc::UnboundedReceiver<UnixStream>,
    serving: Option<JoinHandle<()>>,
}

impl FakeEngine {
    /// One that is there.
    pub(super) fn start() -> Self {
        let mut engine = Self::away();
        engine.appear();
        engine
    }

    /// One that is not there yet.
    pub(super) fn away() -> Self {
        let n = PLACES.fetch_add(1, Ordering::Relaxed);
        let place = std::env::temp_dir().join(format!("fake-engine-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let (attaches, attached) = mpsc::unbounded_channel();
        let state = Arc::new(Mutex::new(State::default()));
        lock(&state).images.insert("image".into(), json!({"Id": "sha256:1", "Config": {}}));
        Self { place, state, attaches, attached, serving: None }
    }

    /// It listens from now on.
    pub(super) fn appear(&mut self) {
        let listener = UnixListener::bind(self.place.join("docker.sock")).unwrap();
        let (state, attaches) = (Arc::clone(&self.state), self.attaches.clone());
        self.serving = Some(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, Arc::clone(&state), attaches.clone()));
            }
        }));
    }

    pub(super) fn config(&self) -> DockerConfig {
        let socket = self.place.join("docker.sock").display().to_string();
        DockerConfig::new(Endpoint::Unix(socket), "node", "run-1", self.place.join("run"))
    }

    pub(super) fn spec(number: u128) -> LaunchSpec {
        let template = Template::named(TemplateName::new("default").unwrap());
        let instance = model::InstanceId::from_u128(number);
        let root = Root::Named { name: "image".into(), stored: None };
        LaunchSpec {
            root,
            ready_timeout: Duration::from_secs(10),
            ..LaunchSpec::of(&template, instance)
        }
    }

    /// Answers differently from now on.
    pub(super) fn odd(&self, oddity: impl Fn(&Asked) -> Option<Odd> + Send + 'static) {
        lock(&self.state).oddity = Some(Box::new(oddity));
    }

    pub(super) fn forget_image(&self) {
        lock(&self.state).images.clear();
    }

    /// What was asked so far that begins like this.
    pub(super) fn asked(&self, what: &str) -> Vec<Asked> {
        let state = lock(&self.state);
        state.asked.iter().filter(|asked| asked.what.starts_with(what)).cloned().collect()
    }

    /// Names of the containers that there are.
    pub(super) fn containers(&self) -> Vec<String> {
        lock(&self.state).containers.keys().cloned().collect()
    }

    /// Takes a container away, as if an operator had removed it.
    pub(super) fn lose(&self, name: &str) {
        lock(&self.state).containers.remove(name);
    }

    /// Adds a container that was made elsewhere.
    pub(super) fn plant(&self, name: &str, labels: &Value) {
        let container =
            json!({"Id": name, "Names": [format!("/{name}")], "Labels": labels, "State": "exited"});
        lock(&self.state).containers.insert(name.to_owned(), container);
    }

    /// The next connection to a container's streams.
    pub(super) async fn attached(&mut self) -> Guest {
        let stream = tokio::time::timeout(Duration::from_secs(10), self.attached.recv()).await;
        Guest { stream: stream.expect("in time").expect("one"), protocol: Protocol::accepting() }
    }
}

impl Drop for FakeEngine {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap()
}

/// The container's end of its streams.
pub(super) struct Guest {
    pub stream: UnixStream,
    protocol: Protocol,
}

impl Guest {
    /// Bytes as they are.
    pub(super) async fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// A message, in one frame.
    pub(super) async fn say(&mut self, channel: u32, reply: &Reply) {
        let bytes = self.message(channel, reply);
        self.raw(&frame(STDOUT, &bytes)).await;
    }

    /// The bytes of a message.
    pub(super) fn message(&mut self, channel: u32, reply: &Reply) -> Vec<u8> {
        self.protocol.send(channel, reply).unwrap();
        let bytes = self.protocol.outgoing().to_vec();
        self.protocol.sent(bytes.len());
        bytes
    }

    pub(super) async fn ready(&mut self) {
        self.say(0, &Reply::Ready { version: VERSION }).await;
    }

    /// The next request; none when the host has closed the connection.
    pub(super) async fn request(&mut self) -> Option<(u32, Request)> {
        let mut bytes = [0; 4096];
        loop {
            if let Some(incoming) = self.protocol.next() {
                let Incoming::Message { channel, payload } = incoming else {
                    panic!("not a request: {incoming:?}")
                };
                return Some((channel, decode(&payload).unwrap()));
            }
            match self.stream.read(&mut bytes).await {
                Ok(count) if count > 0 => self.protocol.feed(&bytes[..count]).unwrap(),
                Ok(_) | Err(_) => return None,
            }
        }
    }
}

async fn answer(
    mut stream: UnixStream,
    state: Arc<Mutex<State>>,
    attaches: mpsc::UnboundedSender<UnixStream>,
) {
    let Some(asked) = read(&mut stream).await else { return };
    let odd = {
        let mut state = lock(&state);
        state.asked.push(asked.clone());
        state.oddity.as_ref().and_then(|oddity| oddity(&asked))
    };
    match odd {
        Some(Odd::Refuse(status, message)) => {
            return write(&mut stream, status, &json!({"message": message})).await;
        }
        Some(Odd::Late(time)) => tokio::time::sleep(time).await,
        Some(Odd::Break) => {
            usual(&asked, &state);
            return;
        }
        None => {}
    }
    if asked.what.ends_with("/attach") {
        let head = "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let _ = attaches.send(stream);
    } else if asked.what == "GET /events" {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        // Nothing ever happens.
        let _ = stream.read(&mut [0]).await;
    } else {
        let (status, body) = usual(&asked, &state);
        write(&mut stream, status, &body).await;
    }
}

/// What it usually does and says.
fn usual(asked: &Asked, state: &Mutex<State>) -> (u16, Value) {
    let mut state = lock(state);
    let missing = (404, json!({"message": "no such thing"}));
    let (method, path) = asked.what.split_once(' ').unwrap();
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    match (method, parts.as_slice()) {
        ("GET", ["version"]) => (200, json!({"ApiVersion": "1.41"})),
        // A kernel version that does not exist, so that no files are shared with it.
        ("GET", ["info"]) => (200, json!({"KernelVersion": "0.0.0"})),
        ("GET", ["images", name, "json"]) => match state.images.get(*name) {
            Some(image) => (200, image.clone()),
            None => missing,
        },
        ("POST", ["images", "create"]) => {
            state.images.insert("image".into(), json!({"Id": "sha256:1", "Config": {}}));
            (200, json!({"status": "done"}))
        }
        ("POST", ["volumes", "create"]) => (
            201,
            json!({
                "Name": "v", "Driver": "local", "Mountpoint": "/v", "Labels": {}, "Scope": "local", "Options": {},
            }),
        ),
        ("GET", ["volumes"]) => (200, json!({"Volumes": [], "Warnings": []})),
        ("POST", ["containers", "create"]) => {
            let name = asked.query.strip_prefix("name=").unwrap().split('&').next().unwrap();
            if state.containers.contains_key(name) {
                return (409, json!({"message": "the name is in use"}));
            }
            let body: Value = serde_json::from_slice(&asked.body).unwrap();
            let container = json!({
                "Id": name, "Names": [format!("/{name}")], "Labels": body["Labels"], "State": "created",
            });
            state.containers.insert(name.to_owned(), container);
            (201, json!({"Id": name, "Warnings": []}))
        }
        ("GET", ["containers", "json"]) => {
            // By the labels that the filter names.
            let query = percent_decoded(&asked.query);
            let fits = |container: &&Value| {
                let labels = container["Labels"].as_object().unwrap();
                let says = |name: &str| format!("{name}={}", labels[name].as_str().unwrap());
                query.contains(&says("shoal.node"))
                    && (!query.contains("shoal.epoch=") || query.contains(&says("shoal.epoch")))
            };
            (200, state.containers.values().filter(fits).cloned().collect())
        }
        ("POST", ["containers", name, "start"]) => match state.containers.get_mut(*name) {
            Some(container) => {
                container["State"] = "running".into();
                (204, Value::Null)
            }
            None => missing,
        },
        ("GET", ["containers", name, "json"]) => match state.containers.get(*name) {
            Some(container) => {
                let running = container["State"] == "running";
                let state =
                    json!({"Running": running, "Pid": 0, "ExitCode": 137, "OOMKilled": false});
                (200, json!({"Id": name, "State": state}))
            }
            None => missing,
        },
        ("DELETE", ["containers", name]) => match state.containers.remove(*name) {
            Some(_) => (204, Value::Null),
            None => missing,
        },
        ("PUT", ["containers", _, "archive"]) => (200, Value::Null),
        _ => missing,
    }
}

async fn read(stream: &mut UnixStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let head_ends = |bytes: &[u8]| bytes.windows(4).position(|four| four == b"\r\n\r\n");
    while head_ends(&bytes).is_none() {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let end = head_ends(&bytes)?;
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let first = String::from_utf8_lossy(&bytes[..end]).lines().next()?.to_owned();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |length| length.parse().unwrap());
    let mut body = bytes.split_off(end + 4);
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    // The version comes first, once it is agreed upon.
    let first = first.replace(" /v1.41/", " /");
    let (method, rest) = first.split_once(' ')?;
    let (path, query) =
        rest.split(' ').next()?.split_once('?').unwrap_or((rest.split(' ').next()?, ""));
    Some(Asked { what: format!("{method} {path}"), query: query.to_owned(), body })
}

async fn write(stream: &mut UnixStream, status: u16, body: &Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        if status == 204 { 0 } else { body.len() }
    );
    let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
}

fn percent_decoded(text: &str) -> String {
    text.replace("%3D", "=").replace("%22", "\"").replace("%3A", ":").replace("%2C", ",")
}
