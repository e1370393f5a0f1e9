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
    /// Somebody uses it.
    InUse,
    /// What was kept, or sent, cannot be read: there is nothing to wait for.
    Damaged,
    /// What was sent is too much, or is none of what may be sent.
    Refused,
    /// Whoever wanted it does not any more.
    CalledOff,
    /// It was removed while something was done with it.
    Went,
    /// The kernel refused.
    System,
}

impl Trouble {
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
    /// While something else was done with what is kept here.
    pub fn of(step: &'static str, source: io::Error) -> Self {
        Self::new(step, source)
    }

    /// Whoever wanted it does not any more.
    pub fn called_off(step: &'static str) -> Self {
        Self::new(step, crate::walk::called_off())
    }

    /// It was removed meanwhile, by whoever it belongs to.
    pub fn went(step: &'static str, workspace: WorkspaceId) -> Self {
        let why = format!("workspace {workspace} was removed meanwhile");
        let source = io::Error::new(io::ErrorKind::NotFound, why);
        Self { trouble: Trouble::Went, ..Self::new(step, source) }
    }

    /// What was kept is not there any more.
    pub fn gone(step: &'static str, workspace: WorkspaceId) -> Self {
        let why = format!("the files of workspace {workspace} are not where they were");
        Self::new(step, io::Error::new(io::ErrorKind::InvalidData, why))
    }

    pub(crate) fn new(step: impl Into<Cow<'static, str>>, source: io::Error) -> Self {
        let trouble = Trouble::of(&source);
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
