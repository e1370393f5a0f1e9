//! The way to the engine. It is looked for when it is needed and may come and go: nothing here fails
//! for good. Every question has a deadline, and what came of it is told apart: never asked, asked
//! without an answer, or refused.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::SystemInfo;
use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker};
use tokio::time::timeout;

use super::config::Endpoint;
use super::single_flight::Flights;
use crate::error::{RuntimeError, RuntimeErrorCode};

/// How long to wait for a connection, and for the engine to say what it is.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// The library's own deadline, which none of ours is longer than.
const LIBRARY_PATIENCE_SECS: u64 = 30 * 60;

/// How many different warnings are said.
const MAX_WARNINGS: usize = 16;

/// How long a question may take that is answered at once by an engine that is well.
pub(super) const QUICK: Duration = Duration::from_secs(20);
/// How long work of the engine may take.
pub(super) const WORK: Duration = Duration::from_mins(1);

/// What the engine said about itself when it was found.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// The version of its interface that both sides know.
    pub api: (usize, usize),
    /// What it says of the machine it is on.
    pub info: Arc<SystemInfo>,
}

/// A connection that works, as far as is known, with what was learned when it was made.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub docker: Docker,
    pub facts: Facts,
}

/// Why a question has no good answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// There is no engine there: nothing was asked.
    Unreachable(String),
    /// It was asked, and no whole answer came: whether it was done is not known.
    Unanswered(String),
    /// It refused.
    Refused {
        /// The code of its answer.
        status: u16,
        /// What it said.
        message: String,
    },
}

impl Trouble {
    /// Whether the engine says that there is no such thing.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// What was said, in a few words.
    pub(super) fn said(&self) -> &str {
        match self {
            Self::Unreachable(why) | Self::Unanswered(why) => why,
            Self::Refused { message, .. } => message.trim_end(),
        }
    }

    /// Whether the engine says that something is in the way.
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
        // Said in the middle of an answer that began well.
        if let Error::DockerStreamError { error } = error {
            return Self::Refused { status: 500, message: error };
        }
        if let Error::SocketNotFoundError(_) = error {
            return Self::Unreachable("there is no such socket".into());
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

/// An engine, wherever it is and whether it is there or not.
pub(super) struct Engine {
    endpoint: Endpoint,
    found: Arc<Mutex<Option<Found>>>,
    /// It is looked for once for all who want it.
    looks: Flights<Found, Trouble>,
    /// It was asked to make something, so that there may be something.
    asked_to_make: AtomicBool,
    /// What it warned of, as far as that was said.
    warned: Mutex<BTreeSet<String>>,
    /// Why it could not be found when it was last looked for.
    away: Mutex<Option<Trouble>>,
}

fn lock(found: &Mutex<Option<Found>>) -> MutexGuard<'_, Option<Found>> {
    found.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        let looks = Flights::new(Duration::ZERO);
        Self {
            endpoint,
            found: Arc::default(),
            looks,
            asked_to_make: AtomicBool::new(false),
            warned: Mutex::default(),
            away: Mutex::default(),
        }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// What is known of it, if it has been found.
    pub(super) fn facts(&self) -> Option<Facts> {
        lock(&self.found).as_ref().map(|found| found.facts.clone())
    }

    /// It went away, and may be another one when it comes back.
    pub(super) fn forget(&self) {
        *lock(&self.found) = None;
    }

    /// It is asked to make a container.
    pub(super) fn is_asked_to_make(&self) {
        self.asked_to_make.store(true, Ordering::Relaxed);
    }

    /// Whether there may be a container of ours.
    pub(super) fn was_asked_to_make(&self) -> bool {
        self.asked_to_make.load(Ordering::Relaxed)
    }

    /// Says what it warns of when it makes a container, once: a limit may not be kept.
    pub(super) fn warns(&self, warning: &str) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.len() < MAX_WARNINGS && warned.insert(warning.to_owned()) {
            tracing::warn!(engine = %self.endpoint, warning, "the Docker engine warns");
        }
    }

    /// The engine, looked for if it is not known.
    pub(super) async fn find(&self) -> Result<Found, Trouble> {
        if let Some(found) = lock(&self.found).clone() {
            return Ok(found);
        }
        let (endpoint, keep) = (self.endpoint.clone(), Arc::clone(&self.found));
        let look = self.looks.board("engine", || async move {
            let found = match timeout(HELLO_PATIENCE, greet(&endpoint)).await {
                Ok(found) => found.map_err(Trouble::of)?,
                Err(_) => return Err(late()),
            };
            *lock(&keep) = Some(found.clone());
            Ok(found)
        });
        look.landed().await.unwrap_or_else(|| Err(Trouble::Unanswered("it was given up".into())))
    }

    /// Whether it was found, as whoever follows it sees it.
    pub(super) fn is_away(&self, trouble: Option<Trouble>) {
        *self.away.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Why it could not be found when it was last looked for, in words.
    pub(super) fn absence(&self) -> Option<String> {
        let away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        away.as_ref().map(|trouble| self.told(trouble))
    }

    /// Asks it something, within this time in all.
    pub(super) async fn ask<T, A>(
        &self,
        patience: Duration,
        question: impl FnOnce(Docker) -> A,
    ) -> Result<T, Trouble>
    where
        A: Future<Output = Result<T, Error>>,
    {
        let asking = async {
            let found = self.find().await?;
            question(found.docker).await.map_err(Trouble::of)
        };
        let answer = timeout(patience, asking).await.unwrap_or_else(|_| Err(late()));
        if let Err(Trouble::Unreachable(_)) = answer {
            self.forget();
        }
        answer
    }

    /// A trouble as the failure of a step.
    pub(super) fn failed(
        &self,
        code: RuntimeErrorCode,
        step: &'static str,
        trouble: &Trouble,
    ) -> RuntimeError {
        RuntimeError::new(code, step, self.told(trouble))
    }

    fn told(&self, trouble: &Trouble) -> String {
        let what = self.what_is_wrong(trouble);
        match trouble.remedy() {
            Some(remedy) => format!("{what}; {remedy}"),
            None => what,
        }
    }

    /// A trouble in words, without what helps.
    pub(super) fn what_is_wrong(&self, trouble: &Trouble) -> String {
        let at = &self.endpoint;
        match trouble {
            Trouble::Unreachable(why) if trouble.is_denial() => {
                format!("the Docker engine at {at} may not be used: {why}")
            }
            Trouble::Unreachable(why) => {
                format!("the Docker engine at {at} does not answer: {why}")
            }
            Trouble::Unanswered(why) => format!("the Docker engine at {at} gave no answer: {why}"),
            Trouble::Refused { message, .. } => {
                format!("the Docker engine refused: {}", message.trim_end())
            }
        }
    }
}

fn late() -> Trouble {
    Trouble::Unanswered("no answer in time".into())
}

async fn greet(endpoint: &Endpoint) -> Result<Found, Error> {
    let (seconds, version) = (LIBRARY_PATIENCE_SECS, API_DEFAULT_VERSION);
    let docker = match endpoint {
        Endpoint::Unix(path) => Docker::connect_with_unix(path, seconds, version)?,
        Endpoint::Tcp(address) => Docker::connect_with_http(address, seconds, version)?,
    };
    let docker = docker.negotiate_version().await?;
    let agreed = docker.client_version();
    let api = (agreed.major_version, agreed.minor_version);
    // The library leaves the version out of its requests, and the engine would take each as one of
    // the newest.
    let docker = docker.with_request_modifier(move |request: BollardRequest| {
        let (mut parts, body) = request.into_parts();
        if let Ok(uri) = with_version(&parts.uri.to_string(), api).parse() {
            parts.uri = uri;
        }
        BollardRequest::from_parts(parts, body)
    });
    let info = docker.info().await?;
    Ok(Found { docker, facts: Facts { api, info: Arc::new(info) } })
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
    fn requests_say_which_version_they_are_of() {
        for (uri, expected) in [
            ("unix://abc/info", "unix://abc/v1.41/info"),
            ("unix://abc:0/a/b?c=d/e", "unix://abc:0/v1.41/a/b?c=d/e"),
            ("http://engine:2375/", "http://engine:2375/v1.41/"),
        ] {
            assert_eq!(with_version(uri, (1, 41)), expected);
        }
    }

    #[test]
    fn troubles_are_told_with_what_helps() {
        let engine = Engine::new(Endpoint::Unix("/x.sock".into()));
        let said = |trouble: Trouble| {
            engine.failed(RuntimeErrorCode::LaunchFailed, "launch", &trouble).cause.into_owned()
        };
        let denied = said(Trouble::Unreachable("Permission denied (os error 13)".into()));
        assert!(denied.contains("the group of that socket"), "{denied}");
        let away = said(Trouble::Unreachable("Connection refused (os error 111)".into()));
        assert!(away.contains("unix:///x.sock does not answer: Connection refused"), "{away}");
        assert!(away.contains("start it or set docker.host"), "{away}");
        let refused = said(Trouble::Refused { status: 500, message: "no\n".into() });
        assert_eq!(refused, "the Docker engine refused: no");
    }
}
