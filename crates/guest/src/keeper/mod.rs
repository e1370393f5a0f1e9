//! The keeper: a small privileged process on the host that wipes and proves containers from
//! outside. It reports the state of a new container, replaces the writable mounts after a use, and
//! checks that nothing of that use is left. It also makes the network of a policy in containers. One request after the other, in one thread, until its
//! socket is closed.
//!
//! It trusts nothing inside: a container is known by a handle of its first process, paths are
//! looked up beneath that process' root without following links, and the few steps that must happen
//! in its namespaces touch only descriptors. It must never return half: if it cannot return to its
//! own namespaces, it ends.

mod disposer;
mod namespaces;
mod network;
mod objects;
mod process;
mod sockets;
mod state;
mod writable_mounts;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use guest_protocol::keeper::{
    Ask, FromKeeper, KeeperRefusal, KeeperRefusalCode, MAX_PACKET_BYTES, MAX_WRITABLE_MOUNTS,
    ToKeeper, WritableMountSpec,
};
use guest_protocol::network::NetworkFeature;
use jail::{packet, sys};
use rustix::io::Errno;
use rustix::thread::ThreadNameSpaceType;

use disposer::Disposer;
use namespaces::OwnNamespaces;
use process::Process;

/// The descriptor at which our starter leaves the socket.
const HOST_SOCKET: i32 = 3;

/// Why a request is refused.
type Refusal = KeeperRefusal;

fn refusal(code: KeeperRefusalCode, step: impl Into<String>, errno: i32) -> Refusal {
    Refusal { code, step: step.into(), errno }
}

/// The refusal for something of a use that is left.
fn leftover(what: impl Into<String>) -> Refusal {
    refusal(KeeperRefusalCode::Left, what, 0)
}

/// Names the step at which the kernel refused.
trait Named<T> {
    fn named(self, step: &str) -> Result<T, Refusal>;
}

impl<T> Named<T> for io::Result<T> {
    fn named(self, step: &str) -> Result<T, Refusal> {
        self.map_err(|error| {
            refusal(KeeperRefusalCode::System, step, error.raw_os_error().unwrap_or(0))
        })
    }
}

impl<T> Named<T> for Result<T, Errno> {
    fn named(self, step: &str) -> Result<T, Refusal> {
        self.map_err(|errno| refusal(KeeperRefusalCode::System, step, errno.raw_os_error()))
    }
}

/// Whether the kernel's tables are used for policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tables {
    /// If they work.
    Tried,
    /// Not at all.
    Unused,
}

/// An answer, and the descriptors that come with it.
type Answered = (FromKeeper, Vec<OwnedFd>);

/// The role of the keeper, from start to end.
pub(crate) fn main(tables: Tables) -> ExitCode {
    let Ok(host) = sys::descriptors::take(HOST_SOCKET) else { return ExitCode::from(2) };
    let _ = rustix::thread::set_name(c"shoal-keeper");
    let keeper = match Keeper::start(tables) {
        Ok(keeper) => keeper,
        Err(refusal) => {
            let _ = answer(&host, &(FromKeeper::Refused { ticket: 0, refusal }, Vec::new()));
            return ExitCode::FAILURE;
        }
    };
    let mut buffer = vec![0; MAX_PACKET_BYTES];
    let mut answered = answer(&host, &(FromKeeper::Up { network: keeper.network }, Vec::new()));
    while answered.is_ok() {
        answered = match packet::receive(&host, &mut buffer) {
            Ok(packet) if packet.bytes == 0 => return ExitCode::SUCCESS,
            Ok(packet) => match postcard::from_bytes(&buffer[..packet.bytes]) {
                Ok(request) => answer(&host, &keeper.handle(&request, packet.descriptors)),
                Err(_) => return ExitCode::from(3),
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        };
    }
    ExitCode::FAILURE
}

/// Waits until the host takes the answer: there is nothing else to do meanwhile.
fn answer(host: &OwnedFd, (answer, descriptors): &Answered) -> io::Result<()> {
    let bytes = postcard::to_allocvec(answer).map_err(io::Error::other)?;
    if !descriptors.is_empty() {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        // The answers before it were read, so there is room.
        return packet::send(host, &bytes, &descriptors);
    }
    loop {
        match rustix::net::send(host, &bytes, rustix::net::SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return Ok(sent.map(drop)?),
        }
    }
}

struct Keeper {
    namespaces: OwnNamespaces,
    disposer: Disposer,
    /// How containers with a policy reach the network.
    network: NetworkFeature,
}

impl Keeper {
    fn start(tables: Tables) -> Result<Self, Refusal> {
        // Started before anything is opened that it would inherit.
        let disposer = Disposer::start().named("start the disposer")?;
        let namespaces = OwnNamespaces::open()?;
        let network = network::try_out(&namespaces, tables);
        Ok(Self { namespaces, disposer, network })
    }

    fn handle(&self, request: &ToKeeper, descriptors: Vec<OwnedFd>) -> Answered {
        let ticket = request.ticket;
        let answer = self.carry_out(request, descriptors);
        answer.unwrap_or_else(|refusal| (FromKeeper::Refused { ticket, refusal }, Vec::new()))
    }

    fn carry_out(
        &self,
        request: &ToKeeper,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Answered, Refusal> {
        let ToKeeper { ticket, ref ask, ref places } = *request;
        let handle = descriptors.into_iter().next();
        let handle = handle.ok_or_else(|| {
            refusal(KeeperRefusalCode::Gone, "the request has no process handle", 0)
        })?;
        if places.len() > MAX_WRITABLE_MOUNTS {
            return Err(refusal(KeeperRefusalCode::Foreign, "too many writable mounts", 0));
        }
        let process = Process::open(&self.namespaces, handle)?;
        let mut passed = Vec::new();
        let answer = match ask {
            Ask::Look => {
                let facts = state::facts(&process, places)?;
                FromKeeper::Seen { ticket, facts }
            }
            Ask::Renew => {
                self.renew(&process, places)?;
                FromKeeper::Renewed { ticket }
            }
            Ask::Prove => {
                self.prove(&process, places)?;
                FromKeeper::Seen { ticket, facts: state::facts(&process, places)? }
            }
            Ask::Network(request) => {
                let (sockets, refused) =
                    network::carry_out(&self.namespaces, self.network, &process, request)?;
                passed = sockets;
                FromKeeper::Networked { ticket, refused }
            }
        };
        // Checked last: only while the process lived was the process id in what we read its own.
        process.check_alive()?;
        Ok((answer, passed))
    }

    fn prove(&self, process: &Process, places: &[WritableMountSpec]) -> Result<(), Refusal> {
        process.check_alone()?;
        for place in places {
            writable_mounts::prove(process, place)?;
        }
        sockets::prove(process)?;
        network::prove(&self.namespaces, self.network, process)?;
        let kinds = ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
        let prove = || objects::prove(&self.namespaces, &self.disposer);
        self.namespaces.within(process, kinds, prove)?
    }

    fn renew(&self, process: &Process, places: &[WritableMountSpec]) -> Result<(), Refusal> {
        let root = process.root()?;
        let mut fresh = Vec::with_capacity(places.len());
        for place in places {
            fresh.push((place, writable_mounts::fresh(process, place)?));
        }
        let kinds = ThreadNameSpaceType::MOUNT | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
        self.namespaces.within(process, kinds, || {
            let old = writable_mounts::replace_all(&root, fresh)?;
            if writable_mounts::hold_much_memory(places, &old) {
                drop(old);
            } else {
                self.disposer.take(old);
            }
            objects::remove_all(&self.namespaces, &self.disposer)
        })??;
        // Before connections are forgotten: without the rules, no more of them can begin.
        network::take_away(&self.namespaces, self.network, process)?;
        sockets::close_all(&self.namespaces, process)
    }
}
