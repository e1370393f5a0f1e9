//! `shoal restore`: makes a data directory from a backup. It writes all files to a staging
//! directory, checks them against the manifest, lets idle times count from now, and then renames
//! the directory. A failed restore leaves nothing.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use sha2::{Digest as _, Sha256};
use tar_stream::{Bounds, Entries, Kind};
use zstd::stream::read::Decoder;

use crate::backup::manifest::{FORMAT, Listed, MANIFEST, Manifest, is_expected};
use crate::backup::{HashingReader, hex};
use crate::failure::Failure;
use crate::output::Output;
use crate::relative_time;

/// The longest manifest.
const MANIFEST_BYTES_MAX: u64 = 1 << 30;

/// Arguments of `shoal restore`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    sudo shoal restore /backups/monday.tar.zst --data-dir /var/lib/shoal\n  \
    sudo shoal restore /backups/monday --data-dir ./tried-out\n  \
    ssh elsewhere cat shoal.tar.zst | sudo shoal restore - --data-dir /var/lib/shoal\n\n\
    The data directory must be empty or not exist. Then start the server on it: the server has all\n\
    sessions, paused, with their files. To run a copy beside the original, first remove node.id from\n\
    the copy.")]
pub(crate) struct Arguments {
    /// The backup: a file, a directory, or - for standard input
    #[arg(value_name = "FILE|DIR")]
    from: PathBuf,
    /// Data directory to make
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let to = &arguments.data_dir;
    refuse_used(to)?;
    let staging = StagingDir::make(to).map_err(|error| cannot_write(to, &error))?;
    let restored = restore(&arguments.from, &staging, output);
    output.progress("");
    let manifest = restored?;
    restart_idle_time(&staging)?;
    staging.put_in_place(to).map_err(|error| cannot_write(to, &error))?;
    let bytes: u64 = manifest.files.iter().map(|file| file.bytes).sum();
    if arguments.json {
        output.say_json(&json!({
            "data_dir": to.display().to_string(),
            "files": manifest.files.len(),
            "bytes": bytes,
            "sessions": manifest.sessions,
            "node_key": manifest.node_key,
        }));
    } else {
        output.say(&format!(
            "restored {} sessions to {}; start the server with: shoal serve --data-dir {}",
            manifest.sessions,
            to.display(),
            to.display()
        ));
        if !manifest.node_key {
            output.complain(&format!(
                "the key of the node is not in this backup: put node.key into {} first",
                to.display()
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn refuse_used(to: &Path) -> Result<(), Failure> {
    let is_empty = match fs::read_dir(to) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(cannot_write(to, &error)),
    };
    if is_empty {
        return Ok(());
    }
    Err(Failure::new(format!("cannot restore to {}", to.display()), "the directory is not empty")
        .remedy("name a directory that does not exist with --data-dir")
        .usage())
}

/// A directory beside the target. Dropping it removes it, unless it was renamed.
struct StagingDir(PathBuf);

impl Drop for StagingDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl StagingDir {
    fn make(to: &Path) -> io::Result<Self> {
        let mut beside = to.as_os_str().to_owned();
        beside.push(format!(".restoring-{}", std::process::id()));
        let staging = Self(beside.into());
        for directory in ["", "archives", "seeds"] {
            DirBuilder::new()
                .recursive(directory.is_empty())
                .mode(0o700)
                .create(staging.0.join(directory))?;
        }
        Ok(staging)
    }

    /// Renames it to the target. Fails if the target exists and is not an empty directory.
    fn put_in_place(&self, to: &Path) -> io::Result<()> {
        for directory in ["archives", "seeds", ""] {
            File::open(self.0.join(directory))?.sync_all()?;
        }
        fs::rename(&self.0, to)?;
        let above = to.parent().filter(|above| !above.as_os_str().is_empty());
        File::open(above.unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// Lets idle times count from now: no session could be used since the backup.
fn restart_idle_time(staging: &StagingDir) -> Result<(), Failure> {
    let now = model::Wall(u64::try_from(relative_time::now().0).unwrap_or_default());
    store::sqlite::restart_idle_time(&staging.0.join(store::sqlite::FILE), now).map_err(|error| {
        Failure::new("cannot change the restored database", &error).remedy(error.remedy())
    })
}

fn restore(from: &Path, staging: &StagingDir, output: &Output) -> Result<Manifest, Failure> {
    let mut reader =
        BackupReader { staging, found: BTreeMap::new(), manifest: None, bytes: 0, output };
    let read = if from == Path::new("-") {
        reader.archive(io::stdin())
    } else if from.is_dir() {
        reader.directory(from)
    } else {
        File::open(from).and_then(|file| reader.archive(file))
    };
    read.map_err(|error| {
        Failure::new(format!("cannot read the backup {}", from.display()), error)
            .remedy("use another backup; nothing was restored")
    })?;
    reader.checked()
}

/// Reads a backup into the staging directory.
struct BackupReader<'a> {
    staging: &'a StagingDir,
    found: BTreeMap<String, Listed>,
    manifest: Option<Manifest>,
    bytes: u64,
    output: &'a Output,
}

impl BackupReader<'_> {
    fn archive(&mut self, from: impl Read) -> io::Result<()> {
        // To the very end, where the checksum of the compression is.
        let mut entries = Entries::whole(Decoder::new(from)?, Bounds::NONE);
        while let Some(entry) = entries.next_entry()? {
            let path = String::from_utf8_lossy(&entry.path).into_owned();
            if entry.kind != Kind::File || entry.sparse.is_some() {
                return Err(unexpected(&path));
            }
            self.take(&path, entry.size, &mut entries)?;
        }
        Ok(())
    }

    fn directory(&mut self, from: &Path) -> io::Result<()> {
        for directory in ["", "archives", "seeds"] {
            for entry in fs::read_dir(from.join(directory))? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
                let about = fs::symlink_metadata(entry.path())?;
                if about.is_dir() && ["archives", "seeds"].contains(&&*path) {
                    continue;
                }
                if !about.is_file() {
                    return Err(unexpected(&path));
                }
                self.take(&path, about.len(), &mut File::open(entry.path())?)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, path: &str, bytes: u64, from: &mut dyn Read) -> io::Result<()> {
        if path == MANIFEST {
            let manifest = serde_json::from_reader(from.take(MANIFEST_BYTES_MAX))?;
            self.manifest = Some(manifest);
            return Ok(());
        }
        if !is_expected(path) || self.found.contains_key(path) {
            return Err(unexpected(path));
        }
        let options = File::options().write(true).create_new(true).mode(0o600).clone();
        let mut file = options.open(self.staging.0.join(path))?;
        let mut summed = HashingReader { from, digest: Sha256::new(), bytes: 0 };
        io::copy(&mut (&mut summed).take(bytes), &mut file)?;
        file.sync_all()?;
        let (bytes, sha256) = (summed.bytes, hex(&summed.digest.finalize()));
        self.found.insert(path.to_owned(), Listed { path: path.to_owned(), bytes, sha256 });
        self.bytes += bytes;
        self.output.progress(&format!("{} files, {} MB", self.found.len(), self.bytes >> 20));
        Ok(())
    }

    /// Checks that the backup has exactly the files of its manifest.
    fn checked(self) -> Result<Manifest, Failure> {
        let wrong = |cause: String| {
            Failure::new("cannot restore", cause).remedy(
                "the backup is damaged or incomplete: use another one; nothing was restored",
            )
        };
        let manifest = self
            .manifest
            .ok_or_else(|| wrong("the backup has no manifest at its end".to_owned()))?;
        if manifest.format != FORMAT {
            let cause = format!(
                "the backup has format {}, but this program knows {FORMAT}",
                manifest.format
            );
            return Err(Failure::new("cannot restore", cause)
                .remedy("use the version of shoal that made it, or a newer one"));
        }
        for listed in &manifest.files {
            match self.found.get(&listed.path) {
                Some(found) if found == listed => {}
                Some(_) => return Err(wrong(format!("{} is not what was written", listed.path))),
                None => return Err(wrong(format!("{} is missing", listed.path))),
            }
        }
        if self.found.len() != manifest.files.len() {
            return Err(wrong("the backup has files that its manifest does not name".to_owned()));
        }
        if !self.found.contains_key(store::sqlite::FILE) {
            return Err(wrong(format!("the backup has no {}", store::sqlite::FILE)));
        }
        Ok(manifest)
    }
}

fn unexpected(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{path:?} is nothing that a backup has"))
}

fn cannot_write(to: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("cannot restore to {}", to.display()), error)
        .remedy(
            "run it with sudo, with enough free space; if the data directory is a mount point, name a \
             directory below it",
        )
        .usage()
}
