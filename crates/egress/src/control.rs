//! The messages between the server and a process of the way out: one message per packet of a
//! sequenced packet socket. A message that is too long for a packet travels in a sealed file in memory.
//! Values of secrets pass here once, to the process that needs them; nothing prints them.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use model::{HostName, InstanceId, KeyId};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, memfd_create};
use rustix::net::{RecvFlags, recv};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::UnixStream;
use zeroize::{Zeroize as _, Zeroizing};

use crate::event::EgressEvent;
use crate::limits::EgressLimits;
use crate::node_addresses::NodeAddresses;
use crate::policy::Reach;

/// The most bytes of a packet. Longer messages come in a file.
const PACKET_BYTES_MAX: usize = 32 * 1024;

/// The most bytes of a message: 32 secrets of 64 KiB, a policy and a margin.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// The most bytes of one text in an event, so that a batch of events fits into a packet.
pub(crate) const EVENTS_PER_PACKET: usize = 24;

/// What a packet begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Envelope {
    /// The message follows.
    Here,
    /// The message is in the file that is the first descriptor.
    InFile,
}

/// The sockets of a sandbox, which were made in its network.
#[derive(Debug)]
pub struct Sockets {
    /// Connections of any kind: a listener.
    pub connections: OwnedFd,
    /// Questions for names: a UDP socket. None where only the proxy works.
    pub names: Option<OwnedFd>,
}

/// A value that replaces its placeholder on the way to some hosts.
#[derive(Clone, Serialize, Deserialize)]
pub struct BoundarySecret {
    /// What the sandbox has in place of the value.
    pub placeholder: String,
    /// The value.
    pub value: Zeroizing<String>,
    /// The header in which it is replaced, in lower case.
    pub header: String,
    /// The hosts, on port 443.
    pub hosts: Vec<HostName>,
    /// The name of the secret, for events.
    pub secret: String,
}

impl fmt::Debug for BoundarySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundarySecret")
            .field("secret", &self.secret)
            .field("header", &self.header)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// A proxy of the operator through which everything goes out.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamProxy {
    /// Where it is.
    pub address: SocketAddr,
    /// The value of `Proxy-Authorization`, if it wants one.
    pub authorization: Option<String>,
    /// Whether it resolves names. Then nothing checks the addresses that names lead to, except it.
    pub resolves: bool,
}

impl fmt::Debug for UpstreamProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamProxy")
            .field("address", &self.address)
            .field("resolves", &self.resolves)
            .finish_non_exhaustive()
    }
}

/// What holds for a process from its beginning.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Beginning {
    /// The user and group to become if started as root.
    pub user: u32,
    /// Who resolves names; none is what the system's configuration says.
    pub resolver: Option<SocketAddr>,
    /// Names that are known without asking.
    pub hosts: BTreeMap<HostName, Vec<IpAddr>>,
    /// Through whom connections go.
    pub proxy: Option<UpstreamProxy>,
    /// Certificates of authorities that hosts of boundary secrets may have besides the usual ones.
    pub upstream_ca_pem: Option<String>,
    /// The authority that signs for hosts of boundary secrets; only in the process of a key.
    pub authority: Option<Zeroizing<Vec<u8>>>,
    /// The addresses of the node.
    pub node: NodeAddresses,
}

/// A sandbox to serve.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct AttachMessage {
    /// Which.
    pub sandbox: InstanceId,
    /// Whose, for the limits of a key.
    pub key: Option<KeyId>,
    /// Among how many processes the limits of the key are divided.
    pub parts: u32,
    /// The key of its synthetic addresses.
    pub names_key: [u8; 16],
    /// What it may reach.
    pub policy: Reach,
    /// How much.
    pub limits: EgressLimits,
    /// Its boundary secrets.
    pub secrets: Vec<BoundarySecret>,
}

/// To a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum ToEgress {
    /// First, and once.
    Begin(Box<Beginning>),
    /// Serve a sandbox. One or two descriptors come with it: its sockets. A sandbox of this id that is
    /// already served is replaced.
    Attach {
        /// Repeated in the answer.
        ticket: u64,
        /// The sandbox.
        attach: Box<AttachMessage>,
    },
    /// From now on this policy holds.
    Change {
        /// Repeated in the answer.
        ticket: u64,
        /// Which.
        sandbox: InstanceId,
        /// Whose, for the limits of a key: of connections that come from now on.
        key: Option<KeyId>,
        /// Among how many processes the limits of the key are divided.
        parts: u32,
        /// What it may reach.
        policy: Reach,
    },
    /// Close everything of a sandbox. One that is not served is fine.
    Forget {
        /// Repeated in the answer.
        ticket: u64,
        /// Which.
        sandbox: InstanceId,
        /// Whether the answer brings the sockets.
        return_sockets: bool,
    },
    /// The addresses of the node have changed.
    Node(NodeAddresses),
    /// The limits of a key are divided among so many processes now.
    Share {
        /// The key.
        key: KeyId,
        /// How many.
        parts: u32,
    },
}

/// From a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromEgress {
    /// It has begun.
    Up,
    /// The request is carried out. The sockets come with it if they were asked for.
    Done {
        /// That of the request.
        ticket: u64,
    },
    /// The request failed, and changed nothing.
    Refused {
        /// That of the request.
        ticket: u64,
        /// Why.
        reason: String,
    },
    /// Things that happened.
    Events(Vec<EgressEvent>),
    /// Numbers since its beginning.
    Counts(ProcessCounts),
}

/// Numbers of a process since its beginning; `connections` and `sandboxes` are of now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessCounts {
    pub connections: u64,
    pub accepted: u64,
    pub refused: u64,
    pub failed: u64,
    pub names_allowed: u64,
    pub names_refused: u64,
    pub sent: u64,
    pub received: u64,
    pub dropped_events: u64,
    pub waits_of_sandbox: u64,
    pub waits_of_key: u64,
    pub waits_of_process: u64,
}

/// A message as it travels.
#[derive(Debug)]
pub(crate) struct Letter {
    bytes: Zeroizing<Vec<u8>>,
    file: Option<OwnedFd>,
}

impl Letter {
    /// Writes a message.
    pub(crate) fn new<M: Serialize>(message: &M) -> io::Result<Self> {
        let body = postcard::to_allocvec(message).map_err(io::Error::other)?;
        let body = Zeroizing::new(body);
        if body.len() > MESSAGE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
        }
        if body.len() < PACKET_BYTES_MAX {
            let mut bytes = Zeroizing::new(Vec::with_capacity(1 + body.len()));
            bytes.extend(postcard::to_allocvec(&Envelope::Here).map_err(io::Error::other)?);
            bytes.extend_from_slice(&body);
            return Ok(Self { bytes, file: None });
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = std::fs::File::from(memfd_create("shoal-egress-message", flags)?);
        file.write_all(&body)?;
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        let bytes = postcard::to_allocvec(&Envelope::InFile).map_err(io::Error::other)?;
        Ok(Self { bytes: Zeroizing::new(bytes), file: Some(file.into()) })
    }
}

/// One end of the socket between the server and a process.
#[derive(Debug)]
pub(crate) struct Channel {
    /// Used for its readiness only: packets have calls of their own.
    socket: UnixStream,
    /// What arrives is read here, and is gone from it when it is read.
    buffer: Mutex<Zeroizing<Vec<u8>>>,
}

impl Channel {
    /// Takes over an end. In a runtime.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let buffer = Mutex::new(Zeroizing::new(vec![0; PACKET_BYTES_MAX + 16]));
        Ok(Self { socket: UnixStream::from_std(socket.into())?, buffer })
    }

    /// Sends a message whole, with descriptors. If the future is dropped, it was sent or it was not.
    pub(crate) async fn send(
        &self,
        letter: &Letter,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let file = letter.file.iter().map(OwnedFd::as_fd);
        let all: Vec<BorrowedFd<'_>> = file.chain(descriptors.iter().copied()).collect();
        self.socket
            .async_io(Interest::WRITABLE, || jail::packet::send(&self.socket, &letter.bytes, &all))
            .await
    }

    /// Receives the next message; `None` is the end. If the future is dropped, nothing is lost.
    pub(crate) async fn receive<M: DeserializeOwned>(
        &self,
    ) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        let receive = || {
            let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
            let packet = jail::packet::receive(&self.socket, &mut buffer)?;
            let bytes = &mut buffer[..packet.bytes];
            let read = (!bytes.is_empty()).then(|| open(bytes, packet.descriptors));
            bytes.zeroize();
            Ok(read)
        };
        self.socket.async_io(Interest::READABLE, receive).await?.transpose()
    }

    /// Whether a message, or the end, has arrived and was not received yet.
    pub(crate) fn has_message(&self) -> bool {
        recv(&self.socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok()
    }
}

fn open<M: DeserializeOwned>(
    packet: &[u8],
    mut descriptors: Vec<OwnedFd>,
) -> io::Result<(M, Vec<OwnedFd>)> {
    let unreadable = |error: postcard::Error| io::Error::new(io::ErrorKind::InvalidData, error);
    let (envelope, rest) = postcard::take_from_bytes(packet).map_err(unreadable)?;
    match envelope {
        Envelope::Here => Ok((postcard::from_bytes(rest).map_err(unreadable)?, descriptors)),
        Envelope::InFile => {
            if descriptors.is_empty() {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let file = descriptors.remove(0);
            let length = usize::try_from(fstat(&file)?.st_size).unwrap_or(usize::MAX);
            if length > MESSAGE_BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let mut body = Zeroizing::new(vec![0; length]);
            let mut at = 0;
            while at < length {
                match rustix::io::pread(&file, &mut body[at..], at as u64)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    count => at += count,
                }
            }
            Ok((postcard::from_bytes(&body).map_err(unreadable)?, descriptors))
        }
    }
}

/// Opens a packet as it arrived, without descriptors, and writes what it says anew: it must be the same.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn reopen<M: Serialize + DeserializeOwned>(packet: &[u8]) {
    let Ok((message, _)) = open::<M>(packet, Vec::new()) else { return };
    let Ok(letter) = Letter::new(&message) else { return };
    let descriptors = letter.file.into_iter().collect();
    let (again, _) = open::<M>(&letter.bytes, descriptors).expect("it was written a moment ago");
    let written = |message: &M| postcard::to_allocvec(message).expect("it was written before");
    assert_eq!(written(&again), written(&message));
}

#[cfg(test)]
mod tests {
    use model::{NetworkPolicy, NetworkRule};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (Channel, Channel) {
        let (one, two) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        (Channel::new(one).unwrap(), Channel::new(two).unwrap())
    }

    #[tokio::test]
    async fn the_longest_policy_and_secrets_arrive_with_their_sockets() {
        let (one, two) = pair();
        let rule = |number: usize| {
            let label = "a".repeat(60);
            let text = format!("x{number}.{label}.{label}.{label}.test:1000-2000/http");
            text.parse::<NetworkRule>().unwrap()
        };
        let secret = BoundarySecret {
            placeholder: "shoal-placeholder".into(),
            value: Zeroizing::new("v".repeat(64 * 1024)),
            header: "authorization".into(),
            hosts: Vec::new(),
            secret: "s".into(),
        };
        let attach = AttachMessage {
            sandbox: InstanceId::from_u128(7),
            key: None,
            parts: 1,
            names_key: [1; 16],
            policy: NetworkPolicy::Allow((0..256).map(rule).collect()).into(),
            limits: EgressLimits::default(),
            secrets: vec![secret; 32],
        };
        assert!(!format!("{attach:?}").contains("vvvv"), "a value would be printed");
        let message = ToEgress::Attach { ticket: 3, attach: Box::new(attach.clone()) };
        let file = std::fs::File::open("/dev/null").unwrap();
        one.send(&Letter::new(&message).unwrap(), &[file.as_fd()]).await.unwrap();
        let (message, descriptors) = two.receive::<ToEgress>().await.unwrap().unwrap();
        let ToEgress::Attach { ticket: 3, attach: arrived } = message else { panic!() };
        assert_eq!((arrived.policy, descriptors.len()), (attach.policy, 1));
        assert_eq!(arrived.secrets[31].value.len(), 64 * 1024);
        drop(one);
        assert!(two.receive::<ToEgress>().await.unwrap().is_none());
    }

    #[test]
    fn a_message_beyond_all_limits_is_refused() {
        assert!(Letter::new(&vec![0_u8; MESSAGE_BYTES_MAX + 1]).is_err());
    }
}
