//! The root made of the host's own programs, for engines that see the same files as this server: a
//! small image with what native sandboxes have around `/usr` (a synthetic `/etc`, a few files of
//! the host, empty directories), and `/usr` itself mounted read-only. While the host does not
//! change, the image has the same bytes, and so the same name.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use jail::etc;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, readlinkat, statat};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use super::container_config::BindMount;

/// The name of the image, before its hash.
const REPOSITORY: &str = "shoal/host";
/// What may be links into `/usr`, or directories of their own.
const TOPS: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// How much of the hash is in the name.
const HASH_BYTES: usize = 12;

/// An image to be made, and the host directories that are mounted with it.
#[derive(Debug)]
pub(super) struct HostRoot {
    pub repository: &'static str,
    pub tag: String,
    /// All of the image as one archive.
    pub archive: Vec<u8>,
    pub shown: Vec<BindMount>,
}

impl HostRoot {
    pub(super) fn name(&self) -> String {
        format!("{}:{}", self.repository, self.tag)
    }

    /// Reads the host's files. Blocks.
    pub(super) fn build() -> io::Result<Self> {
        Self::build_from(Path::new("/"))
    }

    fn build_from(host: &Path) -> io::Result<Self> {
        let mut building = Building {
            host: host.to_owned(),
            archive: Builder::new(Vec::new()),
            written: Vec::new(),
            budget_bytes: etc::COPIED_BYTES_AT_MOST,
        };
        for name in etc::DIRECTORIES {
            building.directory(Path::new(name))?;
        }
        for (name, contents) in etc::written() {
            building.file(Path::new(name), contents.as_bytes(), 0o644)?;
        }
        for (name, target) in etc::LINKS {
            building.link(Path::new(name), Path::new(target))?;
        }
        for name in etc::COPIED {
            building.copy(&Path::new("etc").join(name))?;
        }
        let mut shown = vec![BindMount {
            source: "/usr".to_owned(),
            target: "/usr".to_owned(),
            read_only: true,
        }];
        for name in TOPS {
            match kind_of(&host.join(name)) {
                Some(FileType::Symlink) => building.copy(Path::new(name))?,
                Some(FileType::Directory) => {
                    building.directory(Path::new(name))?;
                    let path = format!("/{name}");
                    shown.push(BindMount { source: path.clone(), target: path, read_only: true });
                }
                Some(
                    FileType::RegularFile
                    | FileType::Fifo
                    | FileType::Socket
                    | FileType::CharacterDevice
                    | FileType::BlockDevice
                    | FileType::Unknown,
                )
                | None => {}
            }
        }
        let archive = building.archive.into_inner()?;
        Ok(Self { repository: REPOSITORY, tag: hash_of(&archive), archive, shown })
    }
}

/// A short name for these bytes.
pub(super) fn hash_of(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    let short = hash.iter().take(HASH_BYTES).fold(0, |all, byte| all << 8 | u128::from(*byte));
    format!("{short:0digits$x}", digits = 2 * HASH_BYTES)
}

struct Building {
    host: PathBuf,
    archive: Builder<Vec<u8>>,
    /// The paths that are in it already: the first one wins.
    written: Vec<PathBuf>,
    budget_bytes: u64,
}

impl Building {
    fn is_new(&mut self, path: &Path) -> bool {
        let is_new = !self.written.iter().any(|written| written == path);
        if is_new {
            self.written.push(path.to_owned());
        }
        is_new
    }

    fn directory(&mut self, path: &Path) -> io::Result<()> {
        if !self.is_new(path) {
            return Ok(());
        }
        // Whatever mode a file system in memory is asked to have, some engines give it that of the
        // directory it is mounted on.
        let mode = if path == Path::new("tmp") { 0o1777 } else { 0o755 };
        let mut header = header(EntryType::Directory, mode, 0);
        self.archive.append_data(&mut header, path, io::empty())
    }

    fn file(&mut self, path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
        if !self.is_new(path) {
            return Ok(());
        }
        let mut header = header(EntryType::Regular, mode, contents.len() as u64);
        self.archive.append_data(&mut header, path, contents)
    }

    fn link(&mut self, path: &Path, target: &Path) -> io::Result<()> {
        if !self.is_new(path) {
            return Ok(());
        }
        let mut header = header(EntryType::Symlink, 0o777, 0);
        self.archive.append_link(&mut header, path, target)
    }

    /// Copies something of the host that everyone may read, links as links, as long as the budget
    /// lasts.
    fn copy(&mut self, path: &Path) -> io::Result<()> {
        let from = self.host.join(path);
        let Some(kind) = kind_of(&from) else { return Ok(()) };
        for parent in path.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
            if parent != Path::new("") {
                self.directory(parent)?;
            }
        }
        let found = statat(CWD, &from, AtFlags::SYMLINK_NOFOLLOW)?;
        match kind {
            FileType::Symlink => {
                let target = readlinkat(CWD, &from, Vec::new())?;
                let target = target.to_string_lossy().into_owned();
                self.link(path, Path::new(&target))
            }
            FileType::Directory if found.st_mode & 0o005 == 0o005 => {
                self.directory(path)?;
                for name in names_in(&from)? {
                    self.copy(&path.join(name))?;
                }
                Ok(())
            }
            FileType::RegularFile if found.st_mode & 0o004 != 0 => {
                let size = found.st_size.cast_unsigned();
                if size > self.budget_bytes {
                    return Ok(());
                }
                self.budget_bytes -= size;
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let mut contents = Vec::new();
                File::from(openat(CWD, &from, flags, Mode::empty())?)
                    .take(size)
                    .read_to_end(&mut contents)?;
                self.file(path, &contents, 0o444 | (found.st_mode & 0o111))
            }
            FileType::Directory
            | FileType::RegularFile
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Ok(()),
        }
    }
}

fn kind_of(path: &Path) -> Option<FileType> {
    let found = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileType::from_raw_mode(found.st_mode))
}

/// Names in a directory, in an order that does not depend on the disk.
fn names_in(path: &Path) -> io::Result<Vec<PathBuf>> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut names = Vec::new();
    for entry in Dir::new(openat(CWD, path, flags, Mode::empty())?)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(PathBuf::from(name));
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header
}

/// An archive of one program, which every user can run, and of an empty directory.
pub(super) fn archive_of_program(
    name: &str,
    contents: &[u8],
    directory: &str,
) -> io::Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    let mut empty = header(EntryType::Directory, 0o755, 0);
    archive.append_data(&mut empty, directory, io::empty())?;
    let mut header = header(EntryType::Regular, 0o555, contents.len() as u64);
    archive.append_data(&mut header, name, contents)?;
    archive.into_inner()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn entries(root: &HostRoot) -> BTreeMap<String, (EntryType, u32, String)> {
        let mut archive = tar::Archive::new(root.archive.as_slice());
        let mut found = BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let (kind, mode) = (entry.header().entry_type(), entry.header().mode().unwrap());
            let mut text = entry
                .link_name()
                .unwrap()
                .map(|target| target.display().to_string())
                .unwrap_or_default();
            entry.read_to_string(&mut text).unwrap();
            let again = found.insert(path.trim_end_matches('/').to_owned(), (kind, mode, text));
            assert!(again.is_none(), "{path} is there twice");
        }
        found
    }

    #[test]
    fn host_root_copies_only_public_files_and_is_named_by_its_hash() {
        let host = std::env::temp_dir().join(format!("host-root-{}", std::process::id()));
        for directory in ["etc/alternatives", "etc/ssl/certs", "etc/ssl/private", "usr/bin", "lib"]
        {
            fs::create_dir_all(host.join(directory)).unwrap();
        }
        symlink("usr/bin", host.join("bin")).unwrap();
        symlink("/usr/bin/vi", host.join("etc/alternatives/editor")).unwrap();
        fs::write(host.join("etc/ssl/certs/a.pem"), "certificate").unwrap();
        fs::write(host.join("etc/ssl/certs/own.pem"), "secret").unwrap();
        let hidden = fs::Permissions::from_mode(0o600);
        fs::set_permissions(host.join("etc/ssl/certs/own.pem"), hidden).unwrap();
        fs::write(host.join("etc/ssl/private/key.pem"), "secret").unwrap();
        fs::write(host.join("etc/shadow"), "secret").unwrap();
        fs::write(host.join("etc/passwd"), "another").unwrap();

        let root = HostRoot::build_from(&host).unwrap();
        let found = entries(&root);
        assert_eq!(found["bin"], (EntryType::Symlink, 0o777, "usr/bin".into()));
        assert_eq!(found["etc/alternatives/editor"].2, "/usr/bin/vi");
        assert_eq!(found["etc/ssl/certs/a.pem"], (EntryType::Regular, 0o444, "certificate".into()));
        assert!(found["etc/passwd"].2.contains("agent:x:1000:1000"), "ours, not the host's");
        assert!(found.contains_key("etc/ssl"), "with what is above it");
        assert_eq!(found["lib"].0, EntryType::Directory);
        assert_eq!((found["tmp"].1, found["workspace"].1), (0o1777, 0o755));
        for absent in ["etc/ssl/certs/own.pem", "etc/ssl/private", "etc/shadow", "sbin"] {
            assert!(!found.contains_key(absent), "{absent}");
        }
        let shown: Vec<_> = root.shown.iter().map(|shown| shown.source.as_str()).collect();
        assert_eq!(shown, ["/usr", "/lib"]);
        assert!(root.shown.iter().all(|shown| shown.read_only));

        let again = HostRoot::build_from(&host).unwrap();
        assert_eq!((root.name(), root.archive), (again.name(), again.archive));
        fs::write(host.join("etc/ssl/certs/b.pem"), "another").unwrap();
        assert_ne!(again.tag, HostRoot::build_from(&host).unwrap().tag);
        fs::remove_dir_all(host).unwrap();
    }
}
