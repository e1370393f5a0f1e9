//! The files of an image in a directory, or in an archive that can be read in any order.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use serde::de::DeserializeOwned;

use crate::digest::Digest;
use crate::error::{ImageError, ImageErrorCode};

/// The longest description that is read.
const DESCRIPTION_BYTES_MAX: u64 = 8 << 20;
/// The most links between members that are followed.
const LINKS_MAX: usize = 8;

/// Files by their paths.
pub(super) enum Files {
    Directory(OwnedFd),
    Archive { file: File, members: BTreeMap<String, Member> },
}

/// Something in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Member {
    Data {
        offset: u64,
        size: u64,
    },
    /// Another name of a member, as a path relative to the archive.
    Link(String),
}

/// A reader, and its size.
pub(crate) struct Blob<'a> {
    pub(crate) reader: Box<dyn Read + Send + 'a>,
    pub(crate) size: u64,
}

impl Files {
    /// Opens a file, if it exists.
    pub(super) fn open(&self, path: &str) -> Result<Option<Blob<'_>>, ImageError> {
        match self {
            Self::Directory(directory) => open_in(directory, path),
            Self::Archive { file, members } => {
                let mut path = path;
                for _ in 0..LINKS_MAX {
                    match members.get(path) {
                        None => return Ok(None),
                        Some(Member::Link(other)) => path = other,
                        Some(&Member::Data { offset, size }) => {
                            let part = Part { file, at: offset, end: offset + size };
                            return Ok(Some(Blob { reader: Box::new(part), size }));
                        }
                    }
                }
                Ok(None)
            }
        }
    }

    /// Opens a file that must exist.
    pub(super) fn require(&self, path: &str) -> Result<Blob<'_>, ImageError> {
        self.open(path)?
            .ok_or_else(|| ImageError::broken(format!("{path} is missing in the image")))
    }

    /// Reads a description, and checks its digest if one is given.
    pub(super) fn read(&self, path: &str, digest: Option<Digest>) -> Result<Vec<u8>, ImageError> {
        let blob = self.require(path)?;
        if blob.size > DESCRIPTION_BYTES_MAX {
            let cause =
                format!("{path} has {} bytes, which is too long for a description", blob.size);
            return Err(ImageError::new(ImageErrorCode::TooLarge, cause));
        }
        let mut bytes = Vec::new();
        let mut reader = blob.reader.take(DESCRIPTION_BYTES_MAX);
        reader
            .read_to_end(&mut bytes)
            .map_err(|error| ImageError::read(format!("cannot read {path}"), error))?;
        if digest.is_some_and(|digest| digest != Digest::of(&bytes)) {
            let cause = format!("{path} does not have the digest that the image names");
            return Err(ImageError::new(ImageErrorCode::DigestMismatch, cause));
        }
        Ok(bytes)
    }

    pub(super) fn read_json<T: DeserializeOwned>(
        &self,
        path: &str,
        digest: Option<Digest>,
    ) -> Result<T, ImageError> {
        serde_json::from_slice(&self.read(path, digest)?)
            .map_err(|error| ImageError::broken(format!("{path} cannot be read: {error}")))
    }

    /// Whether `manifest.json` is that of `docker save`, and not another file of the same name.
    pub(super) fn is_docker(&self) -> Result<bool, ImageError> {
        let bytes = self.read("manifest.json", None)?;
        let entries = serde_json::from_slice::<Vec<serde_json::Value>>(&bytes).unwrap_or_default();
        Ok(entries.iter().any(|entry| entry.get("Layers").is_some()))
    }
}

fn open_in<'a>(directory: &OwnedFd, path: &str) -> Result<Option<Blob<'a>>, ImageError> {
    let failed = |error: io::Error| {
        let cause = format!("cannot open {path}: {error}");
        ImageError::new(ImageErrorCode::SourceUnreadable, cause)
    };
    // Non-blocking, in case it is a pipe or a device.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let file = match openat2(directory, path, flags, Mode::empty(), resolve) {
        Ok(opened) => File::from(opened),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => return Ok(None),
        Err(error) => return Err(failed(error.into())),
    };
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Ok(None);
    }
    Ok(Some(Blob { reader: Box::new(file), size: found.len() }))
}

/// A part of a file, read without moving the file's position.
pub(super) struct Part<F> {
    file: F,
    at: u64,
    end: u64,
}

impl Part<File> {
    /// The whole file.
    pub(super) fn whole(file: File) -> Self {
        Self { file, at: 0, end: u64::MAX }
    }
}

impl<F: std::borrow::Borrow<File>> Read for Part<F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let wanted = into.len().min(left);
        let count = self.file.borrow().read_at(&mut into[..wanted], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}
