//! What keeps the files of a workspace: made durable where they are, copied into another, written
//! into an archive and made from one. Whatever is new is made aside, durable, and only then given
//! its name, so that a crash leaves the old or the new. Whoever waits is asked again and again
//! whether to go on, so that none of it has to be waited for.

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

/// Asked now and then, with how much was done since; false calls it off.
pub type GoOn<'a> = &'a mut dyn FnMut(u64) -> bool;

/// A workspace that is to be made.
#[derive(Debug, Clone, Copy)]
pub struct New {
    /// Its id.
    pub id: WorkspaceId,
    /// How much it may hold.
    pub size: Size,
    /// How that is kept.
    pub limit: WorkspaceLimit,
    /// What must be left free beside it if it is promised its size.
    pub spared_bytes: u64,
}

impl Workspaces {
    /// Makes what is in a workspace durable, as far as it reached the host: what programs in a
    /// file system of its own wrote must have been flushed by them.
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
                let directory = open_directory(&self.places.top, &name).during(STEP)?;
                syncfs(directory).during(STEP)
            }
        }
    }

    /// Whether it is a file system of its own, which only its sandbox can see into while it has it.
    pub fn is_closed(&self, workspace: WorkspaceId) -> bool {
        match self.known().get(&workspace) {
            Some(Kind::Image) => true,
            Some(Kind::Directory | Kind::Subvolume | Kind::Project) | None => false,
        }
    }

    /// Copies a workspace into a new one, all or nothing. One that is a file system of its own must
    /// not be in use.
    pub fn copy(&self, from: WorkspaceId, new: New, go_on: GoOn<'_>) -> Result<(), WorkspaceError> {
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
                let top = open_directory(&self.places.top, &name).during(STEP)?;
                self.fill_new(new, STEP, |into| copy_tree(top, into, new.size, go_on).map(|_| ()))
            }
        }
    }

    /// Writes a workspace as an archive.
    pub fn pack(
        &self,
        workspace: WorkspaceId,
        to: &mut impl Write,
        go_on: GoOn<'_>,
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
            // Its limit was kept, or will be: what is in it by now is to be kept in any case.
            Kind::Directory | Kind::Subvolume | Kind::Project => {
                let top = open_directory(&self.places.top, &name).during(STEP)?;
                (top, Size::of_bytes(u64::MAX))
            }
        };
        // A mount is no directory that can be read, until it is opened as one.
        let top = open_directory(&top, ".").during(STEP)?;
        pack_tree(top, to, limit, go_on).during(STEP)
    }

    /// Makes a workspace from an archive, all or nothing. What was in it when it was packed is to be
    /// there again, however much it is: a hard limit is kept by what it lies on, and a soft one by
    /// whoever measures it next.
    pub fn restore(
        &self,
        new: New,
        from: impl Read,
        go_on: GoOn<'_>,
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
        Ok(openat(&self.places.top, name, flags, Mode::empty())?)
    }

    /// Makes a workspace aside, fills it, and gives it its name when it is whole and durable.
    fn fill_new(
        &self,
        new: New,
        step: &'static str,
        fill: impl FnOnce(OwnedFd) -> io::Result<()>,
    ) -> Result<(), WorkspaceError> {
        let kind = self.kind_for(new.limit)?;
        self.keep_promise(new, kind, kind.takes(new.size), |name| {
            if let Some(directory) = self.make_aside(name, kind, new.size)? {
                fill(rustix::io::dup(&directory)?)?;
                return Ok(syncfs(directory)?);
            }
            let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let open = || openat(&self.places.new, name, flags, Mode::empty());
            let top = open_directory(&mount(open()?)?, ".")?;
            fill(rustix::io::dup(&top)?)?;
            syncfs(&top)?;
            drop(top);
            Ok(fsync(open()?)?)
        })
        .map_err(|error| WorkspaceError { step: step.into(), ..error })
    }

    fn copy_image(&self, from: &OwnedFd, new: New, go_on: GoOn<'_>) -> Result<(), WorkspaceError> {
        const STEP: &str = "copy a workspace";
        let found = fstat(from).during(STEP)?;
        let (size, takes) = (found.st_size.cast_unsigned(), found.st_blocks.cast_unsigned() * 512);
        if takes > new.size.image_bytes() {
            return Err(too_much(new.size)).during(STEP);
        }
        self.keep_promise(new, Kind::Image, size, |name| {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let image = openat(&self.places.new, name, flags, Mode::RUSR | Mode::WUSR)?;
            copy_contents(from, &image, size, go_on)?;
            File::from(image).sync_all()
        })
    }

    /// Lets a workspace be made aside while its room is set aside, and gives it its name. Nothing
    /// is left of one that could not be made.
    fn keep_promise(
        &self,
        new: New,
        kind: Kind,
        bytes: u64,
        make: impl FnOnce(&str) -> io::Result<()>,
    ) -> Result<(), WorkspaceError> {
        const STEP: &str = "make a workspace";
        self.refuse_known(new.id)?;
        match new.limit {
            WorkspaceLimit::Soft => {}
            WorkspaceLimit::Hard => self.promise(new.id, bytes, new.spared_bytes)?,
        }
        let aside = self.places.new_name();
        let name = kind.name(new.id);
        let made = make(&aside).and_then(|()| {
            move_to(&self.places.new, &aside, &self.places.top, &name)?;
            Ok(fsync(&self.places.top)?)
        });
        if let Err(error) = made {
            self.promises.forget(new.id);
            // What cannot be put away now is at the next start.
            let _ = self.places.throw_away(&self.places.new, &aside);
            let _ = self.places.throw_away(&self.places.top, &name);
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
