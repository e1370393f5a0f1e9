//! The command line: parses the arguments, wires the parts, and returns the exit code. It decides
//! nothing that a library could decide. Every failure ends here and is printed once.

mod attach;
mod backup;
mod clean;
mod cli;
mod completions;
mod config;
mod cp;
mod create;
mod data_dir_lock;
mod doctor;
mod events;
mod exec;
mod file_search;
mod forward;
mod image;
mod key;
mod mcp;
mod network;
mod network_request;
mod pools;
mod process;
mod ps;
mod relative_time;
mod restore;
mod rm;
mod rotate_node_key;
mod run;
mod sandbox_request;
mod secret;
mod serve;
mod server;
mod session;
mod stats;
mod status;
mod table;
mod templates;
mod usage;
mod why;
mod workspace_placement;

use std::process::ExitCode;

use command::{duration, failure, native, output, plain_text};

use crate::cli::{Cli, Verb};
use crate::failure::Failure;
use crate::output::Output;

fn main() -> ExitCode {
    if let Some(code) = serve::egress::main_of_process() {
        return code;
    }
    let cli = match cli::parse() {
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
        Verb::Serve(arguments) => serve::main(&arguments, output),
        Verb::Exec(arguments) => exec::main(*arguments, output),
        Verb::Ps(arguments) => ps::main(&arguments, output),
        Verb::Create(arguments) => create::main(&arguments, output),
        Verb::Rm(arguments) => rm::main(&arguments, output),
        Verb::Cp(arguments) => cp::main(&arguments, output),
        Verb::Process(arguments) => process::main(*arguments, output),
        Verb::Attach(arguments) => attach::main(&arguments, output),
        Verb::Forward(arguments) => forward::main(&arguments, output),
        Verb::Status(arguments) => status::main(&arguments, output),
        Verb::Stop(arguments) => status::stop(&arguments, output),
        Verb::Find(arguments) => file_search::find(&arguments, output),
        Verb::Grep(arguments) => file_search::grep(&arguments, output),
        Verb::Watch(arguments) => file_search::watch(&arguments, output),
        Verb::Session(arguments) => session::main(*arguments, output),
        Verb::Network(arguments) => network::main(*arguments, output),
        Verb::Why(arguments) => why::main(&arguments, output),
        Verb::Pools(arguments) => pools::main(*arguments, output),
        Verb::Templates(arguments) => templates::main(*arguments, output),
        Verb::Image(arguments) => image::main(*arguments, output),
        Verb::Events(arguments) => events::main(&arguments, output),
        Verb::Stats(arguments) => stats::main(&arguments, output),
        Verb::Key(arguments) => key::main(*arguments, output),
        Verb::Secret(arguments) => secret::main(*arguments, output),
        Verb::Usage(arguments) => usage::main(arguments, output),
        Verb::Mcp(arguments) => mcp::main(&arguments),
        Verb::Doctor(arguments) => doctor::main(&arguments, output),
        Verb::Backup(arguments) => backup::main(&arguments, output),
        Verb::Restore(arguments) => restore::main(&arguments, output),
        Verb::RotateNodeKey(arguments) => rotate_node_key::main(&arguments, output),
        Verb::Clean(arguments) => clean::main(&arguments, output),
        Verb::Config(arguments) => config::main(&arguments, output),
        Verb::Completions(arguments) => Ok(completions::main(&arguments, output)),
    }
}
