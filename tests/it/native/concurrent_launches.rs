//! Many at once: most are served, the others are refused with a reason, and nothing is left of any.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::task::JoinSet;

use runtime::Runtime as _;

use super::node::{Node, on_node};

#[test]
fn five_hundred_launches_at_once() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let mut launches = JoinSet::new();
            for _ in 0..500 {
                let (native, spec) = (node.native(), node.spec());
                launches.spawn(async move { native.launch(spec).await });
            }
            let mut made = Vec::new();
            let mut refused = BTreeMap::<String, u32>::new();
            while let Some(launched) = launches.join_next().await {
                match launched? {
                    Ok(sandbox) => made.push(sandbox),
                    Err(error) => {
                        *refused.entry(error.code().as_str().to_owned()).or_default() += 1;
                    }
                }
            }
            ensure!(made.len() >= 450, "only {} of 500: {refused:?}", made.len());
            for sandbox in &made {
                sandbox.inside().ping().await?;
            }
            ensure!(node.native().list().await?.len() == made.len());
            for sandbox in made {
                sandbox.kill().await?;
            }
            ensure!(node.native().list().await?.is_empty());
            Ok(())
        },
    )
}

#[test]
fn a_full_node_says_so_and_serves_again_when_there_is_room() -> Result<()> {
    on_node(
        |config| config.slots = 4,
        async |node: &Node| {
            let mut held = Vec::new();
            for _ in 0..4 {
                held.push(node.sandbox().await?);
            }
            let error = node.native().launch(node.spec()).await.err();
            let code = error.map(|error| error.code().as_str());
            ensure!(code == Some("capacity_exhausted"), "{code:?}");
            held.pop();
            held.remove(0).kill().await?;
            node.sandbox().await?.inside().ping().await?;
            Ok(())
        },
    )
}

#[test]
fn dropped_launches_leave_nothing() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            for pause_us in (0..3000).step_by(50) {
                let launch = node.native();
                let spec = node.spec();
                let patience = Duration::from_micros(pause_us);
                // One that was quick enough is ours to kill.
                if let Ok(Ok(made)) = tokio::time::timeout(patience, launch.launch(spec)).await {
                    made.kill().await?;
                }
            }
            node.until_empty().await
        },
    )
}
