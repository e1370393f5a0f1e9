//! A seed as it is put together: entries, one after the other, within bounds, hashed as they come
//! and, unless only the name is wanted, written.

use std::io::{self, Write};
use std::sync::Arc;

use model::SeedId;
use rustix::fs::{AtFlags, unlinkat};
use sha2::{Digest as _, Sha256};
use tar_stream::{Kind, Written, end, padding};
use zstd::stream::write::Encoder;

use crate::archives::{Spared, encoder};
use crate::seed_archives::SeedBounds;
use crate::unpack::way;
use crate::write_once_dir::Shelf;

/// The longest path, and the longest that a link may say.
const PATH_BYTES_MAX: usize = 4095;

/// The longest name of a file: file systems have no longer ones.
const NAME_BYTES_MAX: usize = 255;

/// The user of everything in a seed.
const OWNER: (u32, u32) = (crate::directory::WORKSPACE_USER, crate::directory::WORKSPACE_USER);

/// What is said of one entry.
pub(crate) struct Said<'a> {
    pub(crate) kind: Kind,
    pub(crate) path: &'a [u8],
    pub(crate) mode: u32,
    pub(crate) size: u64,
}

/// A seed that is being put together.
pub(crate) struct Sowing<W> {
    to: W,
    hash: Sha256,
    left: SeedBounds,
}

impl<W: Write> Sowing<W> {
    pub(crate) fn begin(to: W, bounds: SeedBounds) -> Self {
        Self { to, hash: Sha256::new(), left: bounds }
    }

    /// It is whole: its name, and what it was written to.
    pub(crate) fn end(mut self) -> io::Result<(SeedId, W)> {
        let mut last = Vec::new();
        end(&mut last);
        self.write(&last)?;
        let digest: [u8; 32] = self.hash.finalize().into();
        Ok((SeedId::from_bytes(digest), self.to))
    }

    /// One file with what is in it.
    pub(crate) fn file(&mut self, path: &[u8], mode: u32, bytes: &[u8]) -> io::Result<()> {
        let size = bytes.len() as u64;
        self.entry(&Said { kind: Kind::File, path, mode, size }, b"")?;
        self.write(bytes)?;
        self.pad(size)
    }

    pub(crate) fn entry(&mut self, said: &Said<'_>, target: &[u8]) -> io::Result<()> {
        let too_many = |what: &str| {
            io::Error::new(io::ErrorKind::FileTooLarge, format!("there are too many {what}"))
        };
        let path = shown(said.path);
        if said.path.is_empty() || said.path.len() > PATH_BYTES_MAX {
            return Err(refused(&path, "no name, or one that is too long"));
        }
        if said.path.split(|byte| *byte == b'/').any(|name| name.len() > NAME_BYTES_MAX) {
            return Err(refused(&path, "a name of more than 255 bytes"));
        }
        if target.len() > PATH_BYTES_MAX || (said.kind == Kind::Symlink && target.is_empty()) {
            return Err(refused(&path, "a link that says nothing, or too much"));
        }
        if [said.path, target].iter().any(|text| std::str::from_utf8(text).is_err()) {
            return Err(refused(&path, "a name that is not UTF-8"));
        }
        self.left.entries = self.left.entries.checked_sub(1).ok_or_else(|| too_many("entries"))?;
        let bytes = self.left.bytes.checked_sub(said.size);
        self.left.bytes = bytes.ok_or_else(|| too_many("bytes"))?;
        let written = Written {
            kind: said.kind,
            path: said.path,
            mode: said.mode & 0o777,
            owner: OWNER,
            size: said.size,
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

/// A file that has no name yet. Dropped before it gets one, nothing of it stays.
pub(crate) struct Aside {
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) name: String,
}

impl Aside {
    pub(crate) fn create(
        shelf: &Arc<Shelf>,
        spared_bytes: u64,
    ) -> io::Result<(Self, Encoder<'static, Spared>)> {
        let aside = Self { shelf: Arc::clone(shelf), name: shelf.new_name() };
        let file = Spared::create(shelf, &aside.name, spared_bytes)?;
        Ok((aside, encoder(file)?))
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // One that has its name is not there any more.
        let _ = unlinkat(&self.shelf.new, self.name.as_str(), AtFlags::empty());
    }
}

/// A path as it is stored: relative, plain, beneath the workspace.
pub(crate) fn inside(path: &[u8]) -> io::Result<Vec<u8>> {
    let way = way(path).map_err(|error| refused(&shown(path), &error.to_string()))?;
    Ok(way.join(&b'/'))
}

pub(crate) fn shown(path: &[u8]) -> String {
    path[..path.len().min(256)].escape_ascii().to_string()
}

pub(crate) fn refused(path: &str, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{path}: {why}"))
}
