//! The first process of a container, by its handle. Its process id is used only to open its
//! directory in `/proc`, before the handle is asked whether the process still lives. As long as it
//! does, the id is its own, and the directory stays that of this process for ever.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use guest_protocol::keeper::KeeperRefusalCode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    AtFlags, Dir, Mode, OFlags, ResolveFlags, fstatfs, openat, openat2, readlinkat, statat,
};
use rustix::io::Errno;
use rustix::process::Pid;

use super::namespaces::{self, OwnNamespaces};
use super::{Named as _, Refusal, leftover, refusal};

/// More of a file in `/proc` is not read.
const MAX_FILE_BYTES: usize = 256 * 1024;

const PROC_MAGIC: i64 = 0x9fa0;

/// The first process of a container.
pub(super) struct Process {
    handle: OwnedFd,
    pub(super) pid: Pid,
    /// Its directory in our `/proc`.
    directory: OwnedFd,
    /// The namespace of its processes, by name.
    processes: String,
}

impl Process {
    /// The process of a handle, if it is the first process of a container with namespaces of its
    /// own.
    pub(super) fn open(namespaces: &OwnNamespaces, handle: OwnedFd) -> Result<Self, Refusal> {
        let pid = number_of(namespaces, &handle)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let name = pid.as_raw_nonzero().to_string();
        let directory = openat(&namespaces.proc, name.as_str(), flags, Mode::empty());
        let directory = directory.map_err(|_| gone())?;
        let names = namespaces::names(&namespaces.proc, &name);
        check_alive(&handle)?;
        let names = names?;
        let [_, processes, ..] = names.clone();
        let process = Self { handle, pid, directory, processes };
        if names.iter().zip(&namespaces.names).any(|(theirs, ours)| theirs == ours) {
            return Err(foreign("the container shares a namespace with this machine"));
        }
        let status = process.read("status")?;
        let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        if ids.split_whitespace().next_back() != Some("1") {
            return Err(foreign("the process is not the first of its process namespace"));
        }
        Ok(process)
    }

    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Refuses if the process has ended.
    pub(super) fn check_alive(&self) -> Result<(), Refusal> {
        check_alive(&self.handle)
    }

    /// A file of the process in `/proc`. Empty if there is no such file.
    pub(super) fn read_if_there(&self, name: &str) -> Result<String, Refusal> {
        match read(&self.directory, name) {
            Err(Errno::NOENT) => Ok(String::new()),
            other => other.named(name),
        }
    }

    /// A file of the process in `/proc`.
    pub(super) fn read(&self, name: &str) -> Result<String, Refusal> {
        read(&self.directory, name).named(name)
    }

    /// The target of a link of the process in `/proc`.
    pub(super) fn link(&self, name: &str) -> Result<String, Refusal> {
        let target = readlinkat(&self.directory, name, Vec::new()).named(name)?;
        Ok(target.to_string_lossy().into_owned())
    }

    /// The user that may read its memory: root alone, if it is not dumpable.
    pub(super) fn owner(&self) -> Result<u32, Refusal> {
        let about = statat(&self.directory, "environ", AtFlags::SYMLINK_NOFOLLOW);
        Ok(about.named("inspect a process")?.st_uid)
    }

    /// Its root. Everything inside is opened beneath it.
    pub(super) fn root(&self) -> Result<OwnedFd, Refusal> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(&self.directory, "root", flags, Mode::empty()).named("open the root of a container")
    }

    /// The id on the host of a user or group of the container.
    pub(super) fn outside(&self, map: &str, inside: u32) -> Result<u32, Refusal> {
        mapped(&self.read(map)?, inside)
            .ok_or_else(|| foreign("the container does not have the expected users"))
    }

    /// Refuses if the container has any process besides this one, or if this one has more than one
    /// thread.
    pub(super) fn check_alone(&self) -> Result<(), Refusal> {
        let proc = open_beneath(&self.root()?, "/proc", OFlags::RDONLY)
            .named("open the /proc of a container")?;
        let is_proc =
            fstatfs(&proc).named("inspect the /proc of a container")?.f_type == PROC_MAGIC;
        let first =
            readlinkat(&proc, "1/ns/pid", Vec::new()).named("inspect the /proc of a container")?;
        let about = read(&proc, "1/stat").named("inspect the /proc of a container")?;
        // Compared by start time, because the process ids differ: inside it is 1, with parent 0.
        let started = |stat: &str| stat.rsplit(')').next().map(|rest| field(rest, 20));
        let is_same = started(&about) == started(&self.read("stat")?);
        if !is_proc || first.to_bytes() != self.processes.as_bytes() || !is_same {
            return Err(foreign("the /proc of the container does not show its processes"));
        }
        if let Some(other) = numbers(&proc)?.into_iter().find(|&pid| pid != 1) {
            let name = read(&proc, &format!("{other}/comm")).unwrap_or_default();
            return Err(leftover(format!("process {other} runs ({})", name.trim())));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let tasks = openat(&self.directory, "task", flags, Mode::empty()).named("task")?;
        if numbers(&tasks)?.len() != 1 {
            return Err(foreign("the first process of the container has more than one thread"));
        }
        Ok(())
    }
}

/// Opens a path in a container. No link is followed, and nothing leads above its root.
pub(super) fn open_beneath(root: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(root, path, flags, Mode::empty(), resolve)
}

fn gone() -> Refusal {
    refusal(KeeperRefusalCode::Gone, "the first process of the container has ended", 0)
}

pub(super) fn foreign(why: impl Into<String>) -> Refusal {
    refusal(KeeperRefusalCode::Foreign, why, 0)
}

fn check_alive(handle: &OwnedFd) -> Result<(), Refusal> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&now)) {
        Ok(0) => Ok(()),
        Ok(_) => Err(gone()),
        Err(errno) => Err(errno).named("check whether a process lives"),
    }
}

/// The process id of a handle.
fn number_of(namespaces: &OwnNamespaces, handle: &OwnedFd) -> Result<Pid, Refusal> {
    let name = format!("self/fdinfo/{}", handle.as_raw_fd());
    let about = read(&namespaces.proc, &name).named("inspect a process handle")?;
    let number = about.lines().find_map(|line| line.strip_prefix("Pid:"));
    let number = number.ok_or_else(|| foreign("the descriptor is not a process handle"))?.trim();
    // It is -1 for a process that has ended, and 0 for one that cannot be seen from here.
    match number.parse::<i32>().ok().and_then(Pid::from_raw) {
        Some(pid) if pid.as_raw_nonzero().get() > 0 => Ok(pid),
        Some(_) => Err(gone()),
        None => Err(foreign("the processes of the container cannot be seen from here")),
    }
}

fn read(directory: &OwnedFd, name: &str) -> Result<String, Errno> {
    let file = openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::with_capacity(4096);
    loop {
        bytes.reserve(4096);
        match rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes)) {
            Ok(0) => break,
            Ok(_) if bytes.len() > MAX_FILE_BYTES => return Err(Errno::FBIG),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The names in a directory that are numbers.
fn numbers(directory: &OwnedFd) -> Result<Vec<i32>, Refusal> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory).named("list processes")? {
        let entry = entry.named("list processes")?;
        found.extend(entry.file_name().to_str().ok().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(found)
}

/// A field of `stat`, counted from 1 after the name of the process.
pub(super) fn field(rest: &str, number: usize) -> String {
    rest.split_whitespace().nth(number - 1).unwrap_or_default().to_owned()
}

/// The outside id of an id inside, by the lines of a map: inside, outside, count.
fn mapped(map: &str, inside: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let (first, outside, count) =
            (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        let offset = inside.checked_sub(first).filter(|&offset| offset < count)?;
        outside.checked_add(offset)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_in_user_maps() {
        let whole = "         0          0 4294967295\n";
        let ranges = "0 100000 1000\n1000 5 1\n2000 900000 10\n";
        for (map, inside, outside) in [
            (whole, 0, Some(0)),
            (whole, 1000, Some(1000)),
            (whole, u32::MAX, None),
            (ranges, 0, Some(100_000)),
            (ranges, 999, Some(100_999)),
            (ranges, 1000, Some(5)),
            (ranges, 1001, None),
            (ranges, 2009, Some(900_009)),
            (ranges, 2010, None),
            ("", 0, None),
            ("x 1 2\n0 4294967295 9", 1, None),
        ] {
            assert_eq!(mapped(map, inside), outside, "{inside} in {map}");
        }
    }

    #[test]
    fn stat_fields_are_counted_from_the_state() {
        let stat = "1 (a) b) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 77 9";
        let rest = stat.rsplit(')').next().unwrap();
        assert_eq!(
            (field(rest, 1), field(rest, 20), field(rest, 99)),
            ("S".into(), "77".into(), String::new())
        );
    }
}
