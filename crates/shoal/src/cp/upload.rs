//! Copies into a sandbox: a file as it is, a directory as an archive that is made while it is sent.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use client::{ClientError, Inside, Upload};
use model::ErrorCode;
use tasks::spawn_blocking;
use tokio::task::JoinError;
use wire::FileKind;

use super::Copied;
use super::location::Local;
use super::transfer_stream::{Counter, UploadWriter};
use crate::failure::Failure;
use crate::output::Output;

/// The permission bits that are copied.
const PERMISSIONS: u32 = 0o777;

pub(super) async fn copy(
    sandbox: &Inside,
    from: &Local,
    to: &str,
    output: &Output,
) -> Result<Copied, Failure> {
    match from {
        Local::Stream => {
            if to.ends_with('/') {
                return Err(Failure::new("cannot copy", "standard input has no name")
                    .remedy("name the target file")
                    .usage());
            }
            file(sandbox, io::stdin(), None, to, output).await
        }
        Local::Path(path, _) => {
            let failed = |error: io::Error| cannot_read(path, &error);
            let about = std::fs::metadata(path).map_err(failed)?;
            let target = target(sandbox, path, to).await?;
            if about.is_dir() {
                return directory(sandbox, path, &target, output).await;
            }
            let mode = about.permissions().mode() & PERMISSIONS;
            let open = File::open(path).map_err(failed)?;
            file(sandbox, open, Some(mode), &target, output).await
        }
    }
}

/// The path in the sandbox: below a directory, or as the user wrote it.
async fn target(sandbox: &Inside, from: &Path, to: &str) -> Result<String, Failure> {
    let into = match sandbox.stat(to).await {
        Ok(entry) => entry.kind == FileKind::Directory,
        Err(error) if error.code() == Some(ErrorCode::PathNotFound) => to.ends_with('/'),
        Err(error) => return Err(Failure::of_client(format!("cannot copy to {to}"), &error)),
    };
    if !into {
        return Ok(to.to_owned());
    }
    let whole = from.canonicalize().map_err(|error| cannot_read(from, &error))?;
    let name = whole.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
        Failure::new(format!("cannot copy {}", from.display()), "its name is not valid UTF-8")
            .remedy("name the target file")
            .usage()
    })?;
    Ok(format!("{}/{name}", to.trim_end_matches('/')))
}

async fn file(
    sandbox: &Inside,
    mut from: impl Read + Send + 'static,
    mode: Option<u32>,
    to: &str,
    output: &Output,
) -> Result<Copied, Failure> {
    let (sender, upload) = Upload::channel();
    let count = Counter::default();
    let mut outgoing = UploadWriter::new(sender, count.clone());
    let reading = spawn_blocking(move || {
        let copied = io::copy(&mut from, &mut outgoing).and_then(|bytes| {
            outgoing.flush()?;
            Ok(Copied { files: 1, bytes, left_behind: 0 })
        });
        abort_if_failed(copied, &outgoing)
    });
    let sending = async { sandbox.upload_file(to, upload, mode).await.map(|_| ()) };
    let sent = count.watch(sending, output).await;
    settle(reading.await, sent, to)
}

async fn directory(
    sandbox: &Inside,
    from: &Path,
    to: &str,
    output: &Output,
) -> Result<Copied, Failure> {
    sandbox
        .make_directory(to)
        .await
        .or_else(|error| match error.code() {
            Some(ErrorCode::PathExists) => Ok(()),
            Some(_) | None => Err(error),
        })
        .map_err(|error| Failure::of_client(format!("cannot make {to}"), &error))?;
    let (sender, upload) = Upload::channel();
    let count = Counter::default();
    let outgoing = UploadWriter::new(sender, count.clone());
    let from = from.to_owned();
    let packing = spawn_blocking(move || pack(&from, outgoing));
    let sending = async { sandbox.upload_archive(to, upload).await.map(|_| ()) };
    let sent = count.watch(sending, output).await;
    settle(packing.await, sent, to)
}

/// Makes an archive of what is in a directory. Links are kept as links and never followed.
fn pack(from: &Path, outgoing: UploadWriter) -> io::Result<Copied> {
    let mut archive = tar::Builder::new(outgoing);
    archive.follow_symlinks(false);
    let mut copied = Copied::default();
    let packed = pack_into(from, &mut archive, &mut copied).and_then(|()| archive.finish());
    let outgoing = archive.get_mut();
    let flushed = packed.and_then(|()| outgoing.flush());
    abort_if_failed(flushed.map(|()| copied), outgoing)
}

fn pack_into(
    from: &Path,
    archive: &mut tar::Builder<UploadWriter>,
    copied: &mut Copied,
) -> io::Result<()> {
    let mut waiting: Vec<PathBuf> = vec![PathBuf::new()];
    while let Some(directory) = waiting.pop() {
        let mut entries: Vec<_> =
            std::fs::read_dir(from.join(&directory))?.collect::<io::Result<_>>()?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let name = directory.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                archive.append_dir(&name, entry.path())?;
                waiting.push(name);
            } else if kind.is_file() || kind.is_symlink() {
                archive.append_path_with_name(entry.path(), &name)?;
                copied.files += 1;
                copied.bytes += if kind.is_file() { entry.metadata()?.len() } else { 0 };
            } else {
                copied.left_behind += 1;
            }
        }
    }
    Ok(())
}

fn abort_if_failed(copied: io::Result<Copied>, outgoing: &UploadWriter) -> io::Result<Copied> {
    if copied.is_err() {
        outgoing.fail();
    }
    copied
}

/// Both ends have ended: reports the one that failed first.
fn settle(
    here: Result<io::Result<Copied>, JoinError>,
    there: Result<(), ClientError>,
    to: &str,
) -> Result<Copied, Failure> {
    let what = || format!("cannot copy to {to}");
    let here = here.map_err(|error| Failure::new(what(), error))?;
    match (here, there) {
        (Ok(copied), Ok(())) => Ok(copied),
        // Our end broke because the server ended the request.
        (Err(error), Err(refused)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Err(Failure::of_client(what(), &refused))
        }
        (Err(error), _) => Err(Failure::new(what(), error)),
        (Ok(_), Err(refused)) => Err(Failure::of_client(what(), &refused)),
    }
}

fn cannot_read(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("cannot read {}", path.display()), error)
}
