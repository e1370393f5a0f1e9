//! A directory in memory with the pinned static binary, and a root filesystem that has nothing
//! else. Dropping it removes it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use command::failure::Failure;

/// Memory file systems where programs may be executed, the likeliest first.
const PLACES: [&str; 3] = ["/dev/shm", "/run", "/tmp"];

/// The name of the binary in the root filesystem: not at its top, where only directories are shown
/// as they are.
pub(crate) const PROGRAM_INSIDE: &str = "/bin/noop";

/// The name of the root filesystem in the directory.
pub(crate) const ROOT: &str = "root";

/// The directory.
#[derive(Debug)]
pub(crate) struct Scratch {
    directory: PathBuf,
}

impl Scratch {
    pub(crate) fn make() -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::new("cannot write the program to measure", error);
        let name = format!("shoal-bench-{}", std::process::id());
        let place = PLACES.iter().map(Path::new).find(|place| place.is_dir());
        let directory = place.unwrap_or(Path::new("/tmp")).join(name);
        fs::create_dir(&directory).map_err(failed)?;
        let scratch = Self { directory };
        fs::create_dir_all(scratch.root().join("bin")).map_err(failed)?;
        let program = scratch.program();
        fs::write(&program, guest_image::bytes().map_err(failed)?).map_err(failed)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).map_err(failed)?;
        Ok(scratch)
    }

    /// Where it is.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// A root filesystem with the binary in it.
    pub(crate) fn root(&self) -> PathBuf {
        self.directory.join(ROOT)
    }

    /// The pinned binary: with the argument `noop` it exits at once.
    pub(crate) fn program(&self) -> PathBuf {
        self.root().join(PROGRAM_INSIDE.trim_start_matches('/'))
    }

    /// A directory that belongs to another user.
    pub(crate) fn open_to(&self, user: u32) -> io::Result<PathBuf> {
        let path = self.subdirectory("another")?;
        std::os::unix::fs::chown(&path, Some(user), Some(user))?;
        Ok(path)
    }

    /// A new subdirectory.
    pub(crate) fn subdirectory(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.directory.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
