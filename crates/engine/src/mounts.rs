//! Which directories of the host templates may mount: only those beneath configured directories,
//! after every link is resolved. A mount is checked when a template is put, so that a wrong one is
//! refused there, and again for every launch, because links may change. Where a Docker engine sees
//! other paths than this server, they cannot be checked: they must lie beneath directories
//! configured for that engine.

use std::io;
use std::path::{Path, PathBuf};

use model::template::RuntimeKind;
use model::{ErrorCode, Mount, Refusal, Template};
use runtime::{RuntimeError, RuntimeErrorCode};

use crate::roots::in_background;

/// The directories beneath which templates may mount.
#[derive(Debug, Clone, Default)]
pub struct Mounts {
    /// On this machine; none if nothing may be mounted.
    pub roots: Vec<PathBuf>,
    /// On the machine of a Docker engine, where templates say how that engine sees a path.
    pub docker_roots: Vec<PathBuf>,
}

impl Mounts {
    /// Refuses what could not be mounted.
    pub(crate) async fn check(&self, template: &Template) -> Result<(), Refusal> {
        if template.mounts.is_empty() {
            return Ok(());
        }
        let (known, template) = (self.clone(), template.clone());
        in_background(move || known.check_blocking(&template)).await?
    }

    /// The same; blocks.
    pub(crate) fn check_blocking(&self, template: &Template) -> Result<(), Refusal> {
        if template.mounts.is_empty() {
            return Ok(());
        }
        if self.roots.is_empty() {
            let cause = "mounts: this server mounts nothing of the host; see mounts.roots";
            return Err(Refusal::new(ErrorCode::Unsupported, cause));
        }
        let found = self.find(template.runtime, &template.mounts);
        found.map(|_| ()).map_err(|cause| Refusal::new(ErrorCode::TemplateInvalid, cause))
    }

    /// What a sandbox gets mounted, with every link resolved.
    pub(crate) async fn of(&self, template: &Template) -> Result<Vec<Mount>, RuntimeError> {
        if template.mounts.is_empty() {
            return Ok(Vec::new());
        }
        let (known, runtime, mounts) = (self.clone(), template.runtime, template.mounts.clone());
        let found = in_background(move || known.find(runtime, &mounts)).await;
        let found = found.map_err(|refusal| refusal.cause.into_owned()).flatten();
        let step = "find what is mounted";
        found.map_err(|cause| RuntimeError::new(RuntimeErrorCode::LaunchFailed, step, cause))
    }

    /// Blocks.
    fn find(&self, runtime: RuntimeKind, mounts: &[Mount]) -> Result<Vec<Mount>, String> {
        // A configured directory that does not exist has nothing to mount.
        let roots: Vec<_> = self.roots.iter().filter_map(|root| root.canonicalize().ok()).collect();
        let found = mounts.iter().enumerate().map(|(at, mount)| {
            let host_path = self.find_one(runtime, &roots, mount);
            let host_path = host_path.map_err(|problem| format!("mounts[{at}].{problem}"))?;
            Ok(Mount { host_path, ..mount.clone() })
        });
        found.collect()
    }

    fn find_one(
        &self,
        runtime: RuntimeKind,
        roots: &[PathBuf],
        mount: &Mount,
    ) -> Result<String, String> {
        let shown = &mount.host_path;
        if let Some(elsewhere) = &mount.docker_host_path {
            if runtime != RuntimeKind::Docker {
                let kind = runtime.as_str();
                return Err(format!("docker_host_path: {kind} sees what this server sees"));
            }
            if !is_beneath(Path::new(elsewhere), &self.docker_roots) {
                let problem = "is not beneath mounts.docker_roots";
                return Err(format!("docker_host_path: {elsewhere} {problem}"));
            }
        }
        match Path::new(shown).canonicalize() {
            Ok(real) if is_beneath(&real, roots) => real
                .into_os_string()
                .into_string()
                .map_err(|_| format!("host_path: {shown} leads to a path that is not valid UTF-8")),
            Ok(_) => Err(format!("host_path: {shown} is not beneath mounts.roots")),
            // The template says how the Docker engine sees it: it need not exist here.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && mount.docker_host_path.is_some() =>
            {
                if is_beneath(Path::new(shown), &self.roots) {
                    Ok(shown.clone())
                } else {
                    Err(format!("host_path: {shown} is not beneath mounts.roots"))
                }
            }
            // A refusal must not tell whether a path outside of the roots exists.
            Err(_) if !is_beneath(Path::new(shown), &self.roots) => {
                Err(format!("host_path: {shown} is not beneath mounts.roots"))
            }
            Err(error) => Err(format!("host_path: {shown}: {error}")),
        }
    }
}

/// By whole path components.
fn is_beneath(path: &Path, roots: &[PathBuf]) -> bool {
    roots.iter().any(|root| path.starts_with(root))
}
