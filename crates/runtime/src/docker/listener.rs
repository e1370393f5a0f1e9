//! A socket of ours that a container sees until its guest has connected to it. The first connection is
//! taken and looked at; then the socket and its directory are gone, before any program can be there to
//! try the same. Dropped at any time, nothing of it is left.

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

/// Who connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    /// Its process, if it can be seen from here.
    pub pid: Option<u32>,
    pub uid: u32,
}

impl Peer {
    /// Whether this can be the guest of a container whose first process is `first`, as far as that is
    /// known. Where it is not, the user tells, unless the engine maps users to others.
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
        // Whatever we are usually keen to keep from others, the guest comes through here.
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
        // Whoever gets this far may connect: the directories above are for us alone.
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
        // Of a process that is not seen from here the kernel says 0.
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
    async fn the_first_connection_is_taken_and_nothing_is_left() {
        let above = place("taken");
        let listener = Listener::open(&above, InstanceId::from_u128(7)).unwrap();
        let directory = listener.directory().to_owned();
        let mode = fs::metadata(directory.join(LINK_NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o666, "whoever the guest is, it can connect");
        let place = openat(CWD, &directory, OFlags::PATH, Mode::empty()).unwrap();
        let path = format!("/proc/self/fd/{}/{LINK_NAME}", place.as_raw_fd());
        let _guest = UnixStream::connect(&path).unwrap();
        let (_link, peer) = listener.accept().await.unwrap();
        assert_eq!(peer.pid, Some(std::process::id()));
        assert!(peer.is_guest(Some(std::process::id()), false));
        assert!(UnixStream::connect(&path).is_err(), "nobody else gets in");
        assert!(!directory.exists());
        fs::remove_dir(above).unwrap();
    }

    #[tokio::test]
    async fn dropped_before_anybody_came_nothing_is_left() {
        let above = place("dropped");
        drop(Listener::open(&above, InstanceId::from_u128(8)).unwrap());
        fs::remove_dir(above).unwrap();
    }

    #[test]
    fn guests_are_told_by_their_process_and_else_by_their_user() {
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
