//! The configuration of a server, and `shoal config`, which shows it: defaults, a file, the
//! environment, flags, each over the one before. Every value has its source, so that an error says
//! where to correct it.

mod ash_variables;
mod egress_settings;
mod file;
mod flags;
mod host_context;
mod keys;
mod layers;
mod settings;
mod show;
mod source;
mod startable;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;

use model::Template;
use serde_json::json;

pub(crate) use self::flags::Overrides;
pub(crate) use self::host_context::HostContext;
pub(crate) use self::layers::{Effective, load};
pub(crate) use self::settings::{Ash, Config, Enabled, Log, LogFormat, LogLevel, StoreKind};
pub(crate) use self::source::ConfigError;
use crate::failure::Failure;
use crate::output::{Output, Paint};
use crate::workspace_placement::WorkspacePlacement;

/// Arguments of `shoal config`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal config                             every value, and its source\n  \
    shoal config > shoal.toml                a configuration file with every value\n  \
    shoal config --set node.max_live=50      what a start with this flag would use\n  \
    shoal config --check /etc/shoal/shoal.toml\n\n\
    Each key can also be set in the environment: SHOAL_LISTEN, SHOAL_DATA_DIR and so on for\n\
    [server]; SHOAL_NODE_MAX_LIVE, SHOAL_LOG_LEVEL and so on for the others. The environment\n\
    overrides the file, and flags override the environment.\n\n\
    Exit codes: 0 if the configuration can be used, 2 if not.")]
pub(crate) struct Arguments {
    /// Only check whether this file can be used
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "set"])]
    check: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    overrides: Overrides,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let context = HostContext::read();
    if let Some(path) = &arguments.check {
        let checked = layers::check(path, &context);
        let checked = checked.and_then(|effective| effective.refuse_unstartable());
        checked.map_err(ConfigError::failure)?;
        if arguments.json {
            output.say_json(&json!({ "file": path, "usable": true }));
        } else {
            let word = output.paint(Paint::Good, "valid");
            output.say(&format!("{}: {word}", path.display()));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let effective = load(&arguments.overrides, &context).map_err(ConfigError::failure)?;
    effective.refuse_unstartable().map_err(ConfigError::failure)?;
    warn_of_variables(&effective, output);
    let placement = WorkspacePlacement::probe(&effective.config.server.data_dir);
    let placing = |template: &Template| placement.placed(template);
    if arguments.json {
        output.say_json(&show::as_json(&effective, &placing));
    } else {
        output.say(show::as_toml(&effective, &placing).trim_end());
    }
    Ok(ExitCode::SUCCESS)
}

/// Warns about variables that are set and change nothing: those that begin with SHOAL_ and are no
/// key (a typing error, most likely), and those of Ash that have no meaning here.
pub(crate) fn warn_of_variables(effective: &Effective, output: &Output) {
    for name in &effective.unknown_variables {
        output.note(&format!(
            "{name} is set but is not a known variable; `shoal config` shows every key"
        ));
    }
    for line in &effective.ash_without_effect {
        output.note(line);
    }
}
