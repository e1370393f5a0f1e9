//! What a program inside tries and must not get, by group: files, processes, the kernel, the network
//! and our own interfaces; what wants too much of a resource is in [`resources`]. Every attempt has a
//! name and the errors that are meant, and is a line of what the probe prints, so a probe that stops
//! early or is refused for another reason than it should be is noticed.

mod forgery;
mod races;
mod resources;
mod shared_files;

use std::collections::BTreeSet;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::{Context as _, Result, ensure};
use jail::seccomp::{allowed, arguments, refused};
use serde_json::{Value, json};

use super::node::{Node, name_of, on_node};

/// What every probe begins with.
pub(super) const PROBE: &str = include_str!("probe.py");

/// The port that a server listens on unless it is told otherwise.
const CONTROL_PORT: u16 = 7600;

/// What is there on the host for a probe to find.
struct Bait {
    port: TcpListener,
    port_6: Option<TcpListener>,
    /// Absent if a server or another test has it; then something listens there all the same.
    _control: Option<TcpListener>,
    _unnamed: UnixListener,
    _named: UnixListener,
    abstract_name: String,
    socket: String,
    file: String,
}

impl Bait {
    fn lay_out(node: &Node) -> Result<Self> {
        let text = |name: &str| {
            let path = node.directory().join(name);
            anyhow::Ok(path.to_str().context("temporary paths are text")?.to_owned())
        };
        let (file, socket) = (text("secret")?, text("socket")?);
        std::fs::write(&file, "secret")?;
        let abstract_name = format!("bait-{}", node.name());
        Ok(Self {
            port: TcpListener::bind("0.0.0.0:0")?,
            port_6: TcpListener::bind("[::1]:0").ok(),
            _control: TcpListener::bind(("127.0.0.1", CONTROL_PORT)).ok(),
            _unnamed: UnixListener::bind_addr(&SocketAddr::from_abstract_name(&abstract_name)?)?,
            _named: UnixListener::bind(&socket)?,
            abstract_name,
            socket,
            file,
        })
    }

    /// What the probe is told, so that it knows what to look for.
    fn described(&self, node: &Node, group: &str, neighbour_port: u16) -> Result<Value> {
        let port = self.port.local_addr()?.port();
        let port_6 = self
            .port_6
            .as_ref()
            .map_or(Ok(port), |listener| anyhow::Ok(listener.local_addr()?.port()))?;
        let directory = node.directory().to_string_lossy().into_owned();
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
            "host_pids": { "the launcher": node.launcher(), "the server": std::process::id() },
            "neighbour_port": neighbour_port,
            "run_directory": directory,
            "words_of_the_host": words_of_the_host(&directory, hostname.trim()),
            "users": name_of(node.users()),
            "frame": forgery::hex(&forgery::forged_exit(7)?),
        }))
    }
}

/// Numbers of system calls by name, as the policy has them.
pub(super) fn calls() -> Value {
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

/// Runs the probe of a group; each attempt must fail as it is meant to.
fn nothing_gets_through(group: &str, script: &str, at_least: usize) -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let (sandbox, neighbour) = (node.sandbox().await?, node.sandbox().await?);
            let bait = Bait::lay_out(node)?;
            let neighbour_port = listener_in(node, &neighbour).await?;
            let given = bait.described(node, group, neighbour_port)?.to_string();
            let program = format!("{PROBE}\n{script}");
            let said = node.python(&sandbox, &program, &[&given]).await?;
            show(&said);
            let tried: Vec<&str> = said.lines().filter(|line| line.contains(": ")).collect();
            let (last, attempts) = tried.split_last().context("the probe said nothing")?;
            let through: Vec<&&str> = attempts.iter().filter(|line| !as_meant(line)).collect();
            ensure!(through.is_empty(), "not refused, or not as meant:\n{through:#?}");
            ensure!(*last == format!("tried: {}", attempts.len()), "some were not tried:\n{said}");
            ensure!(attempts.len() >= at_least, "only {} attempts", attempts.len());
            sandbox.ping().await?;
            neighbour.ping().await?;
            Ok(())
        },
    )
}

/// Whether an attempt ended as it should, which in some modes is known to be a success.
pub(super) fn as_meant(line: &str) -> bool {
    line.contains(": refused ") || line.contains(": weaker ")
}

/// Something that listens in a sandbox, for others not to reach.
async fn listener_in(node: &Node, sandbox: &std::sync::Arc<dyn runtime::Sandbox>) -> Result<u16> {
    let listen = "import os, socket\ns = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n\
                  print(s.getsockname()[1], flush=True)\n\
                  if os.fork() == 0:\n  import time; os.close(1); os.close(2); time.sleep(120)\n";
    Ok(node.python(sandbox, listen, &[]).await?.trim().parse()?)
}

/// Every attempt by name, for whoever reads the output of the tests.
#[expect(clippy::print_stdout, reason = "it is the report of the probe")]
pub(super) fn show(report: &str) {
    println!("{report}");
}

#[test]
fn files_outside_are_out_of_reach() -> Result<()> {
    nothing_gets_through("files", include_str!("files.py"), 170)
}

#[test]
fn processes_outside_are_out_of_reach() -> Result<()> {
    nothing_gets_through("processes", include_str!("processes.py"), 120)
}

#[test]
fn the_kernel_is_out_of_reach() -> Result<()> {
    nothing_gets_through("kernel", include_str!("kernel.py"), 115)
}

#[test]
fn networks_outside_are_out_of_reach() -> Result<()> {
    nothing_gets_through("network", include_str!("network.py"), 65)
}

#[test]
fn our_own_interfaces_are_out_of_reach() -> Result<()> {
    nothing_gets_through("own_api", include_str!("own_api.py"), 45)
}
