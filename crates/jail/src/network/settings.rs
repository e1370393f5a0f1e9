//! Settings of the network namespace that the calling thread is in, by the `/proc` of this process,
//! which shows those of the namespace. All are best effort: without them nothing gets out either.

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use super::NAMES;

/// The first port that programs may take.
const FIRST_FREE_PORT: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
/// Whether the kernel forgets how connections to an address went.
const FORGETS: &str = "/proc/sys/net/ipv4/tcp_no_metrics_save";
const COOKIES: &str = "/proc/sys/net/ipv4/tcp_syncookies";

/// A connection that the kernel answers with a cookie would have no listener to come back to.
pub(super) fn without_cookies() -> Result<(), Errno> {
    write(COOKIES, "0")
}

/// For a namespace that another runtime made and that a next user gets. Programs must not take the
/// places of our sockets while these are away, also where they may take every other port. And what
/// the kernel learns from connections it must not use for those of the next user.
pub fn prepare_for_reuse() {
    let _ = write(FORGETS, "1");
    let after_ours = NAMES.1 + 1;
    if first_free_port().is_ok_and(|first| first < after_ours) {
        let _ = write(FIRST_FREE_PORT, &after_ours.to_string());
    }
}

fn first_free_port() -> Result<u16, Errno> {
    let file = openat(CWD, FIRST_FREE_PORT, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = [0; 16];
    let length = rustix::io::read(file, &mut text)?;
    let text = std::str::from_utf8(&text[..length]).map_err(|_| Errno::INVAL)?;
    text.trim().parse().map_err(|_| Errno::INVAL)
}

fn write(path: &str, value: &str) -> Result<(), Errno> {
    let file = openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(file, value.as_bytes()).map(drop)
}
