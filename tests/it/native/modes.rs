//! Sandboxes are launched in more than one way: by the launcher or by a slot parent, with a network
//! namespace made before or on the spot. Whichever it is, they are the same inside.

use anyhow::{Result, ensure};
use runtime::native::{NativeConfig, NetworkMode};
use runtime::{LaunchSpec, Root, Runtime as _};

use super::node::{Node, on_node};

/// Loopback works, nothing else is there, freezing works.
async fn is_as_always(node: &Node) -> Result<()> {
    // More than there are preforks, so that some launches wait.
    for _ in 0..6 {
        let sandbox = node.sandbox().await?;
        let talk = "import socket\ns = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n\
                    socket.create_connection(s.getsockname(), timeout=5)\n\
                    print(open('/proc/net/dev').read().count(':'))";
        ensure!(node.python(&sandbox, talk, &[]).await?.trim() == "1");
        if node.native().capabilities().freeze {
            sandbox.freeze().await?;
            sandbox.thaw().await?;
            sandbox.inside().ping().await?;
            // A sandbox that is frozen when it dies leaves a slot that works.
            sandbox.freeze().await?;
        }
        sandbox.kill().await?;
    }
    Ok(())
}

#[test]
fn every_way_to_a_network_and_to_groups_gives_the_same_sandbox() -> Result<()> {
    for network in [NetworkMode::Spare, NetworkMode::Fresh, NetworkMode::Shared] {
        for limits in [true, false] {
            let change = |config: &mut NativeConfig| {
                config.network = network;
                config.limits = limits;
                config.slots = 4;
            };
            on_node(change, async |node: &Node| is_as_always(node).await)?;
        }
    }
    Ok(())
}

#[test]
fn a_root_without_a_libc_is_enough() -> Result<()> {
    let place = std::env::temp_dir().join(format!("shoal-roots-{}", std::process::id()));
    let root = place.join("deep/empty");
    std::fs::create_dir_all(root.join("bin"))?;
    // The only static program that is surely there is the guest itself.
    let program = root.join("bin/only");
    std::fs::write(&program, guest_image::bytes()?)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode)?;
    let change = |config: &mut NativeConfig| config.directories = vec![place.clone()];
    let outcome = on_node(change, async |node: &Node| {
        let root = Root::Directory("deep/empty".to_owned());
        let sandbox = node.native().launch(LaunchSpec { root, ..node.spec() }).await?;
        let ran = node.run(&sandbox, runtime::ExecSpec::argv(["/bin/only", "noop"])).await?;
        ensure!(ran.exit.success(), "{ran:?}");
        sandbox.inside().write_all("file", b"text", None).await?;
        ensure!(sandbox.inside().read_all("/workspace/file", 16).await? == b"text");
        ensure!(
            sandbox.inside().write_all("/bin/other", b"x", None).await.is_err(),
            "the root is writable"
        );
        let names = sandbox.inside().list_files("/bin", None, 10).await?;
        ensure!(names.entries.len() == 1, "{names:?}");
        Ok(())
    });
    std::fs::remove_dir_all(place)?;
    outcome
}
