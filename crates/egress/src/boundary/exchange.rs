//! One request and its answer: checked, given its values, passed to the host, and the answer passed
//! back without values. It must never send a request that names another host than the connection's.

use std::sync::{Arc, Mutex, PoisonError};

use http::header::CONTENT_TYPE;
use http::response;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use model::HostName;

use super::answer::{Answer, plain};
use super::bodies::{Passing, Watched};
use super::placeholders::{self, Unusable};
use super::target::{self, Refused};
use super::upstream::{Sender, Unreached, Upstream};
use super::{BoundSecret, BoundaryNote, headers, redaction};

/// How often a request is tried of which nothing was sent.
const TRIES: usize = 3;

/// What all requests of one connection have in common.
pub(super) struct Exchange {
    pub(super) host: HostName,
    pub(super) secrets: Arc<[BoundSecret]>,
    pub(super) upstream: Upstream,
    pub(super) log: Box<dyn Fn(BoundaryNote) + Send + Sync>,
    /// Both ends of a connection that became a WebSocket.
    pub(super) upgraded: Mutex<Option<(OnUpgrade, OnUpgrade)>>,
}

/// What a request asked of its own connection.
struct Wishes {
    client: Option<OnUpgrade>,
    takes_trailers: bool,
    /// The secrets whose values the request has.
    values: Vec<String>,
}

/// Notes which values went out, when it is known that the request left or when its client gives up
/// waiting. Nothing that was given to a connection can be called back.
struct Leaving<'a> {
    exchange: &'a Exchange,
    values: &'a [String],
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        for secret in self.values {
            (self.exchange.log)(BoundaryNote::Replaced { secret: secret.clone() });
        }
    }
}

impl Leaving<'_> {
    /// It did not leave.
    fn stayed(mut self) {
        self.values = &[];
    }
}

impl Exchange {
    /// Answers a request.
    pub(super) async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        let method = request.method().to_string();
        let answer = match self.pass(request).await {
            Ok(answer) => answer,
            Err(answer) => *answer,
        };
        (self.log)(BoundaryNote::Request { method, status: answer.status().as_u16() });
        answer
    }

    /// Passes a request to the host; an error is an answer of ours.
    async fn pass(self: &Arc<Self>, mut request: Request<Incoming>) -> Result<Answer, Box<Answer>> {
        let asks_for_websocket =
            headers::asks_for_websocket(request.method(), request.version(), request.headers());
        let client = asks_for_websocket.then(|| hyper::upgrade::on(&mut request));
        let takes_trailers = headers::takes_trailers(request.headers());
        let (mut parts, body) = request.into_parts();
        target::check(&parts, &self.host).map_err(|refused| self.refuse(&parts.method, refused))?;
        headers::strip(&mut parts.headers);
        let values = self.replace(&parts.method, &mut parts.headers)?;
        let wishes = Wishes { client, takes_trailers, values };
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        placeholders::note_others(path, &parts.headers, &self.secrets, &*self.log);

        let mut passed = Request::new(Watched::new(body, Arc::clone(self)));
        *passed.method_mut() = parts.method;
        *passed.uri_mut() = parts.uri;
        *passed.headers_mut() = parts.headers;
        if wishes.client.is_some() {
            headers::upgrade(passed.headers_mut());
        }
        let (response, sender) = self.send(passed, &wishes).await?;
        let answer = self.returned(response, wishes.client)?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            self.upstream.keep(sender).await;
        }
        Ok(answer)
    }

    fn refuse(&self, method: &Method, refused: Refused) -> Box<Answer> {
        Box::new(match refused {
            Refused::Method => {
                (self.log)(BoundaryNote::MethodRefused { method: method.to_string() });
                let text = format!("{method} is not passed to {}: it has secrets", self.host);
                plain(StatusCode::METHOD_NOT_ALLOWED, &text)
            }
            Refused::Host(named) => {
                (self.log)(BoundaryNote::WrongHost { named });
                let text = format!("this connection is for {}, and the request is not", self.host);
                plain(StatusCode::MISDIRECTED_REQUEST, &text)
            }
        })
    }

    /// Replaces placeholders, except in requests whose answers tell what a host received.
    fn replace(
        &self,
        method: &Method,
        headers: &mut HeaderMap,
    ) -> Result<Vec<String>, Box<Answer>> {
        if *method == Method::OPTIONS {
            return Ok(Vec::new());
        }
        let values = placeholders::replace(headers, &self.host, &self.secrets);
        values.map_err(|Unusable(secret)| {
            self.failed(&format!("the value of the secret {secret} cannot be in a header"))
        })
    }

    async fn send(
        &self,
        mut request: Request<Watched>,
        wishes: &Wishes,
    ) -> Result<(Response<Incoming>, Sender), Box<Answer>> {
        let mut last = String::new();
        for _ in 0..TRIES {
            let connected = match wishes.client {
                Some(_) => self.upstream.upgradable().await,
                None => self.upstream.sender().await,
            };
            let mut sender = connected.map_err(|unreached| match unreached {
                Unreached::Undialled(problem) => self.not_reached(&problem),
                Unreached::Unusable(problem) => self.failed(&problem),
            })?;
            let shaped = match &sender {
                Sender::Http1(_) => headers::shape_http1(&mut request, &self.host),
                Sender::Http2(_) => {
                    headers::shape_http2(&mut request, &self.host, wishes.takes_trailers)
                }
            };
            shaped.map_err(|_| self.failed("the request cannot be passed on"))?;
            let leaving = Leaving { exchange: self, values: &wishes.values };
            let mut error = match sender.send(request).await {
                Ok(response) => return Ok((response, sender)),
                Err(error) => error,
            };
            // Only what never left may be sent again: the host may have acted on the rest.
            last = format!("the connection ended: {}", error.error());
            let Some(unsent) = error.take_message() else { break };
            leaving.stayed();
            request = unsent;
        }
        Err(self.failed(&last))
    }

    fn failed(&self, problem: &str) -> Box<Answer> {
        (self.log)(BoundaryNote::UpstreamFailed { reason: problem.to_owned() });
        self.not_reached(problem)
    }

    fn not_reached(&self, problem: &str) -> Box<Answer> {
        let host = self.host.as_str();
        let text = if problem.starts_with(host) {
            problem.to_owned()
        } else {
            format!("{host} was not reached: {problem}")
        };
        Box::new(plain(StatusCode::BAD_GATEWAY, &text))
    }

    /// The answer of the host, as the client gets it.
    fn returned(
        self: &Arc<Self>,
        mut response: Response<Incoming>,
        client: Option<OnUpgrade>,
    ) -> Result<Answer, Box<Answer>> {
        let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let host = is_upgrade.then(|| hyper::upgrade::on(&mut response));
        let (response::Parts { status, mut headers, .. }, body) = response.into_parts();
        headers::strip(&mut headers);
        redaction::redact(&mut headers, &self.host, &self.secrets, &*self.log);
        if let Some(host) = host {
            let unasked = || self.failed("it changed to a protocol that was not asked for");
            let client = client.ok_or_else(unasked)?;
            headers::upgrade(&mut headers);
            let mut upgraded = self.upgraded.lock().unwrap_or_else(PoisonError::into_inner);
            *upgraded = Some((client, host));
        }
        let kind = headers.get(CONTENT_TYPE).map(http::HeaderValue::as_bytes);
        let is_events = kind.is_some_and(|kind| {
            let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
            kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
        });
        let body = Passing { inner: body, exchange: Arc::clone(self), is_events };
        // Made anew: what a host says besides status and headers is not passed.
        let mut answer = Response::new(Either::Left(body));
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        Ok(answer)
    }
}
