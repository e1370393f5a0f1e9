//! Where the files of a session are. Session views use it, so it must be cheap: no file is read.

use model::{Refusal, SessionId};
use workspaces::Archived;

use crate::Engine;
use crate::keys::Caller;

/// Where files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceLocation {
    /// On the node's disk.
    Disk,
    /// In the memory of its sandbox, and in an archive as they were last saved.
    Memory,
    /// In an archive.
    Archive,
}

impl WorkspaceLocation {
    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Memory => "memory",
            Self::Archive => "archive",
        }
    }
}

/// The files of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionWorkspace {
    /// Where they are.
    pub place: WorkspaceLocation,
    /// Their size as last measured, where it is known.
    pub bytes: Option<u64>,
}

impl Engine {
    /// Where the files of a session are; none if it has none.
    pub fn session_workspace(
        &self,
        caller: Caller,
        id: SessionId,
    ) -> Result<Option<SessionWorkspace>, Refusal> {
        let view = self.session(caller, id)?;
        let Some(workspace) = view.workspace else { return Ok(None) };
        let disk = &self.core.disk;
        if disk.has(workspace) {
            let bytes = disk.usage_meter.bytes_of(workspace);
            return Ok(Some(SessionWorkspace { place: WorkspaceLocation::Disk, bytes }));
        }
        let archived = disk.archives.as_ref().and_then(|archives| archives.get(workspace));
        if view.sandbox_id.is_some() {
            return Ok(Some(SessionWorkspace { place: WorkspaceLocation::Memory, bytes: None }));
        }
        Ok(archived.map(|Archived { bytes, .. }| SessionWorkspace {
            place: WorkspaceLocation::Archive,
            bytes: Some(bytes),
        }))
    }
}
