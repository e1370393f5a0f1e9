//! `shoal secret`: stores, lists and removes secrets. A value comes from standard input, a file or
//! the terminal, and never from the command line, which every user of the machine can read. It is
//! never printed.

mod value;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use model::{ErrorCode, SecretName};
use serde_json::json;
use wire::{Secret, SecretScope, Time};

use crate::failure::Failure;
use crate::output::Output;
use crate::relative_time;
use crate::server::{Server, cannot};
use crate::table::Table;

/// Arguments of `shoal secret`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
    shoal secret put GITHUB_TOKEN                    ask for the value, without showing it\n  \
    gh auth token | shoal secret put GITHUB_TOKEN    the value from standard input\n  \
    shoal secret put deploy-key --from-file id_ed25519\n  \
    shoal secret put NPM_TOKEN --node < token        for all keys of the server\n  \
    shoal secret ls                                  names and sizes; values are never shown\n  \
    shoal secret rm GITHUB_TOKEN\n\n\
    A value has 1 to 65536 bytes of text. Of standard input exactly one final newline is left out;\n\
    a file is stored as it is. Secrets belong to the key that stores them; with --node, which needs\n\
    an admin key, all keys may use them. The own secret of a key comes before that of the node.\n\n\
    Exit codes: 0; 1 if the server refused; 2 if the value cannot be used; 3 if no server answers."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    act: Option<Act>,
    #[command(flatten)]
    shared: Shared,
}

#[derive(Debug, Clone, clap::Args)]
struct Shared {
    /// The secrets of the node, which all keys may use; needs an admin key
    #[arg(long)]
    node: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

impl Shared {
    const fn scope(&self) -> SecretScope {
        if self.node { SecretScope::Node } else { SecretScope::Key }
    }

    const fn how_to_list(&self) -> &'static str {
        if self.node {
            "`shoal secret ls --node` shows the names of the node; without --node, those of the key are meant"
        } else {
            "`shoal secret ls` shows the names of this key; with --node, those of the node are meant"
        }
    }
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Store a secret, in place of the one of this name
    ///
    /// The value is read from standard input, of which exactly one final newline is left out; at a
    /// terminal the command asks for it and does not show what is typed.
    Put {
        /// Name of the secret
        #[arg(value_parser = SecretName::new)]
        name: SecretName,
        /// Read the value from a file, with every byte of it
        #[arg(long, value_name = "FILE")]
        from_file: Option<PathBuf>,
        #[command(flatten)]
        shared: Shared,
    },
    /// List secrets, without their values
    Ls(Shared),
    /// Remove secrets; sandboxes that have the value keep it
    Rm {
        /// Names of the secrets
        #[arg(value_name = "NAME", required = true, value_parser = SecretName::new)]
        names: Vec<SecretName>,
        #[command(flatten)]
        shared: Shared,
    },
}

pub(crate) fn main(arguments: Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let Arguments { act, shared } = arguments;
    match act.unwrap_or(Act::Ls(shared)) {
        Act::Put { name, from_file, shared } => {
            let request = value::read(&name, from_file.as_deref(), output)?;
            let secret = shared.server.with(async |client| {
                let stored = client.put_secret(&name, &request, shared.scope()).await;
                stored.map_err(cannot("store the secret"))
            })?;
            if shared.json {
                output.say_value(&secret)?;
            } else {
                output.say(secret.name.as_str());
            }
        }
        Act::Ls(shared) => {
            let secrets = shared.server.with(async |client| {
                client.secrets(shared.scope()).await.map_err(cannot("list secrets"))
            })?;
            if shared.json {
                output.say_json(&json!({ "secrets": secrets }));
            } else {
                table(&secrets, relative_time::now()).say(output, "there are no secrets");
            }
        }
        Act::Rm { names, shared } => {
            shared.server.with(async |client| {
                for name in &names {
                    let removed = client.remove_secret(name, shared.scope()).await;
                    removed.map_err(|error| {
                        let unknown = error.code() == Some(ErrorCode::NotFound);
                        let failure = cannot("remove the secret")(error);
                        if unknown { failure.remedy(shared.how_to_list()) } else { failure }
                    })?;
                }
                Ok(())
            })?;
            if shared.json {
                output.say_json(&json!({ "removed": names }));
            } else {
                for name in &names {
                    output.say(name.as_str());
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(secrets: &[Secret], now: Time) -> Table {
    let mut table = Table::new(&["NAME", "SCOPE", "BYTES", "CREATED", "UPDATED"]);
    for secret in secrets {
        table.row([
            secret.name.to_string(),
            secret.scope.as_str().to_owned(),
            secret.bytes.to_string(),
            relative_time::ago(secret.created_at, now),
            relative_time::ago(secret.updated_at, now),
        ]);
    }
    table
}
