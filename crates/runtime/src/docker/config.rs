//! The configuration of a Docker runtime. It is checked here as far as that is possible without an
//! engine; it must never wait for one.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use model::ImageId;

use super::path_map::PathMap;
use crate::error::{RuntimeError, RuntimeErrorCode};

/// Where an engine listens by default.
const USUAL_SOCKET: &str = "/var/run/docker.sock";
/// The longest name of a node or a run: both are part of names that engines bound.
const NAME_BYTES_MAX: usize = 64;
/// How many containers are created at once by default: more would only wait inside the engine.
const USUAL_AT_ONCE: usize = 8;

/// Where an engine listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A socket on this machine.
    Unix(String),
    /// A host and a port, without encryption.
    Tcp(String),
}

impl Endpoint {
    /// Reads `unix:///path` or `tcp://host:port`.
    pub fn parse(text: &str) -> Result<Self, RuntimeError> {
        let refuse = |cause: &str| {
            let cause = format!("{cause}: {text:?}");
            Err(RuntimeError::new(RuntimeErrorCode::Invalid, "read docker.host", cause))
        };
        match text.split_once("://") {
            Some(("unix", path)) if path.starts_with('/') => Ok(Self::Unix(path.to_owned())),
            Some(("tcp" | "http", address)) => {
                let address = address.trim_end_matches('/');
                match address.rsplit_once(':') {
                    Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                        Ok(Self::Tcp(address.to_owned()))
                    }
                    Some(_) | None => refuse("tcp://HOST:PORT is expected"),
                }
            }
            Some(("ssh" | "https" | "npipe" | "fd", _)) => {
                refuse("only unix:// and tcp:// without encryption are supported")
            }
            Some(_) | None => refuse("unix:///PATH or tcp://HOST:PORT is expected"),
        }
    }

    /// `DOCKER_HOST` if it is set, else the usual socket.
    pub fn usual() -> Result<Self, RuntimeError> {
        match std::env::var("DOCKER_HOST") {
            Ok(text) if !text.is_empty() => Self::parse(&text),
            Ok(_) | Err(_) => Ok(Self::Unix(USUAL_SOCKET.to_owned())),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{path}"),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

/// How guests are connected to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LinkMode {
    /// By a socket where the engine and this server share files and a kernel, else through the
    /// engine.
    #[default]
    Auto,
    /// By a socket that is mounted in the container.
    Socket,
    /// Through the engine, by input and output of the container.
    Attach,
}

/// The image store, as far as an engine needs it.
pub trait StoredImages: Send + Sync {
    /// Writes an image as `docker load` reads it, with `tag` as its name. Called where blocking is
    /// fine.
    fn write_archive(&self, image: ImageId, tag: &str, to: &mut dyn io::Write) -> io::Result<()>;
}

/// What a Docker runtime is configured with.
#[derive(Clone)]
pub struct DockerConfig {
    /// Where the engine listens.
    pub endpoint: Endpoint,
    /// Names this server's data directory: containers of another name are never touched. Letters,
    /// digits and dashes.
    pub node: String,
    /// Names this run: what carries another one was left behind by an earlier run. Letters, digits
    /// and dashes.
    pub epoch: String,
    /// Where sockets are made. For this node only.
    pub run_directory: PathBuf,
    /// How guests are connected to.
    pub link: LinkMode,
    /// Paths as the engine sees them, if it sees them elsewhere.
    pub host_path_map: PathMap,
    /// The image store, if there is one.
    pub images: Option<Arc<dyn StoredImages>>,
    /// How many containers are made at once.
    pub creates_at_once: usize,
}

impl fmt::Debug for DockerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DockerConfig")
            .field("endpoint", &self.endpoint)
            .field("node", &self.node)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl DockerConfig {
    /// Every default, with an engine at this endpoint.
    pub fn new(
        endpoint: Endpoint,
        node: impl Into<String>,
        epoch: impl Into<String>,
        run_directory: impl Into<PathBuf>,
    ) -> Self {
        Self {
            endpoint,
            node: node.into(),
            epoch: epoch.into(),
            run_directory: run_directory.into(),
            link: LinkMode::Auto,
            host_path_map: PathMap::default(),
            images: None,
            creates_at_once: USUAL_AT_ONCE,
        }
    }

    /// Refuses a configuration that could never work.
    pub(super) fn check(&self) -> Result<(), RuntimeError> {
        let refuse = |cause: &str| {
            Err(RuntimeError::new(RuntimeErrorCode::Invalid, "start", cause.to_owned()))
        };
        if !is_name(&self.node) || !is_name(&self.epoch) {
            return refuse("a node and a run are named by letters, digits and dashes, 64 at most");
        }
        if !self.run_directory.is_absolute() {
            return refuse("the run directory must be an absolute path");
        }
        if self.creates_at_once == 0 {
            return refuse("docker.creates_at_once must be at least 1");
        }
        if self.link == LinkMode::Socket && matches!(self.endpoint, Endpoint::Tcp(_)) {
            return refuse(
                "docker.link = \"socket\" needs a unix:// engine; use auto or attach for tcp://",
            );
        }
        Ok(())
    }
}

fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_endpoints_are_parsed_or_refused() {
        let unix = |path: &str| Some(Endpoint::Unix(path.to_owned()));
        let tcp = |address: &str| Some(Endpoint::Tcp(address.to_owned()));
        for (text, expected) in [
            ("unix:///var/run/docker.sock", unix("/var/run/docker.sock")),
            ("tcp://127.0.0.1:2375", tcp("127.0.0.1:2375")),
            ("tcp://[::1]:2375/", tcp("[::1]:2375")),
            ("http://engine:2375", tcp("engine:2375")),
            ("unix://relative", None),
            ("/var/run/docker.sock", None),
            ("tcp://engine", None),
            ("tcp://:2375", None),
            ("tcp://engine:99999", None),
            ("ssh://engine", None),
            ("https://engine:2376", None),
            ("", None),
        ] {
            assert_eq!(Endpoint::parse(text).ok(), expected, "{text:?}");
        }
        assert_eq!(Endpoint::Unix("/a".into()).to_string(), "unix:///a");
    }

    #[test]
    fn docker_config_that_could_never_work_is_refused() {
        let good = || DockerConfig::new(Endpoint::Tcp("e:1".into()), "node", "run-1", "/run/x");
        assert!(good().check().is_ok());
        let wrong: [fn(&mut DockerConfig); 6] = [
            |config| config.node = String::new(),
            |config| config.node = "a/b".into(),
            |config| config.epoch = "x".repeat(65),
            |config| config.run_directory = "run".into(),
            |config| config.creates_at_once = 0,
            |config| config.link = LinkMode::Socket,
        ];
        for (number, spoil) in wrong.into_iter().enumerate() {
            let mut config = good();
            spoil(&mut config);
            assert!(config.check().is_err(), "{number}");
        }
    }
}
