//! Room that workspaces with a hard limit were promised. They take it as they fill, so what is free
//! now says nothing about what is still to be taken: that is counted here, and never promised twice.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::WorkspaceId;
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};

/// Where a directory says what it was promised. Programs in a sandbox can neither see nor set it.
const NOTE: &str = "trusted.shoal.promised_bytes";

/// What each was promised.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    bytes: Mutex<BTreeMap<WorkspaceId, u64>>,
}

impl Promises {
    /// Promises so much of what there is, or says how much is left of it. `taken` tells what one
    /// has taken already, which is missing from what there is.
    pub(crate) fn add(
        &self,
        workspace: WorkspaceId,
        bytes: u64,
        there_is: u64,
        taken: impl Fn(WorkspaceId) -> u64,
    ) -> Result<(), u64> {
        let mut promised = self.bytes();
        let most: u64 = promised.values().fold(0, |sum, one| sum.saturating_add(*one));
        // Mostly there is plenty, and nobody has to be asked.
        if there_is < most.saturating_add(bytes) {
            let owed = promised.iter().fold(0_u64, |sum, (one, bytes)| {
                sum.saturating_add(bytes.saturating_sub(taken(*one)))
            });
            let left = there_is.saturating_sub(owed);
            if left < bytes {
                return Err(left);
            }
        }
        promised.insert(workspace, bytes);
        Ok(())
    }

    /// One that an earlier run made; 0 where nothing was promised.
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

/// Writes down for the next run what a directory was promised. Where that cannot be, the next run
/// counts it for nothing.
pub(crate) fn note_on(directory: &OwnedFd, bytes: u64) {
    let _ = fsetxattr(directory, NOTE, &bytes.to_le_bytes(), XattrFlags::empty());
}

/// What a directory was promised, if anything.
pub(crate) fn noted_on(directory: &OwnedFd) -> u64 {
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
    fn nothing_is_promised_twice() {
        let id = WorkspaceId::from_u128;
        let promises = Promises::default();
        let none_taken = |_| 0;
        assert_eq!(promises.add(id(1), 100, 250, none_taken), Ok(()));
        assert_eq!(promises.add(id(2), 100, 250, none_taken), Ok(()));
        assert_eq!(promises.add(id(3), 100, 250, none_taken), Err(50));
        // What the first took is gone from what there is, and not owed any more.
        let first_took = |one| if one == id(1) { 80 } else { 0 };
        assert_eq!(promises.add(id(3), 51, 170, first_took), Err(50));
        assert_eq!(promises.add(id(3), 50, 170, first_took), Ok(()));
        promises.forget(id(2));
        assert_eq!(promises.add(id(4), 101, 170, first_took), Err(100));
        promises.learn(id(5), 100);
        assert_eq!(promises.add(id(4), 1, 170, first_took), Err(0));
        assert_eq!(
            promises.add(id(4), u64::MAX, u64::MAX - 1, none_taken),
            Err(u64::MAX - 1 - 250)
        );
    }
}
