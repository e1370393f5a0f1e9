//! What a program inside tries and must not get. Every attempt is a line of the probe's output, so
//! a probe that stops early is noticed by its count.

use std::io::Write as _;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::{Context as _, Result, ensure};

use super::node::{Node, on_node};

const PROBE: &str = include_str!("isolation.py");

/// At least so many attempts are made.
const ATTEMPTS: usize = 90;

#[test]
fn nothing_of_the_host_is_reachable() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let port = listener.local_addr()?.port().to_string();
            let name = format!("shoal-test-{}", std::process::id());
            let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
            let secret = node.directory().join("secret");
            std::fs::File::create(&secret)?.write_all(b"secret")?;
            let secret = secret.to_str().context("temporary paths are text")?.to_owned();
            // Our own command line is something that must not be seen.
            let mark = std::env::args().next().context("tests have a name")?;

            let sandbox = node.sandbox().await?;
            let said = node.python(&sandbox, PROBE, &[&port, &secret, &name, &mark]).await?;
            let reached: Vec<&str> =
                said.lines().filter(|line| line.contains(": REACHED")).collect();
            ensure!(reached.is_empty(), "reached:\n{}\n\nall:\n{said}", reached.join("\n"));
            let refused = said.lines().filter(|line| line.contains(": refused")).count();
            ensure!(said.contains(&format!("tried: {refused}")), "some were not tried:\n{said}");
            ensure!(refused >= ATTEMPTS, "only {refused} attempts:\n{said}");
            sandbox.ping().await?;
            Ok(())
        },
    )
}

#[test]
fn the_files_call_is_no_way_around() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let made = node
                .sh(
                    &sandbox,
                    "ln -s /proc/1/mem mem; ln -s / root; ln -s /etc/passwd passwd; mkfifo fifo",
                )
                .await?;
            ensure!(made.exit.success(), "{made:?}");
            for path in [
                "/proc/1/mem",
                "/proc/self/mem",
                "mem",
                "/proc/self/environ",
                "root/proc/1/maps",
                "/proc/1/root/etc/passwd",
                "fifo",
                "/dev/zero",
                "/dev/tty",
            ] {
                let read = sandbox.read_all(path, 1 << 20).await;
                ensure!(read.is_err(), "{path} was read");
            }
            for path in [
                "/proc/1/mem",
                "/proc/self/oom_score_adj",
                "mem",
                "passwd",
                "/etc/passwd",
                "/usr/bin/sh",
                "/x",
                "fifo",
            ] {
                let written = sandbox.write_all(path, b"x", None).await;
                if path == "mem" || path == "passwd" {
                    // It takes the place of the link, in a directory of the user's own.
                    continue;
                }
                ensure!(written.is_err(), "{path} was written");
            }
            ensure!(!sandbox.read_all("/etc/passwd", 1 << 20).await?.starts_with(b"x"));
            sandbox.ping().await?;
            Ok(())
        },
    )
}
