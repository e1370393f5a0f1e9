//! The layout of the directory of workspaces, held by descriptors: `new`, where a workspace is made
//! before it has its name, `spares` for spare images, and `trash` for what is being deleted. The
//! contents of these subdirectories are worthless after a crash.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use model::WorkspaceId;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RawDir, RenameFlags, ResolveFlags, fchmod, mkdirat, openat,
    openat2, renameat_with, unlinkat,
};
use rustix::io::Errno;

/// What the name of an image ends with.
pub(crate) const IMAGE: &str = ".img";

/// How many names are tried before the operation fails.
const NAMES_TRIED: u32 = 1_000;

/// The directory and its subdirectories.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Makes names of this run differ from those of earlier runs.
    run: u128,
    named: AtomicU64,
    pub(crate) top: OwnedFd,
    pub(crate) new: OwnedFd,
    pub(crate) spares: OwnedFd,
    pub(crate) trash: OwnedFd,
}

impl Layout {
    /// Opens the directory, and makes what is missing. Only its owner may enter: files in
    /// workspaces belong to an ordinary user, and have whatever permissions programs choose.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(path)?;
        let top = openat(CWD, path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        fchmod(&top, Mode::RWXU)?;
        let subdirectory = |name: &str| -> io::Result<OwnedFd> {
            match mkdirat(&top, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            Ok(open_directory(&top, name)?)
        };
        let (new, spares, trash) =
            (subdirectory("new")?, subdirectory("spares")?, subdirectory("trash")?);
        #[expect(
            clippy::disallowed_methods,
            reason = "a name that differs, nothing is decided by it"
        )]
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (run, named) = (since.as_nanos(), AtomicU64::new(0));
        Ok(Self { run, named, top, new, spares, trash })
    }

    /// A number that no other run has.
    pub(crate) fn run(&self) -> u128 {
        self.run
    }

    /// A name that nothing had before, as far as clocks can be trusted.
    pub(crate) fn new_name(&self) -> String {
        format!("{:x}-{}", self.run, self.named.fetch_add(1, Ordering::Relaxed))
    }

    /// Moves something to the trash, under a new name: an earlier run may have left its old name
    /// there.
    pub(crate) fn throw_away(&self, directory: impl AsFd, name: &str) -> Result<(), Errno> {
        let directory = directory.as_fd();
        for _ in 0..NAMES_TRIED {
            match move_to(directory, name, &self.trash, &self.new_name()) {
                Err(Errno::EXIST) => {}
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Err(Errno::EXIST)
    }
}

/// Opens a directory for reading, wherever it is mounted, and never through a link.
pub(crate) fn open_directory(parent: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    openat2(parent, name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Renames something, and fails if the new name exists.
pub(crate) fn move_to(
    from: impl AsFd,
    name: &str,
    to: impl AsFd,
    new_name: &str,
) -> Result<(), Errno> {
    renameat_with(from, name, to, new_name, RenameFlags::NOREPLACE)
}

/// Removes an empty directory or a file of ours.
pub(crate) fn discard(parent: impl AsFd, name: &str) {
    let parent = parent.as_fd();
    if unlinkat(parent, name, AtFlags::empty()).is_err() {
        let _ = unlinkat(parent, name, AtFlags::REMOVEDIR);
    }
}

/// The names in a directory of ours.
pub(crate) fn names_in(directory: impl AsFd) -> io::Result<Vec<String>> {
    // A new file description, so that each listing starts at the beginning.
    let directory = open_directory(directory, ".")?;
    let mut buffer = Vec::with_capacity(8192);
    let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if let Ok(name) = entry.file_name().to_str()
            && !matches!(name, "." | "..")
        {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// The workspace that an entry of the directory belongs to, by its name.
pub(crate) fn workspace_named(name: &str) -> Option<WorkspaceId> {
    let id = name.strip_suffix(IMAGE).unwrap_or(name);
    id.parse().ok().filter(|known: &WorkspaceId| known.to_string() == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspace_names_are_ids_in_canonical_form() {
        let id = "00010203-0405-0607-0809-0a0b0c0d0e0f";
        let known = id.parse().ok();
        for (name, expected) in [
            (id.to_owned(), known),
            (format!("{id}.img"), known),
            (id.to_uppercase(), None),
            (id.replace('-', ""), None),
            (format!("{id}.img.img"), None),
            (format!("{{{id}}}"), None),
            ("trash".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(workspace_named(&name), expected, "{name}");
        }
    }
}
