//! The data directory: made for its owner alone, used by one server at a time, with the two files
//! by which commands on this machine find that server.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use client::{ADDRESS_FILE, ADMIN_KEY_FILE};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::failure::Failure;

const LOCK_FILE: &str = "lock";
/// Where Ash leaves its first key.
const ASH_KEY_FILE: &str = "initial-api-key";
/// Longest process id that is read from a lock.
const PID_BYTES_MAX: u64 = 20;

/// A data directory that is ours until this is dropped.
#[derive(Debug)]
pub(super) struct DataDir {
    path: PathBuf,
    /// Open as long as it is ours. The kernel unlocks it if we are killed.
    _lock: File,
}

impl DataDir {
    /// Makes it if need be, and makes sure that nobody else uses it.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::new(format!("cannot use {} for data", path.display()), error)
                .remedy("choose another with --data-dir, or run it with sudo")
                .usage()
        };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        let mut lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.join(LOCK_FILE))
            .map_err(failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(taken(path, &mut lock)),
            Err(error) => return Err(failed(error.into())),
        }
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| writeln!(lock, "{}", std::process::id()))
            .map_err(failed)?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn workspaces(&self) -> PathBuf {
        self.path.join("workspaces")
    }

    pub(super) fn archives(&self) -> PathBuf {
        self.path.join("archives")
    }

    pub(super) fn seeds(&self) -> PathBuf {
        self.path.join("seeds")
    }

    pub(super) fn images(&self) -> PathBuf {
        self.path.join(crate::image::STORE)
    }

    pub(super) fn key_file(&self) -> PathBuf {
        self.path.join(ADMIN_KEY_FILE)
    }

    /// Writes the secret of the first key, for its owner alone. It is there whole or not at all.
    pub(super) fn write_key(&self, secret: &str) -> Result<(), Failure> {
        self.write(ADMIN_KEY_FILE, 0o600, secret)
    }

    /// Writes the secret of the first key for clients of Ash, where they look for it.
    pub(super) fn write_ash_key(&self, secret: &str) -> Result<(), Failure> {
        self.write(ASH_KEY_FILE, 0o600, secret)
    }

    /// Says where the server is. It goes with this.
    pub(super) fn write_address(&self, address: SocketAddr) -> Result<(), Failure> {
        self.write(ADDRESS_FILE, 0o644, &format!("http://{address}"))
    }

    fn write(&self, name: &str, mode: u32, line: &str) -> Result<(), Failure> {
        let (file, beside) = (self.path.join(name), self.path.join(format!(".{name}.new")));
        let write = || -> io::Result<()> {
            // What an earlier try left could have other permissions.
            match fs::remove_file(&beside) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            let mut new = File::options().write(true).create_new(true).mode(mode).open(&beside)?;
            writeln!(new, "{line}")?;
            new.sync_all()?;
            fs::rename(&beside, &file)
        };
        write().map_err(|error| {
            Failure::new(format!("cannot write {}", file.display()), error)
                .remedy("check the permissions of the data directory, and that its disk has space")
        })
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        // A file that stays says where a server was; whoever goes there finds nobody.
        let _ = fs::remove_file(self.path.join(ADDRESS_FILE));
    }
}

fn taken(path: &Path, lock: &mut File) -> Failure {
    let mut pid = String::new();
    // The one who has it writes its number right after it got it.
    let read = lock.take(PID_BYTES_MAX).read_to_string(&mut pid);
    let who = match (read, pid.trim()) {
        (Ok(_), pid) if !pid.is_empty() => format!("process {pid}"),
        (Ok(_) | Err(_), _) => "another process".to_owned(),
    };
    Failure::new(
        format!("cannot use {} for data", path.display()),
        format!("{who} is a server that uses it"),
    )
    .remedy("stop that one first, or choose another with --data-dir and --listen")
    .usage()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn one_server_at_a_time_and_the_second_is_told_who_has_it() {
        let path = std::env::temp_dir().join(format!("shoal-data-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        let first = DataDir::open(&path.join("deep")).unwrap();
        let mode =
            |name: &str| fs::metadata(path.join("deep").join(name)).unwrap().permissions().mode();
        assert_eq!(mode("") & 0o777, 0o700);
        let refused = DataDir::open(&path.join("deep")).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {} is", std::process::id())), "{refused}");

        first.write_key("one").unwrap();
        first.write_key("two").unwrap();
        assert_eq!(fs::read_to_string(first.key_file()).unwrap(), "two\n");
        assert_eq!(mode(ADMIN_KEY_FILE) & 0o777, 0o600);
        first.write_address(SocketAddr::from(([127, 0, 0, 1], 7))).unwrap();
        let address = fs::read_to_string(path.join("deep").join(ADDRESS_FILE)).unwrap();
        assert_eq!(address, "http://127.0.0.1:7\n");
        drop(first);
        assert!(!path.join("deep").join(ADDRESS_FILE).exists());
        drop(DataDir::open(&path.join("deep")).unwrap());
        fs::remove_dir_all(&path).unwrap();
    }
}
