//! Bait on the host for a probe to find, and the description of it that the probe gets.

use std::collections::BTreeSet;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use anyhow::{Context as _, Result};
use jail::seccomp::{allowed, arguments, refused};
use serde_json::{Value, json};

use super::forgery::{forged_exit, hex};

/// The default port of a server.
const CONTROL_PORT: u16 = 7600;

/// What is there on the host for a probe to find.
pub(crate) struct Bait {
    port: TcpListener,
    port_6: Option<TcpListener>,
    /// Absent if a server or another test has it; then something listens there all the same.
    _control: Option<TcpListener>,
    _unnamed: UnixListener,
    _named: UnixListener,
    abstract_name: String,
    socket: String,
    file: String,
    directory: String,
}

/// What is different from run to run.
pub(crate) struct Seen {
    /// Whose the users of the sandbox are on the host.
    pub(crate) users: &'static str,
    /// Processes outside, by what they are.
    pub(crate) host_pids: Value,
    /// Where something listens in another sandbox.
    pub(crate) neighbour_port: u16,
}

impl Bait {
    pub(crate) fn lay_out(directory: &Path, name: &str) -> Result<Self> {
        let text = |name: &str| {
            let path = directory.join(name);
            anyhow::Ok(path.to_str().context("temporary paths are text")?.to_owned())
        };
        let (file, socket) = (text("secret")?, text("socket")?);
        std::fs::write(&file, "secret")?;
        let abstract_name = format!("bait-{name}");
        Ok(Self {
            port: TcpListener::bind("0.0.0.0:0")?,
            port_6: TcpListener::bind("[::1]:0").ok(),
            _control: TcpListener::bind(("127.0.0.1", CONTROL_PORT)).ok(),
            _unnamed: UnixListener::bind_addr(&SocketAddr::from_abstract_name(&abstract_name)?)?,
            _named: UnixListener::bind(&socket)?,
            abstract_name,
            socket,
            file,
            directory: directory.to_string_lossy().into_owned(),
        })
    }

    /// The description for the probe, so that it knows what to look for.
    pub(crate) fn described(&self, group: &str, seen: &Seen) -> Result<Value> {
        let port = self.port.local_addr()?.port();
        let port_6 = self
            .port_6
            .as_ref()
            .map_or(Ok(port), |listener| anyhow::Ok(listener.local_addr()?.port()))?;
        let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
        // Our own command line is something that must not be seen.
        let mark = std::env::args().next().context("tests have a name")?;
        Ok(json!({
            "group": group,
            "calls": calls(),
            "host_file": self.file,
            "host_port": port,
            "host_port_6": port_6,
            "control_port": CONTROL_PORT,
            "ports_in_tables": [format!(":{port:04X} "), format!(":{port_6:04X} ")],
            "host_addresses": addresses_of_the_host(),
            "host_abstract": self.abstract_name,
            "host_socket": self.socket,
            "host_mark": mark,
            "host_pids": seen.host_pids,
            "neighbour_port": seen.neighbour_port,
            "run_directory": self.directory,
            "words_of_the_host": words_of_the_host(&self.directory, hostname.trim()),
            "users": seen.users,
            "frame": hex(&forged_exit(7)?),
        }))
    }
}

/// Numbers of system calls by name, as the policy has them.
pub(crate) fn calls() -> Value {
    let groups = [allowed::GROUPS, arguments::GROUPS, refused::GROUPS].into_iter().flatten();
    let calls = groups.flat_map(|group| group.calls);
    calls.map(|call| (call.name().to_owned(), json!(call.number()))).collect()
}

/// Addresses under which the host is reached from elsewhere. No packet is sent to find them out.
fn addresses_of_the_host() -> Vec<String> {
    let ways = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];
    let found = ways.iter().filter_map(|(from, to)| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip().to_string())
    });
    found.collect()
}

/// Words that only someone who sees the host could say: where its files are, on which disks, and
/// its name, if it is one that says something.
fn words_of_the_host(directory: &str, hostname: &str) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let sources = mounts.lines().filter_map(|line| line.split(" - ").nth(1)?.split(' ').nth(1));
    let disks = sources.filter(|source| source.starts_with("/dev/"));
    let mut words: BTreeSet<String> = disks.map(str::to_owned).collect();
    words.insert(directory.to_owned());
    if hostname.len() > 4 && hostname != "localhost" {
        words.insert(hostname.to_owned());
    }
    words.into_iter().collect()
}
