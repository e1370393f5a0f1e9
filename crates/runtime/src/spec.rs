//! What a runtime gets (the spec of a launch) and what it reports about itself. A spec names things
//! (a root, a workspace); it must never hold a host path except those of mounts, which the server
//! has allowed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use guest_protocol::network::NetworkFeature;
use model::{ClaimSettings, ImageId, InstanceId, Limits, Mount, Template, WorkspaceId};

/// The host name of a sandbox.
pub fn host_name(instance: InstanceId) -> String {
    // The first bytes of an id are its time, which neighbours share.
    format!("shoal-{:08x}", instance.as_u128() as u32)
}

/// A sandbox to launch.
#[derive(Debug, Clone)]
pub struct LaunchSpec {
    /// The label of what is made. The caller journals it before the launch.
    pub instance: InstanceId,
    /// What its `/` is made of.
    pub root: Root,
    /// What it may consume.
    pub limits: Limits,
    /// What its `/workspace` is.
    pub workspace: WorkspaceSource,
    /// Other names of its workspace, at the top of the root: `app` for `/app`.
    pub aliases: Vec<String>,
    /// Host directories that are mounted inside. The caller has checked that they may be.
    pub mounts: Vec<Mount>,
    /// What to bind to it before anything starts in it.
    pub settings: Option<Arc<ClaimSettings>>,
    /// How long it may take to be ready.
    pub ready_timeout: Duration,
}

impl LaunchSpec {
    /// A sandbox with the limits of a template, the host's programs, its workspace in memory and
    /// nothing bound to it.
    pub fn of(template: &Template, instance: InstanceId) -> Self {
        Self {
            instance,
            root: Root::Host,
            limits: template.limits,
            workspace: WorkspaceSource::Memory,
            aliases: template.workspace.alias_names(),
            mounts: template.mounts.clone(),
            settings: None,
            ready_timeout: Duration::from_millis(template.ready_timeout_ms),
        }
    }
}

/// What the root filesystem is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// The host's own programs, read-only, with a synthetic `/etc`.
    Host,
    /// A directory, by its path beneath one of those that are configured.
    Directory(String),
    /// An image of the store.
    Image(ImageId),
    /// An image by a name that the runtime's own engine may know; else this one of the store, and
    /// else whatever the engine can pull by that name.
    Named {
        /// The name, as the template has it.
        name: String,
        /// What the store has by that name.
        stored: Option<ImageId>,
    },
}

/// What `/workspace` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceSource {
    /// In memory, gone with the sandbox. One on disk may be attached over it by a claim.
    Memory,
    /// On disk, where it outlives the sandbox. It exists already.
    Disk(WorkspaceId),
}

/// What a runtime can do on this machine. What it cannot do it refuses as `unsupported`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Memory limits are enforced.
    pub memory_limit: bool,
    /// Processor limits are enforced.
    pub cpu_limit: bool,
    /// Process limits are enforced.
    pub pids_limit: bool,
    /// Sandboxes can be frozen and thawed.
    pub freeze: bool,
    /// Workspaces on disk can be used.
    pub disk_workspaces: bool,
    /// Workspaces can have other names.
    pub aliases: bool,
    /// Programs can have a terminal.
    pub terminals: bool,
    /// Programs have a scale file to write to.
    pub scale_file: bool,
    /// Which host users sandboxes run as.
    pub users: Users,
    /// How sandboxes reach the network, if a policy lets them.
    pub network: NetworkAbility,
}

/// How sandboxes reach the network, if a policy lets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkAbility {
    /// Programs connect as anywhere else, by name and by number.
    Transparent,
    /// Programs must use a proxy.
    ProxyOnly,
    /// Not at all.
    None,
}

impl From<NetworkFeature> for NetworkAbility {
    fn from(feature: NetworkFeature) -> Self {
        match feature {
            NetworkFeature::Transparent => Self::Transparent,
            NetworkFeature::ProxyOnly => Self::ProxyOnly,
            NetworkFeature::None => Self::None,
        }
    }
}

/// Which host users sandboxes run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// Each sandbox has a range of its own.
    Ranges,
    /// Programs run as the server's user; their guests run as subordinate users.
    Subordinate,
    /// All run as the server's user.
    Alone,
}

impl Capabilities {
    /// Everything.
    pub const ALL: Self = Self {
        memory_limit: true,
        cpu_limit: true,
        pids_limit: true,
        freeze: true,
        disk_workspaces: true,
        aliases: true,
        terminals: true,
        scale_file: true,
        users: Users::Ranges,
        network: NetworkAbility::Transparent,
    };

    /// The limits that cannot be enforced, by their names.
    pub fn unenforced(&self) -> impl Iterator<Item = &'static str> {
        let all = [
            (self.memory_limit, "memory_mb"),
            (self.cpu_limit, "cpu_milli"),
            (self.pids_limit, "pids"),
        ];
        all.into_iter().filter(|(enforced, _)| !enforced).map(|(_, name)| name)
    }

    /// Why these limits are refused, if they are: a limit that would be ignored must not pass
    /// silently.
    pub fn refuses(&self, limits: &Limits) -> Option<String> {
        let name = self.unenforced().next().filter(|_| !limits.best_effort)?;
        Some(format!(
            "limits.{name} cannot be enforced on this machine (`shoal doctor` says why); \
             limits.best_effort accepts that"
        ))
    }
}

/// What was found of dead runs, and removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reaped {
    /// The runs, by their labels.
    pub runs: Vec<String>,
    /// How many processes were killed.
    pub processes: u32,
    /// How many control groups were removed.
    pub control_groups: u32,
    /// What could not be removed, and why. Empty means that nothing is left.
    pub stuck: Vec<(PathBuf, String)>,
}
