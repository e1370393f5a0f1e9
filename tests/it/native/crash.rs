//! Death at any moment, of the launcher or of a guest: afterwards, or after a cleaning, no process,
//! mount, control group or namespace of ours is left.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use runtime::Runtime as _;

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
            ensure!(died.context("a death is told")?.instance == sandbox.instance());
            let code = sandbox.inside().ping().await.err().map(|error| error.code().as_str());
            ensure!(code == Some("sandbox_gone"), "{code:?}");
            node.until_empty().await
        },
    )
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
