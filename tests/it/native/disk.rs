//! Workspaces on disk whose size the file system keeps: what programs meet at the limit, that they
//! do not get around it, and that nothing is left of them.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use model::template::WorkspaceLimit::Hard;
use model::{ClaimSettings, WorkspaceId};
use runtime::{Runtime as _, Sandbox, WorkspaceSource};
use workspaces::{HardBy, Size, Workspaces};

use super::node::{Node, needs, on_node};

const LIMIT_MB: u64 = 48;

/// An id by which an image is known among those of every test that runs at the time.
fn id(n: u128) -> WorkspaceId {
    WorkspaceId::from_u128(u128::from(std::process::id()) << 64 | n)
}

/// Writes until nothing more fits, and says how much did and what the kernel said.
const FILL: &str = r"
import errno, os
written, piece = 0, b'x' * 65536
file = os.open('/workspace/big', os.O_CREAT | os.O_WRONLY)
try:
    while written < 1 << 30:
        written += os.write(file, piece)
    os.fsync(file)
    print(written, 'OK')
except OSError as error:
    print(written, errno.errorcode[error.errno])
";

async fn sandbox_on(node: &Node, workspace: WorkspaceId) -> Result<Arc<dyn Sandbox>> {
    let mut spec = node.spec();
    spec.workspace = WorkspaceSource::Disk(workspace);
    Ok(node.native().launch(spec).await?)
}

/// The limit is where it was promised, small files have one too, and freed room is room again.
async fn keeps_its_limit(node: &Node, disk: &Workspaces, said: &str) -> Result<()> {
    let (workspace, other) = (id(1), id(2));
    for id in [workspace, other] {
        disk.create(id, Size::of_bytes(LIMIT_MB << 20), Hard, 0)?;
    }
    let sandbox = sandbox_on(node, workspace).await?;
    let ran = node.sh(&sandbox, "ls -A; stat -c '%u %g %a' .").await?;
    ensure!(ran.stdout == b"1000 1000 755\n", "{ran:?}");
    let filled = node.python(&sandbox, FILL, &[]).await?;
    let (written, errno) = filled.trim().split_once(' ').context("two words")?;
    ensure!(errno == said, "{filled}");
    let (written, wanted) = (written.parse::<u64>()?, LIMIT_MB << 20);
    ensure!(written.abs_diff(wanted) * 20 <= wanted, "{written} bytes of {wanted}");

    let beside = sandbox_on(node, other).await?;
    let ran = node.sh(&beside, "head -c 20000000 /dev/zero > file && echo fits").await?;
    ensure!(ran.stdout == b"fits\n", "one is not limited by the other: {ran:?}");

    let ran = node.sh(&sandbox, "rm big && head -c 20000000 /dev/zero > file && echo fits").await?;
    ensure!(ran.stdout == b"fits\n", "what is removed makes room: {ran:?}");
    let mounts = node.sh(&sandbox, "grep ' /workspace ' /proc/self/mountinfo | tail -n 1").await?;
    let mounts = String::from_utf8(mounts.stdout)?;
    ensure!(mounts.contains("nosuid") && mounts.contains("nodev"), "{mounts}");

    sandbox.kill().await?;
    beside.kill().await?;
    let again = attached_when_free(node, workspace).await?;
    let ran = node.sh(&again, "stat -c %s file").await?;
    ensure!(ran.stdout == b"20000000\n", "it outlives its sandbox: {ran:?}");
    again.kill().await?;
    for id in [workspace, other] {
        disk.remove(id)?;
    }
    ensure!(disk.wait_until_removed(Duration::from_secs(30)), "{:?}", disk.stuck());
    Ok(())
}

/// A sandbox that gets the workspace after its launch. An image is released shortly after its
/// sandbox.
async fn attached_when_free(node: &Node, workspace: WorkspaceId) -> Result<Arc<dyn Sandbox>> {
    let sandbox = node.sandbox().await?;
    let mut attached = sandbox.claim(&ClaimSettings::default(), Some(workspace)).await;
    for _ in 0..100 {
        if attached.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        attached = sandbox.claim(&ClaimSettings::default(), Some(workspace)).await;
    }
    attached?;
    Ok(sandbox)
}

#[test]
fn an_image_keeps_its_limit() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let disk = node.disk()?;
            if disk.hard().by != Some(HardBy::Image) {
                return needs("/usr/sbin/mkfs.ext4").map(|_| ());
            }
            keeps_its_limit(node, &disk, "ENOSPC").await?;
            // Small files: there are only so many.
            let workspace = id(3);
            disk.create(workspace, Size::SMALLEST, Hard, 0)?;
            let sandbox = sandbox_on(node, workspace).await?;
            let touch = "i=0; while true 2>/dev/null > f$i; do i=$((i+1)); done; echo $i";
            let made = String::from_utf8(node.sh(&sandbox, touch).await?.stdout)?;
            let most = Size::SMALLEST.files() + 512;
            ensure!(made.trim().parse::<u64>()? <= most, "{made} files");
            sandbox.kill().await?;
            disk.remove(workspace)?;
            ensure!(disk.wait_until_removed(Duration::from_secs(30)), "{:?}", disk.stuck());
            no_device_is_left().await
        },
    )
}

#[test]
fn an_image_is_mounted_once_at_a_time() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let disk = node.disk()?;
            if disk.hard().by != Some(HardBy::Image) {
                return needs("/usr/sbin/mkfs.ext4").map(|_| ());
            }
            let workspace = id(1);
            disk.create(workspace, Size::SMALLEST, Hard, 0)?;
            let first = sandbox_on(node, workspace).await?;
            let second = sandbox_on(node, workspace).await;
            let error = second.err().context("two at once would destroy it")?;
            ensure!(error.to_string().contains("busy"), "{error}");
            first.kill().await?;
            attached_when_free(node, workspace).await?.kill().await?;
            Ok(())
        },
    )
}

#[test]
fn a_hundred_images_at_once() -> Result<()> {
    on_node(
        |config| config.slots = 128,
        async |node: &Node| {
            let disk = node.disk()?;
            if disk.hard().by != Some(HardBy::Image) {
                return needs("/usr/sbin/mkfs.ext4").map(|_| ());
            }
            let mut sandboxes = Vec::new();
            for n in 1..=100 {
                let workspace = id(n);
                disk.create(workspace, Size::SMALLEST, Hard, 0)?;
                sandboxes.push((workspace, sandbox_on(node, workspace).await?));
            }
            for (n, (_, sandbox)) in sandboxes.iter().enumerate() {
                let ran = node.sh(sandbox, &format!("echo {n} > mine; ls -A | wc -l")).await?;
                ensure!(ran.stdout == b"1\n", "{ran:?}");
            }
            for (n, (_, sandbox)) in sandboxes.iter().enumerate() {
                ensure!(
                    sandbox.inside().read_all("mine", 16).await? == format!("{n}\n").into_bytes()
                );
            }
            for (workspace, sandbox) in sandboxes {
                sandbox.kill().await?;
                disk.remove(workspace)?;
            }
            ensure!(disk.wait_until_removed(Duration::from_secs(30)), "{:?}", disk.stuck());
            no_device_is_left().await
        },
    )
}

#[test]
fn a_subvolume_keeps_its_limit_and_cannot_be_left() -> Result<()> {
    if !needs("/usr/sbin/mkfs.btrfs")? {
        return Ok(());
    }
    let place = Mounted::btrfs()?;
    on_node(
        |config| config.workspaces = Some(place.path.join("workspaces")),
        async |node: &Node| {
            let disk = Workspaces::open(place.path.join("workspaces"))?;
            ensure!(disk.hard().by == Some(HardBy::Btrfs), "{:?}", disk.hard());
            let workspace = id(9);
            disk.create(workspace, Size::SMALLEST, Hard, 0)?;
            let sandbox = sandbox_on(node, workspace).await?;
            // A subvolume of its own would have no limit.
            let make = r"
import errno, fcntl, os, struct
here = os.open('/workspace', os.O_RDONLY)
for request in (0x50009401, 0x5000940e, 0x50009417, 0x50009418):
    arguments = bytearray(struct.pack('q', here) + b'inner'.ljust(4088, b'\0'))
    try:
        fcntl.ioctl(here, request, arguments)
        print('made')
    except OSError as error:
        print(errno.errorcode[error.errno])
";
            let tried = node.python(&sandbox, make, &[]).await?;
            ensure!(tried == "EPERM\n".repeat(4), "{tried}");
            sandbox.kill().await?;
            disk.remove(workspace)?;
            keeps_its_limit(node, &disk, "EDQUOT").await
        },
    )
}

/// A file system for one test.
struct Mounted {
    path: PathBuf,
}

impl Mounted {
    fn btrfs() -> Result<Self> {
        let name = format!("shoal-test-btrfs-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let image = path.with_extension("image");
        std::fs::create_dir_all(&path)?;
        std::fs::File::create(&image)?.set_len(1 << 30)?;
        let mounted = Self { path };
        let path = &mounted.path;
        run(Command::new("mkfs.btrfs").arg("-q").arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(path))?;
        std::fs::remove_file(&image)?;
        run(Command::new("btrfs").args(["quota", "enable"]).arg(path))?;
        Ok(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
        let _ = std::fs::remove_dir(&self.path);
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {said}");
    Ok(())
}

/// A device releases its image when nothing has it mounted.
async fn no_device_is_left() -> Result<()> {
    let mut left = Vec::new();
    for _ in 0..250 {
        left = devices()?;
        if left.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    anyhow::bail!("left: {left:?}")
}

/// Images of this process that are behind a device.
fn devices() -> Result<Vec<String>> {
    let ours = id(0).to_string();
    let mut found = Vec::new();
    for device in std::fs::read_dir("/sys/block")? {
        let file = device?.path().join("loop/backing_file");
        if let Ok(backing) = std::fs::read_to_string(file)
            && backing.contains(&ours[..23])
        {
            found.push(backing);
        }
    }
    Ok(found)
}
