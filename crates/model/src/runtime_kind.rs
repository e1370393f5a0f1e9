//! The runtime that isolates the sandboxes of a template. Its name is the same in templates, API
//! and metrics.

use serde::{Deserialize, Serialize};

/// The runtime: `native`, `docker`, `runc`, `runsc`, `crun` or `youki`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum RuntimeKind {
    /// Namespaces, cgroups and seccomp, without a daemon.
    #[default]
    Native,
    /// A Docker engine.
    Docker,
    /// The reference runtime of OCI.
    Runc,
    /// gVisor: its own kernel between programs and the kernel of the host.
    Runsc,
    /// An OCI runtime in C.
    Crun,
    /// An OCI runtime in Rust.
    Youki,
    /// No isolation at all, for tests.
    Fake,
}

impl RuntimeKind {
    /// The word used in templates, in the API and in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Docker => "docker",
            Self::Runc => "runc",
            Self::Runsc => "runsc",
            Self::Crun => "crun",
            Self::Youki => "youki",
            Self::Fake => "fake",
        }
    }
}
