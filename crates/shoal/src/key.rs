//! `shoal key`: makes, lists, limits and revokes keys. A secret is shown once.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use model::{KeyId, KeyLimit, Role};
use serde::de::DeserializeOwned;
use serde_json::{Map, json};
use wire::{Key, KeyChange, KeyRequest, Time};

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
    shoal key ls                                  with what each key uses of its limits\n  \
    shoal key create bot --limit live_sandboxes=10 --limit sessions=100\n  \
    shoal key limit KEY live_sandboxes=20 memory_mb=none\n  \
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
        /// A limit of the key, like `live_sandboxes=10`; may be given more than once
        #[arg(long, value_name = "LIMIT=NUMBER", value_parser = limit_change)]
        limit: Vec<LimitChange>,
        #[command(flatten)]
        shared: Shared,
    },
    /// List keys
    Ls(Shared),
    /// Change the limits of a key
    Limit {
        /// Id of the key
        key: KeyId,
        /// Limits, like `live_sandboxes=10`; with `none` that of the role holds
        #[arg(value_name = "LIMIT=NUMBER", required = true, value_parser = limit_change)]
        limits: Vec<LimitChange>,
        #[command(flatten)]
        shared: Shared,
    },
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

/// One limit, and its value; none if that of the role is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LimitChange {
    limit: KeyLimit,
    value: Option<u64>,
}

fn limit_change(text: &str) -> Result<LimitChange, String> {
    let names = KeyLimit::ALL.map(KeyLimit::as_str).join(", ");
    let (name, value) = text.split_once('=').ok_or("LIMIT=NUMBER, like sessions=10")?;
    let limit = KeyLimit::ALL.into_iter().find(|limit| limit.as_str() == name);
    let limit = limit.ok_or_else(|| format!("no limit {name}; there are {names}"))?;
    let number = || value.replace('_', "").parse().map_err(|_| "a whole number, or none");
    let value = if value == "none" { None } else { Some(number()?) };
    Ok(LimitChange { limit, value })
}

/// The changes as they are sent: each by its name.
fn change_of<T: DeserializeOwned>(changes: &[LimitChange]) -> Result<T, Failure> {
    let fields: Map<_, _> =
        changes.iter().map(|one| (one.limit.to_string(), json!(one.value))).collect();
    // A number may be too large for its limit.
    serde_json::from_value(fields.into())
        .map_err(|error| Failure::new("a limit is not valid", error.to_string()))
}

pub(crate) fn main(arguments: Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let Arguments { act, shared } = arguments;
    match act.unwrap_or(Act::Ls(shared)) {
        Act::Create { name, role, ttl, limit, shared } => {
            let ttl_s = ttl.map(|time| time.as_millis().div_ceil(1000) as u64);
            let limits = change_of(&limit)?;
            let request = KeyRequest { name, role, ttl_s, limits };
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
        Act::Limit { key, limits, shared } => {
            let change = KeyChange { limits: change_of(&limits)? };
            let key = shared.server.with(async |client| {
                client.change_key(key, &change).await.map_err(cannot("change the key"))
            })?;
            if shared.json {
                output.say_value(&key)?;
            } else {
                output.say(&limits_text(&key));
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

/// The limits that hold for a key, each with what is used of it.
fn limits_text(key: &Key) -> String {
    let text = |limit: KeyLimit| {
        let most = key.effective_limits.get(limit)?;
        Some(match key.used.of(limit) {
            Some(used) => format!("{limit} {used}/{most}"),
            None => format!("{limit} {most}"),
        })
    };
    KeyLimit::ALL.into_iter().filter_map(text).collect::<Vec<_>>().join(", ")
}

fn table(keys: &[Key], now: Time) -> Table {
    let mut table = Table::new(&["KEY", "NAME", "ROLE", "CREATED", "WORKS", "USED/LIMIT"]);
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
            limits_text(key),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use model::KeyLimits;
    use wire::KeyLimitsChange;

    use super::*;

    #[test]
    fn limits_are_read_by_name_and_none_removes_one() {
        let read = |texts: &[&str]| -> Vec<LimitChange> {
            texts.iter().map(|text| limit_change(text).unwrap()).collect()
        };
        let changes = read(&["live_sandboxes=1_0", "memory_mb=none"]);
        let change: KeyLimitsChange = change_of(&changes).unwrap();
        assert_eq!((change.live_sandboxes, change.memory_mb), (Some(Some(10)), Some(None)));
        let limits: KeyLimits = change_of(&changes).unwrap();
        assert_eq!((limits.live_sandboxes, limits.memory_mb), (Some(10), None));
        for wrong in ["sandboxes=1", "sessions", "sessions=x", "sessions=-1"] {
            assert!(limit_change(wrong).is_err(), "{wrong}");
        }
        let large = read(&["sessions=9999999999"]);
        assert!(change_of::<KeyLimits>(&large).is_err());
    }
}
