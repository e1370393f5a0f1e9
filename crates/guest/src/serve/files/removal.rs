//! Removes a tree of files, however deep, with one descriptor open at a time, and without following
//! any link. Every step up is checked, because a program may move directories meanwhile.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use guest_protocol::message::{Fault, FaultCode, Reply};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

use super::super::fault::{fault, refused};
use super::super::io::Io;
use super::super::stream::Progress;
use super::{open_directory_of, split};

/// Removals and steps up or down between two checks for other work.
const STEPS_AT_ONCE: usize = 256;

/// Non-empty directories that are remembered for each level.
const MAX_PENDING: usize = 64;

/// How often a directory may turn out not to be empty after it was emptied.
const MAX_SURPRISES: u32 = 1000;

const BUFFER_BYTES: usize = 16 * 1024;

/// A directory on the path to the current one.
#[derive(Debug)]
struct Level {
    name: CString,
    device: u64,
    inode: u64,
    /// Its non-empty subdirectories.
    pending: Vec<CString>,
}

/// A tree of files that is being removed.
#[derive(Debug)]
pub(in super::super) struct Removal {
    channel: u32,
    path: String,
    /// The directory that contains the tree.
    top: OwnedFd,
    levels: Vec<Level>,
    /// The directory of the last level.
    current: OwnedFd,
    surprises: u32,
}

/// Removes a file or an empty directory at once; begins the removal of a tree.
pub(in super::super) fn start(
    channel: u32,
    path: String,
    recursive: bool,
) -> Result<Option<Removal>, Fault> {
    let explain = |errno| refused(errno, &path);
    let (top, name) = open_directory_of(&path)?;
    let found = statat(&top, name, AtFlags::SYMLINK_NOFOLLOW).map_err(explain)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        unlinkat(&top, name, AtFlags::empty()).map_err(explain)?;
        return Ok(None);
    }
    if found.st_dev != fstat(&top).map_err(explain)?.st_dev {
        return Err(fault(FaultCode::Denied, format!("{path} is a mount point")));
    }
    match unlinkat(&top, name, AtFlags::REMOVEDIR) {
        Ok(()) => return Ok(None),
        Err(Errno::NOTEMPTY | Errno::EXIST) if recursive => {}
        Err(errno) => return Err(explain(errno)),
    }
    let name = CString::new(split(&path)?.1).map_err(|_| explain(Errno::INVAL))?;
    let (current, level) = enter(&top, name).map_err(explain)?;
    Ok(Some(Removal { channel, path, top, levels: vec![level], current, surprises: 0 }))
}

fn enter(directory: &OwnedFd, name: CString) -> Result<(OwnedFd, Level), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(directory, &name, flags, Mode::empty())?;
    let Stat { st_dev: device, st_ino: inode, .. } = fstat(&opened)?;
    Ok((opened, Level { name, device, inode, pending: Vec::new() }))
}

impl Removal {
    /// Continues for a while.
    pub(in super::super) fn step(&mut self, io: &mut Io) -> Progress {
        let mut steps = 0;
        while steps < STEPS_AT_ONCE {
            match self.go_on(&mut steps) {
                Ok(true) => {}
                Ok(false) => {
                    io.reply(self.channel, &Reply::Done);
                    return Progress::Over;
                }
                Err(errno) => {
                    let fault = refused(errno, &format!("cannot remove all of {}", self.path));
                    io.fail(self.channel, fault);
                    return Progress::Over;
                }
            }
        }
        Progress::More
    }

    /// Goes down if there is a subdirectory to empty, else empties the current directory, else goes
    /// up. Whether there is more to do.
    fn go_on(&mut self, steps: &mut usize) -> Result<bool, Errno> {
        *steps += 1;
        let Some(level) = self.levels.last_mut() else { return Ok(false) };
        if let Some(name) = level.pending.pop() {
            match enter(&self.current, name) {
                Ok((directory, level)) => {
                    self.current = directory;
                    self.levels.push(level);
                }
                // A program removed or replaced it. If it exists, it is found again.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => self.surprise()?,
                Err(errno) => return Err(errno),
            }
            return Ok(true);
        }
        if self.empty_some(steps)? {
            return Ok(true);
        }
        self.ascend()?;
        Ok(!self.levels.is_empty())
    }

    /// Removes what one buffer of names allows. Whether there were any names.
    fn empty_some(&mut self, steps: &mut usize) -> Result<bool, Errno> {
        let Some(level) = self.levels.last_mut() else { return Ok(false) };
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut names = RawDir::new(&self.current, &mut buffer);
        let mut found_any = false;
        while let Some(found) = names.next() {
            let found = found?;
            let name = found.file_name();
            if !matches!(name.to_bytes(), b"." | b"..") {
                found_any = true;
                *steps += 1;
                let is_directory = found.file_type() == FileType::Directory;
                let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                match unlinkat(&self.current, name, flags) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ISDIR) => {
                        level.pending.push(name.to_owned());
                    }
                    Err(errno) => return Err(errno),
                }
            }
            if level.pending.len() >= MAX_PENDING || names.is_buffer_empty() {
                break;
            }
        }
        Ok(found_any)
    }

    /// Removes the directory, which is empty now, from the one above it.
    fn ascend(&mut self) -> Result<(), Errno> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        let above = match self.levels.last() {
            None => None,
            Some(parent) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let above = openat(&self.current, "..", flags, Mode::empty())?;
                let found = fstat(&above)?;
                if (found.st_dev, found.st_ino) != (parent.device, parent.inode) {
                    return Err(Errno::BUSY);
                }
                Some(above)
            }
        };
        match unlinkat(above.as_ref().unwrap_or(&self.top), &level.name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                // A program writes into it: it is emptied again, but not for ever.
                self.surprise()?;
                let (directory, level) = enter(above.as_ref().unwrap_or(&self.top), level.name)?;
                self.current = directory;
                self.levels.push(level);
                return Ok(());
            }
            Err(errno) => return Err(errno),
        }
        if let Some(above) = above {
            self.current = above;
        }
        Ok(())
    }

    fn surprise(&mut self) -> Result<(), Errno> {
        self.surprises += 1;
        if self.surprises > MAX_SURPRISES { Err(Errno::BUSY) } else { Ok(()) }
    }
}
