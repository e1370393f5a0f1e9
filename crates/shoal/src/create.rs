//! `shoal create`: makes a sandbox that stays until it is removed or expires.

use std::process::ExitCode;

use crate::failure::Failure;
use crate::output::Output;
use crate::relative_time;
use crate::sandbox_request::{SandboxRequest, environment};
use crate::server::{Server, cannot};

/// Arguments of `shoal create`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal create                                      create a sandbox and print its id\n  \
    id=$(shoal create --ttl 1h -l user=ada -e TOKEN)\n  \
    shoal exec $id -- pwd && shoal rm $id\n\n\
    Exit codes: 0; 1 if the server refused; 3 if no server answers.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    sandbox: SandboxRequest,
    /// Set a variable for every program of the sandbox; KEY alone copies the value from your
    /// environment
    #[arg(long = "env", short = 'e', value_name = "KEY[=VALUE]")]
    env: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let env = environment(&arguments.env, |key| std::env::var(key).ok())?;
    let request = arguments.sandbox.request(env)?;
    let sandbox = arguments.server.with(async |client| {
        client.create_sandbox(&request).await.map_err(cannot("make a sandbox"))
    })?;
    if arguments.json {
        output.say_value(&sandbox)?;
    } else {
        output.say(&sandbox.id.to_string());
        if let Some(container) = &sandbox.container_id {
            let (runtime, uses) = (sandbox.runtime.as_str(), sandbox.use_count);
            output.remark(&format!("sandbox is container {container} of {runtime}, use {uses}"));
        }
        if let Some(end) = sandbox.expires_at {
            output.remark(&format!(
                "sandbox expires {}",
                relative_time::until(end, relative_time::now())
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}
