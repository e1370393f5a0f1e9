//! Carries out a plan, step by step, in the process that becomes the first of the sandbox. Each
//! step either succeeds or ends the attempt with its name; nothing here decides what to do.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, chmodat, chownat, fchmod, mkdirat, openat,
    openat2, statat, symlinkat,
};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};
use rustix::process::{
    DumpableBehavior, Gid, Resource, Rlimit, Signal, Uid, chroot, fchdir, getrlimit,
    set_dumpable_behavior, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, LinkNameSpaceType, move_into_link_name_space, set_capabilities,
    set_keep_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

use crate::groups::{Groups, Limits};
use crate::plan::{DESCRIPTORS, OOM_SCORE, Step, USER};
use crate::root::{Built, Layers, copy_of, memory, mount_on};
use crate::sys::mount::{Properties, set_properties};
use crate::sys::namespaces::{self, Namespace};
use crate::{etc, socket_buffers, sys};

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub struct Failed {
    /// The step.
    pub step: Step,
    /// The kernel's error.
    pub source: io::Error,
}

/// What the steps need and keep.
pub struct Executor<'a> {
    /// The slot, which owns users and control groups.
    pub slot: u32,
    /// The first of its users on the host.
    pub first_uid: u32,
    /// Where its limits are written. `None` after preparing.
    pub groups: Option<&'a Groups>,
    /// Limits to write.
    pub limits: Limits,
    /// Asks the launcher to map users into the user namespace, and returns when that is done.
    pub await_map: &'a mut dyn FnMut() -> io::Result<()>,
    /// Whether the launcher still lives.
    pub launcher_lives: &'a mut dyn FnMut() -> bool,
    /// Loads the system call filter. `true` loads that of sandboxes that write to files of the
    /// host.
    pub load_filter: &'a mut dyn FnMut(bool) -> io::Result<()>,
    /// The root filesystem that most launches ask for.
    pub usual_root: &'a Built,
    /// An empty directory beside the roots.
    pub empty: &'a str,
    /// The mount namespace that contains only an empty directory.
    pub void: BorrowedFd<'a>,
    /// Our own layers over a root, not attached yet.
    pub taken: Option<Layers>,
    /// The `/proc` that is not attached yet.
    pub proc: Option<OwnedFd>,
    /// The kernel's table of locks.
    pub locks: Option<OwnedFd>,
    /// The workspace mount that the launcher handed over.
    pub given: Option<OwnedFd>,
    /// Mounts of host directories that the launcher handed over, in their order.
    pub shown: VecDeque<OwnedFd>,
    /// Whether some of them are writable.
    pub lends: bool,
    /// The root as it is attached.
    pub root: Option<OwnedFd>,
}

impl Executor<'_> {
    /// Carries out steps in order, up to the first that fails.
    pub fn carry_out(&mut self, steps: &[Step]) -> Result<(), Failed> {
        for step in steps {
            self.one(step).map_err(|source| Failed { step: step.clone(), source })?;
        }
        Ok(())
    }

    fn one(&mut self, step: &Step) -> io::Result<()> {
        match step {
            Step::JoinGroups => self.groups()?.join(self.slot),
            Step::WriteLimits => self.groups()?.limit(self.slot, self.limits),
            Step::NewNetwork => namespaces::make(&[Namespace::Network]),
            Step::LoopbackUp => sys::loopback::bring_up(),
            Step::BoundBuffers => {
                match &self.root {
                    Some(root) => socket_buffers::bound(root),
                    None => socket_buffers::bound_here(),
                }
                Ok(())
            }
            Step::OpenProc => {
                self.proc = Some(open_proc()?);
                Ok(())
            }
            Step::TakeRoot => {
                self.taken = Some(Layers::over(self.usual_root, self.empty)?);
                Ok(())
            }
            Step::EnterVoid => {
                Ok(move_into_link_name_space(self.void, Some(LinkNameSpaceType::Mount))?)
            }
            Step::LimitResources => limit_resources(),
            Step::BecomeSlotUser => {
                set_keep_capabilities(true)?;
                become_user(self.first_uid)?;
                // Changing users clears the effective capabilities and leaves the permitted ones.
                let all = CapabilitySet::all();
                let sets = rustix::thread::capabilities(None)?;
                let effective = sets.permitted & all;
                Ok(set_capabilities(
                    None,
                    CapabilitySets {
                        effective,
                        permitted: effective,
                        inheritable: CapabilitySet::empty(),
                    },
                )?)
            }
            Step::NewUserNamespace => {
                namespaces::make(&[Namespace::User])?;
                (self.await_map)()
            }
            Step::BecomeRootInside => {
                become_user(0)?;
                Ok(set_keep_capabilities(false)?)
            }
            Step::NewKeyRing => sys::keyring::new_session(),
            Step::EmptyBoundingSet => empty_bounding_set(),
            Step::NewSmallNamespaces => {
                namespaces::make(&[Namespace::Ipc, Namespace::Hostname, Namespace::Groups])
            }
            Step::NewMounts => namespaces::make(&[Namespace::Mount]),
            Step::AttachRoot => {
                let Layers { root, parts } = self.taken.take().ok_or(io::ErrorKind::NotFound)?;
                mount_on(&root, CWD, "/")?;
                for (name, part) in parts {
                    mount_on(part, &root, name)?;
                }
                self.root = Some(root);
                Ok(())
            }
            Step::MountProc => {
                let proc = self.proc.take().ok_or(io::ErrorKind::NotFound)?;
                mount_on(proc, self.root()?, "proc")
            }
            Step::OpenLocks => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                // A kernel without file locks has no such table.
                self.locks = openat(self.root()?, "proc/locks", flags, Mode::empty()).ok();
                Ok(())
            }
            Step::Mask(path) => mask(self.root()?, path),
            Step::ReadOnly(path) => read_only(self.root()?, path),
            Step::MountMemory { path, bytes, mode } => {
                mount_memory(self.root()?, path, *bytes, *mode)
            }
            Step::MountScratch { bytes } => mount_scratch(self.root()?, *bytes),
            Step::MountGiven { path } => {
                let given = self.given.take().ok_or(io::ErrorKind::NotFound)?;
                mount_on(given, self.root()?, path)
            }
            Step::MountShown { at } => {
                let shown = self.shown.pop_front().ok_or(io::ErrorKind::NotFound)?;
                show(shown, self.root()?, at)
            }
            Step::MountTerminals { own_group } => mount_terminals(self.root()?, *own_group),
            Step::EnterRoot => self.enter_root(),
            Step::Hostname(name) => {
                rustix::system::sethostname(name.as_bytes())?;
                write_hosts(name)
            }
            Step::KeepFewCapabilities => keep_capabilities(
                CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL,
            ),
            Step::DropCapabilities => keep_capabilities(CapabilitySet::empty()),
            Step::LimitProcesses(most) => {
                let most = Some(u64::from(*most));
                Ok(setrlimit(Resource::Nproc, Rlimit { current: most, maximum: most })?)
            }
            Step::UseFilesAsUser => sys::ids::use_files_as(USER, USER),
            Step::Undumpable => Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?),
            Step::DieWithLauncher => {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                // The launcher may have died before this call.
                if (self.launcher_lives)() { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
            }
            Step::NoNewPrivileges => Ok(set_no_new_privs(true)?),
            Step::LoadFilter => (self.load_filter)(self.lends),
        }
    }

    fn groups(&self) -> io::Result<&Groups> {
        self.groups.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn root(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.root.as_ref().ok_or(io::ErrorKind::NotFound)?.as_fd())
    }

    fn enter_root(&mut self) -> io::Result<()> {
        let root = self.root.take().ok_or(io::ErrorKind::NotFound)?;
        // Beneath this root is the empty directory, and beneath that nothing: a process that got
        // out of the root would be nowhere. Unmounting the directory would cost more than all other
        // steps.
        fchdir(root)?;
        Ok(chroot(".")?)
    }
}

fn open_proc() -> io::Result<OwnedFd> {
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

fn limit_resources() -> io::Result<()> {
    let exactly = |value| Rlimit { current: Some(value), maximum: Some(value) };
    // Descriptors in transit through sockets count for a user. Where programs run as the same user
    // as the server, the server must have more of them than one of its sandboxes.
    let descriptors = getrlimit(Resource::Nofile).maximum;
    let descriptors = descriptors.map_or(DESCRIPTORS, |now| (now / 2).min(DESCRIPTORS));
    setrlimit(Resource::Nofile, exactly(descriptors))?;
    // One byte: too little for a file, and the only value at which nothing is piped to a program of
    // the host.
    setrlimit(Resource::Core, exactly(1))?;
    // The process that started us may have more than a sandbox should: priorities that no limit
    // counts, kernel queues and locked memory, or protection from the out-of-memory killer.
    for resource in [Resource::Rtprio, Resource::Nice] {
        setrlimit(resource, exactly(0))?;
    }
    for (resource, most) in
        [(Resource::Msgqueue, 819_200), (Resource::Sigpending, 4096), (Resource::Memlock, 8 << 20)]
    {
        let most = getrlimit(resource).maximum.map_or(most, |now| now.min(most));
        setrlimit(resource, exactly(most))?;
    }
    match std::fs::write("/proc/self/oom_score_adj", OOM_SCORE.to_string()) {
        // Without root, a process may not lower its own score below the one it got.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other,
    }
}

fn become_user(id: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

fn empty_bounding_set() -> io::Result<()> {
    for capability in CapabilitySet::all().iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // An older kernel does not know the newest capabilities.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(other) => return Err(other.into()),
        }
    }
    Ok(())
}

fn keep_capabilities(keep: CapabilitySet) -> io::Result<()> {
    let sets =
        CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

fn mask(root: BorrowedFd<'_>, path: &str) -> io::Result<()> {
    let found = match statat(root, path, AtFlags::SYMLINK_NOFOLLOW) {
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        found => found?,
    };
    let empty = if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
        etc::EMPTY_DIRECTORY
    } else {
        etc::EMPTY_FILE
    };
    mount_on(copy_of(root, empty, false)?, root, path)
}

fn read_only(root: BorrowedFd<'_>, path: &str) -> io::Result<()> {
    let copy = match copy_of(root, path, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    set_properties(copy.as_fd(), Properties { read_only: true, ..Properties::default() })?;
    mount_on(copy, root, path)
}

/// A mounted file system may already belong to another user: none of its links is followed.
fn show(mount: OwnedFd, root: BorrowedFd<'_>, at: &str) -> io::Result<()> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let point = openat2(root, at, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", point, "", flags)?)
}

/// The directory of the scale file, and of other files of its own, in the scratch memory, and where it
/// is mounted.
const SCALE: (&str, &str) = ("tmp/scale", etc::OWN);

/// The same for files of secrets. Only the user of programs reads them.
const SECRETS: (&str, &str) = ("tmp/secrets", "run/secrets");

/// Directories in the scratch memory, and where each is mounted. What is mounted on `tmp` hides the
/// rest, so it comes last.
const SCRATCH: [(&str, &str); 2] = [("tmp/shm", "dev/shm"), ("tmp/tmp", "tmp")];

fn mount_scratch(root: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    mount_memory(root, "tmp", bytes, 0o755)?;
    mount_scale(root)?;
    mount_secrets(root)?;
    for (name, path) in SCRATCH {
        let mode = Mode::from_raw_mode(0o1777);
        mkdirat(root, name, mode)?;
        // The umask reduces the mode, so it is set again.
        chmodat(root, name, mode, AtFlags::empty())?;
        mount_on(copy_of(root, name, false)?, root, path)?;
    }
    Ok(())
}

/// It belongs to the user of programs, as whom the guest uses files. Programs cannot be run from
/// it: starting one opens its file, and the guest would wait for itself. Links of the root lead to
/// certificates in it; until there are others, they lead back to those of the root.
fn mount_scale(root: BorrowedFd<'_>) -> io::Result<()> {
    let (name, path) = SCALE;
    mkdirat(root, name, Mode::from_raw_mode(0o755))?;
    chownat(root, name, Some(Uid::from_raw(USER)), Some(Gid::from_raw(USER)), AtFlags::empty())?;
    for trusted in etc::TRUSTED {
        let kept = format!("{}/{}", etc::KEPT, trusted.name);
        if statat(root, kept.as_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            symlinkat(format!("/{kept}"), root, format!("{name}/{}", trusted.name))?;
        }
    }
    let copy = copy_of(root, name, false)?;
    let no_programs = Properties { no_programs: true, ..Properties::default() };
    set_properties(copy.as_fd(), no_programs)?;
    mount_on(copy, root, path)
}

/// The name of a sandbox is found inside like any other. The root is entered, and its own.
fn write_hosts(name: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o444);
    let file = openat(CWD, etc::OWN_HOSTS, flags, mode)?;
    // The umask reduces the mode, so it is set again.
    fchmod(&file, mode)?;
    std::fs::File::from(file).write_all(etc::hosts(Some(name)).as_bytes())
}

fn mount_secrets(root: BorrowedFd<'_>) -> io::Result<()> {
    let (name, path) = SECRETS;
    mkdirat(root, name, Mode::from_raw_mode(0o700))?;
    chownat(root, name, Some(Uid::from_raw(USER)), Some(Gid::from_raw(USER)), AtFlags::empty())?;
    let copy = copy_of(root, name, false)?;
    set_properties(copy.as_fd(), Properties { no_programs: true, ..Properties::default() })?;
    mount_on(copy, root, path)
}

fn mount_memory(root: BorrowedFd<'_>, path: &str, bytes: u64, mode: u32) -> io::Result<()> {
    mount_on(sized_memory(bytes, mode)?, root, path)
}

fn sized_memory(bytes: u64, mode: u32) -> io::Result<OwnedFd> {
    // An inode costs kernel memory too, so the size bounds their number.
    let inodes = (bytes / 4096).max(1024);
    let options = [
        ("size", bytes.to_string()),
        ("nr_inodes", inodes.to_string()),
        ("mode", format!("{mode:o}")),
        ("uid", USER.to_string()),
        ("gid", USER.to_string()),
    ];
    let options: Vec<(&str, &str)> =
        options.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    memory(&options, attributes)
}

fn mount_terminals(root: BorrowedFd<'_>, own_group: bool) -> io::Result<()> {
    let context = fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [("ptmxmode", "0666"), ("mode", "0620"), ("max", "32")] {
        fsconfig_set_string(&context, key, value)?;
    }
    if own_group {
        fsconfig_set_string(&context, "gid", "5")?;
    }
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    mount_on(mount, root, "dev/pts")
}
