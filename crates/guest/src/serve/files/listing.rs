//! A page of a directory. The kernel returns names in no order, so all names are read for every
//! page, a buffer at a time; only those of the page are held.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use guest_protocol::message::{Entry, EntryKind, Fault, Reply};
use rustix::fs::{AtFlags, OFlags, RawDir, readlinkat, statat};
use rustix::io::Errno;

use super::super::fault::refused;
use super::super::io::Io;
use super::super::stream::Progress;
use super::{entry, kind_of, open, refuse_proc};

/// The most entries of one reply.
const MAX_ENTRIES: u32 = 5000;

/// The most bytes of names and links of one reply, so that it stays far below the maximum size of a
/// message.
const MAX_PAGE_BYTES: usize = 256 * 1024;

/// The most that the rest of an entry takes in a message.
const ENTRY_BYTES: usize = 40;

/// Entries described between two checks for other work.
const DESCRIBED_AT_ONCE: usize = 256;

/// Bytes read of a directory at once.
const BUFFER_BYTES: usize = 32 * 1024;

/// A page of a directory.
#[derive(Debug)]
pub(in super::super) struct Listing {
    channel: u32,
    path: String,
    directory: OwnedFd,
    after: Vec<u8>,
    limit: usize,
    /// Names of the page that are not described yet.
    names: BTreeSet<Vec<u8>>,
    /// The whole directory was read.
    is_read: bool,
    entries: Vec<Entry>,
    entries_bytes: usize,
    more: bool,
}

impl Listing {
    /// Opens the directory.
    pub(in super::super) fn start(
        channel: u32,
        path: &str,
        after: Option<Vec<u8>>,
        limit: u32,
    ) -> Result<Self, Fault> {
        let directory = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK)
            .map_err(|errno| refused(errno, path))?;
        refuse_proc(&directory, path)?;
        Ok(Self {
            channel,
            path: path.to_owned(),
            directory,
            after: after.unwrap_or_default(),
            limit: limit.clamp(1, MAX_ENTRIES) as usize,
            names: BTreeSet::new(),
            is_read: false,
            entries: Vec::new(),
            entries_bytes: 0,
            more: false,
        })
    }

    /// Reads a buffer of names, or describes some of the names.
    pub(in super::super) fn step(&mut self, io: &mut Io) -> Progress {
        if self.is_read {
            return self.describe_some(io);
        }
        match self.read_names() {
            Ok(found_any) => {
                self.is_read = !found_any;
                Progress::More
            }
            Err(errno) => {
                io.fail(self.channel, refused(errno, &self.path));
                Progress::Over
            }
        }
    }

    fn read_names(&mut self) -> Result<bool, Errno> {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let mut names = RawDir::new(&self.directory, &mut buffer);
        let mut found_any = false;
        while let Some(found) = names.next() {
            found_any = true;
            let found = found?;
            let name = found.file_name().to_bytes();
            let is_of_page = name > &self.after[..] && name != b"." && name != b"..";
            if is_of_page {
                let fits = self.names.len() < self.limit;
                if fits || self.names.last().is_some_and(|last| name < &last[..]) {
                    self.names.insert(name.to_vec());
                }
                if self.names.len() > self.limit {
                    self.names.pop_last();
                }
                self.more |= !fits;
            }
            if names.is_buffer_empty() {
                break;
            }
        }
        Ok(found_any)
    }

    fn describe_some(&mut self, io: &mut Io) -> Progress {
        for _ in 0..DESCRIBED_AT_ONCE {
            if self.entries_bytes > MAX_PAGE_BYTES && !self.names.is_empty() {
                self.more = true;
                self.names.clear();
            }
            let Some(name) = self.names.pop_first() else {
                let entries = std::mem::take(&mut self.entries);
                io.reply(self.channel, &Reply::Entries { entries, more: self.more });
                return Progress::Over;
            };
            // An entry that was removed meanwhile is left out.
            if let Some(entry) = self.describe(&name) {
                let target_bytes = entry.target.as_ref().map_or(0, Vec::len);
                self.entries_bytes += entry.name.len() + target_bytes + ENTRY_BYTES;
                self.entries.push(entry);
            }
        }
        Progress::More
    }

    fn describe(&self, name: &[u8]) -> Option<Entry> {
        let found = statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let target = match kind_of(&found) {
            EntryKind::Link => {
                readlinkat(&self.directory, name, Vec::new()).ok().map(CString::into_bytes)
            }
            EntryKind::File | EntryKind::Directory | EntryKind::Other => None,
        };
        Some(entry(name, &found, target))
    }
}
