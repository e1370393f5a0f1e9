//! How a machine is read, so that tests can show one that does not exist.

use std::path::Path;

/// Files of a machine. Read-only: nothing here may change what it reads.
pub trait Files {
    /// The text of a file, if it can be read.
    fn text(&self, path: &Path) -> Option<String>;
    /// Whether a file of this name exists.
    fn exists(&self, path: &Path) -> bool;
    /// Whether we may change the directory.
    fn may_change(&self, path: &Path) -> bool;
    /// Whether a control group was delegated to us, for example by systemd.
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
        // systemd marks groups that it delegates; the second name is for users who cannot read the
        // first.
        ["trusted.delegate", "user.delegate"].iter().any(|name| {
            let mut value = [0; 8];
            rustix::fs::getxattr(path, *name, &mut value)
                .is_ok_and(|length| &value[..length] == b"1")
        })
    }
}
