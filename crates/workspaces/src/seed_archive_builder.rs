//! Builds a seed archive: writes entries one after the other, within bounds, and hashes them. With
//! a sink as the target it only computes the name.

use std::io::{self, Write};
use std::sync::Arc;

use model::SeedId;
use rustix::fs::{AtFlags, unlinkat};
use sha2::{Digest as _, Sha256};
use tar_stream::{Kind, NewEntry, end, padding};
use zstd::stream::write::Encoder;

use crate::archives::{GuardedFile, encoder};
use crate::seed_archives::SeedBounds;
use crate::unpack::path_names;
use crate::write_once_dir::WriteOnceDir;

/// The longest path, and the longest target of a link.
const PATH_BYTES_MAX: usize = 4095;

/// The longest file name of common file systems.
const NAME_BYTES_MAX: usize = 255;

/// The owner of everything in a seed archive.
const OWNER: (u32, u32) = (crate::directory::WORKSPACE_USER, crate::directory::WORKSPACE_USER);

/// The header of one entry.
pub(crate) struct SeedEntry<'a> {
    pub(crate) kind: Kind,
    pub(crate) path: &'a [u8],
    pub(crate) mode: u32,
    pub(crate) size: u64,
}

/// A seed archive that is being built.
pub(crate) struct SeedBuilder<W> {
    to: W,
    hash: Sha256,
    left: SeedBounds,
}

impl<W: Write> SeedBuilder<W> {
    pub(crate) fn begin(to: W, bounds: SeedBounds) -> Self {
        Self { to, hash: Sha256::new(), left: bounds }
    }

    /// Finishes the archive. Returns its name and the target.
    pub(crate) fn end(mut self) -> io::Result<(SeedId, W)> {
        let mut last = Vec::new();
        end(&mut last);
        self.write(&last)?;
        let digest: [u8; 32] = self.hash.finalize().into();
        Ok((SeedId::from_bytes(digest), self.to))
    }

    /// Adds one file with its contents.
    pub(crate) fn file(&mut self, path: &[u8], mode: u32, bytes: &[u8]) -> io::Result<()> {
        let size = bytes.len() as u64;
        self.entry(&SeedEntry { kind: Kind::File, path, mode, size }, b"")?;
        self.write(bytes)?;
        self.pad(size)
    }

    pub(crate) fn entry(&mut self, entry: &SeedEntry<'_>, target: &[u8]) -> io::Result<()> {
        let too_many = |what: &str| {
            io::Error::new(io::ErrorKind::FileTooLarge, format!("there are too many {what}"))
        };
        let path = shown(entry.path);
        if entry.path.is_empty() || entry.path.len() > PATH_BYTES_MAX {
            return Err(refused(&path, "the path is empty or too long"));
        }
        if entry.path.split(|byte| *byte == b'/').any(|name| name.len() > NAME_BYTES_MAX) {
            return Err(refused(&path, "a name has more than 255 bytes"));
        }
        if target.len() > PATH_BYTES_MAX || (entry.kind == Kind::Symlink && target.is_empty()) {
            return Err(refused(&path, "the target of a link is empty or too long"));
        }
        if [entry.path, target].iter().any(|text| std::str::from_utf8(text).is_err()) {
            return Err(refused(&path, "a name is not valid UTF-8"));
        }
        self.left.entries = self.left.entries.checked_sub(1).ok_or_else(|| too_many("entries"))?;
        let bytes = self.left.bytes.checked_sub(entry.size);
        self.left.bytes = bytes.ok_or_else(|| too_many("bytes"))?;
        let written = NewEntry {
            kind: entry.kind,
            path: entry.path,
            mode: entry.mode & 0o777,
            owner: OWNER,
            size: entry.size,
            modified: (0, 0),
            target,
            attributes: &[],
            comment: None,
        };
        let mut header = Vec::new();
        written.write(&mut header);
        self.write(&header)
    }

    pub(crate) fn pad(&mut self, size: u64) -> io::Result<()> {
        self.write(&[0; 512][..padding(size) as usize])
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.to.write_all(bytes)
    }
}

/// A file that has no final name yet. Dropped before it gets one, it is removed.
pub(crate) struct UnfinishedFile {
    pub(crate) directory: Arc<WriteOnceDir>,
    pub(crate) name: String,
}

impl UnfinishedFile {
    pub(crate) fn create(
        directory: &Arc<WriteOnceDir>,
        spared_bytes: u64,
    ) -> io::Result<(Self, Encoder<'static, GuardedFile>)> {
        let aside = Self { directory: Arc::clone(directory), name: directory.new_name() };
        let file = GuardedFile::create(directory, &aside.name, spared_bytes)?;
        Ok((aside, encoder(file)?))
    }
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        // A finished file has been renamed, so this finds nothing.
        let _ = unlinkat(&self.directory.new, self.name.as_str(), AtFlags::empty());
    }
}

/// A path as it is stored: relative, without `.` and `..`, beneath the workspace.
pub(crate) fn inside(path: &[u8]) -> io::Result<Vec<u8>> {
    let names = path_names(path).map_err(|error| refused(&shown(path), &error.to_string()))?;
    Ok(names.join(&b'/'))
}

pub(crate) fn shown(path: &[u8]) -> String {
    path[..path.len().min(256)].escape_ascii().to_string()
}

pub(crate) fn refused(path: &str, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{path}: {why}"))
}
