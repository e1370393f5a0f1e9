//! A socket that a container sees until its guest has connected to it. The listener accepts and
//! checks the first connection; then the socket and its directory are removed, before any other
//! program can connect. Dropped at any time, it leaves nothing behind.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use jail::plan::USER;
use model::InstanceId;
use rustix::fs::{CWD, Mode, OFlags, openat};
use tokio::net::UnixListener;

use super::container_config::LINK_NAME;

/// A socket that waits for one guest.
pub(super) struct Listener {
    directory: PathBuf,
    listener: Option<UnixListener>,
}

/// The peer of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    /// Its process, if it can be seen from here.
    pub pid: Option<u32>,
    pub uid: u32,
}

impl Peer {
    /// Whether this can be the guest of a container whose first process is `first`. Where that is
    /// not known, the user decides, unless the engine maps users.
    pub(super) fn is_guest(self, first: Option<u32>, users_are_mapped: bool) -> bool {
        match (self.pid, first) {
            (Some(pid), Some(first)) => pid == first,
            (Some(_), None) | (None, Some(_) | None) => users_are_mapped || self.uid == USER,
        }
    }
}

impl Listener {
    /// Listens in a directory of its own beneath `above`.
    pub(super) fn open(above: &Path, instance: InstanceId) -> io::Result<Self> {
        let directory = above.join(instance.to_string());
        fs::create_dir(&directory)?;
        // From here on it is removed when this is dropped.
        let mut opened = Self { directory, listener: None };
        // Whatever the umask: the guest must get through.
        fs::set_permissions(&opened.directory, fs::Permissions::from_mode(0o711))?;
        // By way of a descriptor: a path to a socket may be no longer than 107 bytes.
        let place = openat(
            CWD,
            &opened.directory,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let path = format!("/proc/self/fd/{}/{LINK_NAME}", place.as_fd().as_raw_fd());
        let listener = StdListener::bind(path)?;
        listener.set_nonblocking(true)?;
        // Every user may connect: the directories above are closed to all but the server.
        let everyone = fs::Permissions::from_mode(0o666);
        fs::set_permissions(opened.directory.join(LINK_NAME), everyone)?;
        opened.listener = Some(UnixListener::from_std(listener)?);
        Ok(opened)
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The first connection.
    pub(super) async fn accept(self) -> io::Result<(OwnedFd, Peer)> {
        let Some(listener) = &self.listener else { return Err(io::ErrorKind::NotConnected.into()) };
        let (stream, _) = listener.accept().await?;
        let credentials = stream.peer_cred()?;
        // The Linux kernel reports pid 0 for a process of another pid namespace.
        let pid = credentials.pid().map(i32::cast_unsigned).filter(|pid| *pid != 0);
        Ok((stream.into_std()?.into(), Peer { pid, uid: credentials.uid() }))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.directory.join(LINK_NAME));
        let _ = fs::remove_dir(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn place(name: &str) -> PathBuf {
        // Longer than a path to a socket may be.
        let name = format!("listener-{}-{name}-{}", std::process::id(), "x".repeat(120));
        let above = std::env::temp_dir().join(name);
        fs::create_dir_all(&above).unwrap();
        above
    }

    #[tokio::test]
    async fn listener_takes_the_first_connection_and_leaves_nothing() {
        let above = place("taken");
        let listener = Listener::open(&above, InstanceId::from_u128(7)).unwrap();
        let directory = listener.directory().to_owned();
        let mode = fs::metadata(directory.join(LINK_NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o666, "a guest of any user can connect");
        let place = openat(CWD, &directory, OFlags::PATH, Mode::empty()).unwrap();
        let path = format!("/proc/self/fd/{}/{LINK_NAME}", place.as_raw_fd());
        let _guest = UnixStream::connect(&path).unwrap();
        let (_link, peer) = listener.accept().await.unwrap();
        assert_eq!(peer.pid, Some(std::process::id()));
        assert!(peer.is_guest(Some(std::process::id()), false));
        assert!(UnixStream::connect(&path).is_err(), "no second peer can connect");
        assert!(!directory.exists());
        fs::remove_dir(above).unwrap();
    }

    #[tokio::test]
    async fn listener_dropped_without_a_connection_leaves_nothing() {
        let above = place("dropped");
        drop(Listener::open(&above, InstanceId::from_u128(8)).unwrap());
        fs::remove_dir(above).unwrap();
    }

    #[test]
    fn listener_knows_guests_by_process_or_else_by_user() {
        for (pid, uid, first, mapped, expected) in [
            (Some(5), 7, Some(5), false, true),
            (Some(6), USER, Some(5), true, false),
            (Some(6), USER, None, false, true),
            (None, USER, Some(5), false, true),
            (None, 0, Some(5), false, false),
            (None, 101_000, None, true, true),
            (None, 0, None, false, false),
        ] {
            let peer = Peer { pid, uid };
            assert_eq!(peer.is_guest(first, mapped), expected, "{peer:?} {first:?} {mapped}");
        }
    }
}
