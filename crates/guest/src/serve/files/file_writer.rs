//! Receives a file from the host. It has a temporary name until it is complete, then it gets its
//! own. If it never becomes complete, nothing of it is left.

use std::os::fd::OwnedFd;

use guest_protocol::message::{EntryKind, Fault, FaultCode, Reply, lane};
use rustix::fs::{
    AtFlags, Mode, OFlags, fchmod, fstat, ftruncate, openat, readlinkat, renameat, statat, unlinkat,
};
use rustix::io::{Errno, pwrite};
use rustix::process::getpid;

use super::super::fault::{fault, refused};
use super::super::io::Io;
use super::super::start::absolute;
use super::super::stream::Progress;
use super::{SETTABLE, entry, kind_of, make_all, open_directory_of, split};

/// Default permissions of a new file.
const FILE_MODE: u32 = 0o644;

/// The smallest hole.
const BLOCK_BYTES: usize = 4096;
const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// The kernel's own maximum of links to follow.
const MAX_LINKS: usize = 40;

/// A file that is being received.
#[derive(Debug)]
pub(in super::super) struct FileWriter {
    channel: u32,
    path: String,
    directory: OwnedFd,
    /// Its name until it is complete; `None` afterwards.
    temporary: Option<String>,
    file: OwnedFd,
    /// How many bytes came.
    bytes: u64,
    mode: u32,
}

impl FileWriter {
    /// Makes it, under its temporary name.
    pub(in super::super) fn start(
        channel: u32,
        path: String,
        mode: Option<u32>,
        parents: bool,
    ) -> Result<Self, Fault> {
        if mode.is_some_and(|mode| mode & !SETTABLE != 0) {
            return Err(fault(FaultCode::Invalid, "the permissions are not valid"));
        }
        if parents {
            make_all(split(&path)?.0)?;
        }
        let (path, replaced_mode) = follow(path)?;
        let (directory, _) = open_directory_of(&path)?;
        let temporary = format!(".shoal-{}-{channel}.part", getpid().as_raw_nonzero());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        // A file of this name was left by a guest that was killed.
        let _ = unlinkat(&directory, temporary.as_str(), AtFlags::empty());
        let file = openat(&directory, temporary.as_str(), flags, Mode::from(0o600))
            .map_err(|errno| refused(errno, &path))?;
        let mode = mode.or(replaced_mode).unwrap_or(FILE_MODE);
        Ok(Self { channel, path, directory, temporary: Some(temporary), file, bytes: 0, mode })
    }

    /// Takes more bytes.
    pub(in super::super) fn take(&mut self, lane: u8, bytes: &[u8], io: &mut Io) -> Progress {
        if lane != lane::MAIN {
            return Progress::Wait;
        }
        if let Err(errno) = self.write(bytes) {
            io.fail(self.channel, refused(errno, &self.path));
            return Progress::Over;
        }
        io.connection.endpoint.consumed(self.channel, lane, bytes.len());
        Progress::Wait
    }

    /// Writes everything except whole blocks of zeros, which become holes: a sparse file takes no
    /// more space than before when it comes back.
    fn write(&mut self, mut rest: &[u8]) -> Result<(), Errno> {
        while !rest.is_empty() {
            let to_block = BLOCK_BYTES - (self.bytes % BLOCK_BYTES as u64) as usize;
            let (zeros, end) = run(rest, to_block);
            let mut left = if zeros { &[][..] } else { &rest[..end] };
            let mut at = self.bytes;
            while !left.is_empty() {
                match pwrite(&self.file, left, at) {
                    Ok(count) => {
                        left = &left[count..];
                        at += count as u64;
                    }
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
            self.bytes += end as u64;
            rest = &rest[end..];
        }
        Ok(())
    }

    /// The file is complete: it gets its name.
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
        ftruncate(&self.file, self.bytes).map_err(explain)?;
        fchmod(&self.file, Mode::from(self.mode)).map_err(explain)?;
        if let Some(temporary) = &self.temporary {
            renameat(&self.directory, temporary.as_str(), &self.directory, name)
                .map_err(explain)?;
        }
        self.temporary = None;
        let found = fstat(&self.file).map_err(explain)?;
        Ok(Reply::Entry(entry(name.as_bytes(), &found, None)))
    }

    /// The rest will not come.
    pub(in super::super) fn reset(&mut self, io: &mut Io) -> Progress {
        io.fail(self.channel, fault(FaultCode::Invalid, "the host gave up sending the file"));
        Progress::Over
    }
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = unlinkat(&self.directory, temporary.as_str(), AtFlags::empty());
        }
    }
}

/// How many bytes at the beginning are all whole blocks of zeros, or none of them. The next block
/// begins after `to_block` bytes.
fn run(bytes: &[u8], to_block: usize) -> (bool, usize) {
    let is_hole = |block: &[u8]| block.len() == BLOCK_BYTES && *block == ZEROS;
    let first = to_block.min(bytes.len());
    let (begin, rest) = bytes.split_at(first);
    let zeros = is_hole(begin);
    let same = rest.chunks(BLOCK_BYTES).take_while(|block| is_hole(block) == zeros);
    (zeros, first + same.map(<[u8]>::len).sum::<usize>())
}

/// The path that a write would reach when its last name is a link, and the permissions of the file
/// there.
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
                return Err(fault(FaultCode::WrongKind, format!("{path} is not a file")));
            }
        }
    }
    Err(refused(Errno::LOOP, &path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_blocks_of_zeros_are_holes() {
        let bytes = |parts: &[(u8, usize)]| -> Vec<u8> {
            parts.iter().flat_map(|(byte, count)| vec![*byte; *count]).collect()
        };
        let block = BLOCK_BYTES;
        for (parts, to_block, expected) in [
            (vec![(0, block)], block, (true, block)),
            (vec![(0, block - 1)], block, (false, block - 1)),
            (vec![(0, 3 * block + 5)], block, (true, 3 * block)),
            (vec![(0, 3 * block)], 7, (false, 7)),
            (vec![(1, 2 * block), (0, block)], block, (false, 2 * block)),
            (vec![(1, block + 1), (0, 2 * block)], block, (false, 2 * block)),
            (vec![(0, block), (1, 1)], block, (true, block)),
        ] {
            assert_eq!(run(&bytes(&parts), to_block), expected, "{parts:?} {to_block}");
        }
    }
}
