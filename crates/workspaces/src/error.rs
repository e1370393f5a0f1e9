//! Why something could not be done with a workspace.

use std::borrow::Cow;
use std::io;

use model::WorkspaceId;

/// What kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// This directory cannot do it, now or later.
    Unsupported,
    /// There is no room.
    DiskFull,
    /// There is a workspace of that id already, or none.
    Id,
    /// The kernel refused.
    System,
}

/// A failure: what was being done, and what the kernel said.
#[derive(Debug, thiserror::Error)]
#[error("could not {step}: {source}")]
pub struct WorkspaceError {
    /// What to branch on.
    pub trouble: Trouble,
    /// What was being done.
    pub step: Cow<'static, str>,
    /// Why not.
    pub source: io::Error,
}

impl WorkspaceError {
    pub(crate) fn new(step: impl Into<Cow<'static, str>>, source: io::Error) -> Self {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        let trouble = if full.contains(&source.kind()) {
            Trouble::DiskFull
        } else if source.kind() == io::ErrorKind::AlreadyExists {
            Trouble::Id
        } else {
            Trouble::System
        };
        Self { trouble, step: step.into(), source }
    }

    pub(crate) fn unsupported(step: &'static str, why: &str) -> Self {
        let source = io::Error::new(io::ErrorKind::Unsupported, why.to_owned());
        Self { trouble: Trouble::Unsupported, step: step.into(), source }
    }

    pub(crate) fn unknown(step: &'static str, workspace: WorkspaceId) -> Self {
        let source = io::Error::new(io::ErrorKind::NotFound, format!("no workspace {workspace}"));
        Self { trouble: Trouble::Id, step: step.into(), source }
    }
}

/// Says what was being done when the kernel refused.
pub(crate) trait During<T> {
    fn during(self, step: impl Into<Cow<'static, str>>) -> Result<T, WorkspaceError>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, step: impl Into<Cow<'static, str>>) -> Result<T, WorkspaceError> {
        self.map_err(|error| WorkspaceError::new(step, error.into()))
    }
}
