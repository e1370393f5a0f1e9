//! The data directory: made for its owner alone, used by one server at a time, with the two files
//! by which commands on this machine find that server. What a store in memory names is kept apart
//! from what another store names, and goes with it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use client::{ADDRESS_FILE, ADMIN_KEY_FILE};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::config::StoreKind;
use crate::failure::Failure;
use crate::native;

/// Locked by the server that has the directory.
pub(crate) const LOCK_FILE: &str = "lock";
/// Says which store the files beside it belong to.
const STORE_FILE: &str = "store.id";
/// Says what containers of this data directory are labelled with.
const NODE_FILE: &str = "node.id";
/// Is there if a Docker engine was used.
const DOCKER_FILE: &str = "docker.used";
/// What belongs to a store in memory.
const MEMORY: &str = "memory";
/// Where Ash leaves its first key.
const ASH_KEY_FILE: &str = "initial-api-key";
/// Where files are put that no record names.
pub(crate) const LOST_FOUND: &str = "lost+found";
/// Longest process id that is read from a lock.
const PID_BYTES_MAX: u64 = 20;

/// A data directory that is ours until this is dropped.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    /// Where what the store names is: here, or in a directory that goes with it.
    of_store: PathBuf,
    /// Open as long as it is ours. The kernel unlocks it if we are killed.
    _lock: File,
}

impl DataDir {
    /// Makes it if need be, and makes sure that nobody else uses it.
    pub(crate) fn open(path: &Path, store: StoreKind) -> Result<Self, Failure> {
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
        // Whatever it was, it did not outlive its server.
        remove(&path.join(MEMORY)).map_err(failed)?;
        let of_store = match store {
            StoreKind::Sqlite => path.to_owned(),
            StoreKind::Memory => {
                let of_store = path.join(MEMORY);
                DirBuilder::new().mode(0o700).create(&of_store).map_err(failed)?;
                of_store
            }
        };
        Ok(Self { path: path.to_owned(), of_store, _lock: lock })
    }

    /// Whether the files here belong to this store: what it does not name may be removed then. Those
    /// that belong to nobody do from now on.
    pub(super) fn belongs_to(&self, store: u64) -> Result<bool, Failure> {
        let file = self.path.join(STORE_FILE);
        let ours = format!("{store:016x}");
        match fs::read_to_string(&file) {
            Ok(written) if written.trim() == ours => Ok(true),
            Ok(written) => {
                tracing::warn!(
                    file = %file.display(),
                    written = written.trim(),
                    ours,
                    "files in the data directory belong to another store, so none that this one \
                     does not name are removed: bring the other shoal.db back, or remove this file \
                     if it is gone for good"
                );
                Ok(false)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                write(&self.path, STORE_FILE, 0o600, &ours).map(|()| true)
            }
            Err(error) => Err(Failure::new(format!("cannot read {}", file.display()), error)
                .remedy("check the permissions of the data directory")),
        }
    }

    /// The name of this data directory, by which others tell what is ours: made once, and kept.
    pub(super) fn node(&self) -> Result<String, Failure> {
        let file = self.path.join(NODE_FILE);
        match fs::read_to_string(&file) {
            Ok(name) if !name.trim().is_empty() => return Ok(name.trim().to_owned()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(Failure::new(format!("cannot read {}", file.display()), error)
                    .remedy("check the permissions of the data directory"));
            }
        }
        let name = format!("{:016x}", native::random()? as u64);
        write(&self.path, NODE_FILE, 0o600, &name)?;
        Ok(name)
    }

    /// Whether containers of an engine may be left of an earlier run, or templates that want one.
    pub(super) fn had_docker(&self) -> bool {
        self.path.join(DOCKER_FILE).exists()
    }

    /// There are containers of an engine from now on.
    pub(super) fn remember_docker(&self) -> Result<(), Failure> {
        write(&self.path, DOCKER_FILE, 0o600, "")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn workspaces(&self) -> PathBuf {
        self.of_store.join("workspaces")
    }

    pub(crate) fn archives(&self) -> PathBuf {
        self.of_store.join("archives")
    }

    /// Where files go that the store does not name.
    pub(super) fn lost_found(&self) -> PathBuf {
        self.of_store.join(LOST_FOUND)
    }

    pub(crate) fn seeds(&self) -> PathBuf {
        self.of_store.join("seeds")
    }

    pub(super) fn processes(&self) -> PathBuf {
        self.of_store.join("processes")
    }

    pub(super) fn images(&self) -> PathBuf {
        self.path.join(crate::image::STORE)
    }

    pub(super) fn key_file(&self) -> PathBuf {
        self.of_store.join(ADMIN_KEY_FILE)
    }

    /// Writes the secret of the first key, for its owner alone. It is there whole or not at all.
    pub(super) fn write_key(&self, secret: &str) -> Result<(), Failure> {
        write(&self.of_store, ADMIN_KEY_FILE, 0o600, secret)
    }

    /// Writes the secret of the first key for clients of Ash, where they look for it.
    pub(super) fn write_ash_key(&self, secret: &str) -> Result<(), Failure> {
        write(&self.of_store, ASH_KEY_FILE, 0o600, secret)
    }

    /// Says where the server is, and where its key is if that is not the one beside it. It goes with
    /// this.
    pub(super) fn write_address(&self, address: SocketAddr) -> Result<(), Failure> {
        let key = match self.of_store.strip_prefix(&self.path) {
            Ok(beneath) if beneath != Path::new("") => {
                format!("\n{}", beneath.join(ADMIN_KEY_FILE).display())
            }
            Ok(_) | Err(_) => String::new(),
        };
        write(&self.path, ADDRESS_FILE, 0o644, &format!("http://{address}{key}"))
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        // A file that stays says where a server was; whoever goes there finds nobody.
        let _ = fs::remove_file(self.path.join(ADDRESS_FILE));
        // What cannot be removed now is at the next start.
        let _ = remove(&self.path.join(MEMORY));
    }
}

/// Writes a file of one line, whole or not at all.
fn write(place: &Path, name: &str, mode: u32, line: &str) -> Result<(), Failure> {
    let (file, beside) = (place.join(name), place.join(format!(".{name}.new")));
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

/// Removes a directory with everything in it. That there is none is fine.
fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
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
        let first = DataDir::open(&path.join("deep"), StoreKind::Sqlite).unwrap();
        let mode =
            |name: &str| fs::metadata(path.join("deep").join(name)).unwrap().permissions().mode();
        assert_eq!(mode("") & 0o777, 0o700);
        let refused = DataDir::open(&path.join("deep"), StoreKind::Sqlite).unwrap_err().to_string();
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
        drop(DataDir::open(&path.join("deep"), StoreKind::Sqlite).unwrap());
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn what_a_store_in_memory_names_is_kept_apart_and_goes_with_it() {
        let path = std::env::temp_dir().join(format!("shoal-apart-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        let real = DataDir::open(&path, StoreKind::Sqlite).unwrap();
        real.write_key("real").unwrap();
        fs::create_dir_all(real.archives()).unwrap();
        assert!(real.belongs_to(7).unwrap() && real.belongs_to(7).unwrap());
        assert!(!real.belongs_to(8).unwrap(), "it is the files of the first");
        drop(real);

        let tried = DataDir::open(&path, StoreKind::Memory).unwrap();
        tried.write_key("tried").unwrap();
        for (one, all) in [(tried.archives(), "archives"), (tried.workspaces(), "workspaces")] {
            assert_ne!(one, path.join(all));
            assert!(one.starts_with(&path));
            fs::create_dir_all(one.join("in/it")).unwrap();
        }
        assert_eq!(fs::read_to_string(tried.key_file()).unwrap(), "tried\n");
        tried.write_address(SocketAddr::from(([127, 0, 0, 1], 7))).unwrap();
        let address = fs::read_to_string(path.join(ADDRESS_FILE)).unwrap();
        assert_eq!(address, "http://127.0.0.1:7\nmemory/admin.key\n");
        drop(tried);
        assert!(!path.join(MEMORY).exists());
        assert_eq!(fs::read_to_string(path.join(ADMIN_KEY_FILE)).unwrap(), "real\n");

        // One that was killed leaves it to the next, whatever that has for a store.
        fs::create_dir_all(path.join(MEMORY).join("workspaces")).unwrap();
        drop(DataDir::open(&path, StoreKind::Sqlite).unwrap());
        assert!(!path.join(MEMORY).exists());
        fs::remove_dir_all(&path).unwrap();
    }
}
