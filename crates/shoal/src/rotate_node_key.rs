//! `shoal rotate-node-key`: replaces the key of the node, and seals everything stored with the new
//! one. The server must be stopped: a running one has the key in its memory.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use store::sqlite::{DatabaseLocation, FILE, Rotated, SqliteStore, rotate_node_key};
use store::{Retention, StoreError};

use crate::config::{self, ConfigError, HostContext, Overrides, StoreKind};
use crate::failure::Failure;
use crate::output::Output;
use crate::serve::data_dir::DataDir;

/// Arguments of `shoal rotate-node-key`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    sudo systemctl stop shoal && sudo shoal rotate-node-key && sudo systemctl start shoal\n  \
    sudo shoal rotate-node-key --data-dir /srv/shoal --json\n\n\
    Stop the server first. The command makes another node.key, and encrypts with it all that the old\n\
    one encrypts in shoal.db. If it is interrupted, start the server or this command again: either\n\
    the old key or the new one opens everything. Copy the new node.key to the place where you keep\n\
    the key. The old one opens nothing in the data directory afterwards; keep it only for older\n\
    backups that were made with --without-node-key.")]
pub(crate) struct Arguments {
    /// Data directory of the stopped server
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let overrides = Overrides::of_data_dir(arguments.data_dir.as_deref());
    let effective = config::load(&overrides, &HostContext::read());
    let data_dir = effective.map_err(ConfigError::failure)?.config.server.data_dir;
    let shown = data_dir.display();
    if !data_dir.join(FILE).is_file() {
        let cause = format!("{shown} has no {FILE}");
        return Err(Failure::new("there is no key to replace", cause)
            .remedy("name the data directory with --data-dir, and run it with sudo")
            .usage());
    }
    // Locked until the end: no server starts meanwhile.
    let place = DataDir::open(&data_dir, StoreKind::Sqlite)?;
    let Rotated { values, left } = rotate(&place)?;
    if arguments.json {
        let left = left.as_ref().map(ToString::to_string);
        output.say_json(&json!({
            "data_dir": shown.to_string(),
            "values": values,
            "left": left,
        }));
    } else {
        output.say(&format!(
            "replaced {shown}/node.key, and encrypted {values} values with the new key; copy it to the \
             place where you keep the key of this node"
        ));
    }
    if let Some(error) = left {
        output.complain(&format!(
            "unused parts of {FILE} may have values that the old key opens: {error}; the next start \
             of the server removes them"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn rotate(place: &DataDir) -> Result<Rotated, Failure> {
    let failed = |error: StoreError| {
        let remedy = error.remedy();
        Failure::new("cannot replace the key of the node", error).remedy(remedy)
    };
    let database =
        DatabaseLocation { directory: place.path().to_owned(), ..DatabaseLocation::default() };
    // Nothing but envelopes changes here, so no retention limit deletes anything.
    let retention = Retention::default();
    let inspected = SqliteStore::inspect(&database, retention).map_err(failed)?;
    if let Some(lost) = inspected.lost() {
        // Only a server reports that.
        return Err(Failure::new("cannot replace the key of the node", &lost.cause)
            .remedy(
                "start the server once, which says what is missing, and stop it; then try again",
            )
            .usage());
    }
    rotate_node_key(inspected, retention).map_err(failed)
}
