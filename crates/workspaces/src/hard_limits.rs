//! Hard limits of workspaces: finds out which mechanism works in a directory, by trying each for
//! real, the cheapest first, and makes limited subvolumes and images.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use jail::image::Devices;
use jail::sys::{btrfs, project};
use model::HardLimits;
use rustix::fs::{Mode, OFlags, fstatfs, mkdirat, openat};
use rustix::io::Errno;

use crate::directory::Size;
use crate::layout::{Layout, discard, open_directory};

/// What enforces a hard limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HardBy {
    /// Each workspace is a subvolume of btrfs with a limit of its own.
    Btrfs,
    /// Each workspace has a project id with a quota of its own, on ext4 or xfs.
    ProjectQuota,
    /// Each workspace is a file system of its own, in a file.
    Image,
}

impl HardBy {
    /// In words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Btrfs => "btrfs subvolumes",
            Self::ProjectQuota => "project quota",
            Self::Image => "ext4 images on loop devices",
        }
    }
}

/// The result of the probe of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HardLimit {
    /// The mechanism that works, if any does.
    pub by: Option<HardBy>,
    /// Why the better ones do not work.
    pub not: Vec<(HardBy, String)>,
}

impl HardLimit {
    /// Why the better mechanisms do not work, in one sentence.
    pub fn reasons(&self) -> String {
        let mut text = String::new();
        for (by, why) in &self.not {
            let separator = if text.is_empty() { "" } else { "; " };
            // Writing to a string cannot fail.
            let _ = write!(text, "{separator}{}: {why}", by.as_str());
        }
        text
    }

    /// What that means for templates that leave their limit open.
    pub fn kept(&self) -> HardLimits {
        match self.by {
            Some(by @ (HardBy::Btrfs | HardBy::ProjectQuota)) => {
                HardLimits::FileSystem(by.as_str())
            }
            Some(HardBy::Image) => HardLimits::Image(self.reasons()),
            None => HardLimits::None(self.reasons()),
        }
    }
}

/// Finds out what enforces hard limits in the directory of workspaces at this path. Makes the
/// directory if it is missing, with its empty subdirectories, and leaves nothing else behind.
pub fn probe(path: &Path) -> io::Result<HardLimit> {
    Ok(find(&Layout::open(path)?))
}

const PROBE: &str = "probe";

pub(crate) fn find(layout: &Layout) -> HardLimit {
    let mut not = Vec::new();
    for by in [HardBy::Btrfs, HardBy::ProjectQuota, HardBy::Image] {
        // A leftover of a crash would make the probe fail.
        discard(&layout.new, PROBE);
        let tried = match by {
            HardBy::Btrfs => try_btrfs(layout),
            HardBy::ProjectQuota => try_project(layout),
            HardBy::Image => try_image(layout),
        };
        match tried {
            Ok(()) => return HardLimit { by: Some(by), not },
            Err(why) => not.push((by, why)),
        }
    }
    HardLimit { by: None, not }
}

fn try_btrfs(layout: &Layout) -> Result<(), String> {
    if !is_btrfs(layout) {
        return Err("the file system is not btrfs".to_owned());
    }
    make_subvolume(layout, PROBE, Size::SMALLEST.bytes()).map_err(|error| {
        match error.raw_os_error() {
            Some(code) if code == Errno::NOTCONN.raw_os_error() => {
                "quotas are off; switch them on with `btrfs quota enable`".to_owned()
            }
            _ => error.to_string(),
        }
    })?;
    btrfs::destroy_subvolume(layout.new.as_fd(), PROBE).map_err(|error| error.to_string())
}

pub(crate) fn is_btrfs(layout: &Layout) -> bool {
    fstatfs(&layout.top).is_ok_and(|found| found.f_type == btrfs::MAGIC)
}

/// Makes a limited subvolume in `new`; nothing is left of one that cannot be limited.
pub(crate) fn make_subvolume(layout: &Layout, name: &str, bytes: u64) -> io::Result<OwnedFd> {
    btrfs::create_subvolume(layout.new.as_fd(), name)?;
    let limited = (|| {
        let subvolume = open_directory(&layout.new, name)?;
        btrfs::limit_subvolume(subvolume.as_fd(), bytes)?;
        Ok(subvolume)
    })();
    if limited.is_err() {
        let _ = btrfs::destroy_subvolume(layout.new.as_fd(), name);
    }
    limited
}

fn try_project(layout: &Layout) -> Result<(), String> {
    const NOT_COUNTED: &str = "the file system is not mounted with `prjquota`, or cannot be";
    match project::are_limited(layout.top.as_fd()) {
        Ok(true) => {}
        Ok(false) => return Err(NOT_COUNTED.to_owned()),
        Err(error) => {
            let known = [Errno::NOSYS, Errno::OPNOTSUPP, Errno::INVAL, Errno::SRCH];
            let is_known = known.iter().any(|one| error.raw_os_error() == Some(one.raw_os_error()));
            return Err(if is_known { NOT_COUNTED.to_owned() } else { error.to_string() });
        }
    }
    let made = mkdirat(&layout.new, PROBE, Mode::RWXU)
        .map_err(io::Error::from)
        .and_then(|()| Ok(open_directory(&layout.new, PROBE)?))
        .and_then(|directory| {
            project::set_project(directory.as_fd(), PROBE_PROJECT)?;
            let smallest = Size::SMALLEST;
            project::limit_project(
                directory.as_fd(),
                PROBE_PROJECT,
                smallest.bytes(),
                smallest.files(),
            )?;
            project::limit_project(directory.as_fd(), PROBE_PROJECT, 0, 0)
        });
    discard(&layout.new, PROBE);
    made.map_err(|error| error.to_string())
}

/// The project id of the probe; those of workspaces come after it.
pub(crate) const PROBE_PROJECT: u32 = 0x5300_0000;

fn try_image(layout: &Layout) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root can use loop devices".to_owned());
    }
    let devices = Devices::open().map_err(|error| format!("loop devices: {error}"))?;
    let made = make_image(layout, PROBE, Size::SMALLEST).and_then(|()| {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let image = openat(&layout.new, PROBE, flags, Mode::empty())?;
        devices.mount(image).map(drop)
    });
    discard(&layout.new, PROBE);
    made.map_err(|error| error.to_string())
}

/// Makes an image in `new` whose file system holds as much as is wanted, and belongs to the user of
/// workspaces. Sparse: it takes its room as it is filled.
///
/// No journal: it would cost room and time in each of thousands that mostly live for minutes, and
/// what it protects from, a machine that loses its power, takes every live sandbox anyway. No
/// blocks for root, no room to grow, and tables of inodes that are left as the holes they are.
pub(crate) fn make_image(layout: &Layout, name: &str, size: Size) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(&layout.new, name, flags, Mode::RUSR | Mode::WUSR)?;
    let file = File::from(file);
    let made = file.set_len(size.image_bytes()).and_then(|()| format_image(&file, size));
    if made.is_err() {
        discard(&layout.new, name);
    }
    made
}

fn format_image(file: &File, size: Size) -> io::Result<()> {
    let program = mkfs().ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, "no mkfs.ext4; it comes with e2fsprogs")
    })?;
    let owner = format!("root_owner={0}:{0}", crate::directory::WORKSPACE_USER);
    let made = Command::new(program)
        .args(["-q", "-F", "-m", "0", "-b", "4096", "-I", "256"])
        .args(["-O", "^has_journal,^resize_inode,metadata_csum"])
        .args(["-N", &size.files().to_string()])
        .args(["-E", &format!("{owner},lazy_itable_init=1,nodiscard")])
        // The descriptor of its own standard input.
        .arg("/proc/self/fd/0")
        .stdin(file.try_clone()?)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .env_clear()
        .output()?;
    if made.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&made.stderr);
    let line = said.lines().find(|line| !line.is_empty()).unwrap_or("no error output");
    let full = said.contains("No space left");
    let kind = if full { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, format!("mkfs.ext4: {line}")))
}

/// Where the program is: often not in the path of those who are not root.
fn mkfs() -> Option<PathBuf> {
    ["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"]
        .iter()
        .map(|directory| Path::new(directory).join("mkfs.ext4"))
        .find(|path| path.is_file())
}
