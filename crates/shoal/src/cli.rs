//! The verbs, and the flags that they share. The arguments of a verb are beside the verb. Nothing
//! else reads the raw command line.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::OWN_FAILURE;
use crate::output::Color;
use crate::{
    attach, backup, clean, completions, config, cp, create, doctor, events, exec, file_search,
    forward, image, key, mcp, network, pools, process, ps, restore, rm, rotate_node_key, run,
    secret, serve, session, stats, status, templates, usage, why,
};

/// Sandboxes for programs you do not trust, in a millisecond.
#[derive(Debug, Parser)]
#[command(
    name = "shoal",
    version = env!("SHOAL_VERSION"),
    propagate_version = true,
    after_help = "Examples:\n  \
        shoal serve                             a server that keeps sandboxes warm\n  \
        shoal exec -- python3 -c 'print(1)'     run a program in a warm sandbox\n  \
        shoal session create                    begin a conversation that outlives its sandbox\n  \
        shoal run -- python3 -c 'print(1)'      run a program in a sandbox of its own, without a server\n  \
        shoal run --shell 'ls / | wc -l'        run a line of shell\n  \
        shoal doctor                            what is missing on this machine, and how to get it\n  \
        shoal clean                             remove what a killed `shoal` left behind\n\n\
        Exit codes: 0 if the command worked; 1 if the server refused; 2 if the command line or the configuration\n\
        cannot be used; 3 if no server answers; 125 if shoal itself failed. `run` and `exec` exit\n\
        like their program.\n\n\
        `shoal VERB --help` explains one command."
)]
pub(crate) struct Cli {
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: Color,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a server that keeps sandboxes warm
    Serve(Box<serve::Arguments>),
    /// Run a program in a new sandbox
    Run(Box<run::Arguments>),
    /// Run a program in a sandbox of a server
    Exec(Box<exec::Arguments>),
    /// List sandboxes
    Ps(ps::Arguments),
    /// Create a sandbox that stays until it is removed or its lease expires
    Create(create::Arguments),
    /// End sandboxes
    Rm(rm::Arguments),
    /// Copy files into a sandbox or out of it
    Cp(cp::Arguments),
    /// Start, list, follow and end processes that outlive this command
    Process(Box<process::Arguments>),
    /// Open a terminal in a sandbox
    Attach(attach::Arguments),
    /// Forward ports of this machine to ports inside a sandbox
    Forward(forward::Arguments),
    /// Show what keeps a sandbox awake, and when it will be frozen
    Status(status::Arguments),
    /// Release the keep-alive of the processes in a sandbox; no process is killed
    Stop(status::Stop),
    /// Find files in a sandbox
    Find(file_search::Find),
    /// Search for a text in the files of a sandbox
    Grep(file_search::Grep),
    /// Show what changes in a directory of a sandbox
    Watch(file_search::Watch),
    /// Talk to sessions: conversations that outlive their sandboxes
    Session(Box<session::Arguments>),
    /// Show and change what a sandbox or session may reach, and what it tried
    Network(Box<network::Arguments>),
    /// Explain the state of a sandbox, or how it ended
    Why(why::Arguments),
    /// List, resize, drain, resume and remove warm pools
    Pools(Box<pools::Arguments>),
    /// List, print, put and remove templates
    Templates(Box<templates::Arguments>),
    /// Import, list, show and remove images, and remove layers that no image uses
    Image(Box<image::Arguments>),
    /// Show past events, or follow new ones
    Events(events::Arguments),
    /// Show statistics of the server
    Stats(stats::Arguments),
    /// Make, list and revoke keys
    Key(Box<key::Arguments>),
    /// Store, list and remove secrets
    Secret(Box<secret::Arguments>),
    /// Show what keys have used since they exist
    Usage(usage::Arguments),
    /// Speak the Model Context Protocol: the server, or one sandbox, as tools for models
    Mcp(mcp::Arguments),
    /// Check whether this machine can run sandboxes, and say how to get what is missing
    Doctor(doctor::Arguments),
    /// Back up the database, the files of all sessions and the keys
    Backup(backup::Arguments),
    /// Make a data directory from a backup
    Restore(restore::Arguments),
    /// Replace the key that encrypts stored values, while the server is stopped
    RotateNodeKey(rotate_node_key::Arguments),
    /// Remove processes and files that a killed `shoal` left behind
    Clean(clean::Arguments),
    /// Show the configuration, and where each value comes from
    Config(Box<config::Arguments>),
    /// Print a completion script for a shell
    Completions(completions::Arguments),
}

/// Parses the command line.
pub(crate) fn parse() -> Result<Cli, clap::Error> {
    let typed: Vec<_> = std::env::args_os().collect();
    let cli = Cli::try_parse_from(&typed)?;
    if let Verb::Exec(arguments) = &cli.verb
        && let Some(again) = arguments.with_flags_after(&typed)
    {
        return Cli::try_parse_from(again);
    }
    Ok(cli)
}

/// Prints what is wrong with the command line, or the help.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    // If even this cannot be written, there is no other place to report it.
    let _ = error.print();
    if !error.use_stderr() {
        return ExitCode::SUCCESS;
    }
    // A caller that runs a program must be able to tell its exit code 2 from ours.
    let runs =
        std::env::args().nth(1).is_some_and(|verb| ["run", "exec", "attach"].contains(&&*verb));
    ExitCode::from(if runs { OWN_FAILURE } else { 2 })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_consistent_and_every_verb_has_examples() {
        let mut command = Cli::command();
        command.clone().debug_assert();
        for verb in command.get_subcommands_mut() {
            let help = verb.render_long_help().to_string();
            assert!(help.contains("Examples:"), "{} has none:\n{help}", verb.get_name());
        }
    }
}
