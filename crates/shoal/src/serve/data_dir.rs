//! The data directory: private to its owner, used by one server at a time, with the two files by
//! which commands on this machine find that server. Files of a store in memory are in a directory
//! of their own, which is removed with the store.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::{ADDRESS_FILE, ADMIN_KEY_FILE};
use model::WorkspaceId;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::config::StoreKind;
use crate::failure::Failure;
use crate::native;

/// Locked by the server that uses the directory.
pub(crate) const LOCK_FILE: &str = "lock";
/// Holds the id of the store to which the files beside it belong.
const STORE_FILE: &str = "store.id";
/// Holds the label of the containers of this data directory.
const NODE_FILE: &str = "node.id";
/// Exists if a Docker engine was used.
const DOCKER_FILE: &str = "docker.used";
/// The directory for files of a store in memory.
const MEMORY: &str = "memory";
/// Where Ash leaves its first key.
const ASH_KEY_FILE: &str = "initial-api-key";
/// The directory for files that no record names.
pub(crate) const LOST_FOUND: &str = "lost+found";
/// Digits of an id that we made.
const ID_DIGITS: usize = 16;
/// Length of the id of a workspace.
const ID_CHARS: usize = 36;
const NODE_REMEDY: &str = "nothing was changed: put the id back, which containers of this server \
    have as their label shoal.node (`docker ps -a --filter label=shoal.node`); or remove the file: a \
    new id is made, and containers with the old label are then yours to remove";
const STORE_REMEDY: &str = "nothing was changed: if shoal.db beside it is the database that these \
    files belong to, remove the file, and it is made again; if not, bring that database back first, or \
    choose another directory with --data-dir";
/// How often, and after which pause, a lock that is taken is tried again.
const LOCK_TRIES: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Longest process id that is read from the lock file.
const PID_BYTES_MAX: u64 = 20;

/// A data directory that is locked until this is dropped.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    /// Where files of the store are: here, or in a directory that is removed with the store.
    store_path: PathBuf,
    /// Whether this server wrote the address file.
    wrote_address: AtomicBool,
    /// Holds the lock. The kernel releases it if the server is killed.
    _lock: File,
}

impl DataDir {
    /// Makes the directory if it does not exist, and locks it.
    pub(crate) fn open(path: &Path, store: StoreKind) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::new(format!("cannot use {} for data", path.display()), error)
                .remedy("choose another directory with --data-dir, or run it with sudo")
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
        match lock_patiently(&lock) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(taken(path, &mut lock)),
            Err(error) => return Err(failed(error.into())),
        }
        // The process id is only for the error of a second server: a full disk does not stop the
        // start.
        match write_pid(&mut lock) {
            Err(error) if error.kind() != io::ErrorKind::StorageFull => return Err(failed(error)),
            Ok(()) | Err(_) => {}
        }
        // A store in memory did not outlive its server; remove its files.
        remove(&path.join(MEMORY)).map_err(failed)?;
        let store_path = match store {
            StoreKind::Sqlite => path.to_owned(),
            StoreKind::Memory => {
                let store_path = path.join(MEMORY);
                DirBuilder::new().mode(0o700).create(&store_path).map_err(failed)?;
                store_path
            }
        };
        let wrote_address = AtomicBool::new(false);
        Ok(Self { path: path.to_owned(), store_path, wrote_address, _lock: lock })
    }

    /// Refuses damaged id files, before anything is changed.
    pub(super) fn check(&self) -> Result<(), Failure> {
        for (name, remedy) in [(NODE_FILE, NODE_REMEDY), (STORE_FILE, STORE_REMEDY)] {
            let file = self.path.join(name);
            match fs::read(&file) {
                Ok(bytes) if is_id(&bytes) => {}
                Ok(_) => {
                    let what = format!("cannot use {}", file.display());
                    let cause = "the file is damaged: it must be one line of 16 hexadecimal digits";
                    return Err(Failure::new(what, cause).remedy(remedy).usage());
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(unreadable(&file, error)),
            }
        }
        Ok(())
    }

    /// A file of an earlier run besides the database. If there is one, a database must exist, too.
    pub(super) fn trace_of_an_earlier_run(&self) -> Option<String> {
        let files = [ADMIN_KEY_FILE, ASH_KEY_FILE, STORE_FILE];
        let file = files.into_iter().find(|name| self.path.join(name).exists());
        let kept = || {
            let kinds = [(self.workspaces(), "workspaces"), (self.archives(), "archives")];
            kinds.into_iter().find_map(|(directory, kind)| {
                let names = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.file_name());
                let count = names.filter(|name| is_of_session(&name.to_string_lossy())).count();
                (count > 0).then(|| format!("{count} {kind} of sessions"))
            })
        };
        file.map(str::to_owned).or_else(kept)
    }

    /// Whether the files here belong to this store. If so, files that it does not name may be
    /// removed. Files without an owner belong to this store from now on.
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
                    "the files in the data directory belong to another database: the server removes none of \
                     them; bring the other shoal.db back, or remove this file if that database is \
                     lost for good"
                );
                Ok(false)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                write(&self.path, STORE_FILE, 0o600, &ours).map(|()| true)
            }
            Err(error) => Err(unreadable(&file, error)),
        }
    }

    /// The id of this data directory, which labels its containers. It is made once and stays.
    pub(super) fn node(&self) -> Result<String, Failure> {
        let file = self.path.join(NODE_FILE);
        match fs::read_to_string(&file) {
            Ok(name) => return Ok(name.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unreadable(&file, error)),
        }
        let name = format!("{:016x}", native::random()? as u64);
        write(&self.path, NODE_FILE, 0o600, &name)?;
        Ok(name)
    }

    /// Whether an earlier run used Docker, so that it may have left containers or templates.
    pub(super) fn had_docker(&self) -> bool {
        self.path.join(DOCKER_FILE).exists()
    }

    /// Records that there may be containers from now on. A full disk does not stop the start: at
    /// worst a later start does not wait for an engine that is down.
    pub(super) fn remember_docker(&self) -> Result<(), Failure> {
        if self.had_docker() {
            return Ok(());
        }
        match try_write(&self.path, DOCKER_FILE, 0o600, "") {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                tracing::warn!(%error, file = DOCKER_FILE, "cannot record that Docker is used");
                Ok(())
            }
            result => result.map_err(|error| unwritable(&self.path.join(DOCKER_FILE), error)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn workspaces(&self) -> PathBuf {
        self.store_path.join("workspaces")
    }

    pub(crate) fn archives(&self) -> PathBuf {
        self.store_path.join("archives")
    }

    /// The directory for files that the store does not name.
    pub(super) fn lost_found(&self) -> PathBuf {
        self.store_path.join(LOST_FOUND)
    }

    pub(crate) fn seeds(&self) -> PathBuf {
        self.store_path.join("seeds")
    }

    pub(super) fn processes(&self) -> PathBuf {
        self.store_path.join("processes")
    }

    pub(super) fn images(&self) -> PathBuf {
        self.path.join(crate::image::STORE)
    }

    pub(super) fn key_file(&self) -> PathBuf {
        self.store_path.join(ADMIN_KEY_FILE)
    }

    /// Writes the secret of the first key, readable by its owner only, completely or not at all.
    pub(super) fn write_key(&self, secret: &str) -> Result<(), Failure> {
        write(&self.store_path, ADMIN_KEY_FILE, 0o600, secret)
    }

    /// Writes the secret of the first key for clients of Ash, where they expect it.
    pub(super) fn write_ash_key(&self, secret: &str) -> Result<(), Failure> {
        write(&self.store_path, ASH_KEY_FILE, 0o600, secret)
    }

    /// Writes the address of the server, and the path of its key if it is not at the usual place.
    /// Dropping this removes the file.
    pub(super) fn write_address(&self, address: SocketAddr) -> io::Result<()> {
        self.wrote_address.store(true, Ordering::Relaxed);
        try_write(&self.path, ADDRESS_FILE, 0o644, &self.address_line(address))
    }

    pub(super) fn address_file(&self) -> PathBuf {
        self.path.join(ADDRESS_FILE)
    }

    /// Whether the address file has this address.
    pub(super) fn has_address(&self, address: SocketAddr) -> bool {
        let said = fs::read_to_string(self.address_file());
        said.is_ok_and(|said| said.trim_end() == self.address_line(address))
    }

    fn address_line(&self, address: SocketAddr) -> String {
        let key = match self.store_path.strip_prefix(&self.path) {
            Ok(beneath) if beneath != Path::new("") => {
                format!("\n{}", beneath.join(ADMIN_KEY_FILE).display())
            }
            Ok(_) | Err(_) => String::new(),
        };
        format!("http://{address}{key}")
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        // A stale file would lead commands to a server that is gone. A server that was refused
        // changes nothing, so it leaves the file of another server alone.
        if self.wrote_address.load(Ordering::Relaxed) {
            let _ = fs::remove_file(self.path.join(ADDRESS_FILE));
        }
        // If this fails, the next start removes it.
        let _ = remove(&self.path.join(MEMORY));
    }
}

/// Takes the lock. A command that looks whether a server runs holds it for a moment.
fn lock_patiently(lock: &File) -> Result<(), Errno> {
    let mut tries = 0;
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if tries < LOCK_TRIES => {
                tries += 1;
                std::thread::sleep(LOCK_PAUSE);
            }
            locked => return locked,
        }
    }
}

fn write_pid(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    writeln!(lock, "{}", std::process::id())
}

/// Whether a file holds one id that we made, and nothing else.
fn is_id(bytes: &[u8]) -> bool {
    let digits = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    digits.len() == ID_DIGITS && digits.iter().all(u8::is_ascii_hexdigit)
}

/// Whether the name of a file or directory begins with the id of a workspace.
fn is_of_session(name: &str) -> bool {
    name.get(..ID_CHARS).is_some_and(|id| id.parse::<WorkspaceId>().is_ok())
}

fn unreadable(file: &Path, error: io::Error) -> Failure {
    Failure::new(format!("cannot read {}", file.display()), error)
        .remedy("check the permissions of the data directory")
}

/// Writes a file of one line, completely or not at all.
fn write(place: &Path, name: &str, mode: u32, line: &str) -> Result<(), Failure> {
    try_write(place, name, mode, line).map_err(|error| unwritable(&place.join(name), error))
}

fn try_write(place: &Path, name: &str, mode: u32, line: &str) -> io::Result<()> {
    let (file, beside) = (place.join(name), place.join(format!(".{name}.new")));
    // A file of an earlier attempt could have other permissions.
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut new = File::options().write(true).create_new(true).mode(mode).open(&beside)?;
    writeln!(new, "{line}")?;
    new.sync_all()?;
    fs::rename(&beside, &file)
}

pub(super) fn unwritable(file: &Path, error: io::Error) -> Failure {
    Failure::new(format!("cannot write {}", file.display()), error)
        .remedy("check the permissions of the data directory, and that its disk has space")
}

/// Removes a directory with everything in it. A missing one is no error.
fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn taken(path: &Path, lock: &mut File) -> Failure {
    let mut pid = String::new();
    // A server writes its process id right after it got the lock.
    let read = lock.take(PID_BYTES_MAX).read_to_string(&mut pid);
    let who = match (read, pid.trim()) {
        (Ok(_), pid) if !pid.is_empty() => format!("process {pid}"),
        (Ok(_) | Err(_), _) => "another process".to_owned(),
    };
    Failure::new(
        format!("cannot use {} for data", path.display()),
        format!("{who} is a server that uses it"),
    )
    .remedy("stop that server first, or choose another directory with --data-dir and --listen")
    .usage()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn data_dir_has_one_server_and_a_second_one_learns_which() {
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
    fn data_dir_records_the_use_of_docker_once() {
        use std::os::unix::fs::MetadataExt as _;
        let path = std::env::temp_dir().join(format!("shoal-docker-used-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        let place = DataDir::open(&path, StoreKind::Sqlite).unwrap();
        assert!(!place.had_docker());
        place.remember_docker().unwrap();
        assert!(place.had_docker());
        let inode = || fs::metadata(path.join(DOCKER_FILE)).unwrap().ino();
        let first = inode();
        place.remember_docker().unwrap();
        assert_eq!(inode(), first, "it was written again");
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn data_dir_with_a_damaged_id_is_refused_with_a_remedy() {
        let path = std::env::temp_dir().join(format!("shoal-garbled-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        let place = DataDir::open(&path, StoreKind::Sqlite).unwrap();
        place.check().unwrap();
        assert_eq!(place.trace_of_an_earlier_run(), None);
        let node = place.node().unwrap();
        assert_eq!(place.trace_of_an_earlier_run(), None, "a first start that was cut short");
        assert!(place.belongs_to(7).unwrap());
        place.check().unwrap();
        assert_eq!(place.node().unwrap(), node);
        for (name, remedy) in [(NODE_FILE, "shoal.node"), (STORE_FILE, "shoal.db beside it")] {
            let good = fs::read(path.join(name)).unwrap();
            let garbled: [&[u8]; 4] = [b"", b"0123456789abcde\n", b"\xff\xfe", b"0123456789abcdex"];
            for garbled in garbled {
                fs::write(path.join(name), garbled).unwrap();
                let error = format!("{:?}", place.check().unwrap_err());
                assert!(error.contains(name) && error.contains(remedy), "{error}");
                assert_eq!(fs::read(path.join(name)).unwrap(), garbled, "it is not touched");
            }
            fs::write(path.join(name), good).unwrap();
        }
        assert_eq!(place.trace_of_an_earlier_run().as_deref(), Some(STORE_FILE));
        fs::remove_file(path.join(STORE_FILE)).unwrap();
        let id = WorkspaceId::from_u128(5).to_string();
        fs::create_dir_all(place.workspaces().join("trash")).unwrap();
        assert_eq!(place.trace_of_an_earlier_run(), None);
        fs::create_dir_all(place.workspaces().join(id)).unwrap();
        let left = place.trace_of_an_earlier_run().unwrap();
        assert_eq!(left, "1 workspaces of sessions");
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn data_dir_keeps_files_of_a_memory_store_apart_and_removes_them() {
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

        // A killed server leaves the directory; the next start removes it, whatever its store is.
        fs::create_dir_all(path.join(MEMORY).join("workspaces")).unwrap();
        drop(DataDir::open(&path, StoreKind::Sqlite).unwrap());
        assert!(!path.join(MEMORY).exists());
        fs::remove_dir_all(&path).unwrap();
    }
}
