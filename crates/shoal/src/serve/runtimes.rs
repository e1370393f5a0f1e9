//! The runtimes of a server: native if this machine can, installed OCI programs, and a Docker
//! engine if one is configured or runs. A missing runtime is kept with its reason, for the error
//! that a template gets. It does not stop the server while another runtime works.

use std::path::Path;
use std::sync::Arc;

use engine::Runtimes;
use model::template::RuntimeKind;
use runtime::Runtime;
use runtime::docker::{self, DockerConfig, Endpoint};
use runtime::native::Native;
use runtime::oci::{self, OciConfig, Program};

use super::Parts;
use super::stored_images::StoredImages;
use crate::config::Enabled;
use crate::failure::Failure;
use crate::native;

/// Starts all runtimes that can be used. Also gives the one for templates that do not choose.
pub(super) async fn gather(
    parts: &Parts<'_>,
    native: Result<Arc<Native>, Failure>,
    images: &images::Store,
    node: &str,
) -> Result<(Runtimes, RuntimeKind), Failure> {
    let mut found = RuntimeSet { runtimes: Runtimes::new(), first: None };
    let unable = match native {
        Ok(native) => {
            found.add(RuntimeKind::Native, native);
            None
        }
        Err(failure) => {
            found.add_missing(RuntimeKind::Native, failure.to_string());
            Some(failure)
        }
    };
    add_docker(parts, images, node, &mut found).await?;
    for name in Program::ALL {
        add_program(parts, name, &mut found).await?;
    }
    match (found.first, unable) {
        (Some(first), None) => Ok((found.runtimes, first)),
        (Some(first), Some(failure)) => {
            tracing::warn!(
                why = %failure,
                "the native runtime does not work here: templates must choose another runtime"
            );
            Ok((found.runtimes, first))
        }
        (None, Some(failure)) => Err(failure),
        (None, None) => Err(Failure::new("cannot serve", "no runtime works on this machine")),
    }
}

/// The runtimes found so far.
struct RuntimeSet {
    runtimes: Runtimes,
    /// The first that works: the default.
    first: Option<RuntimeKind>,
}

impl RuntimeSet {
    fn add(&mut self, kind: RuntimeKind, runtime: Arc<dyn Runtime>) {
        self.runtimes = std::mem::take(&mut self.runtimes).with(kind, runtime);
        self.first.get_or_insert(kind);
    }

    fn add_missing(&mut self, kind: RuntimeKind, why: String) {
        self.runtimes = std::mem::take(&mut self.runtimes).without(kind, why);
    }
}

async fn add_docker(
    parts: &Parts<'_>,
    images: &images::Store,
    node: &str,
    found: &mut RuntimeSet,
) -> Result<(), Failure> {
    let settings = &parts.config.docker;
    if settings.enabled == Enabled::No {
        found.add_missing(RuntimeKind::Docker, "docker.enabled is no".to_owned());
        return Ok(());
    }
    let endpoint = match &settings.host {
        Some(host) => Endpoint::parse(host),
        None => Endpoint::usual(),
    };
    let endpoint = match (endpoint, settings.enabled) {
        (Ok(endpoint), _) => endpoint,
        (Err(error), Enabled::Yes) => return Err(Failure::of_runtime("cannot use Docker", &error)),
        (Err(error), Enabled::Auto | Enabled::No) => {
            found.add_missing(RuntimeKind::Docker, error.to_string());
            return Ok(());
        }
    };
    if !docker_is_wanted(parts, &endpoint) {
        let why = format!(
            "no Docker engine listened at {endpoint} when this server started; start the engine and \
             then the server again, or set docker.host or docker.enabled"
        );
        found.add_missing(RuntimeKind::Docker, why);
        return Ok(());
    }
    let host_path_map = settings
        .path_map()
        .map_err(|problem| Failure::new("docker.host_path_map", problem).usage())?;
    let epoch = format!("{:016x}", native::random()? as u64);
    let run_directory = native::run_directory()?.join("docker").join(node);
    let docker = DockerConfig {
        link: settings.link.into(),
        host_path_map,
        images: Some(Arc::new(StoredImages::new(images.clone()))),
        creates_at_once: settings.creates_at_once as usize,
        ..DockerConfig::new(endpoint, node, epoch, run_directory)
    };
    match docker::start(docker).await {
        Ok(runtime) => {
            parts.place.remember_docker()?;
            found.add(RuntimeKind::Docker, runtime);
        }
        Err(error) => {
            tracing::warn!(%error, "cannot use Docker: templates that need it are refused");
            found.add_missing(RuntimeKind::Docker, error.to_string());
        }
    }
    Ok(())
}

/// Whether to use Docker. The server waits for a configured engine that is down, so any sign that
/// the operator wants one is enough.
fn docker_is_wanted(parts: &Parts<'_>, endpoint: &Endpoint) -> bool {
    let (config, settings) = (parts.config, &parts.config.docker);
    match settings.enabled {
        Enabled::Yes => true,
        Enabled::No => false,
        Enabled::Auto => {
            let is_there = match endpoint {
                Endpoint::Unix(path) => Path::new(path).exists(),
                Endpoint::Tcp(_) => true,
            };
            let named = config.given_templates().iter();
            is_there
                || parts.place.had_docker()
                || settings.host.is_some()
                || std::env::var_os("DOCKER_HOST").is_some()
                || named.into_iter().any(|template| template.runtime == RuntimeKind::Docker)
        }
    }
}

async fn add_program(
    parts: &Parts<'_>,
    program: Program,
    found: &mut RuntimeSet,
) -> Result<(), Failure> {
    let settings = &parts.config.oci;
    let kind = program.kind();
    if !settings.programs.iter().any(|name| name == program.as_str()) {
        found.add_missing(kind, "oci.programs does not name it".to_owned());
        return Ok(());
    }
    let mut oci = OciConfig::new(program, native::run_directory()?);
    oci.path = settings.path_of(program);
    oci.directories.clone_from(&parts.config.native.directories);
    oci.images = Some(parts.place.images());
    match program {
        Program::Runsc => oci.arguments.clone_from(&settings.runsc_arguments),
        Program::Runc | Program::Crun | Program::Youki => {}
    }
    match oci::start(oci).await {
        Ok(runtime) => found.add(kind, runtime),
        Err(error) => {
            tracing::debug!(%error, program = program.as_str(), "cannot use this OCI runtime");
            found.add_missing(kind, error.cause.into_owned());
        }
    }
    Ok(())
}
