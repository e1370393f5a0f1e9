//! The directory of a layer while it is filled. Every name is opened or made beneath a descriptor
//! of its parent, and no link is ever followed: the kernel enforces that, too.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, XattrFlags, fchmod, fsetxattr, linkat,
    mkdirat, mknodat, openat2, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::error::{ImageError, ImageErrorCode};

/// How names are resolved: beneath, without any link.
pub(crate) const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const NEW_FILE: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The attribute by which overlayfs hides directories of the same name in layers below.
pub(crate) const OPAQUE: &CStr = c"user.overlay.opaque";
/// The mode of a directory without an entry of its own.
const UNDESCRIBED: Mode = Mode::from_raw_mode(0o755);

/// A layer that is being filled.
pub(super) struct Tree<'a> {
    root: BorrowedFd<'a>,
    /// The directories on the path to the last entry, so that its neighbours are near.
    open: Vec<(Vec<u8>, OwnedFd)>,
}

impl<'a> Tree<'a> {
    pub(super) fn new(root: BorrowedFd<'a>) -> Self {
        Self { root, open: Vec::new() }
    }

    /// The last open directory.
    fn here(&self) -> BorrowedFd<'_> {
        self.open.last().map_or(self.root, |(_, directory)| directory.as_fd())
    }

    /// Goes to a directory, making what is missing. Closes all directories elsewhere or below, so
    /// that the next step may remove any of them.
    pub(super) fn go(&mut self, way: &[&[u8]]) -> Result<(), ImageError> {
        let same = self.open.iter().zip(way).take_while(|((open, _), name)| open == *name).count();
        self.open.truncate(same);
        for name in &way[same..] {
            let directory = self.enter(name)?;
            self.open.push((name.to_vec(), directory));
        }
        Ok(())
    }

    fn enter(&self, name: &[u8]) -> Result<OwnedFd, ImageError> {
        match openat2(self.here(), name, DIRECTORY, Mode::empty(), RESOLVE) {
            Err(Errno::NOENT) => self.new_directory(name),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                if self.kind(name)? != FileType::CharacterDevice {
                    return Err(ImageError::new(
                        ImageErrorCode::Unsafe,
                        format!(
                            "an entry goes through {}, which is not a directory",
                            name.escape_ascii()
                        ),
                    ));
                }
                self.clear(name)?;
                let directory = self.new_directory(name)?;
                hide_what_is_below(directory.as_fd())?;
                Ok(directory)
            }
            opened => opened.map_err(failed("open", name)),
        }
    }

    fn new_directory(&self, name: &[u8]) -> Result<OwnedFd, ImageError> {
        mkdirat(self.here(), name, Mode::RWXU).map_err(failed("make", name))?;
        let opened = openat2(self.here(), name, DIRECTORY, Mode::empty(), RESOLVE);
        let directory = opened.map_err(failed("open", name))?;
        fchmod(&directory, UNDESCRIBED).map_err(failed("set the mode of", name))?;
        Ok(directory)
    }

    /// Goes to the directory `name` here, which has an entry.
    pub(super) fn directory(&mut self, name: &[u8], mode: Mode) -> Result<(), ImageError> {
        let directory = match self.enter(name) {
            // A file or link of an earlier entry: the last entry wins.
            Err(error) if error.code == ImageErrorCode::Unsafe => {
                self.clear(name)?;
                self.new_directory(name)?
            }
            entered => entered?,
        };
        fchmod(&directory, mode).map_err(failed("set the mode of", name))?;
        self.open.push((name.to_vec(), directory));
        Ok(())
    }

    /// Makes a file here, in place of whatever has its name.
    pub(super) fn file(&self, name: &[u8]) -> Result<OwnedFd, ImageError> {
        self.make(name, || openat2(self.here(), name, NEW_FILE, Mode::RUSR | Mode::WUSR, RESOLVE))
    }

    /// Makes a symbolic link here, in place of whatever has its name.
    pub(super) fn symlink(&self, name: &[u8], target: &[u8]) -> Result<(), ImageError> {
        self.make(name, || symlinkat(target, self.here(), name))
    }

    /// Makes a hard link here to `target`, if that is a file or a link of this layer.
    pub(super) fn hardlink(&self, name: &[u8], target: &[&[u8]]) -> Result<(), ImageError> {
        let refused = |why: &str| {
            let shown = target.join(&b'/');
            let cause = format!("a hard link to {}: {why}", shown.escape_ascii());
            Err(ImageError::new(ImageErrorCode::Unsafe, cause))
        };
        let Some((last, before)) = target.split_last() else {
            return refused("the target is a directory");
        };
        let parent = if before.is_empty() {
            None
        } else {
            match openat2(self.root, before.join(&b'/'), DIRECTORY, Mode::empty(), RESOLVE) {
                Ok(parent) => Some(parent),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {
                    return refused("the target is not in this layer");
                }
                Err(error) => return Err(failed("open", last)(error)),
            }
        };
        let parent = parent.as_ref().map_or(self.root, |parent| parent.as_fd());
        let found = match statat(parent, *last, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) => return refused("the target is not in this layer"),
            Err(error) => return Err(failed("look at", last)(error)),
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile | FileType::Symlink => {}
            FileType::Directory
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Fifo
            | FileType::Socket
            | FileType::Unknown => return refused("the target is neither a file nor a link"),
        }
        if let Ok(there) = statat(self.here(), name, AtFlags::SYMLINK_NOFOLLOW)
            && (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino)
        {
            return Ok(());
        }
        let made = self.make(name, || linkat(parent, *last, self.here(), name, AtFlags::empty()));
        match statat(self.here(), name, AtFlags::SYMLINK_NOFOLLOW) {
            // Replacing the old file may have removed the target.
            Err(Errno::NOENT) => refused("the link would replace its target"),
            Ok(_) | Err(_) => made,
        }
    }

    /// Hides a name of the layers below, unless this layer has it, too.
    pub(super) fn whiteout(&self, name: &[u8]) -> Result<(), ImageError> {
        match statat(self.here(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => {
                let opened = openat2(self.here(), name, DIRECTORY, Mode::empty(), RESOLVE);
                return hide_what_is_below(opened.map_err(failed("open", name))?.as_fd());
            }
            Ok(_) => return Ok(()),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(failed("look at", name)(error)),
        }
        mknodat(self.here(), name, FileType::CharacterDevice, Mode::empty(), 0)
            .map_err(failed("hide", name))
    }

    /// Hides what layers below have in this directory.
    pub(super) fn opaque(&self) -> Result<(), ImageError> {
        hide_what_is_below(self.here())
    }

    /// Makes something that must not exist yet; removes what has its name, once.
    fn make<T>(
        &self,
        name: &[u8],
        make: impl Fn() -> rustix::io::Result<T>,
    ) -> Result<T, ImageError> {
        match make() {
            Err(Errno::EXIST) => {
                self.clear(name)?;
                make().map_err(failed("make", name))
            }
            made => made.map_err(failed("make", name)),
        }
    }

    fn kind(&self, name: &[u8]) -> Result<FileType, ImageError> {
        let found = statat(self.here(), name, AtFlags::SYMLINK_NOFOLLOW);
        found.map(|found| FileType::from_raw_mode(found.st_mode)).map_err(failed("look at", name))
    }

    fn clear(&self, name: &[u8]) -> Result<(), ImageError> {
        remove(self.here(), name).map_err(failed("replace", name))
    }
}

fn hide_what_is_below(directory: BorrowedFd<'_>) -> Result<(), ImageError> {
    fsetxattr(directory, OPAQUE, b"y", XattrFlags::empty()).map_err(|error| match error {
        Errno::NOTSUP => ImageError::new(
            ImageErrorCode::Unsupported,
            "the layer hides a directory, and the file system of the store has no user attributes",
        ),
        error => ImageError::store("cannot make a directory opaque", error),
    })
}

/// Removes something that we made, with its contents. It is never deeper than paths may be.
fn remove(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        removed => return removed,
    }
    let directory = openat2(parent, name, DIRECTORY, Mode::empty(), RESOLVE)?;
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            remove(directory.as_fd(), name)?;
        }
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

fn failed(what: &'static str, name: &[u8]) -> impl FnOnce(Errno) -> ImageError {
    move |error| ImageError::store(format!("cannot {what} {}", name.escape_ascii()), error)
}
