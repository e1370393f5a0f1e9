//! Root filesystems: found by name beneath the configured directories, built on first use, and kept
//! while they are in use. An image in use is locked, so that garbage collection of the store leaves
//! it alone.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use guest_protocol::launcher::{ImageBytes, Point, Root};
use jail::root::{self, Builder, Built, LAYERS_AT_MOST, Layers};
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, flock, mkdirat, openat2, unlinkat};
use rustix::mount::{UnmountFlags, unmount};

use super::isolation::EMPTY;
use super::plan_input;
use super::workspace_mount::no_links;

/// The directory for built roots in our own root.
const BUILT: &str = "/roots";

/// How long an unused root is kept.
const KEPT_UNUSED: Duration = Duration::from_mins(1);

/// The longest list of layers: each takes a line of 65 bytes.
const LIST_BYTES_AT_MOST: u64 = 65 * LAYERS_AT_MOST as u64;

/// A built root. It stays as long as a sandbox has it.
pub(super) struct Prepared {
    pub built: Built,
    /// Of an image: the lock that says it is in use.
    _lock: Option<OwnedFd>,
    /// The root that this one adds names or mount points to.
    base: Option<Rc<Prepared>>,
}

pub(super) struct Roots {
    /// Directories beneath which roots are found.
    directories: Vec<OwnedFd>,
    /// The image store.
    images: Option<OwnedFd>,
    builder: Builder,
    /// The root of the host's own programs, which always exists.
    host: Rc<Prepared>,
    others: BTreeMap<Root, CachedRoot>,
    /// Roots whose directory was replaced, and of which sandboxes may still have layers.
    replaced: Vec<Root>,
    last_number: u32,
}

struct CachedRoot {
    prepared: Rc<Prepared>,
    place: String,
    used_at: Duration,
    identity: Identity,
}

/// Tells directories of the same name apart: device and inode of the topmost layer.
type Identity = (u64, u64);

fn identity_of(layers: &[OwnedFd]) -> io::Result<Identity> {
    let found = rustix::fs::fstat(layers.last().ok_or(io::ErrorKind::NotFound)?)?;
    Ok((found.st_dev, found.st_ino))
}

impl Roots {
    /// Builds the root of the host's programs.
    pub(super) fn begin(
        host: BorrowedFd<'_>,
        directories: Vec<OwnedFd>,
        images: Option<OwnedFd>,
        builder: Builder,
    ) -> io::Result<Self> {
        root::build_devices(host, builder)?;
        let place = make_directory(0)?;
        let built = root::build_from_host(host, &place, builder)?;
        let host = Rc::new(Prepared { built, _lock: None, base: None });
        let (others, replaced) = (BTreeMap::new(), Vec::new());
        Ok(Self { directories, images, builder, host, others, replaced, last_number: 0 })
    }

    /// A root that is built already.
    pub(super) fn built_root(&self, root: &Root) -> &Prepared {
        self.others.get(root).map_or(&self.host, |kept| &kept.prepared)
    }

    /// A root; builds it on first use. `NotFound` if there is no such root.
    pub(super) fn prepared(&mut self, wanted: &Root, now: Duration) -> io::Result<Rc<Prepared>> {
        if *wanted == Root::Host {
            return Ok(Rc::clone(&self.host));
        }
        match wanted {
            Root::Aliased { root, names } => return self.aliased(wanted, root, names, now),
            Root::Pointed { root, points } => {
                return self.with_mount_points(wanted, root, points, now);
            }
            Root::Host | Root::Directory(_) | Root::Image(_) => {}
        }
        self.forget_if_replaced(wanted)?;
        if let Some(kept) = self.others.get_mut(wanted) {
            kept.used_at = now;
            return Ok(Rc::clone(&kept.prepared));
        }
        let (layers, lock) = self.layers_of(wanted)?;
        let identity = identity_of(&layers)?;
        self.last_number += 1;
        let place = make_directory(self.last_number)?;
        let built = root::build_from_layers(&layers, &place, self.builder)
            .inspect_err(|_| remove_directory(&place))?;
        let prepared = Rc::new(Prepared { built, _lock: lock, base: None });
        let kept = CachedRoot { prepared: Rc::clone(&prepared), place, used_at: now, identity };
        self.others.insert(wanted.clone(), kept);
        Ok(prepared)
    }

    /// A root with more names for the workspace, made of another root.
    fn aliased(
        &mut self,
        wanted: &Root,
        root: &Root,
        names: &[String],
        now: Duration,
    ) -> io::Result<Rc<Prepared>> {
        let is_made = matches!(root, Root::Aliased { .. } | Root::Pointed { .. });
        if is_made || !plan_input::are_names(names) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.derived(wanted, root, now, |base, place| root::with_aliases(base, place, names))
    }

    /// A root with mount points, made of another root.
    fn with_mount_points(
        &mut self,
        wanted: &Root,
        root: &Root,
        points: &[Point],
        now: Duration,
    ) -> io::Result<Rc<Prepared>> {
        let are_fine = points.iter().all(|point| plan_input::is_beneath(&point.at));
        if matches!(root, Root::Pointed { .. }) || !are_fine {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mount_points: Vec<root::MountPoint<'_>> = points
            .iter()
            .map(|point| root::MountPoint { at: &point.at, is_directory: point.is_directory })
            .collect();
        self.derived(wanted, root, now, |base, directory| {
            root::with_mount_points(base, directory, EMPTY, &mount_points)
        })
    }

    /// A root made of another one. It is built again if that one has changed.
    fn derived(
        &mut self,
        wanted: &Root,
        root: &Root,
        now: Duration,
        build: impl FnOnce(&Built, &str) -> io::Result<Built>,
    ) -> io::Result<Rc<Prepared>> {
        let base = self.prepared(root, now)?;
        let is_of = |kept: &CachedRoot| {
            kept.prepared.base.as_ref().is_some_and(|own| Rc::ptr_eq(own, &base))
        };
        match self.others.get_mut(wanted) {
            Some(kept) if is_of(kept) => {
                kept.used_at = now;
                return Ok(Rc::clone(&kept.prepared));
            }
            Some(_) => {
                if let Some(kept) = self.others.remove(wanted) {
                    remove_directory(&kept.place);
                    self.replaced.push(wanted.clone());
                }
            }
            None => {}
        }
        self.last_number += 1;
        let place = make_directory(self.last_number)?;
        let built = build(&base.built, &place).inspect_err(|_| remove_directory(&place))?;
        let prepared = Rc::new(Prepared { built, _lock: None, base: Some(base) });
        let identity = (0, 0);
        let kept = CachedRoot { prepared: Rc::clone(&prepared), place, used_at: now, identity };
        self.others.insert(wanted.clone(), kept);
        Ok(prepared)
    }

    /// A directory may have been replaced meanwhile; an image never changes. Sandboxes keep what
    /// they have.
    fn forget_if_replaced(&mut self, wanted: &Root) -> io::Result<()> {
        let identity = match wanted {
            Root::Host | Root::Image(_) | Root::Aliased { .. } | Root::Pointed { .. } => None,
            Root::Directory(_) => self.others.get(wanted).map(|kept| kept.identity),
        };
        let Some(identity) = identity else { return Ok(()) };
        let (layers, _) = self.layers_of(wanted)?;
        if identity_of(&layers)? != identity
            && let Some(kept) = self.others.remove(wanted)
        {
            remove_directory(&kept.place);
            self.replaced.push(wanted.clone());
        }
        Ok(())
    }

    /// Opens the layers of a root, lowest first.
    fn layers_of(&self, wanted: &Root) -> io::Result<(Vec<OwnedFd>, Option<OwnedFd>)> {
        match wanted {
            Root::Host | Root::Aliased { .. } | Root::Pointed { .. } => {
                Err(io::ErrorKind::InvalidInput.into())
            }
            Root::Directory(name) if !plan_input::is_beneath(name) => {
                Err(io::ErrorKind::NotFound.into())
            }
            Root::Directory(name) => {
                let found = self.directories.iter().find_map(|above| directory(above, name).ok());
                Ok((vec![found.ok_or(io::ErrorKind::NotFound)?], None))
            }
            Root::Image(image) => {
                let store = self.images.as_ref().ok_or(io::ErrorKind::NotFound)?;
                let (list, lock) = list_of(store, image)?;
                let names = list.lines().map(|digest| {
                    if plan_input::is_digest(digest) {
                        directory(store, &format!("layers/{digest}"))
                    } else {
                        Err(io::ErrorKind::InvalidData.into())
                    }
                });
                Ok((names.collect::<io::Result<_>>()?, Some(lock)))
            }
        }
    }

    /// Drops roots that no sandbox has used for a while, and returns them.
    pub(super) fn tidy(&mut self, now: Duration) -> Vec<Root> {
        for kept in self.others.values_mut() {
            if Rc::strong_count(&kept.prepared) > 1 {
                kept.used_at = now;
            }
        }
        let unused = |kept: &CachedRoot| now.saturating_sub(kept.used_at) >= KEPT_UNUSED;
        let gone: Vec<Root> = self
            .others
            .iter()
            .filter(|(_, kept)| unused(kept))
            .map(|(root, _)| root.clone())
            .collect();
        for kept in gone.iter().filter_map(|root| self.others.remove(root)) {
            remove_directory(&kept.place);
        }
        gone.into_iter().chain(std::mem::take(&mut self.replaced)).collect()
    }

    /// Whether there are roots that may have to be dropped later.
    pub(super) fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// When to tidy next.
    pub(super) const fn tidy_after() -> Duration {
        KEPT_UNUSED
    }
}

impl Prepared {
    /// A sandbox's own layers over it.
    pub(super) fn layers(&self) -> io::Result<Layers> {
        Layers::over(&self.built, EMPTY)
    }
}

fn make_directory(number: u32) -> io::Result<String> {
    let place = format!("{BUILT}/{number}");
    mkdirat(CWD, place.as_str(), Mode::from_raw_mode(0o755))?;
    Ok(place)
}

/// Sandboxes have layers of their own and do not notice.
fn remove_directory(place: &str) {
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let _ = unmount(entry.path(), UnmountFlags::DETACH);
        let _ = std::fs::remove_dir(entry.path());
    }
    let _ = unlinkat(CWD, place, rustix::fs::AtFlags::REMOVEDIR);
}

/// Opens a directory beneath another. No link is followed.
fn directory(above: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
    Ok(openat2(above.as_fd(), name, flags, Mode::empty(), no_links())?)
}

/// The list of an image's layers, and the lock that keeps the image from being removed.
fn list_of(store: &OwnedFd, image: &ImageBytes) -> io::Result<(String, OwnedFd)> {
    let mut path = String::from("images/");
    for byte in image {
        // Writing to a string cannot fail.
        let _ = write!(path, "{byte:02x}");
    }
    path.push_str("/layers");
    // Non-blocking: this is the only thread and must not wait, whatever the file is.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat2(store, path.as_str(), flags, Mode::empty(), no_links())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::ErrorKind::InvalidData.into());
    }
    flock(&file, FlockOperation::NonBlockingLockShared)?;
    // The image may have been removed before it was locked.
    if rustix::fs::fstat(&file)?.st_nlink == 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut list = String::new();
    // One byte more than allowed, so that a longer list is noticed and refused.
    std::fs::File::from(file.try_clone()?)
        .take(LIST_BYTES_AT_MOST + 1)
        .read_to_string(&mut list)?;
    Ok((list, file))
}
