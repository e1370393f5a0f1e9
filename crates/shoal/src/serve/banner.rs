//! What the server prints when it is ready: its address, where its key is, what to try. Without a
//! terminal it logs the same in one line.

use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;

use engine::Engine;

use super::{Parts, reachable};
use crate::config::HostContext;
use crate::output::Paint;

pub(super) fn show(parts: &Parts<'_>, engine: &Engine, address: SocketAddr) {
    let data_dir = parts.place.path().display().to_string();
    let version = env!("SHOAL_VERSION");
    let key = parts.place.key_file().display().to_string();
    let ash = parts.config.ash.listen;
    let blaxel = parts.config.blaxel.listen;
    for address in [Some(address), ash, blaxel].into_iter().flatten() {
        if address.ip().is_loopback() {
            continue;
        }
        tracing::warn!(
            %address,
            "listening beyond this machine without TLS: others on the network can read keys and data; \
             put a proxy with TLS in front, and name its host in server.hosts"
        );
    }
    if !io::stdout().is_terminal() {
        tracing::info!(%address, key_file = key, data_dir, version, "ready");
        if let Some(ash) = ash {
            tracing::info!(address = %ash, "ready for clients of Ash");
        }
        if let Some(blaxel) = blaxel {
            tracing::info!(address = %blaxel, "ready for clients of Blaxel");
        }
        return;
    }
    let output = parts.output;
    let here = reachable(address);
    // Commands find the default data directory by themselves.
    let found = parts.place.path() == HostContext::read().data_dir();
    let flag = if found { String::new() } else { format!(" --data-dir {data_dir}") };
    let pools = engine.templates();
    let pools: Vec<_> = pools
        .iter()
        .map(|template| format!("{} ({} kept warm)", template.name, template.pool.pool_size))
        .collect();
    let name = output.paint(Paint::Strong, &format!("Shoal {version}"));
    output.say(&format!(
        "{name} listens on {}",
        output.paint(Paint::Good, &format!("http://{here}"))
    ));
    let ash = ash.map(|address| ("Ash", format!("http://{}", reachable(address))));
    let lines = [
        ("key", key.clone()),
        ("templates", pools.join(", ")),
        ("try", format!("shoal exec{flag} -- echo hi")),
        ("or", format!("curl -sH \"Authorization: Bearer $(cat {key})\" http://{here}/v1/stats")),
        ("stop", "Ctrl-C; again to stop at once".to_owned()),
    ];
    let keys = if parts.config.blaxel.keyless { ", without a key" } else { "" };
    let blaxel = blaxel.map(|at| ("Blaxel", format!("http://{}{keys}", reachable(at))));
    for (word, text) in lines.into_iter().chain(ash).chain(blaxel) {
        let word = output.paint(Paint::Faint, &format!("{word:>11}"));
        output.say(&format!("{word}  {text}"));
    }
}
