//! Copies out of a sandbox: a file as it is, a directory as an archive that is unpacked as it
//! arrives. The archive is untrusted: it never decides where a file is written.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use client::Inside;
use tasks::spawn_blocking;
use wire::FileKind;

use super::Copied;
use super::location::{Local, last_name};
use super::transfer_stream::{Counter, DownloadReader};
use crate::failure::Failure;
use crate::output::Output;

const PERMISSIONS: u32 = 0o777;

pub(super) async fn copy(
    sandbox: &Inside,
    from: &str,
    to: &Local,
    output: &Output,
) -> Result<Copied, Failure> {
    let failed = |error| Failure::of_client(format!("cannot copy {from}"), &error);
    let entry = sandbox.stat(from).await.map_err(failed)?;
    let count = Counter::default();
    if entry.kind == FileKind::Directory {
        let Local::Path(to, _) = to else {
            return Err(Failure::new(format!("cannot copy {from}"), "it is a directory")
                .remedy("name a directory to copy it to")
                .usage());
        };
        let directory = target(from, to, false)?;
        let download = sandbox.download_archive(from).await.map_err(failed)?;
        let arriving = DownloadReader::of(download, count.clone());
        let work = spawn_blocking(move || unpack(arriving, &directory));
        return settle(count.watch(work, output).await, from);
    }
    let mode = u32::from_str_radix(&entry.mode, 8).map_or(0o644, |mode| mode & PERMISSIONS);
    let file = match to {
        Local::Stream => None,
        Local::Path(path, as_directory) => Some(target(from, path, *as_directory)?),
    };
    let download = sandbox.read_file(from, 0).await.map_err(failed)?;
    let arriving = DownloadReader::of(download, count.clone());
    let work = spawn_blocking(move || match file {
        Some(file) => write_file(arriving, &file, mode),
        None => write_out(arriving),
    });
    settle(count.watch(work, output).await, from)
}

/// The path on this machine: below an existing directory, or as the user wrote it.
fn target(from: &str, to: &Path, as_directory: bool) -> Result<PathBuf, Failure> {
    if !to.is_dir() {
        if as_directory {
            return Err(Failure::new(
                format!("cannot copy to {}", to.display()),
                "there is no such directory",
            )
            .usage());
        }
        return Ok(to.to_owned());
    }
    // Only the name that the user typed counts, never a name that the sandbox sends.
    let name = last_name(from).ok_or_else(|| {
        Failure::new(format!("cannot copy {from}"), "the path has no last name")
            .remedy("name the target, which must not exist yet")
            .usage()
    })?;
    Ok(to.join(name))
}

/// Writes to a temporary file first, so that no reader sees half of the file.
fn write_file(mut arriving: impl Read, target: &Path, mode: u32) -> io::Result<Copied> {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(format!(".part-{}", std::process::id()));
    let beside = target.with_file_name(name);
    let written = (|| {
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&beside)?;
        let bytes = io::copy(&mut arriving, &mut file)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        fs::rename(&beside, target)?;
        Ok(Copied { files: 1, bytes, left_behind: 0 })
    })();
    if written.is_err() {
        // It may not exist; then there is nothing to remove.
        let _ = fs::remove_file(&beside);
    }
    written
}

fn write_out(mut arriving: impl Read) -> io::Result<Copied> {
    let mut stdout = io::stdout().lock();
    let bytes = io::copy(&mut arriving, &mut stdout)?;
    stdout.flush()?;
    Ok(Copied { files: 1, bytes, left_behind: 0 })
}

/// Unpacks files, directories and links below a directory, and nothing else. It refuses a path that
/// leads out of the directory, by its name or through a link.
fn unpack(arriving: impl Read, target: &Path) -> io::Result<Copied> {
    fs::create_dir_all(target)?;
    let mut archive = tar::Archive::new(arriving);
    archive.set_preserve_permissions(false);
    archive.set_unpack_xattrs(false);
    archive.set_overwrite(true);
    let mut copied = Copied::default();
    let mut directories = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            directories.push((path, entry.header().mode()? & PERMISSIONS));
        } else if kind.is_file() || kind.is_symlink() {
            let bytes = entry.size();
            if !entry.unpack_in(target)? {
                let cause = format!("{} leads out of the directory", path.display());
                return Err(io::Error::other(cause));
            }
            copied.files += 1;
            copied.bytes += bytes;
        } else {
            copied.left_behind += 1;
        }
    }
    // Last, because a read-only directory would refuse its files.
    directories.sort();
    make_directories(target, &directories)?;
    Ok(copied)
}

fn make_directories(target: &Path, directories: &[(PathBuf, u32)]) -> io::Result<()> {
    let plain = |path: &Path| {
        path.components().all(|part| {
            use std::path::Component as C;
            match part {
                C::Normal(_) | C::CurDir => true,
                C::Prefix(_) | C::RootDir | C::ParentDir => false,
            }
        })
    };
    let inside = target.canonicalize()?;
    for (path, _) in directories {
        let leads_out =
            || io::Error::other(format!("{} leads out of the directory", path.display()));
        if !plain(path) {
            return Err(leads_out());
        }
        // One by one, so that no directory is made through a link.
        let mut above = inside.clone();
        for part in path.parent().unwrap_or(path).components() {
            above.push(part);
            make_one(&above)?;
            if !fs::symlink_metadata(&above)?.is_dir() {
                return Err(leads_out());
            }
        }
        make_one(&inside.join(path))?;
    }
    for (path, mode) in directories.iter().rev() {
        let made = inside.join(path);
        // If a link took its place, the link leads to another directory.
        if fs::symlink_metadata(&made)?.is_dir() {
            fs::set_permissions(&made, Permissions::from_mode(*mode))?;
        }
    }
    Ok(())
}

fn make_one(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn settle(
    done: Result<io::Result<Copied>, tokio::task::JoinError>,
    from: &str,
) -> Result<Copied, Failure> {
    let what = || format!("cannot copy {from}");
    done.map_err(|error| Failure::new(what(), error))?.map_err(|error| Failure::new(what(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that is removed afterwards.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("shoal-cp-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(path.join("target")).unwrap();
            Self(path)
        }

        fn unpacked(&self, archive: &[u8]) -> io::Result<Copied> {
            unpack(archive, &self.0.join("target"))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    enum Entry<'a> {
        File(&'a str, &'a str),
        Directory(&'a str, u32),
        Link(&'a str, &'a str),
        Pipe(&'a str),
    }

    /// An archive, also with names that the library would refuse to write.
    fn archive(entries: &[Entry<'_>]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for entry in entries {
            let mut header = tar::Header::new_gnu();
            let (name, kind, mode, data) = match *entry {
                Entry::File(name, data) => (name, tar::EntryType::Regular, 0o4755, data),
                Entry::Directory(name, mode) => (name, tar::EntryType::Directory, mode, ""),
                Entry::Link(name, to) => {
                    header.set_link_name_literal(to).unwrap();
                    (name, tar::EntryType::Symlink, 0o777, "")
                }
                Entry::Pipe(name) => (name, tar::EntryType::Fifo, 0o644, ""),
            };
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_size(data.len() as u64);
            header.set_cksum();
            builder.append(&header, data.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn copy_out_unpacks_files_directories_and_links_and_nothing_else() {
        let scratch = Scratch::new("arrive");
        let bytes = archive(&[
            Entry::Directory("closed", 0o555),
            Entry::File("closed/a", "abc"),
            Entry::Directory("empty", 0o700),
            Entry::Link("link", "/etc/passwd"),
            Entry::Pipe("pipe"),
        ]);
        let copied = scratch.unpacked(&bytes).unwrap();
        assert_eq!(copied, Copied { files: 2, bytes: 3, left_behind: 1 });
        let target = scratch.0.join("target");
        assert_eq!(fs::read(target.join("closed/a")).unwrap(), b"abc");
        let mode =
            |name: &str| fs::symlink_metadata(target.join(name)).unwrap().permissions().mode();
        assert_eq!(mode("closed/a") & 0o7000, 0, "no set-user-id bits");
        assert_eq!((mode("closed") & 0o777, mode("empty") & 0o777), (0o555, 0o700));
        assert_eq!(fs::read_link(target.join("link")).unwrap(), Path::new("/etc/passwd"));
        assert!(!target.join("pipe").exists());
    }

    #[test]
    fn copy_out_writes_nothing_outside_its_target() {
        let outside = |entries: &[Entry<'_>], name: &str| {
            let scratch = Scratch::new(name);
            let _ = scratch.unpacked(&archive(entries));
            let names: Vec<_> = fs::read_dir(&scratch.0)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            assert_eq!(names, ["target"], "{name}");
        };
        outside(&[Entry::File("../evil", "x")], "parent");
        outside(&[Entry::Directory("../evil", 0o755)], "parent-directory");
        outside(&[Entry::Link("out", ".."), Entry::File("out/evil", "x")], "through-a-link");
        outside(&[Entry::Link("out", ".."), Entry::Directory("out/evil", 0o755)], "link-directory");
        let deeper = [Entry::Link("out", ".."), Entry::Directory("out/evil/deeper", 0o755)];
        outside(&deeper, "link-deeper");
        outside(&[Entry::Directory("a/../../evil", 0o755)], "in-between");
    }

    #[test]
    fn copy_out_leaves_permissions_behind_a_link_alone() {
        let scratch = Scratch::new("link-mode");
        let victim = scratch.0.join("target/victim");
        fs::create_dir(&victim).unwrap();
        fs::set_permissions(&victim, Permissions::from_mode(0o700)).unwrap();
        let entries = [Entry::Link("d", "victim"), Entry::Directory("d", 0o777)];
        let _ = scratch.unpacked(&archive(&entries));
        assert_eq!(fs::metadata(&victim).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn copy_out_of_half_a_file_leaves_the_old_one() {
        struct Broken(bool);
        impl Read for Broken {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                if std::mem::replace(&mut self.0, true) {
                    return Err(io::Error::other("cut off"));
                }
                buffer[0] = b'x';
                Ok(1)
            }
        }
        let scratch = Scratch::new("half");
        let target = scratch.0.join("target/file");
        fs::write(&target, "before").unwrap();
        assert!(write_file(Broken(false), &target, 0o644).is_err());
        assert_eq!(fs::read(&target).unwrap(), b"before");
        assert_eq!(fs::read_dir(scratch.0.join("target")).unwrap().count(), 1, "nothing beside it");
        write_file(&b"after"[..], &target, 0o640).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"after");
    }
}
