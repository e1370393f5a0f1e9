//! Removes containers, and proves that nothing is left. Processes are found and killed by their
//! control groups, whether or not the program still knows them; then the program deletes its state,
//! and then nothing of the container may exist.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use model::InstanceId;
use tokio::process::Command;

use super::bundle::container_id;
use super::command::{self, Streams};
use super::maker::OciMaker;
use super::{Program, blocking};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::leftovers::remove_kept;
use crate::spec::Reaped;

const STEP: &str = "remove the container";
/// How long the program may take to delete a container.
const FORGET_PATIENCE: Duration = Duration::from_secs(20);
/// Where gVisor puts a container's socket if the path of its state is too long.
const SOCKETS: [&str; 3] = ["/run", "/var/run", "/tmp"];

impl OciMaker {
    /// Removes a container and all that was made for it. Succeeds also if there is none.
    pub(super) async fn remove_container(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        self.end_processes(instance).await?;
        if self.program.forgets_at_once() && !self.states_of(instance).await?.is_empty() {
            // Its exit status does not matter: what counts is what is left.
            let _ = self.forget(instance).await;
            // It may have made one of the groups again.
            self.end_processes(instance).await?;
        }
        let states = self.states_of(instance).await?;
        let bundle = self.run_directory.bundle(instance).path;
        let sockets = sockets_of(self.program, &container_id(&self.run, instance));
        blocking(STEP, move || {
            for path in states.into_iter().chain(sockets) {
                remove_whatever(&path)?;
            }
            remove_kept(&bundle)
        })
        .await?;
        self.known().remove(&instance);
        Ok(())
    }

    /// Kills whatever is in its control groups, and removes them.
    async fn end_processes(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        let (leftovers, run) = (self.leftovers.clone(), self.run.clone());
        let stuck =
            blocking(STEP, move || Ok(leftovers.remove_group_of(&run, &instance.to_string())))
                .await?;
        is_gone(&stuck)
    }

    async fn forget(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        let mut command = Command::new(&self.path);
        command.env_clear().env("PATH", "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.args(self.before_the_verb()).args(["delete", "--force"]);
        command.arg(container_id(&self.run, instance));
        command::run(command, Streams::default(), STEP, FORGET_PATIENCE).await
    }

    /// The program's state files of a container.
    async fn states_of(&self, instance: InstanceId) -> Result<Vec<PathBuf>, RuntimeError> {
        let (state, id) = (self.run_directory.state(), container_id(&self.run, instance));
        blocking(STEP, move || named(&state, &id)).await
    }

    /// Removes what earlier runs left.
    pub(super) async fn reap(&self) -> Result<Reaped, RuntimeError> {
        let (leftovers, program) = (self.leftovers.clone(), self.program);
        blocking("reap orphans", move || {
            let reaped = leftovers.remove_all()?;
            for run in &reaped.runs {
                remove_sockets(program, run)?;
            }
            Ok(reaped)
        })
        .await
    }

    /// Removes everything of this run.
    pub(super) async fn remove_run(&self) -> Result<(), RuntimeError> {
        let (run_directory, leftovers) = (Arc::clone(&self.run_directory), self.leftovers.clone());
        let (run, program) = (self.run.clone(), self.program);
        let reaped = blocking("shut down", move || {
            run_directory.unlock()?;
            let reaped = leftovers.remove_ended_run(&run)?;
            remove_sockets(program, &run)?;
            // Another run may use it.
            let _ = fs::remove_dir(&run_directory.runs);
            Ok(reaped)
        })
        .await?;
        is_gone(&reaped.stuck)
    }
}

fn is_gone(stuck: &[(PathBuf, String)]) -> Result<(), RuntimeError> {
    match stuck.first() {
        None => Ok(()),
        Some((path, why)) => {
            let cause = format!("{} could not be removed: {why}", path.display());
            Err(RuntimeError::new(RuntimeErrorCode::System, STEP, cause))
        }
    }
}

/// Entries of a directory whose names begin with an id: one for each container, or several.
fn named(directory: &Path, id: &str) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.contains(id)) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn sockets_of(program: Program, id: &str) -> Vec<PathBuf> {
    match program {
        Program::Runc | Program::Crun | Program::Youki => Vec::new(),
        Program::Runsc => {
            SOCKETS.iter().map(|place| Path::new(place).join(format!("runsc-{id}.sock"))).collect()
        }
    }
}

/// Removes the sockets of all containers of a dead run.
fn remove_sockets(program: Program, run: &str) -> io::Result<()> {
    if program != Program::Runsc {
        return Ok(());
    }
    for place in SOCKETS {
        for path in named(Path::new(place), &format!("runsc-shoal-{run}-"))? {
            remove_whatever(&path)?;
        }
    }
    Ok(())
}

fn remove_whatever(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(about) if about.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
