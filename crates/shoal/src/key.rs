//! `shoal key`: makes, lists and revokes keys. A secret is shown once.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use model::{KeyId, Role};
use serde_json::json;
use wire::{Key, KeyRequest, Time};

use crate::failure::Failure;
use crate::output::Output;
use crate::server::{Server, cannot};
use crate::table::Table;
use crate::{duration, relative_time};

/// Arguments of `shoal key`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
    shoal key create ci --role use --ttl 720h     make a key and print its secret, once\n  \
    SHOAL_KEY=$(shoal key create me) shoal ps\n  \
    shoal key ls\n  \
    shoal key revoke KEY\n\n\
    Roles: `admin` may do everything; `use` may use its own sandboxes and sessions; `read` may only read.\n\
    If the first key is lost: `shoal serve --new-admin-key`.\n\n\
    Exit codes: 0; 1 if the server refused; 3 if no server answers."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    act: Option<Act>,
    #[command(flatten)]
    shared: Shared,
}

#[derive(Debug, Clone, clap::Args)]
struct Shared {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Make a key and print its secret
    Create {
        /// Name of the key
        name: String,
        /// Role of the key: admin, use or read
        #[arg(long, value_name = "ROLE", default_value = "use", value_parser = role)]
        role: Role,
        /// How long the key works, like 720h [default: for ever]
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        ttl: Option<Duration>,
        #[command(flatten)]
        shared: Shared,
    },
    /// List keys
    Ls(Shared),
    /// Revoke keys, at once and for ever
    Revoke {
        /// Ids of the keys
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<KeyId>,
        #[command(flatten)]
        shared: Shared,
    },
}

fn role(text: &str) -> Result<Role, String> {
    let known = Role::ALL.into_iter().find(|role| role.as_str() == text);
    known.ok_or_else(|| "one of admin, use, read".to_owned())
}

pub(crate) fn main(arguments: Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let Arguments { act, shared } = arguments;
    match act.unwrap_or(Act::Ls(shared)) {
        Act::Create { name, role, ttl, shared } => {
            let ttl_s = ttl.map(|time| time.as_millis().div_ceil(1000) as u64);
            let request = KeyRequest { name, role, ttl_s };
            let key = shared.server.with(async |client| {
                client.create_key(&request).await.map_err(cannot("make a key"))
            })?;
            if shared.json {
                output.say_value(&key)?;
            } else {
                output.say(&key.secret);
                output.remark(&format!(
                    "key {} of role {role}; the secret is not shown again",
                    key.id
                ));
            }
        }
        Act::Ls(shared) => {
            let keys = shared
                .server
                .with(async |client| client.keys().await.map_err(cannot("list keys")))?;
            if shared.json {
                output.say_json(&json!({ "keys": keys }));
            } else {
                table(&keys, relative_time::now()).say(output, "there are no keys");
            }
        }
        Act::Revoke { keys, shared } => {
            shared.server.with(async |client| {
                for &id in &keys {
                    client.revoke_key(id).await.map_err(cannot("revoke the key"))?;
                }
                Ok(())
            })?;
            if shared.json {
                output.say_json(&json!({ "revoked": keys }));
            } else {
                for id in &keys {
                    output.say(&id.to_string());
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(keys: &[Key], now: Time) -> Table {
    let mut table = Table::new(&["KEY", "NAME", "ROLE", "CREATED", "WORKS"]);
    for key in keys {
        let works = match (key.revoked_at, key.expires_at) {
            (Some(at), _) => format!("no, revoked {}", relative_time::ago(at, now)),
            (None, Some(at)) if at <= now => format!("no, expired {}", relative_time::ago(at, now)),
            (None, Some(at)) => format!("yes, ends {}", relative_time::until(at, now)),
            (None, None) => "yes".to_owned(),
        };
        table.row([
            key.id.to_string(),
            key.name.clone(),
            key.role.to_string(),
            relative_time::ago(key.created_at, now),
            works,
        ]);
    }
    table
}
