//! What an OCI runtime can do on this machine, and why not: found out from the machine and from its
//! version. It must create nothing.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use jail::machine::parse::mounts;
use jail::machine::{Access, Arrangement, CgroupLayout, Host, Placement};
use tokio::process::Command;
use tokio::time::timeout;

use super::{OciConfig, Program};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::spec::{Capabilities, NetworkAbility, Users};

const STEP: &str = "find the OCI runtime";
/// How long it may take to say its version.
const VERSION_PATIENCE: Duration = Duration::from_secs(10);

/// What a program can do here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abilities {
    /// Where it is.
    pub path: PathBuf,
    /// The first line of its `--version`.
    pub version: String,
    /// What its sandboxes can do.
    pub capabilities: Capabilities,
    /// Host mounts that must be hidden from it.
    pub(super) without: Vec<PathBuf>,
}

impl Abilities {
    /// Finds out, or says why it cannot be used at all.
    pub(super) async fn find(config: &OciConfig) -> Result<Self, RuntimeError> {
        let cannot =
            |cause: String| Err(RuntimeError::new(RuntimeErrorCode::Unsupported, STEP, cause));
        let program = config.program;
        if !rustix::process::geteuid().is_root() {
            return cannot(format!("{} can be used by root only", program.as_str()));
        }
        let Some(path) = config.found() else {
            return cannot(match &config.path {
                Some(path) => format!("{} is not an executable file", path.display()),
                None => format!("{} is not installed: {}", program.as_str(), program.remedy()),
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
    // Without a control group, leftover processes of a container could not be found.
    if !writable(&groups.freezer) && !writable(&groups.pids) {
        return Err("this server can make no control group on this machine");
    }
    Ok(Capabilities {
        memory_limit: writable(&groups.memory),
        cpu_limit: writable(&groups.cpu),
        pids_limit: writable(&groups.pids),
        freeze: writable(&groups.freezer),
        disk_workspaces: false,
        aliases: false,
        terminals: true,
        // gVisor has no file leases, by which the guest notices that a program opens the scale
        // file.
        scale_file: program.shares_our_kernel(),
        users: Users::Alone,
        network: NetworkAbility::None,
    })
}

/// The mounts of cgroup v2, for programs that refuse to run where both generations are mounted.
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
        let cause = format!("`{} --version` failed: {}", path.display(), output.status);
        return Err(RuntimeError::new(RuntimeErrorCode::Unsupported, STEP, cause));
    }
    Ok(line.to_owned())
}
