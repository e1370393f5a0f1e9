//! The Docker engine as its owner sees it: through its own client, by the labels of one server.
//! What carries another label is never touched.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::skipped;

const USUAL: &str = "/var/run/docker.sock";

/// An engine, seen by what belongs to one server.
#[derive(Debug, Clone)]
pub(crate) struct Labelled {
    socket: PathBuf,
    node: String,
}

/// The socket of the engine that tests may use; or why there is none, said loudly.
pub(crate) fn socket() -> Option<PathBuf> {
    let named = std::env::var("DOCKER_HOST").unwrap_or_default();
    let path = match named.strip_prefix("unix://") {
        Some(path) => PathBuf::from(path),
        None if named.is_empty() => PathBuf::from(USUAL),
        None => {
            skipped("no Docker engine on a socket of this machine");
            return None;
        }
    };
    if docker(&path, &["version", "--format", "{{.Server.Version}}"]).is_some() {
        return Some(path);
    }
    skipped("no Docker engine");
    None
}

/// Runs the engine's client; none if that failed, which is how it says that something is gone.
pub(crate) fn docker(socket: &Path, arguments: &[&str]) -> Option<String> {
    let host = format!("unix://{}", socket.display());
    let output = Command::new("docker").args(["--host", &host]).args(arguments).output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(said)
}

impl Labelled {
    pub(crate) fn new(socket: &Path, node: &str) -> Self {
        Self { socket: socket.to_owned(), node: node.to_owned() }
    }

    fn listed(&self, arguments: &[&str]) -> Vec<String> {
        let filter = format!("label=shoal.node={}", self.node);
        let listed = docker(&self.socket, &[arguments, &["--filter", &filter]].concat());
        listed.expect("the engine answers").lines().map(str::to_owned).collect()
    }

    /// Its containers, in whatever state they are, sandboxes and others.
    pub(crate) fn containers(&self) -> Vec<String> {
        self.listed(&["ps", "--all", "--quiet", "--no-trunc"])
    }

    /// The same with details, to find out why they exist.
    pub(crate) fn details(&self) -> String {
        let format = "{{.ID}} {{.State}} {{.Status}} {{.Names}} {{.Labels}}";
        self.listed(&["ps", "--all", "--format", format]).join("\n")
    }

    /// Ends a container as an operator would, and does not remove it; whether it was running.
    pub(crate) fn kill(&self, container: &str) -> bool {
        docker(&self.socket, &["kill", container]).is_some()
    }

    /// Removes all of it, for the end of a test, however that came.
    pub(crate) fn clean(&self) {
        for container in self.containers() {
            docker(&self.socket, &["rm", "--force", "--volumes", &container]);
        }
        for volume in self.listed(&["volume", "ls", "--quiet"]) {
            docker(&self.socket, &["volume", "rm", &volume]);
        }
    }
}
