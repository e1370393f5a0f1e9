//! The connection to the Docker engine. It is opened when needed, and the engine may come and go:
//! no failure here is permanent. Every request has a deadline. A failure says whether the request
//! was never sent, was sent without an answer, or was refused.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::SystemInfo;
use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker};
use tokio::time::timeout;

use super::config::Endpoint;
use super::single_flight::SingleFlight;
use crate::error::{RuntimeError, RuntimeErrorCode};

/// How long to wait for a connection, and for the engine to say what it is.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// The library's own deadline, which none of ours is longer than.
const LIBRARY_PATIENCE_SECS: u64 = 30 * 60;

/// How many different warnings are logged.
const MAX_WARNINGS: usize = 16;

/// How long a request may take that a healthy engine answers at once.
pub(super) const QUICK: Duration = Duration::from_secs(20);
/// How long work of the engine may take.
pub(super) const WORK: Duration = Duration::from_mins(1);

/// What the engine reported about itself when it was found.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// The version of its interface that both sides know.
    pub api: (usize, usize),
    /// What it reports about its host.
    pub info: Arc<SystemInfo>,
}

/// A connection that works, as far as is known, with the facts of that engine.
#[derive(Debug, Clone)]
pub(super) struct EngineConnection {
    pub docker: Docker,
    pub facts: Facts,
}

/// Why a request to the engine failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EngineFailure {
    /// The engine cannot be reached: nothing was sent.
    Unreachable(String),
    /// The request was sent, and no complete answer came: it may have been carried out.
    Unanswered(String),
    /// The engine refused.
    Refused {
        /// The HTTP status of its answer.
        status: u16,
        /// Its message.
        message: String,
    },
}

impl EngineFailure {
    /// Whether the engine reports that the object does not exist.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// The message, without context.
    pub(super) fn message(&self) -> &str {
        match self {
            Self::Unreachable(why) | Self::Unanswered(why) => why,
            Self::Refused { message, .. } => message.trim_end(),
        }
    }

    /// Whether the engine reports a conflict.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { status: 409, .. })
    }

    fn is_denial(&self) -> bool {
        matches!(self, Self::Unreachable(why) if why.contains("ermission denied"))
    }

    /// What helps, if that is known.
    pub(super) fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Unreachable(_) if self.is_denial() => {
                Some("let the server's user into the group of that socket")
            }
            Self::Unreachable(_) => Some("start it or set docker.host"),
            Self::Unanswered(_) => Some("see its log"),
            Self::Refused { .. } => None,
        }
    }

    pub(super) fn of(error: Error) -> Self {
        if let Error::DockerResponseServerError { status_code, message } = error {
            return Self::Refused { status: status_code, message };
        }
        // Reported in the middle of an answer that began well.
        if let Error::DockerStreamError { error } = error {
            return Self::Refused { status: 500, message: error };
        }
        if let Error::SocketNotFoundError(_) = error {
            return Self::Unreachable("the socket does not exist".into());
        }
        let said = innermost(&error);
        if let Error::HyperLegacyError { err } = &error
            && err.is_connect()
        {
            return Self::Unreachable(said);
        }
        Self::Unanswered(said)
    }
}

/// The last reason in a chain, which is the one that helps.
fn innermost(error: &Error) -> String {
    let mut last: &dyn std::error::Error = error;
    while let Some(next) = last.source() {
        last = next;
    }
    last.to_string()
}

/// A Docker engine, reachable or not.
pub(super) struct Engine {
    endpoint: Endpoint,
    found: Arc<Mutex<Option<EngineConnection>>>,
    /// One connection attempt serves all waiting callers.
    connects: SingleFlight<EngineConnection, EngineFailure>,
    /// A create request was sent, so that containers may exist.
    create_requested: AtomicBool,
    /// Its warnings that were logged.
    warned: Mutex<BTreeSet<String>>,
    /// Why the last connection attempt failed.
    away: Mutex<Option<EngineFailure>>,
}

fn lock(found: &Mutex<Option<EngineConnection>>) -> MutexGuard<'_, Option<EngineConnection>> {
    found.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        let connects = SingleFlight::new(Duration::ZERO);
        Self {
            endpoint,
            found: Arc::default(),
            connects,
            create_requested: AtomicBool::new(false),
            warned: Mutex::default(),
            away: Mutex::default(),
        }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The facts of the engine, if it has been found.
    pub(super) fn facts(&self) -> Option<Facts> {
        lock(&self.found).as_ref().map(|found| found.facts.clone())
    }

    /// Drops the connection: the engine may be another one when it comes back.
    pub(super) fn forget(&self) {
        *lock(&self.found) = None;
    }

    /// Records that a create request is sent.
    pub(super) fn note_create_request(&self) {
        self.create_requested.store(true, Ordering::Relaxed);
    }

    /// Whether containers of this run may exist.
    pub(super) fn may_have_containers(&self) -> bool {
        self.create_requested.load(Ordering::Relaxed)
    }

    /// Logs a warning of the engine once: it may mean that a limit is not enforced.
    pub(super) fn log_warning_once(&self, warning: &str) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.len() < MAX_WARNINGS && warned.insert(warning.to_owned()) {
            tracing::warn!(engine = %self.endpoint, warning, "warning of the Docker engine");
        }
    }

    /// The connection, opened if there is none.
    pub(super) async fn find(&self) -> Result<EngineConnection, EngineFailure> {
        if let Some(found) = lock(&self.found).clone() {
            return Ok(found);
        }
        let (endpoint, keep) = (self.endpoint.clone(), Arc::clone(&self.found));
        let look = self.connects.join("engine", || async move {
            let found = match timeout(HELLO_PATIENCE, connect(&endpoint)).await {
                Ok(found) => found.map_err(EngineFailure::of)?,
                Err(_) => return Err(late()),
            };
            *lock(&keep) = Some(found.clone());
            Ok(found)
        });
        look.result().await.unwrap_or_else(|| {
            Err(EngineFailure::Unanswered("the connection attempt panicked".into()))
        })
    }

    /// Records whether the engine was found. The task that follows its events calls this.
    pub(super) fn set_absence(&self, failure: Option<EngineFailure>) {
        *self.away.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// Why the engine is absent, in words, if it is.
    pub(super) fn absence(&self) -> Option<String> {
        let away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        away.as_ref().map(|failure| self.describe_with_remedy(failure))
    }

    /// Sends a request. The deadline covers the connection, too.
    pub(super) async fn ask<T, A>(
        &self,
        patience: Duration,
        question: impl FnOnce(Docker) -> A,
    ) -> Result<T, EngineFailure>
    where
        A: Future<Output = Result<T, Error>>,
    {
        let asking = async {
            let found = self.find().await?;
            question(found.docker).await.map_err(EngineFailure::of)
        };
        let answer = timeout(patience, asking).await.unwrap_or_else(|_| Err(late()));
        if let Err(EngineFailure::Unreachable(_)) = answer {
            self.forget();
        }
        answer
    }

    /// A failure of the engine as the error of a step.
    pub(super) fn failed(
        &self,
        code: RuntimeErrorCode,
        step: &'static str,
        failure: &EngineFailure,
    ) -> RuntimeError {
        RuntimeError::new(code, step, self.describe_with_remedy(failure))
    }

    fn describe_with_remedy(&self, failure: &EngineFailure) -> String {
        let what = self.describe(failure);
        match failure.remedy() {
            Some(remedy) => format!("{what}; {remedy}"),
            None => what,
        }
    }

    /// A failure in words, without its remedy.
    pub(super) fn describe(&self, failure: &EngineFailure) -> String {
        let at = &self.endpoint;
        match failure {
            EngineFailure::Unreachable(why) if failure.is_denial() => {
                format!("the Docker engine at {at} may not be used: {why}")
            }
            EngineFailure::Unreachable(why) => {
                format!("the Docker engine at {at} does not answer: {why}")
            }
            EngineFailure::Unanswered(why) => {
                format!("the Docker engine at {at} gave no answer: {why}")
            }
            EngineFailure::Refused { message, .. } => {
                format!("the Docker engine refused: {}", message.trim_end())
            }
        }
    }
}

fn late() -> EngineFailure {
    EngineFailure::Unanswered("no answer in time".into())
}

async fn connect(endpoint: &Endpoint) -> Result<EngineConnection, Error> {
    let (seconds, version) = (LIBRARY_PATIENCE_SECS, API_DEFAULT_VERSION);
    let docker = match endpoint {
        Endpoint::Unix(path) => Docker::connect_with_unix(path, seconds, version)?,
        Endpoint::Tcp(address) => Docker::connect_with_http(address, seconds, version)?,
    };
    let docker = docker.negotiate_version().await?;
    let agreed = docker.client_version();
    let api = (agreed.major_version, agreed.minor_version);
    // The library sends no version, and the engine would treat each request as the newest version.
    let docker = docker.with_request_modifier(move |request: BollardRequest| {
        let (mut parts, body) = request.into_parts();
        if let Ok(uri) = with_version(&parts.uri.to_string(), api).parse() {
            parts.uri = uri;
        }
        BollardRequest::from_parts(parts, body)
    });
    let info = docker.info().await?;
    Ok(EngineConnection { docker, facts: Facts { api, info: Arc::new(info) } })
}

/// An address with a version before its path.
fn with_version(uri: &str, (major, minor): (usize, usize)) -> String {
    let after_scheme = uri.find("://").map_or(0, |at| at + 3);
    let path = uri[after_scheme..].find('/').map_or(uri.len(), |at| after_scheme + at);
    let (before, path) = uri.split_at(path);
    format!("{before}/v{major}.{minor}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_requests_name_their_api_version() {
        for (uri, expected) in [
            ("unix://abc/info", "unix://abc/v1.41/info"),
            ("unix://abc:0/a/b?c=d/e", "unix://abc:0/v1.41/a/b?c=d/e"),
            ("http://engine:2375/", "http://engine:2375/v1.41/"),
        ] {
            assert_eq!(with_version(uri, (1, 41)), expected);
        }
    }

    #[test]
    fn engine_failures_name_their_remedy() {
        let engine = Engine::new(Endpoint::Unix("/x.sock".into()));
        let said = |failure: EngineFailure| {
            engine.failed(RuntimeErrorCode::LaunchFailed, "launch", &failure).cause.into_owned()
        };
        let denied = said(EngineFailure::Unreachable("Permission denied (os error 13)".into()));
        assert!(denied.contains("the group of that socket"), "{denied}");
        let away = said(EngineFailure::Unreachable("Connection refused (os error 111)".into()));
        assert!(away.contains("unix:///x.sock does not answer: Connection refused"), "{away}");
        assert!(away.contains("start it or set docker.host"), "{away}");
        let refused = said(EngineFailure::Refused { status: 500, message: "no\n".into() });
        assert_eq!(refused, "the Docker engine refused: no");
    }
}
