//! The network of a sandbox with a policy, without the process that usually has its sockets: a test
//! has them, and says to each connection which address was dialled.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use anyhow::{Context as _, Result, ensure};
use model::NetworkPolicy;
use runtime::{NetworkAbility, NetworkSockets, Runtime as _, RuntimeErrorCode, Sandbox};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinHandle;

use super::node::{Node, on_node, on_node_within, skip, slowed};

/// Tries what its arguments say, and says what happened.
pub(crate) const INSIDE: &str = include_str!("inside.py");

/// A policy with these rules.
pub(crate) fn allow(rules: &[&str]) -> Result<NetworkPolicy> {
    let rules: Result<Vec<_>, _> = rules.iter().map(|rule| rule.parse()).collect();
    Ok(NetworkPolicy::Allow(rules?))
}

/// Whether this machine has what a policy needs.
fn is_transparent(node: &Node) -> Result<bool> {
    match node.native().capabilities().network {
        NetworkAbility::Transparent => Ok(true),
        NetworkAbility::ProxyOnly | NetworkAbility::None => {
            skip("no tables of nf_tables with tproxy").map(|()| false)
        }
    }
}

/// Serves sockets: tells each connection where it was going, and each question that it was heard.
pub(crate) struct Served(Vec<JoinHandle<()>>);

impl Served {
    pub(crate) fn new(sockets: NetworkSockets) -> Result<Self> {
        let listener = std::net::TcpListener::from(sockets.connections);
        let listener = TcpListener::from_std(listener)?;
        let mut tasks = vec![tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let Ok(dialled) = stream.local_addr() else { continue };
                let _ = stream.write_all(format!("to {dialled}").as_bytes()).await;
            }
        })];
        if let Some(names) = sockets.names {
            let names = UdpSocket::from_std(std::net::UdpSocket::from(names))?;
            tasks.push(tokio::spawn(async move {
                let mut buffer = [0; 512];
                while let Ok((_, from)) = names.recv_from(&mut buffer).await {
                    let _ = names.send_to(b"heard", from).await;
                }
            }));
        }
        Ok(Self(tasks))
    }

    /// Closes them; done when they are closed.
    pub(crate) async fn close(mut self) {
        for task in std::mem::take(&mut self.0) {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

async fn armed(sandbox: &Arc<dyn Sandbox>, policy: &NetworkPolicy) -> Result<Served> {
    Served::new(sandbox.arm_network(policy).await?)
}

/// Tries things inside; each has a line of what happened.
async fn tried(node: &Node, sandbox: &Arc<dyn Sandbox>, what: &[(&str, &str)]) -> Result<()> {
    let words: Vec<&str> = what.iter().map(|(word, _)| *word).collect();
    let said = node.python(sandbox, INSIDE, &words).await?;
    let expected: Vec<String> =
        what.iter().map(|(word, outcome)| format!("{word} {outcome}")).collect();
    ensure!(said.lines().eq(expected.iter()), "{said}\ninstead of\n{}", expected.join("\n"));
    Ok(())
}

#[test]
fn programs_reach_what_the_rules_name_and_nothing_else() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            if !is_transparent(node)? {
                return Ok(());
            }
            let sandbox = node.sandbox().await?;
            let policy =
                allow(&["a.test", "10.1.0.0/16:8000-8100", "10.2.3.4", "172.16.0.0/12:22"])?;
            let _served = armed(&sandbox, &policy).await?;
            tried(
                node,
                &sandbox,
                &[
                    ("dial,198.18.5.6,443", "to 198.18.5.6:443"),
                    ("dial,198.19.255.254,8080", "to 198.19.255.254:8080"),
                    ("dial6,::ffff:198.18.5.6,443", "to 198.18.5.6:443"),
                    ("dial,10.1.2.3,8005", "to 10.1.2.3:8005"),
                    ("dial,10.2.3.4,65535", "to 10.2.3.4:65535"),
                    ("dial,172.31.0.1,22", "to 172.31.0.1:22"),
                    ("ask,udp", "heard"),
                    ("ask,tcp", "to 127.0.0.1:53"),
                    ("dial,127.0.0.1,3128", "to 127.0.0.1:3128"),
                    ("dial,10.1.2.3,9000", "EHOSTUNREACH"),
                    ("dial,10.2.3.5,80", "EHOSTUNREACH"),
                    ("dial,172.32.0.1,22", "EHOSTUNREACH"),
                    ("dial,1.2.3.4,443", "EHOSTUNREACH"),
                    ("dial,169.254.169.254,80", "EHOSTUNREACH"),
                    ("dial6,::ffff:1.2.3.4,443", "EHOSTUNREACH"),
                    ("dial6,2001:db8::1,443", "EHOSTUNREACH"),
                    ("dial6,fd00::1,443", "EHOSTUNREACH"),
                    ("dial6,::1,443", "ECONNREFUSED"),
                    ("dial,0.0.0.0,443", "ECONNREFUSED"),
                    ("dial,198.18.0.1,443", "ECONNREFUSED"),
                    ("send,8.8.8.8,53", "EPERM"),
                    ("send,198.18.5.6,443", "EPERM"),
                    ("send,224.0.0.251,5353", "EPERM"),
                ],
            )
            .await?;
            let mut refused = sandbox.refused_addresses().await?;
            refused.sort_unstable();
            let refused: Vec<_> =
                refused.iter().map(|(address, port)| format!("{address}:{port}")).collect();
            ensure!(
                refused
                    == [
                        "1.2.3.4:443",
                        "10.1.2.3:9000",
                        "10.2.3.5:80",
                        "169.254.169.254:80",
                        "172.32.0.1:22"
                    ],
                "{refused:?}"
            );
            Ok(())
        },
    )
}

#[test]
fn servers_inside_are_reached_as_before() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            if !is_transparent(node)? {
                return Ok(());
            }
            let sandbox = node.sandbox().await?;
            let _served = armed(&sandbox, &allow(&["a.test:8080"])?).await?;
            tried(
                node,
                &sandbox,
                &[
                    ("served,0.0.0.0,8080,127.0.0.1", "inside"),
                    // Connections through our listener to the same port are not in the way.
                    ("dial,198.18.5.6,8080", "to 198.18.5.6:8080"),
                    ("served,0.0.0.0,8080,127.0.0.1", "inside"),
                    ("served,0.0.0.0,8081,198.18.0.1", "inside"),
                    ("served,127.0.0.1,8082,127.0.0.1", "inside"),
                    // Whoever listens on the address of a name is not taken for it.
                    ("served,198.18.5.6,8083,198.18.5.6", "to 198.18.5.6:8083"),
                ],
            )
            .await
        },
    )
}

#[test]
fn a_policy_changes_at_once_and_what_was_refused_stays_known() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            if !is_transparent(node)? {
                return Ok(());
            }
            let sandbox = node.sandbox().await?;
            let _served = armed(&sandbox, &allow(&["10.0.0.0/8:80"])?).await?;
            let first =
                [("dial,10.0.0.1,80", "to 10.0.0.1:80"), ("dial,9.9.9.9,80", "EHOSTUNREACH")];
            tried(node, &sandbox, &first).await?;
            sandbox.change_network(&allow(&["9.9.9.9:80"])?).await?;
            let second =
                [("dial,10.0.0.1,80", "EHOSTUNREACH"), ("dial,9.9.9.9,80", "to 9.9.9.9:80")];
            tried(node, &sandbox, &second).await?;
            sandbox.change_network(&NetworkPolicy::Open).await?;
            let open = [
                ("dial,10.0.0.1,80", "to 10.0.0.1:80"),
                ("dial,8.8.8.8,1", "to 8.8.8.8:1"),
                ("dial,0.1.2.3,80", "EHOSTUNREACH"),
                ("dial,240.0.0.1,80", "EHOSTUNREACH"),
                ("send,8.8.8.8,53", "EPERM"),
            ];
            tried(node, &sandbox, &open).await?;
            sandbox.change_network(&NetworkPolicy::None).await?;
            tried(node, &sandbox, &[("dial,8.8.8.8,1", "EHOSTUNREACH")]).await?;
            let refused = sandbox.refused_addresses().await?;
            ensure!(refused.len() == 5, "{refused:?}");
            Ok(())
        },
    )
}

#[test]
fn without_the_sockets_nothing_passes_until_they_are_made_anew() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            if !is_transparent(node)? {
                return Ok(());
            }
            let sandbox = node.sandbox().await?;
            let policy = allow(&["10.0.0.0/8"])?;
            let served = armed(&sandbox, &policy).await?;
            let works = [("dial,198.18.5.6,443", "to 198.18.5.6:443"), ("ask,udp", "heard")];
            tried(node, &sandbox, &works).await?;
            let again = sandbox.arm_network(&policy).await;
            ensure!(again.is_err(), "the sockets of the first call are still open");
            tried(node, &sandbox, &works).await?;
            served.close().await;
            let closed = [
                ("dial,198.18.5.6,443", "ECONNREFUSED"),
                ("dial,10.0.0.1,443", "ECONNREFUSED"),
                ("dial,127.0.0.1,3128", "ECONNREFUSED"),
                ("ask,udp", "ECONNREFUSED"),
                ("ask,tcp", "ECONNREFUSED"),
                // A program cannot take the place of the proxy.
                ("served,127.0.0.1,3128,127.0.0.1", "ECONNREFUSED"),
            ];
            tried(node, &sandbox, &closed).await?;
            drop(sandbox.arm_network(&policy).await?);
            let _served = armed(&sandbox, &policy).await?;
            tried(node, &sandbox, &works).await?;
            Ok(())
        },
    )
}

#[test]
fn a_disarmed_sandbox_is_as_before() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            if !is_transparent(node)? {
                return Ok(());
            }
            let sandbox = node.sandbox().await?;
            let look = "cat /proc/net/route /proc/net/fib_trie /proc/net/ipv6_route | grep -v '^ *|-- ::1'; \
                        cat /proc/net/if_inet6";
            let before = node.sh(&sandbox, look).await?.stdout;
            sandbox.disarm_network().await?;
            armed(&sandbox, &allow(&["10.0.0.0/8"])?).await?.close().await;
            ensure!(node.sh(&sandbox, look).await?.stdout != before);
            sandbox.disarm_network().await?;
            let after = node.sh(&sandbox, look).await?.stdout;
            ensure!(after == before, "{}", String::from_utf8_lossy(&after));
            let alone =
                [("dial,198.18.5.6,443", "ENETUNREACH"), ("dial,10.0.0.1,1", "ENETUNREACH")];
            tried(node, &sandbox, &alone).await?;
            Ok(())
        },
    )
}

#[test]
fn programs_cannot_change_their_network_or_take_our_ports() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            if !is_transparent(node)? {
                return Ok(());
            }
            let sandbox = node.sandbox().await?;
            let _served = armed(&sandbox, &allow(&["a.test"])?).await?;
            tried(
                node,
                &sandbox,
                &[
                    ("route", "EPERM"),
                    ("listen,127.0.0.1,1", "EACCES"),
                    ("listen,0.0.0.0,1", "EACCES"),
                    ("listen,127.0.0.1,53", "EACCES"),
                    ("listen,198.18.5.6,443", "EACCES"),
                    // IP_TRANSPARENT, SO_MARK, SO_BINDTODEVICE is free, IP_HDRINCL does not exist.
                    ("option,0,19", "EPERM"),
                    ("option,1,36", "EPERM"),
                    // Netlink of tables, of sockets, generic; packet; raw; vsock; MPTCP; SCTP; bluetooth.
                    ("family,16,3,12", "EAFNOSUPPORT"),
                    ("family,16,3,4", "EAFNOSUPPORT"),
                    ("family,16,3,16", "EAFNOSUPPORT"),
                    ("family,17,3,768", "EAFNOSUPPORT"),
                    ("family,2,3,6", "EPERM"),
                    ("family,40,1,0", "EAFNOSUPPORT"),
                    ("family,2,1,262", "EPROTONOSUPPORT"),
                    ("family,2,1,132", "EPROTONOSUPPORT"),
                    ("family,31,3,1", "EAFNOSUPPORT"),
                    ("dial,198.18.5.6,443", "to 198.18.5.6:443"),
                ],
            )
            .await
        },
    )
}

#[test]
fn a_frozen_sandbox_can_be_armed_and_a_dead_one_cannot() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            if !is_transparent(node)? {
                return Ok(());
            }
            let policy = allow(&["a.test"])?;
            let sandbox = node.sandbox().await?;
            if node.native().capabilities().freeze {
                sandbox.freeze().await?;
                let _served = armed(&sandbox, &policy).await?;
                sandbox.change_network(&policy).await?;
                sandbox.thaw().await?;
                tried(node, &sandbox, &[("dial,198.18.5.6,443", "to 198.18.5.6:443")]).await?;
            }
            super::node::kill(node.guest_of(&sandbox)?);
            node.until_empty().await?;
            gone(&sandbox, &policy).await?;
            // Killed while it is armed, in either order.
            for _ in 0..20 {
                let sandbox = node.sandbox().await?;
                let (killed, armed) = tokio::join!(sandbox.kill(), sandbox.arm_network(&policy));
                killed?;
                if let Err(error) = armed {
                    ensure!(error.code == RuntimeErrorCode::SandboxGone, "{error}");
                }
                gone(&sandbox, &policy).await?;
            }
            Ok(())
        },
    )
}

async fn gone(sandbox: &Arc<dyn Sandbox>, policy: &NetworkPolicy) -> Result<()> {
    let codes = [
        sandbox.arm_network(policy).await.err(),
        sandbox.change_network(policy).await.err(),
        sandbox.refused_addresses().await.err(),
        sandbox.disarm_network().await.err(),
    ];
    for error in codes {
        let error = error.context("a dead sandbox has no network")?;
        ensure!(error.code == RuntimeErrorCode::SandboxGone, "{error}");
    }
    Ok(())
}

#[test]
fn an_arming_that_is_dropped_is_undone_before_the_next() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            if !is_transparent(node)? {
                return Ok(());
            }
            let sandbox = node.sandbox().await?;
            let policy = allow(&["a.test"])?;
            for polls in 0..12 {
                let mut arming = Box::pin(sandbox.arm_network(&policy));
                for _ in 0..polls {
                    let polled = poll_fn(|cx| Poll::Ready(arming.as_mut().poll(cx))).await;
                    if polled.is_ready() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                drop(arming);
                drop(sandbox.arm_network(&policy).await?);
            }
            Ok(())
        },
    )
}

#[test]
fn two_hundred_sandboxes_each_have_a_network_of_their_own() -> Result<()> {
    on_node_within(
        slowed(std::time::Duration::from_secs(100)),
        |config| config.slots = 201,
        async |node: &Node| {
            if !is_transparent(node)? {
                return Ok(());
            }
            let policy = allow(&["a.test", "10.0.0.0/8:5432"])?;
            let mut all = Vec::new();
            for number in 0..200_u8 {
                let sandbox = node.sandbox().await?;
                sandbox_with(&sandbox, &policy, number, &mut all).await?;
            }
            for (sandbox, served) in all.iter().step_by(50) {
                tried(node, sandbox, &[("dial,10.0.0.1,5432", "to 10.0.0.1:5432")]).await?;
                ensure!(!served.0[0].is_finished());
            }
            Ok(())
        },
    )
}

async fn sandbox_with(
    sandbox: &Arc<dyn Sandbox>,
    policy: &NetworkPolicy,
    number: u8,
    all: &mut Vec<(Arc<dyn Sandbox>, Served)>,
) -> Result<()> {
    let served = armed(sandbox, policy).await.with_context(|| format!("number {number}"))?;
    all.push((Arc::clone(sandbox), served));
    Ok(())
}

#[test]
fn without_tables_only_the_proxy_is_reached() -> Result<()> {
    on_node(
        |config| config.network_tables = false,
        async |node: &Node| {
            ensure!(node.native().capabilities().network == NetworkAbility::ProxyOnly);
            let sandbox = node.sandbox().await?;
            let policy = allow(&["a.test"])?;
            let sockets = sandbox.arm_network(&policy).await?;
            ensure!(sockets.names.is_none());
            let served = Served::new(sockets)?;
            tried(
                node,
                &sandbox,
                &[
                    ("dial,127.0.0.1,3128", "to 127.0.0.1:3128"),
                    ("dial,198.18.5.6,443", "ENETUNREACH"),
                    ("ask,udp", "ECONNREFUSED"),
                ],
            )
            .await?;
            sandbox.change_network(&NetworkPolicy::Open).await?;
            ensure!(sandbox.refused_addresses().await?.is_empty());
            sandbox.disarm_network().await?;
            served.close().await;
            tried(node, &sandbox, &[("dial,127.0.0.1,3128", "ECONNREFUSED")]).await
        },
    )
}

/// Looks up names as C libraries do.
const LOOKUP: &str = r#"
import socket, sys, time
before = time.monotonic()
for name in sys.argv[1:]:
    try:
        print(name, socket.getaddrinfo(name, 80, socket.AF_INET)[0][4][0])
    except OSError as error:
        print(name, "fails")
print("slow" if time.monotonic() - before > 4 else "at once")
"#;

#[test]
fn names_fail_at_once_in_a_sandbox_without_a_policy() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let said = node.python(&sandbox, LOOKUP, &["localhost", "a.test"]).await?;
            ensure!(said == "localhost 127.0.0.1\na.test fails\nat once\n", "{said}");
            Ok(())
        },
    )
}
