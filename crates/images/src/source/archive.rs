//! An archive that contains an image: finds its members, so that they can be read in any order.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use rustix::fs::{CWD, Mode, OFlags, openat};
use tar_stream::{Bounds, Entries, Kind};

use crate::error::{ImageError, ImageErrorCode};
use crate::source::SourceOptions;
use crate::source::files::{Files, Member};
use crate::stream::Cancellable;

/// An image has few members: descriptions and layers.
const MEMBERS_MAX: usize = 10_000;
const BOUNDS: Bounds = Bounds { headers: 5 * MEMBERS_MAX as u64, ..Bounds::NONE };
const BUFFER_BYTES: usize = 64 << 10;
/// The files that describe an image.
const DESCRIPTIONS: [&str; 2] = ["manifest.json", "oci-layout"];

/// Finds every member.
pub(super) fn index(mut file: File) -> Result<Files, ImageError> {
    let failed = |error| ImageError::read("cannot read the archive", error);
    file.rewind().map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    let mut members = BTreeMap::new();
    let reader = BufReader::with_capacity(BUFFER_BYTES, &file);
    let mut entries = Entries::new(reader, BOUNDS);
    while let Some(entry) = entries.next_entry()? {
        let Some(path) = std::str::from_utf8(&entry.path).ok().and_then(|path| along("", path))
        else {
            continue;
        };
        match entry.kind {
            Kind::File if entry.sparse.is_none() => {
                let (offset, size) = (entries.position(), entry.size);
                if offset.checked_add(size).is_none_or(|end| end > length) {
                    return Err(ImageError::broken("the archive ends in the middle"));
                }
                members.insert(path, Member::Data { offset, size });
                seek_over(&mut entries)?;
            }
            Kind::Symlink | Kind::Hardlink => {
                let from = if entry.kind == Kind::Symlink { parent(&path) } else { "" };
                let target = std::str::from_utf8(&entry.target).ok();
                if let Some(target) = target.and_then(|target| along(from, target)) {
                    members.insert(path, Member::Link(target));
                }
            }
            Kind::File | Kind::Directory | Kind::Device | Kind::Fifo | Kind::Other(_) => {}
        }
        if members.len() > MEMBERS_MAX {
            let cause = format!("the archive of an image has more than {MEMBERS_MAX} files");
            return Err(ImageError::new(ImageErrorCode::TooLarge, cause));
        }
    }
    drop(entries);
    Ok(Files::Archive { file, members })
}

/// Whether a file that describes an image is anywhere in an archive that could be one. Reads only
/// headers, and not more than an image has.
pub(super) fn describes_an_image(mut file: &File) -> bool {
    if file.rewind().is_err() {
        return false;
    }
    let mut entries = Entries::new(BufReader::with_capacity(BUFFER_BYTES, file), BOUNDS);
    for _ in 0..MEMBERS_MAX {
        // An error is reported when the whole archive is read.
        let Ok(Some(entry)) = entries.next_entry() else { return false };
        let path = std::str::from_utf8(&entry.path).ok().and_then(|path| along("", path));
        if entry.kind == Kind::File
            && path.is_some_and(|path| DESCRIPTIONS.contains(&path.as_str()))
        {
            return true;
        }
        if seek_over(&mut entries).is_err() {
            return false;
        }
    }
    false
}

/// Skips to the end of the current entry without reading it.
fn seek_over(entries: &mut Entries<BufReader<&File>>) -> Result<(), ImageError> {
    let (reader, count) = entries.pass_over();
    let count = i64::try_from(count).map_err(|_| ImageError::broken("an entry has no end"))?;
    reader.seek_relative(count).map_err(|error| ImageError::read("cannot read the archive", error))
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Resolves a path from a directory, both relative to the root. Only names are compared: members
/// are found by name.
fn along(from: &str, path: &str) -> Option<String> {
    let mut names: Vec<&str> = Vec::new();
    let from = if path.starts_with('/') { "" } else { from };
    for name in from.split('/').chain(path.split('/')) {
        match name {
            "" | "." => {}
            ".." => {
                names.pop()?;
            }
            name => names.push(name),
        }
    }
    (!names.is_empty()).then(|| names.join("/"))
}

/// Spools a stream that must be read out of order into an unnamed file.
pub(super) fn spool(reader: impl Read, wanted: &SourceOptions<'_>) -> Result<File, ImageError> {
    let stored = |error: io::Error| ImageError::store("cannot store the archive", error);
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let opened = openat(CWD, wanted.spool_in, flags, Mode::RUSR | Mode::WUSR);
    let mut file = File::from(opened.map_err(|error| stored(error.into()))?);
    let reader = Cancellable::new(reader, wanted.called_off);
    let mut reader = reader.take(wanted.spool_bytes_max.saturating_add(1));
    let mut piece = vec![0; 256 << 10];
    let mut total = 0;
    loop {
        let count = match reader.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(ImageError::read("cannot read the archive", error)),
        };
        io::Write::write_all(&mut file, &piece[..count]).map_err(stored)?;
        total += count as u64;
    }
    if total > wanted.spool_bytes_max {
        let cause = format!("the archive is more than {} bytes", wanted.spool_bytes_max);
        return Err(ImageError::new(ImageErrorCode::TooLarge, cause));
    }
    file.seek(SeekFrom::Start(0)).map_err(stored)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_links_lead_to_members() {
        let cases = [
            ("", "a/b", Some("a/b")),
            ("", "./a//b/", Some("a/b")),
            ("x", "../a/layer.tar", Some("a/layer.tar")),
            ("x", "/a", Some("a")),
            ("x", "../../a", None),
            ("x", "..", None),
        ];
        for (from, path, expected) in cases {
            assert_eq!(along(from, path).as_deref(), expected, "{from} {path}");
        }
    }
}
