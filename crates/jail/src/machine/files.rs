//! The few ways in which a machine is looked at, so that tests can show one that is not there.

use std::path::Path;

/// Files of a machine. Only reading: nothing here may change what it looks at.
pub trait Files {
    /// The text of a file, if it can be read.
    fn text(&self, path: &Path) -> Option<String>;
    /// Whether there is something of this name.
    fn exists(&self, path: &Path) -> bool;
    /// Whether we may change the directory.
    fn may_change(&self, path: &Path) -> bool;
    /// Whether a control group was handed over to us by whoever manages the groups.
    fn is_delegated(&self, path: &Path) -> bool;
}

/// The machine we are on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Host;

impl Files for Host {
    fn text(&self, path: &Path) -> Option<String> {
        std::fs::read_to_string(path).ok()
    }

    fn exists(&self, path: &Path) -> bool {
        rustix::fs::access(path, rustix::fs::Access::EXISTS).is_ok()
    }

    fn may_change(&self, path: &Path) -> bool {
        use rustix::fs::{Access, AtFlags, CWD};
        let wanted = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::accessat(CWD, path, wanted, AtFlags::EACCESS).is_ok()
    }

    fn is_delegated(&self, path: &Path) -> bool {
        // systemd marks what it hands over; the second name is for those who cannot read the first.
        ["trusted.delegate", "user.delegate"].iter().any(|name| {
            let mut value = [0; 8];
            rustix::fs::getxattr(path, *name, &mut value)
                .is_ok_and(|length| &value[..length] == b"1")
        })
    }
}
