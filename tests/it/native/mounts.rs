//! Files and directories of the host that are seen inside: where they are wanted, as whose they
//! are, read-only unless the template says otherwise, and never anything else.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use model::Mount;
use runtime::native::NativeConfig;
use runtime::{LaunchSpec, Root, Runtime as _, Sandbox, Users};

use super::node::{Node, dice, on_node};

/// What the user of programs is called inside, and on the host where root made the sandbox.
const USER: u32 = 1000;
/// The user id of owners that are unknown inside.
const OVERFLOW_UID: u32 = 65_534;

/// A node that may show what is in a directory of its own.
fn on_showing_node(test: impl AsyncFnOnce(&Node) -> Result<()>) -> Result<()> {
    let change = |config: &mut NativeConfig| {
        let shown = shown(&config.run_directory);
        let _ = std::fs::create_dir_all(&shown);
        config.mounts = vec![shown];
    };
    on_node(change, test)
}

fn shown(directory: &Path) -> PathBuf {
    directory.join("shown")
}

fn mount(node: &Node, name: &str, path: &str, read_only: bool) -> Mount {
    let host_path = shown(node.directory()).join(name).to_string_lossy().into_owned();
    Mount { host_path, path: path.to_owned(), read_only, docker_host_path: None }
}

async fn launch(node: &Node, mounts: Vec<Mount>) -> Result<Arc<dyn Sandbox>> {
    Ok(node.native().launch(LaunchSpec { mounts, ..node.spec() }).await?)
}

async fn said(node: &Node, sandbox: &Arc<dyn Sandbox>, line: &str) -> Result<String> {
    let ran = node.sh(sandbox, line).await?;
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    Ok(text + &String::from_utf8_lossy(&ran.stderr))
}

/// A directory that belongs to the user of programs, as far as the user of the tests can give it
/// away.
fn of_the_user(node: &Node, path: &Path) -> Result<()> {
    match node.users() {
        Users::Ranges => Ok(chown(path, Some(USER), Some(USER))?),
        // It belongs to that user already.
        Users::Subordinate | Users::Alone => Ok(()),
    }
}

/// Whose, on the host, what programs write is.
fn writer(node: &Node) -> u32 {
    match node.users() {
        Users::Ranges => USER,
        Users::Subordinate | Users::Alone => rustix::process::geteuid().as_raw(),
    }
}

#[test]
fn mounts_are_readable_and_writable_only_as_allowed() -> Result<()> {
    on_showing_node(async |node: &Node| {
        let place = shown(node.directory());
        std::fs::create_dir(place.join("data"))?;
        std::fs::write(place.join("data/public"), "public\n")?;
        std::fs::write(place.join("data/private"), "private\n")?;
        std::fs::set_permissions(
            place.join("data/private"),
            std::fs::Permissions::from_mode(0o600),
        )?;
        of_the_user(node, &place.join("data/private"))?;
        std::fs::create_dir(place.join("out"))?;
        of_the_user(node, &place.join("out"))?;
        std::fs::write(place.join("tool.conf"), "configured\n")?;
        let before =
            said(node, &node.sandbox().await?, "stat -c %A /usr/share; ls /usr /etc /usr/share")
                .await?;
        let mounts = vec![
            mount(node, "out", "/srv/deep/out", false),
            mount(node, "data", "/data", true),
            mount(node, "data", "/usr/share/shown", true),
            mount(node, "tool.conf", "/etc/tool/tool.conf", true),
        ];
        // More often than there are spares: some have the places already.
        for round in 0..4 {
            let sandbox = launch(node, mounts.clone()).await?;
            let text = said(
                node,
                &sandbox,
                "cat /data/public /data/private /usr/share/shown/public /etc/tool/tool.conf",
            );
            ensure!(text.await? == "public\nprivate\npublic\nconfigured\n");
            let tries = "for f in /data/new /data/public /etc/tool/tool.conf /usr/share/shown/new /srv/x /etc/tool/x; \
                         do (echo x > $f) 2>&1; done | grep -c 'Read-only'";
            ensure!(said(node, &sandbox, tries).await? == "6\n", "it is for reading only");
            let write = format!("echo {round} > /srv/deep/out/file && cat /srv/deep/out/file");
            ensure!(said(node, &sandbox, &write).await? == format!("{round}\n"));
            ensure!(std::fs::read_to_string(place.join("out/file"))? == format!("{round}\n"));
            let about = std::fs::metadata(place.join("out/file"))?;
            ensure!(about.uid() == writer(node), "{}", about.uid());
            let owner = match node.users() {
                Users::Ranges => OVERFLOW_UID,
                Users::Subordinate | Users::Alone => USER,
            };
            let owners = said(node, &sandbox, "stat -c %u /data/public /data/private").await?;
            ensure!(owners == format!("{owner}\n{USER}\n"), "{owners}");
            let points = "grep -E ' (/data|/srv/deep/out|/usr/share/shown|/etc/tool/tool.conf) ' /proc/self/mountinfo | \
                          grep nosuid | grep -c nodev";
            ensure!(said(node, &sandbox, points).await? == "4\n");
            // A set-user-id file must not give a user of the host other rights.
            let chmod = said(node, &sandbox, "chmod 4755 /srv/deep/out/file").await?;
            ensure!(chmod.contains("not permitted"), "{chmod}");
            let after =
                said(node, &sandbox, "stat -c %A /usr/share; ls /usr /etc /usr/share").await?;
            let after = after.replace("\ntool\n", "\n").replace("\nshown\n", "\n");
            ensure!(after == before, "{before}\n{after}");
            sandbox.kill().await?;
            ensure!(said(node, &node.sandbox().await?, "ls /data /srv").await?.contains("No such"));
        }
        Ok(())
    })
}

#[test]
fn mounts_work_with_another_root() -> Result<()> {
    on_showing_node(async |node: &Node| {
        let place = shown(node.directory());
        std::fs::write(place.join("file"), "shown\n")?;
        let root = node.root_directories().join("bare");
        std::fs::create_dir_all(root.join("opt"))?;
        std::fs::write(root.join("opt/own"), "own\n")?;
        let spec = LaunchSpec {
            root: Root::Directory("bare".to_owned()),
            mounts: vec![mount(node, "", "/opt/in", true), mount(node, "file", "/one", true)],
            ..node.spec()
        };
        let sandbox = node.native().launch(spec).await?;
        ensure!(sandbox.inside().read_all("/opt/in/file", 64).await? == b"shown\n");
        ensure!(sandbox.inside().read_all("/one", 64).await? == b"shown\n");
        ensure!(sandbox.inside().read_all("/opt/own", 64).await? == b"own\n", "nothing is hidden");
        ensure!(!root.join("opt/in").exists(), "the root itself is as it was");
        Ok(())
    })
}

#[test]
fn mount_source_must_exist_and_be_no_link() -> Result<()> {
    on_showing_node(async |node: &Node| {
        let place = shown(node.directory());
        std::fs::create_dir_all(place.join("data/out"))?;
        std::fs::create_dir(place.join("out"))?;
        of_the_user(node, &place.join("out"))?;
        symlink("../usr", place.join("data/link"))?;
        let with = |inner: &str| {
            vec![mount(node, "out", inner, false), mount(node, "data", "/data", true)]
        };
        let sandbox = launch(node, with("/data/out")).await?;
        ensure!(said(node, &sandbox, "echo x > /data/out/x; ls /data/out").await? == "x\n");
        ensure!(said(node, &sandbox, "echo x > /data/x").await?.contains("Read-only"));
        for inner in ["/data/missing", "/data/link", "/data/link/local"] {
            let Err(error) = launch(node, with(inner)).await else { bail!("{inner} was mounted") };
            ensure!(error.to_string().contains("attach a host directory"), "{inner}: {error}");
        }
        Ok(())
    })
}

#[test]
fn mount_sources_are_files_and_directories_below_the_roots() -> Result<()> {
    on_showing_node(async |node: &Node| {
        let place = shown(node.directory());
        std::fs::create_dir_all(place.join("deep/er"))?;
        symlink("/etc", place.join("out"))?;
        symlink("deep", place.join("within"))?;
        symlink("/proc/self/root/etc", place.join("magic"))?;
        let _listener = std::os::unix::net::UnixListener::bind(place.join("socket"))?;
        rustix::fs::mknodat(
            rustix::fs::CWD,
            place.join("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o666),
            0,
        )?;
        for name in [
            "..",
            "../roots",
            "deep/../..",
            "out",
            "out/passwd",
            "within",
            "within/er",
            "magic",
            "missing",
            "socket",
            "pipe",
            "deep/./er",
        ] {
            let mut asked = mount(node, "", "/data", true);
            asked.host_path = format!("{}/{name}", place.display());
            if launch(node, vec![asked]).await.is_ok() {
                bail!("{name} was shown");
            }
        }
        let mut asked = mount(node, "", "/data", true);
        asked.host_path = "/etc".to_owned();
        let Err(error) = launch(node, vec![asked]).await else { bail!("/etc was shown") };
        ensure!(error.to_string().contains("mounts[0].host_path"), "{error}");
        // Nothing of the root is hidden, and no link of it is followed.
        for path in ["/bin/x", "/usr/bin/env/x", "/usr/bin/env"] {
            if launch(node, vec![mount(node, "deep", path, true)]).await.is_ok() {
                bail!("{path} was made a directory");
            }
        }
        let sandbox = launch(node, vec![mount(node, "deep/er", "/data", true)]).await?;
        ensure!(said(node, &sandbox, "ls -d /data").await? == "/data\n", "all is well after that");
        Ok(())
    })
}

/// A directory that programs of one sandbox may write to is shown to another, while its name is
/// made a link to somewhere else and back.
#[test]
fn mount_source_that_changes_never_leads_out() -> Result<()> {
    on_showing_node(async |node: &Node| {
        let place = shown(node.directory());
        let secret = node.directory().join("secret");
        std::fs::create_dir(&secret)?;
        std::fs::write(secret.join("marker"), "secret")?;
        for name in ["a", "real"] {
            std::fs::create_dir_all(place.join(name).join("inner"))?;
            std::fs::write(place.join(name).join("inner/marker"), "shown")?;
        }
        symlink(&secret, place.join("link"))?;
        let enough = Arc::new(AtomicBool::new(false));
        let (stop, swapped) = (Arc::clone(&enough), place.clone());
        let swapping = std::thread::spawn(move || {
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            let at = rustix::fs::CWD;
            let mut random = dice(7);
            while !stop.load(Ordering::Relaxed) {
                let (one, other) = (swapped.join("a"), swapped.join("link"));
                let _ = rustix::fs::renameat_with(at, one, at, other, flags);
                // Without pauses a launch that looks more than once may never find a directory.
                let pause_us = [0, 0, 0, 50, 500][(random() % 5) as usize];
                std::thread::sleep(Duration::from_micros(pause_us));
            }
        });
        let mut seen = 0;
        for attempt in 0..600 {
            if attempt >= 60 && seen > 0 {
                break;
            }
            let Ok(sandbox) = launch(node, vec![mount(node, "a", "/data", true)]).await else {
                continue;
            };
            seen += 1;
            let read = sandbox.inside().read_all("/data/inner/marker", 64).await;
            let leaked = sandbox.inside().read_all("/data/marker", 64).await;
            sandbox.kill().await?;
            if leaked.is_ok() || read.is_ok_and(|text| text != b"shown") {
                enough.store(true, Ordering::Relaxed);
                bail!("what is elsewhere was shown");
            }
        }
        enough.store(true, Ordering::Relaxed);
        let _ = swapping.join();
        ensure!(seen > 0, "it was never what it should be");
        Ok(())
    })
}
