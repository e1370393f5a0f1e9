//! Slot parents. With control groups v1, a process can start inside a group only if its parent is
//! in that group, and moving a process delays every fork and exit on the machine, for up to 20 ms.
//! So each slot has one small process that was moved into its groups once and only forks preforks.
//! It forks them as its siblings, so the launcher is their parent. It lives as long as the
//! launcher.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use jail::groups::Limits;
use jail::packet;
use jail::plan;
use jail::root::{Built, Part, Source};
use jail::sys::clone::{self, Side};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process};

use super::prefork::{self, PreforkContext};
use super::start::Shared;
use super::token;
use super::watch::{Watch, Watched};

/// A slot parent's message that it is in its groups.
pub(super) const JOINED: u8 = b'J';

/// The most bytes of an encoded root.
const ROOT_BYTES_AT_MOST: usize = 4096;

/// How long a fork may take before the slot parent counts as broken.
const FORK_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct SlotParent {
    pub pid: Pid,
    pub socket: Watched,
    pub has_joined: bool,
    /// The limits that it writes.
    pub limits: Limits,
}

impl SlotParent {
    /// Starts the parent of a slot. It reports when it has joined its groups.
    pub(super) fn start(shared: &Shared, watch: &Watch, slot: u32) -> io::Result<Self> {
        let (ours, theirs) = pair()?;
        let socket = watch.socket(ours, token::SLOT_PARENTS + u64::from(slot))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(FORK_TIMEOUT))?;
        match clone::copy()? {
            Side::Child => {
                run(&shared.context(slot), &theirs);
                clone::exit_now(0);
            }
            Side::Parent(pid) => {
                Ok(Self { pid, socket, has_joined: false, limits: shared.usual_limits })
            }
        }
    }

    /// Lets it fork a prefork with this socket and with layers over this root: the slot parent
    /// knows only the roots that existed when it was started.
    pub(super) fn fork_prefork(&self, socket: BorrowedFd<'_>, root: &Built) -> io::Result<Pid> {
        let bytes = postcard::to_allocvec(&encode(root)).map_err(io::Error::other)?;
        packet::send(&self.socket, &bytes, &[socket])?;
        let mut answer = [0; 4];
        let answered = packet::receive(&self.socket, &mut answer)?;
        let pid = i32::from_le_bytes(answer);
        match Pid::from_raw(pid) {
            Some(child) if answered.bytes == 4 && pid > 0 => Ok(child),
            Some(_) if answered.bytes == 4 => Err(io::Error::from_raw_os_error(-pid)),
            Some(_) | None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    pub(super) fn kill(&self) {
        let _ = kill_process(self.pid, Signal::KILL);
    }
}

/// A root as it is sent: its directory, its layers, and its parts with their sources.
type EncodedRoot<'a> = (&'a str, Vec<&'a str>, Vec<(&'a str, u8, &'a str)>);

fn encode(root: &Built) -> EncodedRoot<'_> {
    let layers = root.layers.iter().map(String::as_str).collect();
    (&root.directory, layers, root.parts.iter().map(encode_part).collect())
}

fn encode_part(part: &Part) -> (&str, u8, &str) {
    let (kind, path) = match &part.source {
        Source::Layer(path) => (0, path),
        Source::Devices(path) => (1, path),
        Source::Copy(path) => (2, path),
    };
    (&part.at, kind, path)
}

fn decode((directory, layers, parts): EncodedRoot<'_>) -> Built {
    let part = |(at, kind, path): (&str, u8, &str)| {
        let path = path.to_owned();
        let source = match kind {
            0 => Source::Layer(path),
            1 => Source::Devices(path),
            _ => Source::Copy(path),
        };
        Part { at: at.to_owned(), source }
    };
    Built {
        directory: directory.to_owned(),
        layers: layers.into_iter().map(str::to_owned).collect(),
        parts: parts.into_iter().map(part).collect(),
    }
}

pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// The process itself. Returns when the launcher is gone.
fn run(context: &PreforkContext<'_>, socket: &OwnedFd) {
    if prefork::forget_launcher(context, socket).is_err() {
        return;
    }
    let _ = rustix::thread::set_name(c"shoal-seed");
    let joined = prefork::with_executor(context, socket, |executor| {
        executor.carry_out(&plan::join_groups())
    });
    if let Err(failed) = joined {
        prefork::report(socket, &failed);
        return;
    }
    if packet::send(socket, &[JOINED], &[]).is_err() {
        return;
    }
    // The slot parent stays outside of this group: it would be frozen with it, and count as one
    // more process.
    let Ok(cgroup_for_clone) = context.groups.cgroup_for_clone(context.slot) else { return };
    let cgroup_for_clone = cgroup_for_clone.as_ref().map(OwnedFd::as_fd);
    let mut buffer = [0; ROOT_BYTES_AT_MOST];
    while let Ok(mut request) = packet::receive(socket, &mut buffer) {
        let Some(prefork_socket) = request.descriptors.pop() else { return };
        let Ok(root) = postcard::from_bytes(&buffer[..request.bytes]) else { return };
        let answer = match clone::sibling_first_of_new_process_namespace(cgroup_for_clone) {
            Ok(Side::Child) => {
                let usual_root = &decode(root);
                prefork::run(&PreforkContext { usual_root, ..*context }, &prefork_socket);
                clone::exit_now(0);
            }
            Ok(Side::Parent(pid)) => pid.as_raw_nonzero().get(),
            Err(error) => -error.raw_os_error().unwrap_or(1),
        };
        drop(prefork_socket);
        if packet::send(socket, &answer.to_le_bytes(), &[]).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_root_is_decoded_as_it_was() {
        let part = |at: &str, source| Part { at: at.to_owned(), source };
        let root = Built {
            directory: "/roots/3".to_owned(),
            layers: vec!["s".to_owned(), "1".to_owned()],
            parts: vec![
                part("usr", Source::Layer("/roots/3/s/usr".to_owned())),
                part("dev", Source::Devices("/devices".to_owned())),
                part("dev", Source::Copy("/devices".to_owned())),
            ],
        };
        let bytes = postcard::to_allocvec(&encode(&root)).unwrap();
        assert_eq!(decode(postcard::from_bytes(&bytes).unwrap()), root);
    }
}
