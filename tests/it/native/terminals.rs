//! Programs that want a terminal get one: its size, its signals, its line discipline.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use runtime::{ExecSpec, ExitStatus, Stdin, TerminalSize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::node::{Node, on_node};

fn on_terminal(line: &str) -> ExecSpec {
    ExecSpec {
        stdin: Stdin::Stream,
        terminal: Some(TerminalSize { rows: 31, columns: 97 }),
        ..ExecSpec::shell(line)
    }
}

#[test]
fn a_terminal_has_its_size_and_is_one() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let mut process = sandbox
                .inside()
                .exec(on_terminal("tty; test -t 0 -a -t 1 -a -t 2 && echo all; stty size"))
                .await?;
            let mut stdout = process.stdout.take().context("a terminal has output")?;
            let mut said = Vec::new();
            stdout.read_to_end(&mut said).await?;
            ensure!(process.wait().await?.success());
            let said = String::from_utf8(said)?.replace('\r', "");
            ensure!(said == "/dev/pts/0\nall\n31 97\n", "{said:?}");
            Ok(())
        },
    )
}

#[test]
fn keys_become_signals_and_sizes_change() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let mut process = sandbox
            .inside().exec(on_terminal("trap 'stty size' WINCH; echo ready; while :; do read -r line && echo got $line; done"))
            .await?;
            let mut stdin = process.stdin.take().context("a terminal has input")?;
            let mut stdout = process.stdout.take().context("a terminal has output")?;
            let mut said = String::new();
            let mut until = async |wanted: &str| -> Result<()> {
                let mut buffer = [0; 4096];
                while !said.contains(wanted) {
                    let read =
                        tokio::time::timeout(Duration::from_secs(10), stdout.read(&mut buffer))
                            .await;
                    let length =
                        read.with_context(|| format!("waited for {wanted:?}, had {said:?}"))??;
                    ensure!(length > 0, "ended before {wanted:?}: {said:?}");
                    said.push_str(&String::from_utf8_lossy(&buffer[..length]));
                }
                Ok(())
            };
            until("ready").await?;
            stdin.write_all(b"hello\n").await?;
            until("got hello").await?;
            process.handle().resize(TerminalSize { rows: 50, columns: 132 }).await?;
            stdin.write_all(b"\n").await?;
            until("50 132").await?;
            stdin.write_all(b"\x03").await?;
            let exit = process.wait().await?;
            ensure!(exit.status == ExitStatus::Signal(2), "{exit:?}");
            Ok(())
        },
    )
}
