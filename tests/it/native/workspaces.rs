//! `/workspace` on disk: attached late, owned by the user inside, kept when the sandbox is gone.

use anyhow::{Result, ensure};
use model::{ClaimSettings, WorkspaceId};
use runtime::{Runtime as _, WorkspaceSource};

use super::node::{Node, on_node};

#[test]
fn a_disk_workspace_outlives_its_sandbox_whenever_it_was_attached() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let workspace = WorkspaceId::from_u128(7);
            node.make_workspace(workspace)?;
            let mut spec = node.spec();
            spec.workspace = WorkspaceSource::Disk(workspace);
            let first = node.native().launch(spec).await?;
            let ran = node
                .sh(
                    &first,
                    "echo kept > file; stat -c '%u %g' file .; df . | tail -n 1 | awk '{print $6}'",
                )
                .await?;
            ensure!(ran.stdout == b"1000 1000\n1000 1000\n/workspace\n", "{ran:?}");
            first.kill().await?;

            let second = node.sandbox().await?;
            let before = node.sh(&second, "ls -A").await?;
            ensure!(before.stdout.is_empty(), "{before:?}");
            second.claim(&ClaimSettings::default(), Some(workspace)).await?;
            let ran = node
                .sh(
                    &second,
                    "cat file; echo more >> file; chmod 4755 file; ls -l file | cut -c1-10",
                )
                .await?;
            ensure!(ran.stdout == b"kept\n-rwsr-xr-x\n", "{ran:?}");
            second.kill().await?;

            let third = node.sandbox().await?;
            third.claim(&ClaimSettings::default(), Some(workspace)).await?;
            ensure!(third.inside().read_all("file", 1024).await? == b"kept\nmore\n");
            let mounts =
                node.sh(&third, "grep ' /workspace ' /proc/self/mountinfo | tail -n 1").await?;
            let mounts = String::from_utf8(mounts.stdout)?;
            ensure!(mounts.contains("nosuid") && mounts.contains("nodev"), "{mounts}");
            Ok(())
        },
    )
}

#[test]
fn a_workspace_that_does_not_exist_or_is_a_link_is_refused() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let missing = WorkspaceId::from_u128(404);
            ensure!(sandbox.claim(&ClaimSettings::default(), Some(missing)).await.is_err());
            let link = WorkspaceId::from_u128(405);
            std::os::unix::fs::symlink("/etc", node.workspaces().join(link.to_string()))?;
            ensure!(sandbox.claim(&ClaimSettings::default(), Some(link)).await.is_err());
            let still = node.sh(&sandbox, "ls -A").await?;
            ensure!(still.stdout.is_empty(), "{still:?}");
            Ok(())
        },
    )
}
