//! A template: the named recipe of a sandbox, with the settings of its pool.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::ids::TemplateName;
use crate::limits::Limits;
use crate::mount::Mount;
use crate::network::NetworkPolicy;
pub use crate::runtime_kind::RuntimeKind;
use crate::secret::SecretUse;

/// A named recipe: root filesystem, limits, network policy, harness, pool settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Template {
    /// Its name.
    pub name: TemplateName,
    /// The runtime that isolates its sandboxes.
    #[serde(default)]
    pub runtime: RuntimeKind,
    /// The root filesystem.
    #[serde(default)]
    pub root: RootFs,
    /// Resource limits of each sandbox.
    #[serde(default)]
    pub limits: Limits,
    /// Settings of `/workspace`.
    #[serde(default)]
    pub workspace: WorkspaceSettings,
    /// Files and directories of the host to mount. Only beneath directories that the server allows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// What each sandbox may reach on the network. A claim can only narrow it.
    #[serde(default)]
    pub network: NetworkPolicy,
    /// Secrets that each sandbox uses, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretUse>,
    /// The program that answers turns.
    #[serde(default)]
    pub harness: Harness,
    /// Its warm pool.
    #[serde(default)]
    pub pool: PoolSettings,
    /// How long a sandbox may be `waiting` before it becomes cold; the node's value if not given.
    #[serde(default)]
    pub idle_timeout_ms: Option<u64>,
    /// How long a sandbox must be without activity before it is frozen; the node's value if not
    /// given.
    #[serde(default)]
    pub freeze_after_ms: Option<u64>,
    /// How long guest and harness may take to be ready, in all.
    #[serde(default = "default_ready_timeout_ms")]
    pub ready_timeout_ms: u64,
    /// How long one turn may take.
    #[serde(default = "default_turn_timeout_ms")]
    pub turn_timeout_ms: u64,
    /// The longest that one launched sandbox may live, whatever is renewed; for ever if not given.
    #[serde(default)]
    pub max_lifetime_ms: Option<u64>,
}

const fn default_ready_timeout_ms() -> u64 {
    30_000
}

const fn default_turn_timeout_ms() -> u64 {
    3_600_000
}

/// The source of the root filesystem.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum RootFs {
    /// The host's `/usr`, read-only, with a synthetic `/etc`.
    #[default]
    Host,
    /// A directory beneath a configured root.
    Directory(String),
    /// An image of the image store, or one that the engine knows.
    Image(String),
}

/// Settings of `/workspace`; its size is `limits.workspace_mb`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WorkspaceSettings {
    /// Where its files are. Not given: on disk where the node and the runtime can, else in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<WorkspaceKind>,
    /// How its size is limited. Not given: `hard` if it is in memory or the file system enforces
    /// such a limit by itself, else `soft`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<WorkspaceLimit>,
    /// Other paths that lead to it: single names at the top, such as `/app`, that the root does not
    /// have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
}

impl WorkspaceSettings {
    /// The aliases as names at the top of a root, in their order.
    pub fn alias_names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.aliases.iter().map(|path| path.trim_start_matches('/').to_owned()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The problem with the aliases, if there is one.
    pub(crate) fn alias_problem(&self) -> Option<&'static str> {
        let is_plain =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if self.aliases.len() > ALIASES_MAX {
            return Some("at most 8 aliases are allowed");
        }
        for path in &self.aliases {
            let Some(name) = path.strip_prefix('/') else {
                return Some("each alias must begin with a slash");
            };
            let is_name = (1..=ALIAS_BYTES_MAX).contains(&name.len())
                && name.bytes().all(is_plain)
                && !name.starts_with('.');
            if !is_name {
                return Some(
                    "each alias must be a slash and one name of letters, digits, dashes, underscores and dots",
                );
            }
            if TOP_NAMES.contains(&name) {
                return Some("an alias is a path that every sandbox already has");
            }
        }
        None
    }
}

/// How many aliases there may be, and how long each.
const ALIASES_MAX: usize = 8;
const ALIAS_BYTES_MAX: usize = 64;

/// Names at the top of a root that are never a workspace's.
const TOP_NAMES: &[&str] = &[
    "bin",
    "boot",
    "dev",
    "etc",
    "home",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "opt",
    "proc",
    "root",
    "run",
    "sbin",
    "srv",
    "sys",
    "tmp",
    "usr",
    "var",
    "workspace",
];

/// Where the files of a workspace are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum WorkspaceKind {
    /// In memory: counted as memory, and gone with the sandbox unless it was saved.
    Memory,
    /// On the disk of the data directory.
    Disk,
}

impl WorkspaceKind {
    /// The word used in templates and in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }
}

/// How the size of a workspace is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum WorkspaceLimit {
    /// By the file system: writes above the limit fail.
    Hard,
    /// By measuring now and then: a sandbox with too large a workspace is ended.
    Soft,
}

impl WorkspaceLimit {
    /// The word used in the API and in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hard => "hard",
            Self::Soft => "soft",
        }
    }
}

/// The program in the sandbox that answers turns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Harness {
    /// A turn is a command line.
    #[default]
    Shell,
    /// A program that speaks our JSON lines.
    Jsonl(HarnessProgram),
    /// A program that speaks Ash's bridge protocol.
    AshBridge(HarnessProgram),
}

/// A program that answers turns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HarnessProgram {
    /// The program and its arguments, as found inside.
    pub command: Vec<String>,
    /// Whether it is started with the sandbox, before a session has it: it must then read its
    /// settings from a message. Otherwise it starts when a session gets the sandbox.
    #[serde(default)]
    pub prewarm: bool,
}

impl HarnessProgram {
    /// Whether it is a script that Node runs, without options of Node.
    pub fn is_node_script(&self) -> bool {
        let mut words = self.command.iter();
        let is_node = words.next().is_some_and(|word| word.rsplit('/').next() == Some("node"));
        is_node && words.next().is_some_and(|word| !word.is_empty() && !word.starts_with('-'))
    }
}

impl Harness {
    /// The program to start, where there is one.
    pub const fn program(&self) -> Option<&HarnessProgram> {
        match self {
            Self::Shell => None,
            Self::Jsonl(program) | Self::AshBridge(program) => Some(program),
        }
    }

    /// Whether a session that gets a warm sandbox has to wait for a program to start.
    pub const fn starts_at_claim(&self) -> bool {
        match self.program() {
            Some(program) => !program.prewarm,
            None => false,
        }
    }
}

/// Settings of the warm pool of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PoolSettings {
    /// Warm sandboxes kept ready.
    pub pool_size: u32,
    /// How many more may exist while in use.
    pub max_overflow: u32,
    /// How long an idle sandbox is kept.
    pub idle_ttl_ms: u64,
    /// A sandbox is handed out only if it has more than this left to live. Not given: the smaller
    /// of a minute and half of `idle_ttl_ms`. 0 turns it off.
    pub acquire_min_remaining_ttl_ms: Option<u64>,
    /// A sandbox that is wiped between uses is retired after this many.
    pub max_uses: u32,
    /// How long a lease lasts unless it says otherwise.
    pub lease_ttl_ms: u64,
    /// How many callers may wait at once for a sandbox that others have. A caller for which a
    /// sandbox is launched does not count.
    pub max_waiters: u32,
    /// How many sandboxes a second the refill may start.
    pub refill_per_s: u32,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            pool_size: 2,
            max_overflow: 10,
            idle_ttl_ms: 86_400_000,
            acquire_min_remaining_ttl_ms: None,
            max_uses: 50,
            lease_ttl_ms: 600_000,
            max_waiters: 1024,
            refill_per_s: 500,
        }
    }
}

impl PoolSettings {
    /// Most sandboxes that may exist for checkouts of this template.
    pub const fn slots(&self) -> u32 {
        self.pool_size.saturating_add(self.max_overflow)
    }

    /// A sandbox is handed out only if it has more lifetime left than this.
    pub fn acquire_margin_ms(&self) -> u64 {
        self.acquire_min_remaining_ttl_ms.unwrap_or_else(|| (self.idle_ttl_ms / 2).min(60_000))
    }
}

/// A file system needs some room for itself.
pub(crate) const WORKSPACE_MB_MIN: u32 = 4;

impl Template {
    /// A template with every default.
    pub fn named(name: TemplateName) -> Self {
        Self {
            name,
            runtime: RuntimeKind::default(),
            root: RootFs::default(),
            limits: Limits::default(),
            workspace: WorkspaceSettings::default(),
            mounts: Vec::new(),
            network: NetworkPolicy::default(),
            secrets: Vec::new(),
            harness: Harness::default(),
            pool: PoolSettings::default(),
            idle_timeout_ms: None,
            freeze_after_ms: None,
            ready_timeout_ms: default_ready_timeout_ms(),
            turn_timeout_ms: default_turn_timeout_ms(),
            max_lifetime_ms: None,
        }
    }
}

/// A template that could never work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidTemplate {
    /// The field, as a path from the template.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: Cow<'static, str>,
}

/// The capabilities of a template's runtime, as far as decisions depend on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeTraits {
    /// How a used sandbox is made ready for the next user.
    pub recycle: Recycle,
    /// Whether it can be frozen and thawed.
    pub can_freeze: bool,
    /// Whether `/workspace` survives the death of the process that used it.
    pub workspace_survives: bool,
    /// How the size of `/workspace` is limited, if it is on disk; none if it is in memory.
    #[serde(default)]
    pub disk: Option<WorkspaceLimit>,
}

/// How a used sandbox is made ready for the next user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recycle {
    /// It is destroyed, and a fresh one takes its place.
    Recreate,
    /// It is wiped, and proven clean and alive from outside.
    Wipe,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> Template {
        Template::named(TemplateName::new("t").unwrap())
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut Template), field: &str) {
        let mut changed = template();
        change(&mut changed);
        assert_eq!(changed.validate().map_err(|invalid| invalid.field), Err(field));
    }

    #[test]
    fn template_defaults_are_those_of_the_design() {
        let t = template();
        assert_eq!(t.validate(), Ok(()));
        assert_eq!((t.pool.pool_size, t.pool.max_overflow, t.pool.slots()), (2, 10, 12));
        assert_eq!((t.pool.idle_ttl_ms, t.pool.max_uses), (24 * 3_600_000, 50));
        assert_eq!((t.limits.memory_mb, t.limits.cpu_milli, t.limits.pids), (512, 1000, 128));
        assert_eq!(t.ready_timeout_ms, 30_000);
    }

    #[test]
    fn an_unset_margin_is_a_minute_or_half_the_idle_ttl() {
        let margin = |idle_ttl_ms, given| {
            PoolSettings { idle_ttl_ms, acquire_min_remaining_ttl_ms: given, ..Default::default() }
                .acquire_margin_ms()
        };
        assert_eq!(margin(86_400_000, None), 60_000);
        assert_eq!(margin(120_000, None), 60_000);
        assert_eq!(margin(90_000, None), 45_000);
        assert_eq!(margin(90_000, Some(0)), 0);
        assert_eq!(margin(90_000, Some(70_000)), 70_000);
    }

    #[test]
    fn settings_that_could_never_work_are_refused_by_field() {
        refused(|t| (t.pool.pool_size, t.pool.max_overflow) = (0, 0), "pool.pool_size");
        refused(|t| t.pool.idle_ttl_ms = 0, "pool.idle_ttl_ms");
        let margin = "pool.acquire_min_remaining_ttl_ms";
        refused(|t| t.pool.acquire_min_remaining_ttl_ms = Some(t.pool.idle_ttl_ms), margin);
        refused(|t| t.pool.acquire_min_remaining_ttl_ms = Some(t.pool.idle_ttl_ms + 1), margin);
        refused(|t| t.max_lifetime_ms = Some(60_000), "max_lifetime_ms");
        refused(|t| t.pool.max_uses = 0, "pool.max_uses");
        refused(|t| t.pool.lease_ttl_ms = 0, "pool.lease_ttl_ms");
        refused(|t| t.pool.refill_per_s = 0, "pool.refill_per_s");
        refused(|t| t.limits.memory_mb = 0, "limits.memory_mb");
        refused(|t| t.limits.cpu_milli = 0, "limits.cpu_milli");
        refused(|t| t.limits.pids = 0, "limits.pids");
        let disk = WorkspaceSettings { kind: Some(WorkspaceKind::Disk), ..Default::default() };
        refused(
            |t| (t.workspace, t.limits.workspace_mb) = (disk.clone(), 3),
            "limits.workspace_mb",
        );
        let (kind, limit) = (Some(WorkspaceKind::Memory), Some(WorkspaceLimit::Soft));
        let memory = WorkspaceSettings { kind, limit, ..Default::default() };
        refused(|t| t.workspace = memory.clone(), "workspace.limit");
        for alias in
            ["", "/", "app", "/a/b", "/..", "/.a", "/proc", "/usr", "/workspace", "/a:b", "/a b"]
        {
            refused(|t| t.workspace.aliases = vec![alias.to_owned()], "workspace.aliases");
        }
        let nine = || (0..9).map(|n| format!("/a{n}")).collect();
        refused(|t| t.workspace.aliases = nine(), "workspace.aliases");
        refused(|t| t.limits.workspace_mb = (1 << 20) + 1, "limits.workspace_mb");
        for path in ["", ".", "..", "/", "/a", "a/", "a//b", "a/../b", "./a", "a\0"] {
            refused(|t| t.root = RootFs::Directory(path.to_owned()), "root");
        }
        for command in [vec![], vec![String::new()], vec!["a\0".to_owned()]] {
            let program = HarnessProgram { command, prewarm: false };
            refused(|t| t.harness = Harness::Jsonl(program), "harness.command");
        }
        for command in [&["node"][..], &["bridge"], &["node", "--inspect", "b.js"]] {
            let command = command.iter().map(|&word| word.to_owned()).collect();
            let bridge = HarnessProgram { command, prewarm: true };
            refused(|t| t.harness = Harness::AshBridge(bridge), "harness.prewarm");
        }
        let command = ["/usr/bin/node", "/b.js"].map(str::to_owned).to_vec();
        let mut early = template();
        early.harness = Harness::AshBridge(HarnessProgram { command, prewarm: true });
        assert_eq!(early.validate(), Ok(()));
        refused(|t| t.ready_timeout_ms = 0, "ready_timeout_ms");
        refused(|t| t.turn_timeout_ms = 0, "turn_timeout_ms");
    }

    #[test]
    fn template_limits_are_inclusive() {
        let mut t = template();
        t.pool.acquire_min_remaining_ttl_ms = Some(t.pool.idle_ttl_ms - 1);
        assert_eq!(t.validate(), Ok(()));
        t.pool.acquire_min_remaining_ttl_ms = None;
        t.max_lifetime_ms = Some(60_001);
        assert_eq!(t.validate(), Ok(()));
        t.root = RootFs::Directory("a/b..c/.d".to_owned());
        (t.pool.pool_size, t.pool.max_overflow) = (0, 1);
        assert_eq!(t.validate(), Ok(()));
        t.limits.workspace_mb = 0;
        assert_eq!(t.validate(), Ok(()), "in memory it may be nothing");
        t.workspace.kind = Some(WorkspaceKind::Disk);
        for size_mb in [4, 1 << 20] {
            t.limits.workspace_mb = size_mb;
            assert_eq!(t.validate(), Ok(()));
        }
    }

    #[test]
    fn template_keeps_open_settings_open_and_given_ones_unchanged() {
        let read = |text: &str| serde_json::from_str::<Template>(text).unwrap();
        let plain = read(r#"{"name":"t"}"#);
        assert_eq!((plain.workspace.kind, plain.workspace.limit), (None, None));
        let written = serde_json::to_string(&plain).unwrap();
        assert!(!written.contains("kind") && !written.contains("limit\""), "{written}");
        assert_eq!(read(&written), plain);
        let said = read(r#"{"name":"t","workspace":{"kind":"memory","limit":"hard"}}"#);
        assert_eq!(said.validate(), Ok(()), "that is what memory does");
        let again = read(&serde_json::to_string(&said).unwrap());
        assert_eq!(again.workspace.kind, Some(WorkspaceKind::Memory));
        assert_eq!(again.workspace.limit, Some(WorkspaceLimit::Hard));
    }

    #[test]
    fn unknown_template_keys_are_refused_by_name() {
        let unknown = serde_json::from_str::<Template>(r#"{"name":"t","pool":{"pol_size":3}}"#);
        assert!(unknown.unwrap_err().to_string().contains("pol_size"));
        let known = serde_json::from_str::<Template>(r#"{"name":"t","pool":{"pool_size":3}}"#);
        assert_eq!(known.unwrap().pool.pool_size, 3);
    }
}
