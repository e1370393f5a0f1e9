//! `shoal stats`: prints statistics of the server.

use std::process::ExitCode;

use crate::failure::Failure;
use crate::output::{Output, Paint};
use crate::server::{Server, cannot};
use crate::{pools, relative_time};

/// Arguments of `shoal stats`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal stats                       counts by state, and each pool\n  \
    shoal stats --json | jq .pool.running\n\n\
    Exit codes: 0; 1 if the server refused; 3 if no server answers.")]
pub(crate) struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let (stats, address) = arguments.server.with(async |client| {
        let stats = client.stats().await.map_err(cannot("get statistics"))?;
        Ok((stats, client.address()))
    })?;
    if arguments.json {
        output.say_value(&stats)?;
        return Ok(ExitCode::SUCCESS);
    }
    let up =
        relative_time::span(i64::try_from(stats.uptime_s).unwrap_or(i64::MAX).saturating_mul(1000));
    output.say(&format!(
        "{} {address}, version {}, up {up}",
        output.paint(Paint::Strong, "server"),
        stats.version
    ));
    let node = stats.pool;
    let states = [
        ("running", node.running),
        ("waiting", node.waiting),
        ("warm", node.warm),
        ("warming", node.warming),
        ("cold", node.cold),
    ];
    let states: Vec<_> = states.iter().map(|(word, count)| format!("{count} {word}")).collect();
    output.say(&format!(
        "{} {} of at most {}: {}",
        output.paint(Paint::Strong, "sandboxes"),
        node.total,
        node.max_capacity,
        states.join(", "),
    ));
    let known = stats.sessions;
    let open = [
        ("starting", known.starting),
        ("active", known.active),
        ("paused", known.paused),
        ("stopped", known.stopped),
    ];
    let total: u32 = open.iter().map(|(_, count)| count).sum();
    let words: Vec<_> = open.iter().map(|(word, count)| format!("{count} {word}")).collect();
    let heading = output.paint(Paint::Strong, "sessions");
    output.say(&format!("{heading} {total}: {}", words.join(", ")));
    output.say("");
    pools::table(&stats.pools).say(output, "there are no pools");
    Ok(ExitCode::SUCCESS)
}
