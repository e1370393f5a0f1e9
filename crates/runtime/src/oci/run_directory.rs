//! The files of a run: a lock that shows whether the run lives, and beside it a directory with the
//! guest, our own layers of roots, the program's state, and a bundle for each container. All of it
//! belongs to the run and is removed with it. Nothing may be mounted in there on the host.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use model::InstanceId;
use rustix::fs::{FlockOperation, fchmod, flock};

use super::OciConfig;
use crate::leftovers::{OCI, is_name, lock_file};

/// How many times to make a lock file that a concurrent cleanup removes again.
const TRIES: u32 = 16;

/// The files of a run.
#[derive(Debug)]
pub(super) struct RunDirectory {
    /// The directory of all runs of this program.
    pub(super) runs: PathBuf,
    /// The directory of this run.
    pub(super) own: PathBuf,
    /// Held for as long as the run lives.
    lock: File,
}

/// The bundle of one container.
#[derive(Debug, Clone)]
pub(super) struct Bundle {
    /// Its directory.
    pub(super) path: PathBuf,
}

impl RunDirectory {
    /// Takes the lock of a run and makes its directories.
    pub(super) fn prepare(config: &OciConfig) -> io::Result<Self> {
        if !is_name(&config.run) {
            let cause = "the name of a run may have letters, digits and dashes only";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, cause));
        }
        fs::create_dir_all(&config.run_directory)?;
        let above = config.run_directory.canonicalize()?;
        let runs = above.join(format!("{OCI}{}", config.program.as_str()));
        let lock = take_lock(&runs, &config.run)?;
        let own = runs.join(&config.run);
        if own.to_str().is_none() {
            let cause = "the run directory path is not valid UTF-8";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, cause));
        }
        let run_directory = Self { runs, own, lock };
        for directory in [
            &run_directory.own,
            &run_directory.state(),
            &run_directory.layers(),
            &run_directory.bundles(),
        ] {
            DirBuilder::new().mode(0o700).create(directory)?;
        }
        let mut guest = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o555)
            .open(run_directory.guest())?;
        guest.write_all(&guest_image::bytes()?)?;
        // Whatever the umask: the sandbox's user must be able to run it.
        fchmod(guest.as_fd(), rustix::fs::Mode::from_raw_mode(0o555))?;
        Ok(run_directory)
    }

    /// The guest's binary.
    pub(super) fn guest(&self) -> PathBuf {
        self.own.join("guest")
    }

    /// The program's own state directory.
    pub(super) fn state(&self) -> PathBuf {
        self.own.join("state")
    }

    /// Our own layers of roots.
    pub(super) fn layers(&self) -> PathBuf {
        self.own.join("layers")
    }

    fn bundles(&self) -> PathBuf {
        self.own.join("bundles")
    }

    /// The bundle of an instance, whether it exists or not.
    pub(super) fn bundle(&self, instance: InstanceId) -> Bundle {
        Bundle { path: self.bundles().join(instance.to_string()) }
    }

    /// Instances that have a bundle.
    pub(super) fn instances(&self) -> io::Result<Vec<InstanceId>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.bundles())? {
            found.extend(
                entry?.file_name().to_str().and_then(|name| name.parse::<InstanceId>().ok()),
            );
        }
        Ok(found)
    }

    /// Releases the lock, so that a cleanup may take it.
    pub(super) fn unlock(&self) -> io::Result<()> {
        Ok(flock(&self.lock, FlockOperation::Unlock)?)
    }
}

/// Takes the lock of a run. A concurrent cleanup may remove the file before the lock is taken, so
/// this retries.
fn take_lock(runs: &Path, run: &str) -> io::Result<File> {
    for _ in 0..TRIES {
        let made = DirBuilder::new().mode(0o700).recursive(true).create(runs);
        let opened = made.and_then(|()| {
            OpenOptions::new().write(true).create(true).truncate(false).open(lock_file(runs, run))
        });
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => continue,
            Err(error) => return Err(error.into()),
        }
        if rustix::fs::fstat(&file)?.st_nlink > 0 {
            return Ok(file);
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "another run has this name"))
}

impl Bundle {
    /// Makes its directories.
    pub(super) fn make(&self) -> io::Result<()> {
        for directory in [&self.path, &self.root(), &self.top(), &self.path.join("layers")] {
            DirBuilder::new().mode(0o700).create(directory)?;
        }
        Ok(())
    }

    /// The description of the container.
    pub(super) fn config(&self) -> PathBuf {
        self.path.join("config.json")
    }

    /// Where the program sees its root.
    pub(super) fn root(&self) -> PathBuf {
        self.path.join("rootfs")
    }

    /// The topmost layer of its root.
    pub(super) fn top(&self) -> PathBuf {
        self.path.join("top")
    }

    /// Where the program writes the pid of the first process.
    pub(super) fn pid_file(&self) -> PathBuf {
        self.path.join("pid")
    }

    /// The output of the program.
    pub(super) fn output(&self) -> PathBuf {
        self.path.join("said")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::Program;

    #[test]
    fn run_directory_is_locked_and_its_name_is_unique() {
        let place = std::env::temp_dir().join(format!("oci-run_directory-{}", std::process::id()));
        let config = OciConfig::new(Program::Runc, &place);
        let run_directory = RunDirectory::prepare(&config).unwrap();
        assert!(RunDirectory::prepare(&config).is_err(), "its lock is held");
        let instance = InstanceId::from_u128(7);
        run_directory.bundle(instance).make().unwrap();
        assert_eq!(run_directory.instances().unwrap(), [instance]);
        run_directory.unlock().unwrap();
        let named = OciConfig { run: "a/b".to_owned(), ..config };
        assert_eq!(RunDirectory::prepare(&named).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        fs::remove_dir_all(place).unwrap();
    }
}
