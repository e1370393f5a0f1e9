//! What a program can do on this machine, and why not: found out by looking and by asking it for its
//! version. Nothing is made for it.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use jail::machine::parse::mounts;
use jail::machine::{Access, Arrangement, CgroupLayout, Host, Placement};
use tokio::process::Command;
use tokio::time::timeout;

use super::{OciConfig, Program};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::spec::{Capabilities, Users};

const STEP: &str = "find the OCI runtime";
/// How long it may take to say its version.
const VERSION_PATIENCE: Duration = Duration::from_secs(10);

/// What a program can do here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abilities {
    /// Where it is.
    pub path: PathBuf,
    /// What it says about itself, in one line.
    pub version: String,
    /// What its sandboxes can do.
    pub capabilities: Capabilities,
    /// What it must not see of the host's mounts.
    pub(super) without: Vec<PathBuf>,
}

impl Abilities {
    /// Finds out, or why it cannot be used at all.
    pub(super) async fn find(config: &OciConfig) -> Result<Self, RuntimeError> {
        let cannot =
            |cause: String| Err(RuntimeError::new(RuntimeErrorCode::Unsupported, STEP, cause));
        let program = config.program;
        if !rustix::process::geteuid().is_root() {
            return cannot(format!("{} is only used by root", program.as_str()));
        }
        let Some(path) = config.found() else {
            return cannot(match &config.path {
                Some(path) => format!("{} is no program", path.display()),
                None => format!("there is no {}: {}", program.as_str(), program.remedy()),
            });
        };
        let groups = CgroupLayout::find(&Host, true);
        let capabilities = match judge(program, &groups) {
            Ok(capabilities) => capabilities,
            Err(cause) => return cannot(cause.to_owned()),
        };
        let version = version_of(&path).await?;
        let without = hidden_from(program, groups.arrangement);
        Ok(Self { path, version, capabilities, without })
    }
}

fn judge(program: Program, groups: &CgroupLayout) -> Result<Capabilities, &'static str> {
    let writable = |placement: &Option<Placement>| {
        placement.as_ref().is_some_and(|found| found.access == Access::Writable)
    };
    // Without one, what a container leaves running could not be found.
    if !writable(&groups.freezer) && !writable(&groups.pids) {
        return Err("no control group can be made here");
    }
    Ok(Capabilities {
        memory_limit: writable(&groups.memory),
        cpu_limit: writable(&groups.cpu),
        pids_limit: writable(&groups.pids),
        freeze: writable(&groups.freezer),
        disk_workspaces: false,
        aliases: false,
        terminals: true,
        // gVisor has no leases, by which the guest learns that somebody opens it.
        scale_file: program.shares_our_kernel(),
        users: Users::Alone,
    })
}

/// The second generation of control groups, from who refuses to see both.
fn hidden_from(program: Program, arrangement: Arrangement) -> Vec<PathBuf> {
    if !program.wants_one_generation() || arrangement != Arrangement::Hybrid {
        return Vec::new();
    }
    let mounted = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let second = mounts(&mounted).into_iter().filter(|mount| mount.kind == "cgroup2");
    second.map(|mount| mount.point).collect()
}

async fn version_of(path: &PathBuf) -> Result<String, RuntimeError> {
    let mut command = Command::new(path);
    command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let asked = timeout(VERSION_PATIENCE, command.output()).await;
    let output = asked
        .map_err(|_| RuntimeError::deadline(STEP))?
        .map_err(|error| RuntimeError::system(STEP, &error))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said.lines().next().unwrap_or_default().trim();
    if !output.status.success() || line.is_empty() {
        let cause = format!("{} does not say its version: {}", path.display(), output.status);
        return Err(RuntimeError::new(RuntimeErrorCode::Unsupported, STEP, cause));
    }
    Ok(line.to_owned())
}
