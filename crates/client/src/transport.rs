//! Sends requests and reads answers: a pool of connections, deadlines, and a retry of idempotent
//! requests when the connection breaks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::upgrade::Upgraded;
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout_at};
use wire::Problem;

use crate::address::Address;
use crate::body::Sent;
use crate::call::Call;
use crate::discover::Discovery;
use crate::error::ClientError;

/// The longest answer that is read as a whole: two outputs of a program as base64, and some more.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Longest refusal that is read.
const PROBLEM_BYTES_MAX: usize = 1 << 20;
/// Idle connections that are kept open.
const IDLE_CONNECTIONS_MAX: usize = 64;
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Timeouts and retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For a connection.
    pub connect: Duration,
    /// For an answer, besides the time that the request itself may take (a wait, a program).
    pub answer: Duration,
    /// For the end of a sandbox or a pool to be confirmed.
    pub control: Duration,
    /// For any data on a stream of events, also a heartbeat.
    pub quiet: Duration,
    /// How often an idempotent request is sent again when the connection breaks.
    pub retries: u32,
    /// How long a stream of events tries to reconnect.
    pub resume: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            // A server that is full lets a request wait for 30 s, and then for its sandbox.
            answer: Duration::from_secs(100),
            control: Duration::from_secs(150),
            quiet: Duration::from_mins(1),
            retries: 3,
            resume: Duration::from_mins(2),
        }
    }
}

/// A client of one server. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    http: hyper_util::client::legacy::Client<HttpConnector, Sent>,
    address: Address,
    authorization: Option<HeaderValue>,
    patience: Patience,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.inner.address.to_string();
        f.debug_struct("Client").field("address", &address).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of the server at an address such as `http://127.0.0.1:7600`, with the secret of a
    /// key. Nothing is sent yet.
    pub fn new(address: &str, key: Option<&str>) -> Result<Self, ClientError> {
        Self::with(Address::parse(address)?, key, Patience::default())
    }

    /// A client of the server that the environment names (`SHOAL_URL`, `SHOAL_KEY`), or of the one
    /// on this machine.
    pub fn discover() -> Result<Self, ClientError> {
        Self::found(Discovery::from_environment())
    }

    /// A client of the server that a discovery finds.
    pub fn found(discovery: Discovery) -> Result<Self, ClientError> {
        let (address, key) = discovery.resolve()?;
        Self::with(address, key.as_deref(), Patience::default())
    }

    /// A client of the same server with other timeouts and connections of its own.
    #[must_use]
    pub fn patient(&self, patience: Patience) -> Self {
        let authorization = self.inner.authorization.clone();
        Self::build(self.inner.address.clone(), authorization, patience)
    }

    fn with(address: Address, key: Option<&str>, patience: Patience) -> Result<Self, ClientError> {
        let authorization = key.map(|key| {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                .map_err(|_| ClientError::invalid("the key has characters that no key has"))?;
            value.set_sensitive(true);
            Ok(value)
        });
        Ok(Self::build(address, authorization.transpose()?, patience))
    }

    fn build(address: Address, authorization: Option<HeaderValue>, patience: Patience) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(patience.connect));
        let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build(connector);
        Self { inner: Arc::new(Inner { http, address, authorization, patience }) }
    }

    /// The server's address.
    pub fn address(&self) -> String {
        self.inner.address.to_string()
    }

    /// Whether there is a key to send.
    pub fn has_key(&self) -> bool {
        self.inner.authorization.is_some()
    }

    pub(crate) fn patience(&self) -> Patience {
        self.inner.patience
    }

    /// Sends a request and reads its answer as JSON.
    pub(crate) async fn json<T: DeserializeOwned>(&self, mut call: Call) -> Result<T, ClientError> {
        let (status, bytes) = self.whole(&mut call).await?;
        serde_json::from_slice(&bytes).map_err(|error| ClientError::Unexpected {
            call: call.name(),
            status: status.as_u16(),
            cause: error.to_string(),
        })
    }

    /// Sends a request whose answer has no contents.
    pub(crate) async fn done(&self, mut call: Call) -> Result<(), ClientError> {
        self.whole(&mut call).await.map(|_| ())
    }

    /// Sends a request and gives its answer as bytes.
    pub(crate) async fn bytes(&self, mut call: Call) -> Result<Bytes, ClientError> {
        self.whole(&mut call).await.map(|(_, bytes)| bytes)
    }

    /// Sends a request and reads its answer to the end.
    async fn whole(&self, call: &mut Call) -> Result<(StatusCode, Bytes), ClientError> {
        let deadline = self.deadline(call);
        self.repeat(call, deadline, async |answer: Response<Incoming>| {
            let status = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX);
            let read = body.collect().await.map_err(ClientError::cut)?;
            Ok((status, read.to_bytes()))
        })
        .await
    }

    /// Sends a request; its answer is read by the caller as it comes.
    pub(crate) async fn stream(&self, call: &mut Call) -> Result<Response<Incoming>, ClientError> {
        let deadline = self.deadline(call);
        self.repeat(call, deadline, async |answer: Response<Incoming>| Ok(answer)).await
    }

    /// Sends a request that upgrades the connection to another protocol.
    pub(crate) async fn upgrade(&self, call: &mut Call) -> Result<Upgraded, ClientError> {
        let deadline = self.deadline(call);
        let answer = self.stream(call).await?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (status, cause) =
                (answer.status().as_u16(), "the server did not upgrade the connection".to_owned());
            return Err(ClientError::Unexpected { call: call.name(), status, cause });
        }
        let upgraded = timeout_at(deadline, hyper::upgrade::on(answer)).await;
        upgraded.map_err(ClientError::cut)?.map_err(ClientError::cut)
    }

    fn deadline(&self, call: &Call) -> Instant {
        Instant::now() + self.inner.patience.answer + call.extra
    }

    async fn repeat<T>(
        &self,
        call: &mut Call,
        deadline: Instant,
        read: impl AsyncFn(Response<Incoming>) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let started_at = Instant::now();
        let mut pause = FIRST_PAUSE;
        for left in (0..=self.inner.patience.retries).rev() {
            let attempt = async { read(self.once(call).await?).await };
            let outcome = timeout_at(deadline, attempt).await;
            let error = match outcome {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error,
                Err(_) => {
                    let after = started_at.elapsed();
                    return Err(ClientError::Timeout { call: call.name(), after });
                }
            };
            let again = match &error {
                ClientError::Connect { .. } => call.is_whole(),
                ClientError::Cut { .. } => call.is_repeatable(),
                ClientError::Problem(_)
                | ClientError::Timeout { .. }
                | ClientError::Unexpected { .. }
                | ClientError::Invalid { .. } => false,
            };
            if left == 0 || !again || Instant::now() + pause >= deadline {
                return Err(error);
            }
            sleep(pause).await;
            pause *= 2;
        }
        Err(ClientError::invalid("no attempt was made"))
    }

    /// Sends a request once. A refusal becomes an error.
    async fn once(&self, call: &mut Call) -> Result<Response<Incoming>, ClientError> {
        let mut request = Request::new(call.body());
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = self.inner.address.uri(call.target.as_str())?;
        let headers = request.headers_mut();
        if let Some(authorization) = &self.inner.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        for (name, value) in &call.headers {
            headers.insert(name, value.clone());
        }
        let answer = self.inner.http.request(request).await.map_err(|error| {
            let cause = causes(&error);
            if error.is_connect() {
                ClientError::Connect { address: self.address(), cause }
            } else {
                ClientError::Cut { cause }
            }
        })?;
        if answer.status().is_success() || answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(answer);
        }
        Err(refusal(call, answer).await)
    }
}

/// The error of a refused request.
async fn refusal(call: &Call, answer: Response<Incoming>) -> ClientError {
    let status = answer.status();
    let body = Limited::new(answer.into_body(), PROBLEM_BYTES_MAX);
    let bytes = match body.collect().await {
        Ok(read) => read.to_bytes(),
        Err(error) => return ClientError::cut(error),
    };
    match serde_json::from_slice::<Problem>(&bytes) {
        Ok(problem) => ClientError::Problem(Box::new(problem)),
        Err(error) => ClientError::Unexpected {
            call: call.name(),
            status: status.as_u16(),
            cause: format!("the answer is not an error of this API: {error}"),
        },
    }
}

/// The innermost cause: the outer ones only say that a request failed.
fn causes(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
