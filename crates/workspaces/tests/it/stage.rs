//! A directory for one test, on the disk of the machine or on a file system made for it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};

use model::WorkspaceId;
use workspaces::{Scan, Size, Usage, Workspaces};

static STAGES: AtomicU64 = AtomicU64::new(0);

/// A directory that goes with the test, and what is mounted on it.
pub(crate) struct Stage {
    place: PathBuf,
    mounted: bool,
}

impl Stage {
    pub(crate) fn plain() -> Self {
        let n = STAGES.fetch_add(1, Ordering::Relaxed);
        let place = std::env::temp_dir().join(format!("workspaces-{}-{n}", std::process::id()));
        std::fs::create_dir_all(place.join("fs")).expect("a place");
        Self { place, mounted: false }
    }

    /// A file system of its own, made by a program with these arguments. None, loudly, where that
    /// cannot be.
    pub(crate) fn on(mkfs: &[&str], size_mb: u64, options: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return skip("no root");
        }
        if !Path::new(mkfs[0]).exists() {
            return skip(&format!("no {}", mkfs[0]));
        }
        let mut stage = Self::plain();
        let image = stage.place.join("image");
        let file = std::fs::File::create(&image).expect("an image");
        file.set_len(size_mb << 20).expect("its size");
        ran(Command::new(mkfs[0]).args(&mkfs[1..]).arg(&image));
        let mut mount = Command::new("mount");
        ran(mount.args(["-o", options]).arg(&image).arg(stage.path()));
        stage.mounted = true;
        Some(stage)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.place.join("fs")
    }

    pub(crate) fn workspaces(&self) -> PathBuf {
        self.path().join("workspaces")
    }

    pub(crate) fn open(&self) -> Workspaces {
        Workspaces::open(self.workspaces()).expect("workspaces")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.mounted {
            // A removal in progress may keep it busy: it is removed when that has ended.
            let _ = Command::new("umount").arg("-l").arg(self.path()).status();
        }
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

/// Says loudly that something is not tested. In CI nothing is skipped.
#[expect(clippy::print_stderr, reason = "a reader of the test output must see it")]
pub(crate) fn skip<T>(reason: &str) -> Option<T> {
    assert!(std::env::var_os("CI").is_none(), "{reason}: in CI nothing may be skipped");
    eprintln!("!!!! skipped: {reason} !!!!");
    None
}

#[track_caller]
pub(crate) fn ran(command: &mut Command) -> Output {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

pub(crate) const fn id(n: u128) -> WorkspaceId {
    WorkspaceId::from_u128(n)
}

pub(crate) const fn mb(n: u64) -> Size {
    Size::of_bytes(n << 20)
}

pub(crate) fn usage(workspaces: &Workspaces, workspace: WorkspaceId, enough: Size) -> Usage {
    workspaces.usage(workspace, Scan { enough, go_on: &mut |_| true }).expect("measured")
}
