//! The settings, by section. A field here is a key of the file, a variable of the environment and a
//! name for `--set`; nothing else has to be written for it.
//! Length: one table of all settings.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use model::key::impossible_limit;
use model::{KeyLimits, NodeConfig, Role, RoleLimits, Template, TemplateName};
use runtime::docker::{Endpoint, LinkMode, PathMap};
use runtime::oci::Program;
use serde::{Deserialize, Serialize};

use super::egress_settings::EgressSettings;
use super::host_context::HostContext;
use crate::failure::Failure;

/// The whole configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) server: Server,
    pub(crate) node: NodeConfig,
    pub(crate) log: Log,
    pub(crate) native: NativeSettings,
    pub(crate) docker: DockerSettings,
    pub(crate) oci: OciSettings,
    pub(crate) mounts: MountSettings,
    pub(crate) egress: EgressSettings,
    pub(crate) store: StoreSettings,
    pub(crate) secrets: SecretSettings,
    pub(crate) limits: RoleLimits,
    pub(crate) ash: Ash,
    pub(crate) blaxel: Blaxel,
    /// None if the file has none: then a node without templates starts with the built-in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) templates: Option<Vec<Template>>,
}

/// The smallest limit of the database: one commit may add some megabytes.
const DATABASE_MB_MIN: u32 = 64;

/// The listener and its limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Server {
    /// Address and port.
    pub(crate) listen: SocketAddr,
    /// The directory for everything that outlives the server.
    pub(crate) data_dir: PathBuf,
    /// Host names that requests may name, besides those of loopback.
    pub(crate) hosts: Vec<String>,
    /// Origins of web pages that may call; empty means none.
    pub(crate) cors_origins: Vec<String>,
    /// Connections at once.
    pub(crate) max_connections: u32,
    /// Connections of one address that have shown no valid key.
    pub(crate) max_strangers_per_address: u32,
    /// Requests at once.
    pub(crate) max_requests: u32,
    /// Longest JSON body.
    pub(crate) max_body_bytes: u64,
    /// Requests per second and key; 0 means no limit.
    pub(crate) rate_limit_per_s: u32,
    /// How long the head of a request may take to arrive.
    pub(crate) header_timeout_ms: u64,
    /// How long a body may send nothing.
    pub(crate) body_timeout_ms: u64,
    /// How long a connection may be idle.
    pub(crate) keep_alive_timeout_ms: u64,
    /// How long running work may take to finish when the server is stopped.
    pub(crate) shutdown_grace_ms: u64,
    /// Threads that serve requests.
    pub(crate) workers: u32,
}

/// Logging.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Log {
    pub(crate) format: LogFormat,
    pub(crate) level: LogLevel,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines, one object a line.
    Json,
}

/// The least important level that is logged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

/// The native runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NativeSettings {
    /// Preforks: half-made sandboxes that are kept ready, so that a launch is quick.
    pub(crate) spares: u32,
    /// Directories below which templates find root filesystems.
    pub(crate) directories: Vec<PathBuf>,
}

/// Sandboxes in Docker containers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DockerSettings {
    /// `no`, `yes`, or `auto`: if an engine runs when the server starts, or the configuration or
    /// the environment names one, or a configured template needs one.
    pub(crate) enabled: Enabled,
    /// Where the engine listens, `unix:///PATH` or `tcp://HOST:PORT`; if not set, `DOCKER_HOST`, or
    /// the usual socket.
    pub(crate) host: Option<String>,
    /// How guests are reached: by a `socket`, by an `attach` through the engine, or `auto`.
    pub(crate) link: LinkWord,
    /// Paths as this server sees them and as the engine sees them: `/data=/srv/data`. For a server
    /// that runs in a container itself; the longest match counts.
    pub(crate) host_path_map: Vec<String>,
    /// How many containers are created at once.
    pub(crate) creates_at_once: u32,
}

/// Whether to use something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Enabled {
    #[default]
    Auto,
    Yes,
    No,
}

/// How guests in containers are reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LinkWord {
    #[default]
    Auto,
    Socket,
    Attach,
}

impl From<LinkWord> for LinkMode {
    fn from(word: LinkWord) -> Self {
        match word {
            LinkWord::Auto => Self::Auto,
            LinkWord::Socket => Self::Socket,
            LinkWord::Attach => Self::Attach,
        }
    }
}

/// Sandboxes in containers of OCI runtimes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OciSettings {
    /// Which programs are used, if they are installed.
    pub(crate) programs: Vec<String>,
    /// Paths of programs that are not in `PATH`: `runsc=/opt/gvisor/runsc`.
    pub(crate) paths: Vec<String>,
    /// More arguments for `runsc`, before the verb.
    pub(crate) runsc_arguments: Vec<String>,
}

/// Which files of the host templates may mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct MountSettings {
    /// Directories of this machine; empty means none.
    pub(crate) roots: Vec<PathBuf>,
    /// Directories of the Docker engine's machine, for templates that name paths there.
    pub(crate) docker_roots: Vec<PathBuf>,
}

/// Where the values of secrets come from besides the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SecretSettings {
    /// A claim gets the variable of the server with the name of a secret that is not stored. Every
    /// key that may use sandboxes can then read every such variable, except `SHOAL_*` and `ASH_*`.
    pub(crate) from_environment: bool,
}

/// What the store keeps, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StoreSettings {
    pub(crate) kind: StoreKind,
    /// The size to which history may grow the database. Beyond it the largest history is deleted.
    pub(crate) database_mb: u32,
    /// Events kept.
    pub(crate) events: u32,
    /// Tombstones of sandboxes kept.
    pub(crate) ends: u32,
    /// Turns kept, of all sessions together.
    pub(crate) turns: u32,
    /// Days for which a turn is kept after its end.
    pub(crate) turns_age_days: u32,
    /// How much output of all turns together is kept.
    pub(crate) turns_mb: u32,
    /// Ended processes kept, of all sandboxes together.
    pub(crate) processes: u32,
    /// Days for which a process is kept after its end.
    pub(crate) processes_age_days: u32,
    /// How much output of one process is kept.
    pub(crate) process_log_mb: u32,
    /// How much output of all processes together is kept.
    pub(crate) process_logs_mb: u32,
    /// Days for which workspaces that no record names stay in `lost+found`; 0 means for ever.
    pub(crate) lost_found_keep_days: u32,
}

/// The dialect of Ash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Ash {
    /// Address and port of a listener for clients of Ash alone; none if not set.
    pub(crate) listen: Option<SocketAddr>,
    /// The template of its sessions. If it is `ash` and does not exist, the server makes it.
    pub(crate) template: String,
    /// The bridge that the template `ash` starts, as a path inside its sandboxes.
    pub(crate) bridge_entry: Option<String>,
    /// Memory of a sandbox of the template `ash`.
    pub(crate) memory_mb: u32,
    /// Directories below which agents may be deployed from; `DATA_DIR/agents` if empty.
    pub(crate) agent_roots: Vec<PathBuf>,
    /// Variables of the server that are passed to the environment of sessions.
    pub(crate) pass_env: Vec<String>,
    /// Whether a paused session refuses messages until it is resumed, as in Ash.
    pub(crate) strict: bool,
    /// Whether the metrics need no key.
    pub(crate) public_metrics: bool,
}

/// The dialect of Blaxel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Blaxel {
    /// Address and port of a listener for one sandbox alone; none if not set.
    pub(crate) listen: Option<SocketAddr>,
    /// The template of that sandbox, and of sandboxes whose image is no template.
    pub(crate) template: String,
    /// Whether that listener accepts requests without a key. Only on loopback, and never from web
    /// pages.
    pub(crate) keyless: bool,
}

/// Where the store keeps its data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StoreKind {
    /// One file in the data directory.
    #[default]
    Sqlite,
    /// In memory: lost when the server stops.
    Memory,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7600)),
            data_dir: PathBuf::new(),
            hosts: Vec::new(),
            cors_origins: Vec::new(),
            max_connections: 4096,
            max_strangers_per_address: 512,
            max_requests: 4096,
            max_body_bytes: 1 << 20,
            rate_limit_per_s: 0,
            header_timeout_ms: 10_000,
            body_timeout_ms: 30_000,
            keep_alive_timeout_ms: 75_000,
            shutdown_grace_ms: 30_000,
            workers: 1,
        }
    }
}

impl Default for NativeSettings {
    fn default() -> Self {
        Self { spares: 8, directories: Vec::new() }
    }
}

impl Default for DockerSettings {
    fn default() -> Self {
        Self {
            enabled: Enabled::Auto,
            host: None,
            link: LinkWord::Auto,
            host_path_map: Vec::new(),
            creates_at_once: 8,
        }
    }
}

impl Default for OciSettings {
    fn default() -> Self {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Self {
            programs: words(&["runc", "runsc", "crun", "youki"]),
            paths: Vec::new(),
            runsc_arguments: words(&["--platform=systrap"]),
        }
    }
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            kind: StoreKind::default(),
            database_mb: 1_024,
            events: 100_000,
            ends: 10_000,
            turns: 100_000,
            turns_age_days: 30,
            turns_mb: 1_024,
            processes: 100_000,
            processes_age_days: 30,
            process_log_mb: 16,
            process_logs_mb: 4_096,
            lost_found_keep_days: 0,
        }
    }
}

impl Default for Ash {
    fn default() -> Self {
        let passed = ["ASH_DEBUG_TIMING", "ASH_REAL_SDK", "ASH_PERMISSION_MODE"];
        Self {
            listen: None,
            template: Self::TEMPLATE.to_owned(),
            bridge_entry: None,
            memory_mb: 2048,
            agent_roots: Vec::new(),
            pass_env: passed.map(str::to_owned).to_vec(),
            strict: false,
            public_metrics: false,
        }
    }
}

impl Default for Blaxel {
    fn default() -> Self {
        Self { listen: None, template: "default".to_owned(), keyless: false }
    }
}

impl Ash {
    /// The name of the template that the server makes if it does not exist.
    pub(crate) const TEMPLATE: &str = "ash";
}

impl Config {
    /// The defaults on this machine, for this user.
    pub(crate) fn defaults(context: &HostContext) -> Self {
        let server = Server {
            data_dir: context.data_dir(),
            workers: context.workers(),
            ..Server::default()
        };
        Self { server, ..Self::default() }
    }

    /// The templates in the configuration.
    pub(crate) fn given_templates(&self) -> &[Template] {
        self.templates.as_deref().unwrap_or_default()
    }

    /// The templates of a node that has none and whose configuration has none.
    pub(crate) fn built_in() -> Vec<Template> {
        TemplateName::new("default").map(Template::named).into_iter().collect()
    }

    /// A configuration with a value for every key, also for those without a default: the list of
    /// keys is derived from it.
    pub(super) fn specimen() -> Self {
        let mut config = Self::default();
        config.node.memory_budget_mb = Some(1);
        config.ash.listen = Some(config.server.listen);
        config.ash.bridge_entry = Some(String::new());
        config.blaxel.listen = Some(config.server.listen);
        config.egress.resolver = Some(config.server.listen);
        config.egress.upstream_ca = Some(PathBuf::new());
        config.egress.upstream_proxy = Some(config.server.listen);
        config.node.prune_after_ms = Some(1);
        config.docker.host = Some(String::new());
        let every = KeyLimits {
            live_sandboxes: Some(1),
            sessions: Some(1),
            memory_mb: Some(1),
            stored_bytes: Some(1),
            requests_per_s: Some(1),
            streams: Some(1),
            body_bytes: Some(1),
            events: Some(1),
        };
        config.limits = RoleLimits { admin: every, r#use: every, read: every };
        config
    }

    /// Refuses values that can never work, naming the key.
    pub(super) fn validate(&self) -> Result<(), InvalidValue> {
        self.validate_numbers()?;
        self.validate_paths()?;
        self.docker.validate()?;
        self.oci.validate()?;
        self.validate_limits()?;
        self.validate_dialects()?;
        self.validate_egress()?;
        self.validate_origins_and_hosts()?;
        self.node
            .validate()
            .map_err(|wrong| InvalidValue::new(format!("node.{}", wrong.field), wrong.problem))?;
        self.validate_templates()
    }

    fn validate_numbers(&self) -> Result<(), InvalidValue> {
        let above_0 = [
            ("server.max_connections", u64::from(self.server.max_connections)),
            ("server.max_strangers_per_address", u64::from(self.server.max_strangers_per_address)),
            ("server.max_requests", u64::from(self.server.max_requests)),
            ("server.max_body_bytes", self.server.max_body_bytes),
            ("server.header_timeout_ms", self.server.header_timeout_ms),
            ("server.body_timeout_ms", self.server.body_timeout_ms),
            ("server.keep_alive_timeout_ms", self.server.keep_alive_timeout_ms),
            ("server.workers", u64::from(self.server.workers)),
            ("store.events", self.store.events.into()),
            ("store.ends", self.store.ends.into()),
            ("store.turns", self.store.turns.into()),
            ("store.turns_age_days", self.store.turns_age_days.into()),
            ("store.turns_mb", self.store.turns_mb.into()),
            ("store.processes", self.store.processes.into()),
            ("store.processes_age_days", self.store.processes_age_days.into()),
            ("store.process_log_mb", self.store.process_log_mb.into()),
            ("store.process_logs_mb", self.store.process_logs_mb.into()),
        ];
        if let Some((key, _)) = above_0.into_iter().find(|(_, value)| *value == 0) {
            return Err(InvalidValue::new(key, "must be above 0"));
        }
        if self.store.database_mb < DATABASE_MB_MIN {
            let problem = format!("must be at least {DATABASE_MB_MIN}");
            return Err(InvalidValue::new("store.database_mb", problem));
        }
        Ok(())
    }

    fn validate_limits(&self) -> Result<(), InvalidValue> {
        for role in Role::ALL {
            if let Some(limit) = impossible_limit(&self.limits.of(role)) {
                return Err(InvalidValue::new(format!("limits.{role}.{limit}"), "must be above 0"));
            }
        }
        Ok(())
    }

    fn validate_paths(&self) -> Result<(), InvalidValue> {
        if !self.server.data_dir.is_absolute() {
            return Err(InvalidValue::new("server.data_dir", "must be an absolute path"));
        }
        for (key, paths) in [
            ("native.directories", &self.native.directories),
            ("mounts.roots", &self.mounts.roots),
            ("mounts.docker_roots", &self.mounts.docker_roots),
            ("ash.agent_roots", &self.ash.agent_roots),
        ] {
            if let Some(at) = paths.iter().position(|path| !path.is_absolute()) {
                return Err(InvalidValue::new(format!("{key}.{at}"), "must be an absolute path"));
            }
        }
        Ok(())
    }

    fn validate_dialects(&self) -> Result<(), InvalidValue> {
        if TemplateName::new(&self.ash.template).is_err() {
            return Err(InvalidValue::new("ash.template", "is not a valid template name"));
        }
        if self.ash.memory_mb == 0 {
            return Err(InvalidValue::new("ash.memory_mb", "must be above 0"));
        }
        if TemplateName::new(&self.blaxel.template).is_err() {
            return Err(InvalidValue::new("blaxel.template", "is not a valid template name"));
        }
        let beyond = self.blaxel.listen.filter(|address| !address.ip().is_loopback());
        if let Some(address) = beyond.filter(|_| self.blaxel.keyless) {
            let problem = format!(
                "{address} is reachable from other machines, which would need no key: use loopback"
            );
            return Err(InvalidValue::new("blaxel.keyless", problem));
        }
        Ok(())
    }

    fn validate_egress(&self) -> Result<(), InvalidValue> {
        match self.egress.invalid() {
            Some((key, problem)) => Err(InvalidValue::new(key, problem)),
            None => Ok(()),
        }
    }

    fn validate_origins_and_hosts(&self) -> Result<(), InvalidValue> {
        for (at, origin) in self.server.cors_origins.iter().enumerate() {
            if !is_origin(origin) {
                let problem = format!("{origin:?} is not an origin such as https://example.org");
                return Err(InvalidValue::new(format!("server.cors_origins.{at}"), problem));
            }
        }
        for (at, host) in self.server.hosts.iter().enumerate() {
            if host.is_empty() || host.contains(['/', ':', ' ', '*']) {
                let problem = format!("{host:?} is not a host name; leave out scheme and port");
                return Err(InvalidValue::new(format!("server.hosts.{at}"), problem));
            }
        }
        Ok(())
    }

    fn validate_templates(&self) -> Result<(), InvalidValue> {
        let given = self.given_templates();
        for (at, template) in given.iter().enumerate() {
            template.validate().map_err(|wrong| {
                InvalidValue::new(format!("templates.{at}.{}", wrong.field), wrong.problem)
            })?;
            if given[..at].iter().any(|other| other.name == template.name) {
                let problem = format!("there are two templates called {}", template.name);
                return Err(InvalidValue::new(format!("templates.{at}.name"), problem));
            }
        }
        Ok(())
    }
}

impl DockerSettings {
    fn validate(&self) -> Result<(), InvalidValue> {
        if let Some(host) = &self.host {
            Endpoint::parse(host)
                .map_err(|error| InvalidValue::new("docker.host", error.cause.into_owned()))?;
        }
        if self.creates_at_once == 0 {
            return Err(InvalidValue::new("docker.creates_at_once", "must be above 0"));
        }
        self.path_map()
            .map(drop)
            .map_err(|problem| InvalidValue::new("docker.host_path_map", problem))
    }

    /// The parsed map of paths.
    pub(crate) fn path_map(&self) -> Result<PathMap, String> {
        let mut pairs = Vec::with_capacity(self.host_path_map.len());
        for text in &self.host_path_map {
            let (from, to) = text.split_once('=').ok_or_else(|| {
                format!("{text:?} is not a pair of paths such as /data=/srv/data")
            })?;
            pairs.push((from.trim().to_owned(), to.trim().to_owned()));
        }
        PathMap::new(pairs).map_err(|problem| problem.to_string())
    }
}

fn program(name: &str) -> Option<Program> {
    Program::ALL.into_iter().find(|program| program.as_str() == name)
}

impl OciSettings {
    fn validate(&self) -> Result<(), InvalidValue> {
        for (at, name) in self.programs.iter().enumerate() {
            if program(name).is_none() {
                let problem = format!("{name:?} is not one of runc, runsc, crun and youki");
                return Err(InvalidValue::new(format!("oci.programs.{at}"), problem));
            }
        }
        for (at, text) in self.paths.iter().enumerate() {
            let pair = text
                .split_once('=')
                .filter(|(name, path)| program(name).is_some() && Path::new(path).is_absolute());
            if pair.is_none() {
                let problem = format!("{text:?} is not a name and a path such as runsc=/opt/runsc");
                return Err(InvalidValue::new(format!("oci.paths.{at}"), problem));
            }
        }
        Ok(())
    }

    /// The configured path of a program.
    pub(crate) fn path_of(&self, program: Program) -> Option<PathBuf> {
        let pairs = self.paths.iter().filter_map(|text| text.split_once('='));
        let mut found = pairs.filter(|(name, _)| *name == program.as_str());
        found.next_back().map(|(_, path)| PathBuf::from(path))
    }
}

/// Scheme and host, nothing after it.
fn is_origin(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    rest.is_some_and(|host| !host.is_empty() && !host.contains(['/', ' ', '*', '?', '#']))
}

/// A value that can never work.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InvalidValue {
    pub(super) key: String,
    pub(super) problem: String,
}

impl InvalidValue {
    pub(super) fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { key: key.into(), problem: problem.into() }
    }

    /// Found after the sources of the values are known no more.
    pub(crate) fn failure(&self) -> Failure {
        let Self { key, problem } = self;
        Failure::new("cannot use this configuration", format!("{key}: {problem}"))
            .remedy("correct it; `shoal config` shows where each value comes from")
            .usage()
    }
}
