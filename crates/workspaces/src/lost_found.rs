//! The directory `lost+found`: files that no record names, but that may still belong to a user.
//! They are moved here, and only an operator removes them. An older database that is restored knows
//! none of the newer files; without this directory they would be deleted at the next start.
//!
//! Each entry keeps its name, with `@` and the Unix time of the move.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use jail::sys::btrfs;
use model::WorkspaceId;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, fchmod, fstatfs, fsync, mkdir, openat, statat, unlinkat,
};
use rustix::io::Errno;

use crate::archives::{Archives, name_of};
use crate::directory::{Kind, Workspaces};
use crate::error::{During as _, WorkspaceError};
use crate::layout::{move_to, names_in, open_directory};
use crate::removal::remove_tree;

/// How many names are tried for one entry: those of the following seconds.
const NAMES_TRIED: i64 = 1_000;

/// The directory. It is made with its first entry.
#[derive(Debug, Clone)]
pub struct LostFound {
    path: PathBuf,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lost {
    /// Its name in the directory.
    pub name: String,
    /// When it was moved here, in seconds since 1970.
    pub at_s: i64,
}

/// What became of something that no record names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutAside {
    /// It is in the directory.
    Kept,
    /// There was nothing in it, and it was removed.
    Empty,
    /// The directory is on another file system: it stays where it is, and nothing uses it.
    LeftInPlace,
}

impl LostFound {
    /// The one at this path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is in it, by name.
    pub fn list(&self) -> Result<Vec<Lost>, WorkspaceError> {
        const STEP: &str = "look into lost+found";
        let names = match self.look() {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            top => names_in(top.during(STEP)?).during(STEP)?,
        };
        let mut all: Vec<_> = names.into_iter().filter_map(parsed).collect();
        all.sort();
        Ok(all)
    }

    /// Removes the entries from before a time, or all. Returns how many there were. Other files in
    /// the directory stay.
    pub fn remove(&self, before_s: Option<i64>) -> Result<u32, WorkspaceError> {
        const STEP: &str = "remove what is in lost+found";
        let mut removed = 0;
        for lost in self.list()? {
            if before_s.is_some_and(|before_s| lost.at_s >= before_s) {
                continue;
            }
            let top = self.look().during(STEP)?;
            remove_one(&top, &lost.name).during(STEP)?;
            removed += 1;
        }
        Ok(removed)
    }

    fn look(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(CWD, &self.path, flags, Mode::empty())
    }

    /// Opens it, and makes it if needed. Only its owner may enter.
    fn open(&self) -> io::Result<OwnedFd> {
        match mkdir(&self.path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let top = self.look()?;
        fchmod(&top, Mode::RWXU)?;
        Ok(top)
    }

    /// Moves something here.
    fn take(&self, from: &OwnedFd, name: &str, at_s: i64) -> io::Result<PutAside> {
        let top = self.open()?;
        for later in 0..NAMES_TRIED {
            match move_to(from, name, &top, &format!("{name}@{}", at_s + later)) {
                Err(Errno::EXIST) => {}
                Err(Errno::XDEV) => return Ok(PutAside::LeftInPlace),
                Err(error) => return Err(error.into()),
                Ok(()) => {
                    fsync(&top)?;
                    fsync(from)?;
                    return Ok(PutAside::Kept);
                }
            }
        }
        Err(Errno::EXIST.into())
    }
}

impl Workspaces {
    /// Puts a workspace aside that no record names. An empty one is removed: its sandbox was never
    /// used.
    pub fn put_aside(
        &self,
        workspace: WorkspaceId,
        to: &LostFound,
        at_s: i64,
    ) -> Result<PutAside, WorkspaceError> {
        const STEP: &str = "put a workspace aside";
        let kind = self.known().get(&workspace).copied();
        let Some(kind) = kind else { return Ok(PutAside::Empty) };
        let name = kind.name(workspace);
        let is_empty = match kind {
            Kind::Image => false,
            Kind::Directory | Kind::Subvolume | Kind::Project => {
                match open_directory(&self.layout.top, &name) {
                    Ok(directory) => names_in(directory).during(STEP)?.is_empty(),
                    // Not a directory: keep it.
                    Err(_) => false,
                }
            }
        };
        if is_empty {
            self.remove(workspace)?;
            return Ok(PutAside::Empty);
        }
        let put = to.take(&self.layout.top, &name, at_s).during(STEP)?;
        self.known().remove(&workspace);
        self.reserved.forget(workspace);
        Ok(put)
    }
}

impl Archives {
    /// Puts an archive aside that no record names.
    pub fn put_aside(
        &self,
        workspace: WorkspaceId,
        to: &LostFound,
        at_s: i64,
    ) -> Result<PutAside, WorkspaceError> {
        const STEP: &str = "put an archive aside";
        let put = to.take(self.top(), &name_of(workspace), at_s).during(STEP)?;
        self.forget(workspace);
        Ok(put)
    }
}

fn parsed(name: String) -> Option<Lost> {
    let (_, at_s) = name.rsplit_once('@')?;
    let at_s = at_s.parse().ok()?;
    Some(Lost { name, at_s })
}

fn remove_one(top: &OwnedFd, name: &str) -> io::Result<()> {
    let found = statat(top, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        return Ok(unlinkat(top, name, AtFlags::empty())?);
    }
    let is_btrfs = fstatfs(top).is_ok_and(|found| found.f_type == btrfs::MAGIC);
    if is_btrfs
        && found.st_ino == btrfs::SUBVOLUME_INODE
        && btrfs::destroy_subvolume(top.as_fd(), name).is_ok()
    {
        return Ok(());
    }
    remove_tree(top, &CString::new(name)?, &AtomicBool::new(false))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use model::template::WorkspaceLimit;

    use super::*;
    use crate::directory::Size;

    struct TempDirectory(PathBuf);

    impl Drop for TempDirectory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn place(name: &str) -> TempDirectory {
        let path = std::env::temp_dir().join(format!("lost-found-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        TempDirectory(path)
    }

    #[test]
    fn lost_files_are_kept_until_an_operator_removes_them() {
        let place = place("kept");
        let lost = LostFound::at(place.0.join("lost+found"));
        assert_eq!(lost.list().unwrap(), []);
        assert_eq!(lost.remove(None).unwrap(), 0);
        let workspaces = Workspaces::open(place.0.join("workspaces")).unwrap();
        let archives = Archives::open(place.0.join("archives")).unwrap();
        let id = WorkspaceId::from_u128;
        for n in 1..=2 {
            workspaces.create(id(n), Size::SMALLEST, WorkspaceLimit::Soft, 0).unwrap();
        }
        fs::write(place.0.join(format!("workspaces/{}/file", id(1))), "mine").unwrap();
        let mut writer = archives.write(id(3), 0).unwrap();
        writer.write_all(b"packed").unwrap();
        writer.finish().unwrap();

        assert_eq!(workspaces.put_aside(id(1), &lost, 100).unwrap(), PutAside::Kept);
        assert_eq!(workspaces.put_aside(id(2), &lost, 100).unwrap(), PutAside::Empty);
        assert_eq!(archives.put_aside(id(3), &lost, 200).unwrap(), PutAside::Kept);
        assert!(!workspaces.has(id(1)) && !workspaces.has(id(2)));
        assert_eq!(archives.list().len(), 0);
        let names: Vec<_> = lost.list().unwrap().into_iter().map(|lost| lost.name).collect();
        let (first, third) = (format!("{}@100", id(1)), format!("{}.tar.zst@200", id(3)));
        assert_eq!(names, [first.clone(), third.clone()]);
        let file = lost.path().join(&first).join("file");
        assert_eq!(fs::read_to_string(file).unwrap(), "mine");

        fs::write(lost.path().join("notes of the operator"), "").unwrap();
        assert_eq!(lost.remove(Some(200)).unwrap(), 1, "the older one");
        assert_eq!(lost.list().unwrap().len(), 1);
        assert_eq!(lost.remove(None).unwrap(), 1);
        assert!(lost.path().join("notes of the operator").exists());
    }

    #[test]
    fn lost_files_of_one_id_in_one_second_have_two_names() {
        let place = place("twice");
        let lost = LostFound::at(place.0.join("lost+found"));
        let archives = Archives::open(place.0.join("archives")).unwrap();
        let id = WorkspaceId::from_u128(3);
        for _ in 0..2 {
            archives.write(id, 0).unwrap().finish().unwrap();
            assert_eq!(archives.put_aside(id, &lost, 100).unwrap(), PutAside::Kept);
        }
        assert_eq!(lost.list().unwrap().len(), 2);
    }
}
