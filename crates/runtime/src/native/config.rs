//! What a native runtime is configured with.

use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;

use guest_protocol::launcher::LauncherConfig;
pub use guest_protocol::launcher::NetworkMode;
use model::WorkspaceId;

use crate::guest_link::LinkSettings;

/// First host uid of the first slot. Above what people and systemd's own allocations use, and with
/// room for 8,000 slots beneath the ids that mean "none".
const UID_BASE: u32 = 0x6000_0000;

/// What a native runtime is configured with.
#[derive(Debug, Clone)]
pub struct NativeConfig {
    /// Where each run has a lock file. Another run sees by it whether the run has ended.
    pub run_directory: PathBuf,
    /// Names this run; everything that is made carries it. Letters, digits and dashes.
    pub run: String,
    /// Where disk workspaces are; none if there are none.
    pub workspaces: Option<PathBuf>,
    /// Directories elsewhere that serve as workspaces in this run, with their files as they are.
    /// Only without a directory of workspaces.
    pub lent: Vec<(WorkspaceId, PathBuf)>,
    /// Beneath which directories root filesystems are found.
    pub directories: Vec<PathBuf>,
    /// Directories beneath which sandboxes may have mounts, by paths without links.
    pub mounts: Vec<PathBuf>,
    /// Where the image store is, if there is one.
    pub images: Option<PathBuf>,
    /// How many sandboxes may live at once.
    pub slots: u32,
    /// How many preforks wait, so that a launch is quick.
    pub spares: u32,
    /// How network namespaces are made.
    pub network: NetworkMode,
    /// First host uid of the first slot; each slot owns 65,536.
    pub uid_base: u32,
    /// Whether limits are applied. Off only to measure their price.
    pub limits: bool,
    /// The user that the launcher drops to if this server is root: sandboxes are then those of an
    /// ordinary user, who must be able to write to the run directory.
    pub user: Option<u32>,
    /// Whether a server that is not root uses its subordinate users (/etc/subuid).
    pub subordinate_users: bool,
    /// Whether the kernel's tables are used, if it has them. Off only to test what sandboxes do
    /// without.
    pub network_tables: bool,
    /// Settings of the connections to guests.
    pub link: LinkSettings,
    /// Whether a launcher that died is replaced, under a new run name. Its sandboxes are lost in
    /// any case.
    pub restart: bool,
}

impl NativeConfig {
    /// A run with its lock in this directory, and every default: the host's programs, workspaces in
    /// memory only.
    pub fn new(run_directory: impl Into<PathBuf>) -> Self {
        Self {
            run_directory: run_directory.into(),
            run: new_run(),
            workspaces: None,
            lent: Vec::new(),
            directories: Vec::new(),
            mounts: Vec::new(),
            images: None,
            slots: 1000,
            spares: 8,
            network: NetworkMode::Spare,
            uid_base: UID_BASE,
            limits: true,
            user: None,
            subordinate_users: true,
            network_tables: true,
            link: LinkSettings::default(),
            restart: false,
        }
    }

    pub(super) fn for_launcher(&self) -> LauncherConfig {
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        LauncherConfig {
            run: self.run.clone(),
            uid_base: self.uid_base,
            slots: self.slots,
            spares: self.spares,
            network: self.network,
            directories: self.directories.iter().map(text).collect(),
            mounts: self.mounts.iter().map(text).collect(),
            images: self.images.as_ref().map(text),
            workspaces: self.workspaces.as_ref().map(text),
            lent: self
                .lent
                .iter()
                .map(|(id, path)| (id.as_u128().to_be_bytes(), text(path)))
                .collect(),
            run_directory: text(&self.run_directory),
            limits: self.limits,
            user: self.user,
            subordinate_users: self.subordinate_users,
            tables: self.network_tables,
        }
    }
}

/// A name that no other run has: the process, and a number that the standard library seeds from
/// the kernel's randomness.
pub(crate) fn new_run() -> String {
    format!("{}-{:016x}", std::process::id(), RandomState::new().hash_one(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_have_names_of_their_own_that_the_launcher_allows() {
        let (a, b) = (new_run(), new_run());
        assert_ne!(a, b);
        assert!(a.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'), "{a}");
    }
}
