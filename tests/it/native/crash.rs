//! Death at any moment, of the launcher or of a guest: afterwards, or after a cleaning, no process,
//! mount, control group or namespace of ours is left.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use runtime::Runtime as _;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::node::{Node, dice, kill, on_node};

/// Launches in all if `LAUNCHES` does not say; `scripts/long.sh` says 1,000.
const LAUNCHES: u32 = 300;

#[test]
fn a_killed_guest_is_noticed_and_nothing_is_left() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let mut deaths = node.native().events();
            let sandbox = node.sandbox().await?;
            kill(node.guest_of(&sandbox)?);
            let died = tokio::time::timeout(Duration::from_secs(10), deaths.next()).await?;
            ensure!(died.context("a death is reported")?.instance == sandbox.instance());
            let code = sandbox.inside().ping().await.err().map(|error| error.code().as_str());
            ensure!(code == Some("sandbox_gone"), "{code:?}");
            node.until_empty().await
        },
    )
}

/// A child of the launcher has copies of the launcher's sockets for a moment, which is long if the
/// machine is busy. What the launcher closes meanwhile must not tell of the sandboxes that come
/// after it in the same slot.
#[test]
fn copies_of_closed_sockets_do_no_harm_to_the_next_sandboxes() -> Result<()> {
    on_node(
        |config| (config.slots, config.spares) = (1, 1),
        async |node: &Node| {
            node.until_spare().await?;
            let copies = sockets_of(node.launcher())?;
            for _ in 0..10 {
                let sandbox = node.sandbox().await?;
                kill(node.guest_of(&sandbox)?);
                node.until_empty().await?;
            }
            drop(copies);
            Ok(())
        },
    )
}

/// Copies of the sockets that a process has.
fn sockets_of(pid: u32) -> Result<Vec<OwnedFd>> {
    let process = Pid::from_raw(pid.cast_signed()).context("a process has a number")?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    let mut copies = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        if std::fs::read_link(entry.path())?.to_string_lossy().starts_with("socket:") {
            let number = entry.file_name().to_string_lossy().parse()?;
            copies.push(pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?);
        }
    }
    Ok(copies)
}

#[test]
fn a_killed_launcher_takes_everything_along() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let mut held = Vec::new();
            for _ in 0..20 {
                held.push(node.sandbox().await?);
            }
            node.sh(&held[0], "setsid sleep 600 & sleep 600 & true").await?;
            kill(node.launcher());
            for sandbox in &held {
                while sandbox.inside().ping().await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            node.clean().await
        },
    )
}

#[test]
fn death_at_random_during_launches() -> Result<()> {
    let launches = std::env::var("LAUNCHES").ok().and_then(|text| text.parse().ok());
    let launches = launches.unwrap_or(LAUNCHES);
    let mut dice = dice(20_261_115);
    let mut launched = 0;
    let mut nodes = 0;
    while launched < launches {
        nodes += 1;
        let lives = 20 + dice() % 60;
        on_node(
            |config| config.spares = 4,
            async |node: &Node| {
                let mut held = Vec::new();
                for turn in 0..lives {
                    if turn + 1 == lives {
                        // In the middle of a launch, at a moment of its own.
                        let (native, spec) = (node.native(), node.spec());
                        let launch = tokio::spawn(async move { native.launch(spec).await.is_ok() });
                        tokio::time::sleep(Duration::from_micros(dice() % 1500)).await;
                        kill(node.launcher());
                        let _ = launch.await;
                        break;
                    }
                    match dice() % 4 {
                        0 => {
                            let _ = tokio::time::timeout(
                                Duration::from_micros(dice() % 1000),
                                node.sandbox(),
                            )
                            .await;
                        }
                        1 => {
                            let sandbox = node.sandbox().await?;
                            kill(node.guest_of(&sandbox)?);
                        }
                        2 => held.push(node.sandbox().await?),
                        _ => {
                            let sandbox = node.sandbox().await?;
                            node.sh(&sandbox, "sleep 600 & true").await?;
                            held.push(sandbox);
                        }
                    }
                }
                node.clean().await
            },
        )?;
        launched += lives as u32;
    }
    ensure!(nodes > 3, "only {nodes} launchers were killed");
    Ok(())
}
