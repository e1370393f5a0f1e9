//! Which hard limit works in a directory. Each is tried for real, the cheapest first, and each that
//! does not work says why.

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
use crate::layout::{Places, discard, open_directory};

/// What keeps a hard limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HardBy {
    /// Each workspace is a subvolume of btrfs with a limit of its own.
    Btrfs,
    /// Each workspace counts for a project of its own, on ext4 or xfs.
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

/// What was found out about hard limits in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HardLimit {
    /// What works, if anything does.
    pub by: Option<HardBy>,
    /// Why others, which would be better, do not.
    pub not: Vec<(HardBy, String)>,
}

impl HardLimit {
    /// Why there is none, or why it is this one, in a sentence.
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

/// What keeps hard limits in the directory of workspaces at this path, which is made if it is
/// missing. Leaves nothing behind but the empty rooms of the directory.
pub fn probe(path: &Path) -> io::Result<HardLimit> {
    Ok(find(&Places::open(path)?))
}

const PROBE: &str = "probe";

pub(crate) fn find(places: &Places) -> HardLimit {
    let mut not = Vec::new();
    for by in [HardBy::Btrfs, HardBy::ProjectQuota, HardBy::Image] {
        // A leftover of a crash would look like a failure.
        discard(&places.new, PROBE);
        let tried = match by {
            HardBy::Btrfs => try_btrfs(places),
            HardBy::ProjectQuota => try_project(places),
            HardBy::Image => try_image(places),
        };
        match tried {
            Ok(()) => return HardLimit { by: Some(by), not },
            Err(why) => not.push((by, why)),
        }
    }
    HardLimit { by: None, not }
}

fn try_btrfs(places: &Places) -> Result<(), String> {
    if !is_btrfs(places) {
        return Err("the file system is another".to_owned());
    }
    make_subvolume(places, PROBE, Size::SMALLEST.bytes()).map_err(|error| {
        match error.raw_os_error() {
            Some(code) if code == Errno::NOTCONN.raw_os_error() => {
                "quotas are off; switch them on with `btrfs quota enable`".to_owned()
            }
            _ => error.to_string(),
        }
    })?;
    btrfs::destroy_subvolume(places.new.as_fd(), PROBE).map_err(|error| error.to_string())
}

pub(crate) fn is_btrfs(places: &Places) -> bool {
    fstatfs(&places.top).is_ok_and(|found| found.f_type == btrfs::MAGIC)
}

/// Makes a limited subvolume in `new`; nothing is left of one that cannot be limited.
pub(crate) fn make_subvolume(places: &Places, name: &str, bytes: u64) -> io::Result<OwnedFd> {
    btrfs::create_subvolume(places.new.as_fd(), name)?;
    let limited = (|| {
        let subvolume = open_directory(&places.new, name)?;
        btrfs::limit_subvolume(subvolume.as_fd(), bytes)?;
        Ok(subvolume)
    })();
    if limited.is_err() {
        let _ = btrfs::destroy_subvolume(places.new.as_fd(), name);
    }
    limited
}

fn try_project(places: &Places) -> Result<(), String> {
    const NOT_COUNTED: &str = "the file system is not mounted with `prjquota`, or cannot be";
    match project::are_limited(places.top.as_fd()) {
        Ok(true) => {}
        Ok(false) => return Err(NOT_COUNTED.to_owned()),
        Err(error) => {
            let known = [Errno::NOSYS, Errno::OPNOTSUPP, Errno::INVAL, Errno::SRCH];
            let is_known = known.iter().any(|one| error.raw_os_error() == Some(one.raw_os_error()));
            return Err(if is_known { NOT_COUNTED.to_owned() } else { error.to_string() });
        }
    }
    let made = mkdirat(&places.new, PROBE, Mode::RWXU)
        .map_err(io::Error::from)
        .and_then(|()| Ok(open_directory(&places.new, PROBE)?))
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
    discard(&places.new, PROBE);
    made.map_err(|error| error.to_string())
}

/// The project that is used to find out whether projects work; those of workspaces come after it.
pub(crate) const PROBE_PROJECT: u32 = 0x5300_0000;

fn try_image(places: &Places) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root can use loop devices".to_owned());
    }
    let devices = Devices::open().map_err(|error| format!("loop devices: {error}"))?;
    let made = make_image(places, PROBE, Size::SMALLEST).and_then(|()| {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let image = openat(&places.new, PROBE, flags, Mode::empty())?;
        devices.mount(image).map(drop)
    });
    discard(&places.new, PROBE);
    made.map_err(|error| error.to_string())
}

/// Makes an image in `new` whose file system holds as much as is wanted, and belongs to the user of
/// workspaces. Sparse: it takes its room as it is filled.
///
/// No journal: it would cost room and time in each of thousands that mostly live for minutes, and
/// what it protects from, a machine that loses its power, takes every live sandbox anyway. No
/// blocks for root, no room to grow, and tables of inodes that are left as the holes they are.
pub(crate) fn make_image(places: &Places, name: &str, size: Size) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(&places.new, name, flags, Mode::RUSR | Mode::WUSR)?;
    let file = File::from(file);
    let made = file.set_len(size.image_bytes()).and_then(|()| format_image(&file, size));
    if made.is_err() {
        discard(&places.new, name);
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
        // Only our own process can say what our descriptors are.
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
    let line = said.lines().find(|line| !line.is_empty()).unwrap_or("it said nothing");
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
