//! After a return the next user finds nothing. A program plants something in every place it can
//! reach; the same eyes that see all of it there see none of it in the sandbox that follows.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use model::ClaimSettings;
use runtime::{ExecSpec, Runtime as _, Stdin, TerminalSize, Users};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::node::{Node, on_node};

const SCRIPT: &str = include_str!("between_users.py");

/// What a look at a sandbox with everything planted must find, so that finding nothing means
/// something.
const PLANTED: &[&str] = &[
    "abstract datagram socket",
    "abstract socket",
    "anything in /dev/shm",
    "anything in /run/secrets",
    "anything in /tmp",
    "anything in /workspace",
    "attributes of /workspace",
    "counters of the network",
    "directory of a process",
    "environment",
    "environment of a process",
    "file /dev/shm/mark",
    "file /run/secrets/mark",
    "file /tmp/mark",
    "file /var/tmp/mark2",
    "file /workspace/.hidden/mark",
    "file /workspace/mark",
    "file in memory",
    "lock on a common file",
    "named socket",
    "numbers of processes",
    "owned by the user",
    "permissions of a place",
    "posix message queue",
    "process",
    "sysv message queue",
    "sysv semaphore",
    "sysv shared memory",
    "table of connections",
    "table of sockets",
    "table of sysv msg",
    "table of sysv sem",
    "table of sysv shm",
    "tcp listener",
    "tcp listener, version 6",
    "terminals",
    "time of a place",
    "uses counted by user",
];

/// The kernel counts for all that one person on the host has; only root gives each sandbox users of
/// its own. Without, others change those counts, so that they are neither here nor there.
fn shared_by_user(node: &Node, channel: &str) -> bool {
    node.users() != Users::Ranges && channel == "uses counted by user"
}

/// What was found and should not be there.
fn unexpected<'a>(node: &Node, found: &'a str) -> Vec<&'a str> {
    let found = found.lines().filter(|line| !line.is_empty());
    found.filter(|channel| !shared_by_user(node, channel)).collect()
}

#[test]
fn the_next_user_finds_nothing() -> Result<()> {
    // So few slots that each user gets the one of the last but one: its uids, its groups.
    on_node(
        |config| {
            config.slots = 2;
            config.spares = 1;
        },
        async |node: &Node| {
            let mut sandbox = node.sandbox().await?;
            for round in 0..4 {
                let found = node.python(&sandbox, SCRIPT, &["look"]).await?;
                let found = unexpected(node, &found);
                ensure!(found.is_empty(), "round {round}: left behind: {found:?}");
                let settings = ClaimSettings {
                    env: BTreeMap::from([("LEFT_BEHIND".to_owned(), "secret".to_owned())]),
                    ..ClaimSettings::default()
                };
                sandbox.claim(&settings, None).await?;
                node.python(&sandbox, SCRIPT, &["plant"]).await?;
                let found = node.python(&sandbox, SCRIPT, &["look"]).await?;
                for planted in PLANTED {
                    let seen = found.lines().any(|line| line == *planted);
                    ensure!(seen || shared_by_user(node, planted), "{planted} is not seen");
                }
                sandbox = node.native().recreate(sandbox, node.instance()).await?;
            }
            Ok(())
        },
    )
}

#[test]
fn neighbours_do_not_see_each_other() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let (one, other) = (node.sandbox().await?, node.sandbox().await?);
            node.python(&one, SCRIPT, &["plant"]).await?;
            let found = node.python(&other, SCRIPT, &["look"]).await?;
            let found = unexpected(node, &found);
            ensure!(found.is_empty(), "seen of the neighbour: {found:?}");
            Ok(())
        },
    )
}

/// What a terminal showed, or what was typed and not read, belongs to its user.
#[test]
fn a_terminal_shows_nothing_of_the_last_user() -> Result<()> {
    let on_terminal = |line: &str| ExecSpec {
        stdin: Stdin::Stream,
        terminal: Some(TerminalSize { rows: 24, columns: 80 }),
        ..ExecSpec::shell(line)
    };
    on_node(
        |config| {
            config.slots = 2;
            config.spares = 1;
        },
        async |node: &Node| {
            let mut sandbox = node.sandbox().await?;
            for round in 0..4 {
                let mut process = sandbox
                    .inside()
                    .exec(on_terminal("tty; read -t 1 line; echo \"$line\"; cat /dev/pts/[1-9]*"))
                    .await?;
                let mut stdout = process.stdout.take().context("a terminal has output")?;
                let mut said = Vec::new();
                drop(process.stdin.take());
                let reading = stdout.read_to_end(&mut said);
                tokio::time::timeout(Duration::from_secs(20), reading).await??;
                let said = String::from_utf8_lossy(&said).into_owned();
                ensure!(!said.contains("secret"), "round {round}: {said:?}");
                ensure!(said.contains("/dev/pts/0"), "round {round}: not the first: {said:?}");

                let mut process =
                    sandbox.inside().exec(on_terminal("echo secret; sleep 60")).await?;
                let mut stdin = process.stdin.take().context("a terminal has input")?;
                stdin.write_all(b"secret\n").await?;
                let mut stdout = process.stdout.take().context("a terminal has output")?;
                let mut some = [0; 64];
                let read = tokio::time::timeout(Duration::from_secs(20), stdout.read(&mut some));
                ensure!(read.await?? > 0, "it shows nothing");
                sandbox = node.native().recreate(sandbox, node.instance()).await?;
            }
            Ok(())
        },
    )
}
