//! Seeds: where control groups are v1, a process cannot be born in a group but by a parent that is
//! in it, and moving one holds up everyone who starts or ends a process, for up to 20 ms. So each
//! slot has one small process that was moved into its groups once and does nothing but give birth
//! to stems, as its siblings: the launcher is their parent. It lives as long as the launcher.

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

use super::start::Shared;
use super::stem::{self, Origin};
use super::token;
use super::watch::{Watch, Watched};

/// A seed's word that it is in its groups.
pub(super) const SETTLED: u8 = b'J';

/// A root as it travels is surely shorter.
const ROOT_BYTES_AT_MOST: usize = 4096;

/// How long a birth may take before the seed counts as broken.
const BIRTH_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Seed {
    pub pid: Pid,
    pub socket: Watched,
    pub settled: bool,
    /// The limits that it writes.
    pub limits: Limits,
}

impl Seed {
    /// Makes the seed of a slot. It says when it is settled.
    pub(super) fn plant(shared: &Shared, watch: &Watch, slot: u32) -> io::Result<Self> {
        let (ours, theirs) = pair()?;
        let socket = watch.socket(ours, token::SEEDS + u64::from(slot))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(BIRTH_TIMEOUT))?;
        match clone::copy()? {
            Side::Child => {
                live(&shared.origin(slot), &theirs);
                clone::exit_now(0);
            }
            Side::Parent(pid) => {
                Ok(Self { pid, socket, settled: false, limits: shared.usual_limits })
            }
        }
    }

    /// Has it give birth to a stem with this socket, and layers over this root: the seed knows
    /// only the roots that there were when it was planted.
    pub(super) fn bear(&self, socket: BorrowedFd<'_>, root: &Built) -> io::Result<Pid> {
        let bytes = postcard::to_allocvec(&written(root)).map_err(io::Error::other)?;
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

/// A root as it travels: its directory, its layers, and its parts with what they are made of.
type Written<'a> = (&'a str, Vec<&'a str>, Vec<(&'a str, u8, &'a str)>);

fn written(root: &Built) -> Written<'_> {
    let layers = root.layers.iter().map(String::as_str).collect();
    (&root.directory, layers, root.parts.iter().map(written_part).collect())
}

fn written_part(part: &Part) -> (&str, u8, &str) {
    let (kind, path) = match &part.source {
        Source::Layer(path) => (0, path),
        Source::Devices(path) => (1, path),
        Source::Copy(path) => (2, path),
    };
    (&part.at, kind, path)
}

fn read((directory, layers, parts): Written<'_>) -> Built {
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

/// The seed itself. Returns when the launcher is gone.
fn live(origin: &Origin<'_>, socket: &OwnedFd) {
    if stem::forget_launcher(origin, socket).is_err() {
        return;
    }
    let _ = rustix::thread::set_name(c"shoal-seed");
    let settled = stem::with_body(origin, socket, |body| body.carry_out(&plan::settle()));
    if let Err(failed) = settled {
        stem::report(socket, &failed);
        return;
    }
    if packet::send(socket, &[SETTLED], &[]).is_err() {
        return;
    }
    // Not in there itself: what is frozen has to be woken for it, and it would be one more.
    let Ok(birthplace) = origin.groups.birthplace(origin.slot) else { return };
    let birthplace = birthplace.as_ref().map(OwnedFd::as_fd);
    let mut wish = [0; ROOT_BYTES_AT_MOST];
    while let Ok(mut asked) = packet::receive(socket, &mut wish) {
        let Some(stem_socket) = asked.descriptors.pop() else { return };
        let Ok(root) = postcard::from_bytes(&wish[..asked.bytes]) else { return };
        let answer = match clone::sibling_first_of_new_process_namespace(birthplace) {
            Ok(Side::Child) => {
                let usual_root = &read(root);
                stem::live(&Origin { usual_root, ..*origin }, &stem_socket);
                clone::exit_now(0);
            }
            Ok(Side::Parent(pid)) => pid.as_raw_nonzero().get(),
            Err(error) => -error.raw_os_error().unwrap_or(1),
        };
        drop(stem_socket);
        if packet::send(socket, &answer.to_le_bytes(), &[]).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_arrives_as_it_was_sent() {
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
        let bytes = postcard::to_allocvec(&written(&root)).unwrap();
        assert_eq!(read(postcard::from_bytes(&bytes).unwrap()), root);
    }
}
