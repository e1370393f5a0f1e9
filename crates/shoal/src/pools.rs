//! `shoal pools`: lists, resizes, drains, resumes and removes warm pools.

use std::process::ExitCode;

use clap::Subcommand;
use model::TemplateName;
use model::state::PoolPhase;
use model::stats::PoolStats;
use serde_json::json;
use wire::PoolResize;

use crate::failure::Failure;
use crate::output::Output;
use crate::server::{Server, cannot};
use crate::table::Table;

/// Arguments of `shoal pools`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
    shoal pools                               list all pools\n  \
    shoal pools resize default --size 20 --overflow 50\n  \
    shoal pools drain default                 hand out no sandbox; leases run on\n  \
    shoal pools resume default\n  \
    shoal pools rm default --force            also end the leases of the pool\n\n\
    Exit codes: 0; 1 if the server refused; 3 if no server answers."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    act: Option<Act>,
    #[command(flatten)]
    shared: Shared,
}

#[derive(Debug, Clone, clap::Args)]
struct Shared {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// List pools
    Ls(Shared),
    /// Change the size of a pool
    Resize {
        /// The pool's template
        #[arg(value_parser = TemplateName::new)]
        name: TemplateName,
        /// How many warm sandboxes the pool keeps ready
        #[arg(long, value_name = "N", required_unless_present = "overflow")]
        size: Option<u32>,
        /// How many more sandboxes may exist while others are in use
        #[arg(long, value_name = "N")]
        overflow: Option<u32>,
        #[command(flatten)]
        shared: Shared,
    },
    /// Hand out no sandbox and keep no sandbox ready; leases run on
    Drain {
        /// The pool's template
        #[arg(value_parser = TemplateName::new)]
        name: TemplateName,
        #[command(flatten)]
        shared: Shared,
    },
    /// Open a drained pool again
    Resume {
        /// The pool's template
        #[arg(value_parser = TemplateName::new)]
        name: TemplateName,
        #[command(flatten)]
        shared: Shared,
    },
    /// Remove a pool with its template
    Rm {
        /// The pool's template
        #[arg(value_parser = TemplateName::new)]
        name: TemplateName,
        /// Also end the leases and launches of the pool
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        shared: Shared,
    },
}

pub(crate) fn main(arguments: Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let Arguments { act, shared } = arguments;
    match act.unwrap_or(Act::Ls(shared)) {
        Act::Ls(shared) => {
            let pools = shared
                .server
                .with(async |client| client.pools().await.map_err(cannot("list pools")))?;
            if shared.json {
                output.say_json(&json!({ "pools": pools }));
            } else {
                table(&pools).say(output, "there are no pools");
            }
        }
        Act::Resize { name, size, overflow, shared } => {
            let resize = PoolResize { pool_size: size, max_overflow: overflow };
            let pool = shared.server.with(async |client| {
                client.resize_pool(&name, resize).await.map_err(cannot("resize the pool"))
            })?;
            print_pool(&pool, shared.json, output)?;
        }
        Act::Drain { name, shared } => {
            let pool = shared.server.with(async |client| {
                client.drain_pool(&name).await.map_err(cannot("drain the pool"))
            })?;
            print_pool(&pool, shared.json, output)?;
        }
        Act::Resume { name, shared } => {
            let pool = shared.server.with(async |client| {
                client.resume_pool(&name).await.map_err(cannot("resume the pool"))
            })?;
            print_pool(&pool, shared.json, output)?;
        }
        Act::Rm { name, force, shared } => {
            output.remark(&format!("removing {name} and its sandboxes"));
            shared.server.with(async |client| {
                client.delete_pool(&name, force).await.map_err(cannot("remove the pool"))
            })?;
            if shared.json {
                output.say_json(&json!({ "removed": name }));
            } else {
                output.say(name.as_str());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_pool(pool: &PoolStats, json: bool, output: &Output) -> Result<(), Failure> {
    if json {
        return output.say_value(pool);
    }
    table(std::slice::from_ref(pool)).say(output, "");
    Ok(())
}

pub(crate) fn table(pools: &[PoolStats]) -> Table {
    let heading =
        ["TEMPLATE", "STATE", "READY", "STARTING", "LEASED", "WAITING", "SLOTS", "SIZE", "TROUBLE"];
    let mut table = Table::new(&heading);
    for pool in pools {
        let phase = match (pool.phase, pool.degraded) {
            (PoolPhase::Active, false) => "active",
            (PoolPhase::Active, true) => "degraded",
            (PoolPhase::Draining, _) => "draining",
            (PoolPhase::Destroying, _) => "ending",
        };
        table.row([
            pool.template.to_string(),
            phase.to_owned(),
            pool.idle.to_string(),
            pool.launching.to_string(),
            pool.leased.to_string(),
            pool.waiters.to_string(),
            format!("{}/{}", pool.slots_used, pool.slots),
            format!("{}+{}", pool.pool_size, pool.max_overflow),
            pool.last_failure.as_ref().or(pool.held_back.as_ref()).cloned().unwrap_or_default(),
        ]);
    }
    table
}
