//! `shoal cp`: copies files and directories into a sandbox and out of it. What comes out was
//! written by untrusted programs: it is never written outside the directory that the user named.

mod download;
mod location;
pub(crate) mod transfer_stream;
mod upload;

use std::process::ExitCode;

use client::{Client, Inside};
use model::SandboxId;
use serde_json::json;
use uuid::Uuid;

use self::location::Location;
use crate::failure::Failure;
use crate::native;
use crate::output::Output;
use crate::server::Server;

/// Arguments of `shoal cp`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal cp data.csv SANDBOX:/workspace/         a file in\n  \
    shoal cp ./project SANDBOX:                   a directory in, as /workspace/project\n  \
    shoal cp SANDBOX:/workspace/out ./out         a file or directory out\n  \
    shoal cp SANDBOX:/workspace/log - | less      a file to standard output\n\n\
    A path in a sandbox that does not begin with / is beneath /workspace. A directory is copied into\n\
    a directory that exists, or becomes a new one. Links stay links; devices and pipes are not\n\
    copied.\n\n\
    Exit codes: 0; 1 if the server refused; 2 if the paths cannot be used; 3 if no server answers;\n\
    125 if something here cannot be read or written.")]
pub(crate) struct Arguments {
    /// What to copy: a path, SANDBOX:PATH, or - for standard input
    #[arg(value_name = "FROM")]
    from: String,
    /// Where to: a path, SANDBOX:PATH, or - for standard output
    #[arg(value_name = "TO", allow_hyphen_values = true)]
    to: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

/// Counts of what was copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Copied {
    files: u64,
    bytes: u64,
    /// Entries that are neither files, directories nor links.
    left_behind: u64,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let inside =
        |client: &Client, id: Uuid| Inside::clone(&client.sandbox(SandboxId::from_uuid(id)));
    let Arguments { from, to, json, server } = arguments;
    between(from, to, *json, server, inside, output)
}

/// Copies from one place to the other. `inside` turns an id into a sandbox or session.
pub(crate) fn between(
    from: &str,
    to: &str,
    json: bool,
    server: &Server,
    inside: impl Fn(&Client, Uuid) -> Inside,
    output: &Output,
) -> Result<ExitCode, Failure> {
    let (from, to) = (Location::parse(from), Location::parse(to));
    let client = server.client()?;
    let tokio = native::tokio()?;
    let copied = native::block_on(&tokio, async {
        match (from, to) {
            (Location::Sandbox(from), Location::Local(to)) => {
                download::copy(&inside(&client, from.id), &from.path, &to, output).await
            }
            (Location::Local(from), Location::Sandbox(to)) => {
                upload::copy(&inside(&client, to.id), &from, &to.path, output).await
            }
            (Location::Local(_), Location::Local(_)) => {
                Err(Failure::new("cannot copy", "neither path is in a sandbox")
                    .remedy("write one of them as SANDBOX:PATH, with the id that `shoal ps` shows")
                    .usage())
            }
            (Location::Sandbox(_), Location::Sandbox(_)) => {
                Err(Failure::new("cannot copy", "both paths are in a sandbox")
                    .remedy("copy it to this machine first")
                    .usage())
            }
        }
    });
    tokio.shutdown_background();
    let copied = copied?;
    if copied.left_behind > 0 {
        output.note(&format!("{} devices, pipes or the like were not copied", copied.left_behind));
    }
    if json {
        output.say_json(&json!({
            "files": copied.files,
            "bytes": copied.bytes,
            "left_behind": copied.left_behind,
        }));
    } else {
        output.remark(&format!("{} files, {} bytes", copied.files, copied.bytes));
    }
    Ok(ExitCode::SUCCESS)
}
