//! The command line: reads what was typed, wires the parts, and gives the exit code. Nothing is
//! decided here that a library could decide, and every failure ends here, said once.

mod bench;
mod clean;
mod cli;
mod completions;
mod config;
mod doctor;
mod duration;
mod failure;
mod native;
mod output;
mod run;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Cli, Verb};
use crate::failure::Failure;
use crate::output::Output;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return cli::usage(&error),
    };
    let output = Output::new(cli.color);
    match dispatch(cli, &output) {
        Ok(code) => code,
        Err(failure) => failure.report(&output),
    }
}

fn dispatch(cli: Cli, output: &Output) -> Result<ExitCode, Failure> {
    match cli.verb {
        Verb::Run(arguments) => run::main(*arguments, output),
        Verb::Doctor(arguments) => doctor::main(&arguments, output),
        Verb::Bench(arguments) => bench::main(&arguments, output),
        Verb::Clean(arguments) => clean::main(&arguments, output),
        Verb::Config(arguments) => config::main(&arguments, output),
        Verb::Completions(arguments) => Ok(completions::main(&arguments, output)),
    }
}
