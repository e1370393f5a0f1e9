//! `shoal completions`: prints a completion script for a shell.

use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::output::Output;

/// Arguments of `shoal completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal completions bash > /etc/bash_completion.d/shoal\n  \
    shoal completions zsh > \"${fpath[1]}/_shoal\"\n  \
    shoal completions fish > ~/.config/fish/completions/shoal.fish")]
pub(crate) struct Arguments {
    /// For which shell
    shell: Shell,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "shoal", &mut script);
    output.say_bytes(&script);
    ExitCode::SUCCESS
}
