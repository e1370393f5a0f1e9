//! Errors of workspaces.

use std::borrow::Cow;
use std::io;

use model::WorkspaceId;

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceErrorKind {
    /// The directory does not support it, now or later.
    Unsupported,
    /// The disk is full.
    DiskFull,
    /// The workspace exists already, or does not exist.
    Id,
    /// The workspace is in use.
    InUse,
    /// The archive or the upload is damaged: a retry does not help.
    Damaged,
    /// The upload is too large, or has entries that are not allowed.
    Refused,
    /// The caller cancelled it.
    CalledOff,
    /// The workspace was removed during the operation.
    Went,
    /// The Linux kernel refused a system call.
    System,
}

impl WorkspaceErrorKind {
    fn of(error: &io::Error) -> Self {
        use io::ErrorKind as Kind;
        let kind = error.kind();
        let ours = error.raw_os_error().is_none();
        if [Kind::StorageFull, Kind::QuotaExceeded].contains(&kind) {
            Self::DiskFull
        } else if kind == Kind::AlreadyExists {
            Self::Id
        } else if kind == Kind::ResourceBusy {
            Self::InUse
        } else if kind == Kind::Interrupted {
            Self::CalledOff
        } else if ours && [Kind::InvalidData, Kind::UnexpectedEof].contains(&kind) {
            Self::Damaged
        } else if ours && [Kind::InvalidInput, Kind::FileTooLarge].contains(&kind) {
            Self::Refused
        } else {
            Self::System
        }
    }
}

/// A failure: the step, and its cause.
#[derive(Debug, thiserror::Error)]
#[error("could not {step}: {source}")]
pub struct WorkspaceError {
    /// What to branch on.
    pub kind: WorkspaceErrorKind,
    /// What was being done.
    pub step: Cow<'static, str>,
    /// Why not.
    pub source: io::Error,
}

impl WorkspaceError {
    /// An error of a step outside this crate that works on its files.
    pub fn of(step: &'static str, source: io::Error) -> Self {
        Self::new(step, source)
    }

    /// The caller cancelled it.
    pub fn called_off(step: &'static str) -> Self {
        Self::new(step, crate::walk::called_off())
    }

    /// Its owner removed the workspace during the operation.
    pub fn went(step: &'static str, workspace: WorkspaceId) -> Self {
        let why = format!("workspace {workspace} was removed during the operation");
        let source = io::Error::new(io::ErrorKind::NotFound, why);
        Self { kind: WorkspaceErrorKind::Went, ..Self::new(step, source) }
    }

    /// Stored files are missing.
    pub fn gone(step: &'static str, workspace: WorkspaceId) -> Self {
        let why = format!("the files of workspace {workspace} are missing");
        Self::new(step, io::Error::new(io::ErrorKind::InvalidData, why))
    }

    pub(crate) fn new(step: impl Into<Cow<'static, str>>, source: io::Error) -> Self {
        let kind = WorkspaceErrorKind::of(&source);
        Self { kind, step: step.into(), source }
    }

    pub(crate) fn unsupported(step: &'static str, why: &str) -> Self {
        let source = io::Error::new(io::ErrorKind::Unsupported, why.to_owned());
        Self { kind: WorkspaceErrorKind::Unsupported, step: step.into(), source }
    }

    pub(crate) fn unknown(step: &'static str, workspace: WorkspaceId) -> Self {
        let source = io::Error::new(io::ErrorKind::NotFound, format!("no workspace {workspace}"));
        Self { kind: WorkspaceErrorKind::Id, step: step.into(), source }
    }
}

/// Adds the step to an error.
pub(crate) trait During<T> {
    fn during(self, step: impl Into<Cow<'static, str>>) -> Result<T, WorkspaceError>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, step: impl Into<Cow<'static, str>>) -> Result<T, WorkspaceError> {
        self.map_err(|error| WorkspaceError::new(step, error.into()))
    }
}
