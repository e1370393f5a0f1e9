//! Reads the addresses of the node, and tells the processes when they change; ends idle processes. It must never guess: a
//! table that cannot be read leaves what was known.

use std::io;
use std::net::IpAddr;
use std::sync::Weak;
use std::time::Duration;

use tokio::time::Instant;

use super::placement::Placement;
use crate::node_addresses::NodeAddresses;

const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// The addresses of now, and these besides. Blocks for a moment.
pub(super) fn read(besides: &[IpAddr]) -> io::Result<NodeAddresses> {
    read_of(|path| std::fs::read_to_string(path), besides)
}

fn read_of(
    table: impl Fn(&str) -> io::Result<String>,
    besides: &[IpAddr],
) -> io::Result<NodeAddresses> {
    let if_inet6 = match table("/proc/thread-self/net/if_inet6") {
        // A kernel without IPv6 has no such table.
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    let fib_trie = table("/proc/thread-self/net/fib_trie")?;
    let mut node = NodeAddresses::from_tables(&fib_trie, &if_inet6);
    for address in besides {
        node.add(*address);
    }
    Ok(node)
}

/// Reads them again and again, as long as the way out exists.
pub(super) async fn watch(placement: Weak<Placement>, besides: Vec<IpAddr>) {
    loop {
        tokio::time::sleep(AGAIN_AFTER).await;
        let Some(placement) = placement.upgrade() else { return };
        placement.close_idle(Instant::now());
        let besides = besides.clone();
        let Ok(read) = tokio::task::spawn_blocking(move || read(&besides)).await else { return };
        let node = match read {
            Ok(node) => node,
            // Without its addresses, a policy would lead to the node.
            Err(error) => {
                tracing::warn!(%error, "the addresses of the node were not read; those of before hold");
                continue;
            }
        };
        placement.node_is(&node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_cannot_be_read_is_an_error_and_no_node_without_addresses() {
        let besides = ["203.0.113.9".parse().unwrap()];
        let broken = |kind: io::ErrorKind, which: &'static str| {
            read_of(
                |path| if path.ends_with(which) { Err(kind.into()) } else { Ok(String::new()) },
                &besides,
            )
        };
        for which in ["fib_trie", "if_inet6"] {
            assert!(broken(io::ErrorKind::PermissionDenied, which).is_err(), "{which}");
        }
        assert!(broken(io::ErrorKind::NotFound, "fib_trie").is_err());
        let without_ipv6 = broken(io::ErrorKind::NotFound, "if_inet6").unwrap();
        assert!(without_ipv6.contains(besides[0]));
        assert!(read(&besides).unwrap().contains(besides[0]));
    }
}
