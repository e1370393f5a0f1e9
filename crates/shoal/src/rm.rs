//! `shoal rm`: ends sandboxes, also those in use.

use std::process::ExitCode;

use client::SandboxFilter;
use model::SandboxId;
use serde_json::json;

use crate::failure::Failure;
use crate::output::Output;
use crate::ps;
use crate::sandbox_request::pair;
use crate::server::Server;

/// Arguments of `shoal rm`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal rm SANDBOX\n  \
    shoal rm $(shoal ps -q --state waiting)\n  \
    shoal rm -l user=ada                every sandbox with this label\n\n\
    Exit codes: 0 if all have ended; 1 if one could not be ended; 3 if no server answers.")]
pub(crate) struct Arguments {
    /// The sandboxes
    #[arg(value_name = "SANDBOX", required_unless_present = "labels", conflicts_with = "labels")]
    sandboxes: Vec<SandboxId>,
    /// All sandboxes with this label
    #[arg(long = "label", short = 'l', value_name = "KEY=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let (gone, failures) = arguments.server.with(async |client| {
        let mut ids = arguments.sandboxes.clone();
        if !arguments.labels.is_empty() {
            let labels = arguments.labels.clone();
            let filter = SandboxFilter { labels, ..SandboxFilter::default() };
            ids.extend(ps::all(&client, filter).await?.into_iter().map(|sandbox| sandbox.id));
        }
        let (mut gone, mut failures) = (Vec::new(), Vec::new());
        for id in ids {
            match client.sandbox(id).delete().await {
                Ok(()) => gone.push(id),
                Err(error) => {
                    let failure = Failure::of_client(format!("cannot end {id}"), &error);
                    if error.problem().is_none() {
                        return Err(failure);
                    }
                    failures.push(failure);
                }
            }
        }
        Ok((gone, failures))
    })?;
    if arguments.json {
        let failed: Vec<_> = failures.iter().map(ToString::to_string).collect();
        output.say_json(&json!({ "gone": gone, "failed": failed }));
    } else {
        for id in &gone {
            output.say(&id.to_string());
        }
        for failure in &failures {
            failure.report(output);
        }
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
