//! A file on its way in. It has a name of its own until it is whole, and then takes the one it was
//! meant for; if it never becomes whole, nothing of it is left.

use std::os::fd::OwnedFd;

use guest_protocol::message::{EntryKind, Fault, FaultCode, Reply, lane};
use rustix::fs::{
    AtFlags, Mode, OFlags, fchmod, fstat, openat, readlinkat, renameat, statat, unlinkat,
};
use rustix::io::{Errno, write};
use rustix::process::getpid;

use super::super::fault::{fault, refused};
use super::super::io::Io;
use super::super::start::absolute;
use super::super::stream::Progress;
use super::{SETTABLE, entry, kind_of, make_all, open_directory_of, split};

/// Permissions of a new file when nobody says otherwise.
const FILE_MODE: u32 = 0o644;

/// As many links as the kernel itself would follow.
const MAX_LINKS: usize = 40;

/// A file on its way in.
#[derive(Debug)]
pub(in super::super) struct Writing {
    channel: u32,
    path: String,
    directory: OwnedFd,
    /// Its name until it is whole; none when it is.
    temporary: Option<String>,
    file: OwnedFd,
    mode: u32,
}

impl Writing {
    /// Makes it, under its first name.
    pub(in super::super) fn start(
        channel: u32,
        path: String,
        mode: Option<u32>,
        parents: bool,
    ) -> Result<Self, Fault> {
        if mode.is_some_and(|mode| mode & !SETTABLE != 0) {
            return Err(fault(FaultCode::Invalid, "these are no permissions"));
        }
        if parents {
            make_all(split(&path)?.0)?;
        }
        let (path, replaced_mode) = follow(path)?;
        let (directory, _) = open_directory_of(&path)?;
        let temporary = format!(".shoal-{}-{channel}.part", getpid().as_raw_nonzero());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        // What has this name is left over from a guest that was killed.
        let _ = unlinkat(&directory, temporary.as_str(), AtFlags::empty());
        let file = openat(&directory, temporary.as_str(), flags, Mode::from(0o600))
            .map_err(|errno| refused(errno, &path))?;
        let mode = mode.or(replaced_mode).unwrap_or(FILE_MODE);
        Ok(Self { channel, path, directory, temporary: Some(temporary), file, mode })
    }

    /// More of it.
    pub(in super::super) fn take(&mut self, lane: u8, bytes: &[u8], io: &mut Io) -> Progress {
        if lane != lane::MAIN {
            return Progress::Wait;
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            match write(&self.file, rest) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(errno) => {
                    io.fail(self.channel, refused(errno, &self.path));
                    return Progress::Over;
                }
            }
        }
        io.connection.endpoint.consumed(self.channel, lane, bytes.len());
        Progress::Wait
    }

    /// That was all of it: it takes its name.
    pub(in super::super) fn end(&mut self, lane: u8, io: &mut Io) -> Progress {
        if lane != lane::MAIN {
            return Progress::Wait;
        }
        match self.commit() {
            Ok(reply) => io.reply(self.channel, &reply),
            Err(fault) => io.fail(self.channel, fault),
        }
        Progress::Over
    }

    fn commit(&mut self) -> Result<Reply, Fault> {
        let explain = |errno| refused(errno, &self.path);
        let (_, name) = split(&self.path)?;
        fchmod(&self.file, Mode::from(self.mode)).map_err(explain)?;
        if let Some(temporary) = &self.temporary {
            renameat(&self.directory, temporary.as_str(), &self.directory, name)
                .map_err(explain)?;
        }
        self.temporary = None;
        let found = fstat(&self.file).map_err(explain)?;
        Ok(Reply::Entry(entry(name.as_bytes(), &found, None)))
    }

    /// The rest of it will not come.
    pub(in super::super) fn reset(&mut self, io: &mut Io) -> Progress {
        io.fail(self.channel, fault(FaultCode::Invalid, "the file was given up"));
        Progress::Over
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = unlinkat(&self.directory, temporary.as_str(), AtFlags::empty());
        }
    }
}

/// Where a path leads when its last name is a link, as writing to it would, and the permissions of
/// what is there.
fn follow(mut path: String) -> Result<(String, Option<u32>), Fault> {
    for _ in 0..MAX_LINKS {
        let (directory, name) = open_directory_of(&path)?;
        let found = match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok((path, None)),
            Err(errno) => return Err(refused(errno, &path)),
        };
        match kind_of(&found) {
            EntryKind::File => return Ok((path, Some(found.st_mode & SETTABLE))),
            EntryKind::Directory => return Err(refused(Errno::ISDIR, &path)),
            EntryKind::Link => {
                let target = readlinkat(&directory, name, Vec::new())
                    .map_err(|errno| refused(errno, &path))?;
                let target = target.into_string().map_err(|_| refused(Errno::ILSEQ, &path))?;
                path = absolute(split(&path)?.0, &target);
            }
            EntryKind::Other => {
                return Err(fault(FaultCode::WrongKind, format!("{path}: it is not a file")));
            }
        }
    }
    Err(refused(Errno::LOOP, &path))
}
