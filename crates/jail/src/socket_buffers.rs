//! Bounds the buffers of TCP connections in the network namespace that the caller is in. Buffers of
//! one connection grow up to a setting of the namespace, and new namespaces take over that of the
//! host, which may be many megabytes. Best effort: the settings may be read-only, and the memory
//! limit of a sandbox holds without them where it counts buffers. It must never raise a setting.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, read, write};

/// The settings: least, first and largest size of a buffer.
const SETTINGS: [&str; 2] = ["proc/sys/net/ipv4/tcp_rmem", "proc/sys/net/ipv4/tcp_wmem"];

/// The largest buffer of a connection in each direction. Loopback needs no more for its full speed.
pub const LARGEST_BYTES: u64 = 1 << 20;

/// Bounds them by the `/proc` of this process.
pub fn bound_here() {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Ok(root) = openat(CWD, "/", flags, Mode::empty()) {
        bound(root);
    }
}

/// Bounds them by the `/proc` in a root directory.
pub fn bound(root: impl AsFd) {
    for setting in SETTINGS {
        let _ = bound_one(root.as_fd(), setting);
    }
}

fn bound_one(root: impl AsFd, setting: &str) -> Result<(), Errno> {
    let opened = |flags| openat(&root, setting, flags | OFlags::CLOEXEC, Mode::empty());
    let mut now = [0; 128];
    let count = read(opened(OFlags::RDONLY)?, &mut now)?;
    if let Some(smaller) = smaller(&String::from_utf8_lossy(&now[..count])) {
        let file: OwnedFd = opened(OFlags::WRONLY)?;
        write(file, smaller.as_bytes())?;
    }
    Ok(())
}

/// The setting with no size above the largest, if it has one now.
fn smaller(now: &str) -> Option<String> {
    let sizes: Option<Vec<u64>> = now.split_whitespace().map(|size| size.parse().ok()).collect();
    let sizes = sizes.filter(|sizes| sizes.iter().any(|size| *size > LARGEST_BYTES))?;
    let bounded: Vec<_> = sizes.iter().map(|size| (*size).min(LARGEST_BYTES).to_string()).collect();
    Some(bounded.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_buffers_are_bounded_and_never_raised() {
        assert_eq!(smaller("4096\t131072\t33554432\n").as_deref(), Some("4096 131072 1048576"));
        assert_eq!(smaller("4096 16384 65536"), None);
        assert_eq!(smaller("4096 what 33554432"), None);
        assert_eq!(smaller(""), None);
    }
}
