//! Workspaces that were prepared by their last user to trap the next one, or the host.

use std::os::unix::fs::{MetadataExt as _, symlink};
use std::time::Duration;

use anyhow::{Result, ensure};
use model::template::WorkspaceLimit;
use model::{ClaimSettings, WorkspaceId};
use runtime::{ExecSpec, RunLimits, Runtime as _, Users, WorkspaceSource};
use workspaces::{Scan, Size};

use super::host_entry::names_in;
use crate::native::node::{Node, on_node};

/// Names in a workspace that are places of a sandbox elsewhere.
const PLACES: &[&str] = &["proc", "dev", "tmp", "workspace", "etc", "sys", "usr", "run", "root"];

/// A volume whose contents were links became a mount somewhere else (CVE-2021-30465; for parts of a
/// volume CVE-2017-1002101 and CVE-2021-25741).
#[test]
fn cve_2021_30465_links_in_a_workspace_move_no_mount() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let outside = node.directory().join("outside");
            std::fs::create_dir(&outside)?;
            let workspace = WorkspaceId::from_u128(30_465);
            node.make_workspace(workspace)?;
            let place = node.workspaces().join(workspace.to_string());
            for name in PLACES {
                symlink(&outside, place.join(name))?;
            }
            for late in [false, true] {
                let mut spec = node.spec();
                if !late {
                    spec.workspace = WorkspaceSource::Disk(workspace);
                }
                let sandbox = node.native().launch(spec).await?;
                if late {
                    sandbox.claim(&ClaimSettings::default(), Some(workspace)).await?;
                }
                let types = "for p in /proc /tmp /dev/shm /dev/pts; do stat -f -c %T $p; done; echo x > /tmp/x; ls /workspace | wc -l";
                let ran = node.sh(&sandbox, types).await?;
                let said = String::from_utf8_lossy(&ran.stdout).into_owned();
                ensure!(
                    said == format!("proc\ntmpfs\ntmpfs\ndevpts\n{}\n", PLACES.len()),
                    "{said}"
                );
                ensure!(
                    sandbox.inside().write_all("tmp/x", b"x", None).await.is_err(),
                    "written through a link"
                );
                sandbox.kill().await?;
                ensure!(names_in(&outside)?.is_empty(), "something was made outside");
            }
            Ok(())
        },
    )
}

/// While a volume was being mounted, a program changed where its place led to (CVE-2024-23651 in a
/// builder; CVE-2024-45310 for directories that were made on the way).
#[test]
fn cve_2024_23651_cve_2024_45310_the_place_of_a_workspace_cannot_be_moved_meanwhile() -> Result<()>
{
    let meddle = "import os, time\nopen('/tmp/meddling', 'w').close()\nend = time.monotonic() + 20\ndone = set()\n\
        while time.monotonic() < end and not os.path.exists('/tmp/enough'):\n\
        \x20 for way in (lambda: os.rename('/workspace', '/tmp/w'), lambda: os.rmdir('/workspace'), lambda: os.symlink('/tmp', '/workspace'), lambda: os.rename('/tmp/t', '/workspace'), lambda: os.mkdir('/workspace2')):\n\
        \x20   try: way(); done.add('DONE')\n    except OSError: pass\n\
        print(done or 'nothing')\n";
    on_node(
        |_| {},
        async |node: &Node| {
            for round in 0..5 {
                let workspace = WorkspaceId::from_u128(23_651 + round);
                node.make_workspace(workspace)?;
                let sandbox = node.sandbox().await?;
                let spec = ExecSpec {
                    cwd: Some("/".to_owned()),
                    ..ExecSpec::argv(["/usr/bin/python3", "-c", meddle])
                };
                let limits = RunLimits { output_bytes: 1024, timeout: Duration::from_secs(30) };
                let (meddled, attached) = tokio::join!(sandbox.inside().run(spec, limits), async {
                    while sandbox.inside().stat("/tmp/meddling").await.is_err() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    sandbox.claim(&ClaimSettings::default(), Some(workspace)).await?;
                    sandbox.inside().write_all("/workspace/file", b"kept", None).await?;
                    sandbox.inside().write_all("/tmp/enough", b"", None).await?;
                    anyhow::Ok(())
                });
                attached?;
                let meddled = meddled?;
                ensure!(meddled.stdout == b"nothing\n", "{meddled:?}");
                let kept = node.workspaces().join(workspace.to_string()).join("file");
                ensure!(std::fs::read(kept)? == b"kept", "it was attached elsewhere");
                sandbox.kill().await?;
            }
            Ok(())
        },
    )
}

/// Files of containers lay in a directory of the host that every user of it could enter, with their
/// set-user-id bits: one person inside and one outside were enough.
#[test]
fn cve_2021_41091_users_of_the_host_cannot_run_what_lies_in_a_workspace() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let workspace = WorkspaceId::from_u128(41_091);
            node.make_workspace(workspace)?;
            let mut spec = node.spec();
            spec.workspace = WorkspaceSource::Disk(workspace);
            let sandbox = node.native().launch(spec).await?;
            let ran =
                node.sh(&sandbox, "cp /usr/bin/id id && chmod 6755 id && chmod 777 .").await?;
            ensure!(ran.exit.success(), "{ran:?}");
            let place = node.workspaces().join(workspace.to_string());
            let mode = std::fs::metadata(place.join("id"))?.mode();
            ensure!(mode & 0o6000 == 0o6000, "the trap is not laid: {mode:o}");
            let closed = std::fs::metadata(node.workspaces())?.mode();
            ensure!(closed & 0o777 == 0o700, "others can enter: {closed:o}");
            // Only root can become someone else to try.
            if node.users() != Users::Ranges {
                return Ok(());
            }
            let reached = std::process::Command::new("/usr/bin/setpriv")
                // The shell in between has given up what it takes to change users.
                .args(["--reuid=64243", "--regid=64243", "--clear-groups"])
                .args(["--", "/bin/sh", "-c", "exec \"$0\""])
                .arg(place.join("id"))
                .output()?;
            ensure!(!reached.status.success(), "a user of the host ran it: {reached:?}");
            Ok(())
        },
    )
}

/// What a build left behind was removed by the host through a link, and so was a directory of the
/// host (CVE-2024-23652).
#[test]
fn cve_2024_23652_a_workspace_full_of_links_is_removed_alone() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let outside = node.directory().join("outside");
            std::fs::create_dir_all(outside.join("sub"))?;
            std::fs::write(outside.join("sub/canary"), "canary")?;
            let workspace = WorkspaceId::from_u128(23_652);
            node.make_workspace(workspace)?;
            let mut spec = node.spec();
            spec.workspace = WorkspaceSource::Disk(workspace);
            let sandbox = node.native().launch(spec).await?;
            for (path, target) in [
                ("a/link", outside.as_path()),
                ("link", &outside.join("sub")),
                ("up", "../..".as_ref()),
            ] {
                sandbox.inside().make_link(path, &target.to_string_lossy()).await?;
            }
            sandbox.inside().remove("/workspace/a", true).await?;
            sandbox.inside().remove("/workspace/link", true).await?;
            // A tree whose paths are longer than the kernel takes, with doors that are closed.
            let deep = "import os\nfor _ in range(300): os.mkdir('d' * 16); os.chdir('d' * 16)\n\
                        os.mkdir('closed'); os.symlink('/', 'closed/root'); os.chmod('closed', 0)";
            node.python(&sandbox, deep, &[]).await?;
            sandbox.kill().await?;
            let disk = node.disk()?;
            disk.remove(workspace)?;
            ensure!(disk.wait_until_removed(Duration::from_secs(20)), "it is not removed");
            ensure!(!node.workspaces().join(workspace.to_string()).exists());
            ensure!(names_in(&outside.join("sub"))? == ["canary"]);
            Ok(())
        },
    )
}

/// The host itself walks through a workspace to measure and to remove it, while its user makes
/// directories links and back (as in CVE-2018-15664, here without anything in between).
#[test]
fn cve_2018_15664_what_measures_and_removes_a_workspace_follows_no_link() -> Result<()> {
    let swap = "import ctypes, os, sys\nlibc = ctypes.CDLL(None)\nos.makedirs('d/sub')\nos.symlink(sys.argv[1], 'link')\n\
                os.symlink(sys.argv[1] + '/canary', 'd/sub/canary')\nturn = 0\nwhile True:\n  turn += 1\n\
                \x20 if turn == 500: open('/tmp/turned', 'w').close()\n  \
                  if libc.renameat2(-100, b'd', -100, b'link', 2) and not os.path.lexists('d'): break\n";
    on_node(
        |_| {},
        async |node: &Node| {
            let outside = node.directory().join("outside");
            std::fs::create_dir(&outside)?;
            // So large that it could not be overlooked.
            std::fs::write(outside.join("canary"), vec![1; 8 << 20])?;
            let workspace = WorkspaceId::from_u128(15_664);
            let disk = node.disk()?;
            disk.create(workspace, Size::SMALLEST, WorkspaceLimit::Soft, 0)?;
            let mut spec = node.spec();
            spec.workspace = WorkspaceSource::Disk(workspace);
            let sandbox = node.native().launch(spec).await?;
            let target = outside.to_string_lossy().into_owned();
            let spec = ExecSpec::argv(["/usr/bin/python3", "-c", swap, &target]);
            let process = sandbox.inside().exec(spec).await?;
            let mut scans = 0;
            while scans < 300 || sandbox.inside().stat("/tmp/turned").await.is_err() {
                scans += 1;
                let scan = Scan { enough: Size::of_bytes(1 << 30), go_on: &mut |_| true };
                // A directory that is gone in the middle may be an error.
                if let Ok(usage) = disk.usage(workspace, scan) {
                    ensure!(usage.bytes < 1 << 20, "{} bytes were counted", usage.bytes);
                }
            }
            // Removed under the hands of its user.
            disk.remove(workspace)?;
            let removed = disk.wait_until_removed(Duration::from_secs(20));
            process.handle().kill().await?;
            sandbox.kill().await?;
            ensure!(removed || disk.wait_until_removed(Duration::from_secs(20)), "not removed");
            ensure!(names_in(&outside)? == ["canary"], "removed through a link");
            ensure!(std::fs::metadata(outside.join("canary"))?.len() == 8 << 20);
            Ok(())
        },
    )
}
