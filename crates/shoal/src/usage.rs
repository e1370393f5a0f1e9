//! `shoal usage`: shows what keys have used since they exist.

use std::process::ExitCode;

use model::KeyId;
use serde_json::json;
use wire::Usage;

use crate::failure::Failure;
use crate::output::Output;
use crate::server::{Server, cannot};
use crate::table::Table;

/// Arguments of `shoal usage`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal usage                     what each key has used since it exists\n  \
    shoal usage --key KEY --json    one key, for a program\n\n\
    A key of role `admin` sees all keys, others see their own. Totals survive restarts; a revoked\n\
    key keeps its own. `?` stands for processor time that this machine cannot read, `+` after it\n\
    for sandboxes that could not be read.\n\n\
    Exit codes: 0; 1 if the server refused; 3 if no server answers.")]
pub(crate) struct Arguments {
    /// Only this key
    #[arg(long, value_name = "KEY")]
    key: Option<KeyId>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn main(arguments: Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let Arguments { key, json, server } = arguments;
    let usage = server
        .with(async |client| client.usage(key).await.map_err(cannot("read what keys used")))?;
    if json {
        output.say_json(&json!({ "usage": usage }));
    } else {
        table(&usage).say(output, "there are no keys");
    }
    Ok(ExitCode::SUCCESS)
}

fn table(usage: &[Usage]) -> Table {
    let heading =
        ["KEY", "NAME", "SANDBOX S", "MEMORY MB S", "CPU S", "STORED BYTES", "STORED BYTE S"];
    let mut table = Table::new(&heading);
    for one in usage {
        let cpu = one.cpu_seconds.map_or_else(|| "?".to_owned(), |cpu| format!("{cpu:.3}"));
        let incomplete = one.cpu_seconds.is_some() && !one.cpu_complete;
        table.row([
            one.key.to_string(),
            one.name.clone().unwrap_or_default(),
            format!("{:.1}", one.sandbox_seconds),
            format!("{:.0}", one.memory_mb_seconds),
            if incomplete { format!("{cpu}+") } else { cpu },
            one.stored_bytes.to_string(),
            format!("{:.0}", one.stored_byte_seconds),
        ]);
    }
    table
}
