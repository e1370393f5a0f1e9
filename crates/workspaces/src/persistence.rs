//! Saves, copies, archives and restores workspaces. Everything new is made aside, made durable, and
//! only then given its name, so that a crash leaves the old or the new state. The caller is called
//! back regularly and can cancel.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use jail::image::Devices;
use model::WorkspaceId;
use model::template::WorkspaceLimit;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, fsync, openat, syncfs};
use rustix::io::Errno;

use crate::copy::copy_tree;
use crate::directory::{Kind, Size, Workspaces};
use crate::error::{During as _, WorkspaceError};
use crate::file_contents::copy_contents;
use crate::layout::{move_to, open_directory};
use crate::pack::pack_tree;
use crate::unpack::unpack_tree;
use crate::walk::too_much;

/// Called now and then with the progress since the last call; false cancels the operation.
pub type ProgressCheck<'a> = &'a mut dyn FnMut(u64) -> bool;

/// A workspace to make.
#[derive(Debug, Clone, Copy)]
pub struct NewWorkspace {
    /// Its id.
    pub id: WorkspaceId,
    /// How much it may hold.
    pub size: Size,
    /// How the size is enforced.
    pub limit: WorkspaceLimit,
    /// What must stay free on the disk if it reserves its size.
    pub spared_bytes: u64,
}

impl Workspaces {
    /// Makes the files of a workspace durable, as far as they reached the host: a workspace that is
    /// a file system of its own must be flushed inside its sandbox before.
    pub fn sync(&self, workspace: WorkspaceId) -> Result<(), WorkspaceError> {
        const STEP: &str = "make a workspace durable";
        let kind = self.kind(workspace, STEP)?;
        let name = kind.name(workspace);
        match kind {
            Kind::Image => {
                let file = self.open_image(&name, OFlags::RDONLY).during(STEP)?;
                fsync(file).during(STEP)
            }
            Kind::Directory | Kind::Subvolume | Kind::Project => {
                let directory = open_directory(&self.layout.top, &name).during(STEP)?;
                syncfs(directory).during(STEP)
            }
        }
    }

    /// Whether it is a file system of its own, which only its sandbox can read while it is mounted
    /// there.
    pub fn is_closed(&self, workspace: WorkspaceId) -> bool {
        match self.known().get(&workspace) {
            Some(Kind::Image) => true,
            Some(Kind::Directory | Kind::Subvolume | Kind::Project) | None => false,
        }
    }

    /// Copies a workspace into a new one, all or nothing. One that is a file system of its own must
    /// not be in use.
    pub fn copy(
        &self,
        from: WorkspaceId,
        new: NewWorkspace,
        go_on: ProgressCheck<'_>,
    ) -> Result<(), WorkspaceError> {
        const STEP: &str = "copy a workspace";
        let kind = self.kind(from, STEP)?;
        let name = kind.name(from);
        match kind {
            Kind::Image => {
                let image = self.open_image(&name, OFlags::RDWR).during(STEP)?;
                flock(&image, FlockOperation::NonBlockingLockExclusive)
                    .map_err(in_use)
                    .during(STEP)?;
                self.copy_image(&image, new, go_on)
            }
            Kind::Directory | Kind::Subvolume | Kind::Project => {
                let top = open_directory(&self.layout.top, &name).during(STEP)?;
                self.fill_new(new, STEP, |into| copy_tree(top, into, new.size, go_on).map(|_| ()))
            }
        }
    }

    /// Writes a workspace as an archive.
    pub fn pack(
        &self,
        workspace: WorkspaceId,
        to: &mut impl Write,
        go_on: ProgressCheck<'_>,
    ) -> Result<(), WorkspaceError> {
        const STEP: &str = "pack a workspace";
        let kind = self.kind(workspace, STEP)?;
        let name = kind.name(workspace);
        let (top, limit) = match kind {
            Kind::Image => {
                let image = self.open_image(&name, OFlags::RDWR).during(STEP)?;
                let bytes = fstat(&image).during(STEP)?.st_size.cast_unsigned();
                (mount(image).during(STEP)?, Size::of_bytes(bytes))
            }
            // The limit is enforced elsewhere: everything that is in it must be saved.
            Kind::Directory | Kind::Subvolume | Kind::Project => {
                let top = open_directory(&self.layout.top, &name).during(STEP)?;
                (top, Size::of_bytes(u64::MAX))
            }
        };
        // The descriptor of a mount must be opened again as a directory before it can be read.
        let top = open_directory(&top, ".").during(STEP)?;
        pack_tree(top, to, limit, go_on).during(STEP)
    }

    /// Makes a workspace from an archive, all or nothing. It restores everything, whatever the
    /// size: the file system enforces a hard limit, and the next measurement a soft one.
    pub fn restore(
        &self,
        new: NewWorkspace,
        from: impl Read,
        go_on: ProgressCheck<'_>,
    ) -> Result<(), WorkspaceError> {
        let fill = |into| unpack_tree(from, into, Size::of_bytes(u64::MAX), go_on);
        self.fill_new(new, "restore a workspace", fill)
    }

    fn kind(&self, workspace: WorkspaceId, step: &'static str) -> Result<Kind, WorkspaceError> {
        let kind = self.known().get(&workspace).copied();
        kind.ok_or_else(|| WorkspaceError::unknown(step, workspace))
    }

    fn open_image(&self, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.layout.top, name, flags, Mode::empty())?)
    }

    /// Makes a workspace aside, fills it, and gives it its name when it is complete and durable.
    fn fill_new(
        &self,
        new: NewWorkspace,
        step: &'static str,
        fill: impl FnOnce(OwnedFd) -> io::Result<()>,
    ) -> Result<(), WorkspaceError> {
        let kind = self.kind_for(new.limit)?;
        self.make_with_reservation(new, kind, kind.takes(new.size), |name| {
            if let Some(directory) = self.make_aside(name, kind, new.size)? {
                fill(rustix::io::dup(&directory)?)?;
                return Ok(syncfs(directory)?);
            }
            let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let open = || openat(&self.layout.new, name, flags, Mode::empty());
            let top = open_directory(&mount(open()?)?, ".")?;
            fill(rustix::io::dup(&top)?)?;
            syncfs(&top)?;
            drop(top);
            Ok(fsync(open()?)?)
        })
        .map_err(|error| WorkspaceError { step: step.into(), ..error })
    }

    fn copy_image(
        &self,
        from: &OwnedFd,
        new: NewWorkspace,
        go_on: ProgressCheck<'_>,
    ) -> Result<(), WorkspaceError> {
        const STEP: &str = "copy a workspace";
        let found = fstat(from).during(STEP)?;
        let (size, takes) = (found.st_size.cast_unsigned(), found.st_blocks.cast_unsigned() * 512);
        if takes > new.size.image_bytes() {
            return Err(too_much(new.size)).during(STEP);
        }
        self.make_with_reservation(new, Kind::Image, size, |name| {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let image = openat(&self.layout.new, name, flags, Mode::RUSR | Mode::WUSR)?;
            copy_contents(from, &image, size, go_on)?;
            File::from(image).sync_all()
        })
    }

    /// Reserves the space of a workspace, makes it aside, and gives it its name. If it fails,
    /// nothing is left.
    fn make_with_reservation(
        &self,
        new: NewWorkspace,
        kind: Kind,
        bytes: u64,
        make: impl FnOnce(&str) -> io::Result<()>,
    ) -> Result<(), WorkspaceError> {
        const STEP: &str = "make a workspace";
        self.refuse_known(new.id)?;
        match new.limit {
            WorkspaceLimit::Soft => {}
            WorkspaceLimit::Hard => self.reserve_space(new.id, bytes, new.spared_bytes)?,
        }
        let aside = self.layout.new_name();
        let name = kind.name(new.id);
        let made = make(&aside).and_then(|()| {
            move_to(&self.layout.new, &aside, &self.layout.top, &name)?;
            Ok(fsync(&self.layout.top)?)
        });
        if let Err(error) = made {
            self.reserved.forget(new.id);
            // What cannot be removed now is removed at the next start.
            let _ = self.layout.throw_away(&self.layout.new, &aside);
            let _ = self.layout.throw_away(&self.layout.top, &name);
            self.trash.wake();
            return Err(error).during(STEP);
        }
        self.known().insert(new.id, kind);
        Ok(())
    }
}

/// The file system in an image, for as long as it is open.
fn mount(image: OwnedFd) -> io::Result<OwnedFd> {
    Devices::open()?.mount(image)
}

fn in_use(error: Errno) -> io::Error {
    match error {
        Errno::WOULDBLOCK => Errno::BUSY.into(),
        other => other.into(),
    }
}
