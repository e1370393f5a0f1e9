//! Sandboxes in Docker containers keep every promise: the whole suite over sockets that are shown
//! in containers, and again through the engine's own attachment. Needs an engine (`DOCKER_HOST`).

use std::path::{Path, PathBuf};
use std::process::Command as HostCommand;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use model::{Template, TemplateName, WorkspaceId};
use runtime::conformance::Subject;
use runtime::docker::{DockerConfig, Endpoint, LinkMode};
use runtime::{Command, Runtime};

static PLACES: AtomicU64 = AtomicU64::new(0);

/// A node of its own at the engine.
pub(crate) struct DockerSubject {
    place: PathBuf,
    node: String,
    link: LinkMode,
}

/// The engine, if there is one.
pub(crate) fn endpoint() -> Result<Endpoint, String> {
    match std::env::var("DOCKER_HOST") {
        Ok(host) if !host.is_empty() => Endpoint::parse(&host).map_err(|error| error.to_string()),
        Ok(_) | Err(_) => Err("no Docker engine (DOCKER_HOST)".to_owned()),
    }
}

/// Runs the engine's own client.
pub(crate) fn docker(args: &[&str]) -> String {
    let output = HostCommand::new("docker").args(args).output().expect("the client of Docker");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "docker {args:?}: {said}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl DockerSubject {
    pub(crate) fn new(link: LinkMode) -> Self {
        let n = PLACES.fetch_add(1, Ordering::Relaxed);
        let node = format!("t{}-{n}", std::process::id());
        let place = std::env::temp_dir().join(format!("docker-{node}"));
        Self { place, node, link }
    }

    /// A directory that goes with it.
    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    pub(crate) fn config(&self, epoch: &str) -> Result<DockerConfig, String> {
        let run = self.place.join("run");
        let mut config = DockerConfig::new(endpoint()?, self.node.clone(), epoch, run);
        config.link = self.link;
        Ok(config)
    }

    /// Containers of this node, by their ids.
    pub(crate) fn containers(&self) -> Vec<String> {
        let filter = format!("label=shoal.node={}", self.node);
        let listed = docker(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &filter]);
        listed.lines().map(str::to_owned).collect()
    }
}

impl Drop for DockerSubject {
    fn drop(&mut self) {
        // After a failed test the directory stays, for inspection.
        if std::thread::panicking() || endpoint().is_err() {
            return;
        }
        let filter = format!("label=shoal.node={}", self.node);
        for volume in docker(&["volume", "ls", "--quiet", "--filter", &filter]).lines() {
            docker(&["volume", "rm", volume]);
        }
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

#[async_trait]
impl Subject for DockerSubject {
    async fn start(&self) -> Result<Arc<dyn Runtime>, String> {
        // Where there is an engine it must work: what fails now is no reason to skip.
        let config = self.config("run-1")?;
        Ok(runtime::docker::start(config).await.expect("the runtime starts"))
    }

    fn template(&self) -> Template {
        Template::named(TemplateName::new("default").expect("a name"))
    }

    fn echo_server(&self, port: u16) -> Command {
        crate::native::echo_server(port)
    }

    fn echo_socket(&self, path: &str) -> Command {
        crate::native::echo_socket(path)
    }

    fn echo_channel(&self) -> Command {
        Command::Shell("exec cat <&3 >&3".to_owned())
    }

    async fn make_workspace(&self) -> Option<WorkspaceId> {
        None
    }

    fn remains(&self) -> Vec<String> {
        self.containers()
    }
}

mod by_socket {
    use super::*;

    fn subject() -> Arc<dyn Subject> {
        Arc::new(DockerSubject::new(LinkMode::Socket))
    }

    runtime::conformance_tests! { #[tokio::test(flavor = "multi_thread", worker_threads = 2)] subject() }
}

mod by_attachment {
    use super::*;

    fn subject() -> Arc<dyn Subject> {
        Arc::new(DockerSubject::new(LinkMode::Attach))
    }

    runtime::conformance_tests! { #[tokio::test(flavor = "multi_thread", worker_threads = 2)] subject() }
}
