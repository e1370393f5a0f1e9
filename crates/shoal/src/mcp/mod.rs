//! `shoal mcp`: the Model Context Protocol on standard input and output, for programs that start
//! their MCP servers themselves. It forwards every message to a running server, which has the
//! tools. It never writes anything else to standard output.

mod message;
mod relay;

use std::process::ExitCode;

use client::{McpTarget, SandboxId, SessionId};

use crate::failure::Failure;
use crate::native;
use crate::server::Server;

/// Arguments of `shoal mcp`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal mcp                          the tools of the server: checkout, exec, files, processes, ...\n  \
    shoal mcp --sandbox SANDBOX        the tools of one sandbox, which take no id\n  \
    shoal mcp --session SESSION        the tools of the sandbox of a session\n\n\
    For a desktop client, in its configuration:\n  \
    {\"mcpServers\": {\"shoal\": {\"command\": \"shoal\", \"args\": [\"mcp\"]}}}\n\n\
    For a server elsewhere, with a key of its own:\n  \
    {\"mcpServers\": {\"shoal\": {\"command\": \"shoal\", \"args\": [\"mcp\"],\n    \
    \"env\": {\"SHOAL_URL\": \"https://shoal.example\", \"SHOAL_KEY\": \"shoal_...\"}}}}\n\n\
    Clients that speak HTTP need no program: they call /mcp, or /v1/sandboxes/SANDBOX/mcp, with\n\
    the header `Authorization: Bearer KEY`.\n\n\
    Exit codes: 0 at the end of the input; 2 if the command line or the configuration cannot be used.")]
pub(crate) struct Arguments {
    /// Offer the tools of this sandbox
    #[arg(long, value_name = "SANDBOX", conflicts_with = "session")]
    sandbox: Option<SandboxId>,
    /// Offer the tools of the sandbox of this session
    #[arg(long, value_name = "SESSION")]
    session: Option<SessionId>,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let target = match (arguments.sandbox, arguments.session) {
        (Some(id), _) => McpTarget::Sandbox(id),
        (None, Some(id)) => McpTarget::Session(id),
        (None, None) => McpTarget::Server,
    };
    let client = arguments.server.client()?;
    // Two threads, so that a cancellation is read while a slow reader blocks a write.
    let tokio = native::tokio()?;
    let outcome = native::block_on(&tokio, relay::run(&client, target));
    // The thread that reads our input may still wait for some.
    tokio.shutdown_background();
    outcome.map(|()| ExitCode::SUCCESS)
}
