//! Reserved space of workspaces with a hard limit. They use it as they fill, so the free space of
//! the disk does not show how much of it is still reserved. It is counted here, and must never be
//! reserved twice.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::WorkspaceId;
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};

/// The attribute of a directory that stores its reserved space. Programs in a sandbox can neither
/// see nor set it.
const NOTE: &str = "trusted.shoal.promised_bytes";

/// The reserved space of each workspace.
#[derive(Debug, Default)]
pub(crate) struct ReservedSpace {
    bytes: Mutex<BTreeMap<WorkspaceId, u64>>,
}

impl ReservedSpace {
    /// Reserves `bytes` of `available`, or returns how much is left. `used` returns how much of its
    /// reserved space a workspace already uses, which is no longer part of `available`.
    pub(crate) fn reserve(
        &self,
        workspace: WorkspaceId,
        bytes: u64,
        available: u64,
        used: impl Fn(WorkspaceId) -> u64,
    ) -> Result<(), u64> {
        let mut reserved = self.bytes();
        let most: u64 = reserved.values().fold(0, |sum, one| sum.saturating_add(*one));
        // Usually there is plenty, and no usage has to be read.
        if available < most.saturating_add(bytes) {
            let owed = reserved.iter().fold(0_u64, |sum, (one, bytes)| {
                sum.saturating_add(bytes.saturating_sub(used(*one)))
            });
            let left = available.saturating_sub(owed);
            if left < bytes {
                return Err(left);
            }
        }
        reserved.insert(workspace, bytes);
        Ok(())
    }

    /// Registers a workspace of an earlier run; 0 if it reserved nothing.
    pub(crate) fn learn(&self, workspace: WorkspaceId, bytes: u64) {
        if bytes > 0 {
            self.bytes().insert(workspace, bytes);
        }
    }

    pub(crate) fn forget(&self, workspace: WorkspaceId) {
        self.bytes().remove(&workspace);
    }

    fn bytes(&self) -> MutexGuard<'_, BTreeMap<WorkspaceId, u64>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stores the reserved space of a directory for the next run. If that fails, the next run counts 0.
pub(crate) fn store_on(directory: &OwnedFd, bytes: u64) {
    let _ = fsetxattr(directory, NOTE, &bytes.to_le_bytes(), XattrFlags::empty());
}

/// The stored reserved space of a directory; 0 if there is none.
pub(crate) fn stored_on(directory: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    match fgetxattr(directory, NOTE, &mut bytes) {
        Ok(8) => u64::from_le_bytes(bytes),
        Ok(_) | Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_space_is_never_reserved_twice() {
        let id = WorkspaceId::from_u128;
        let reserved = ReservedSpace::default();
        let none_taken = |_| 0;
        assert_eq!(reserved.reserve(id(1), 100, 250, none_taken), Ok(()));
        assert_eq!(reserved.reserve(id(2), 100, 250, none_taken), Ok(()));
        assert_eq!(reserved.reserve(id(3), 100, 250, none_taken), Err(50));
        // What the first one uses is no longer available, and no longer owed.
        let first_took = |one| if one == id(1) { 80 } else { 0 };
        assert_eq!(reserved.reserve(id(3), 51, 170, first_took), Err(50));
        assert_eq!(reserved.reserve(id(3), 50, 170, first_took), Ok(()));
        reserved.forget(id(2));
        assert_eq!(reserved.reserve(id(4), 101, 170, first_took), Err(100));
        reserved.learn(id(5), 100);
        assert_eq!(reserved.reserve(id(4), 1, 170, first_took), Err(0));
        assert_eq!(
            reserved.reserve(id(4), u64::MAX, u64::MAX - 1, none_taken),
            Err(u64::MAX - 1 - 250)
        );
    }
}
