//! Reads the addresses of the node, and tells the processes when they change. It must never guess: a
//! table that cannot be read leaves what was known.

use std::net::IpAddr;
use std::sync::Weak;
use std::time::Duration;

use super::placement::Placement;
use crate::node_addresses::NodeAddresses;

const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// The addresses of now, and these besides. Blocks for a moment.
pub(super) fn read(besides: &[IpAddr]) -> NodeAddresses {
    let table = |path| std::fs::read_to_string(path).unwrap_or_default();
    let mut node = NodeAddresses::from_tables(
        &table("/proc/thread-self/net/fib_trie"),
        &table("/proc/thread-self/net/if_inet6"),
    );
    for address in besides {
        node.add(*address);
    }
    node
}

/// Reads them again and again, as long as the way out exists.
pub(super) async fn watch(placement: Weak<Placement>, besides: Vec<IpAddr>) {
    loop {
        tokio::time::sleep(AGAIN_AFTER).await;
        if placement.strong_count() == 0 {
            return;
        }
        let besides = besides.clone();
        let Ok(node) = tokio::task::spawn_blocking(move || read(&besides)).await else { return };
        let Some(placement) = placement.upgrade() else { return };
        placement.node_is(&node);
    }
}
