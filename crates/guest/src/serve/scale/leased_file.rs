//! One file that has the name of the scale file, or once had it. Each goes to the program that
//! opens it, alone if possible, so that no two writers overwrite each other.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};

use jail::sys::{lease, reap};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fstat, ftruncate, openat, renameat};
use rustix::io::{Errno, pread, pwrite};

use super::operations::{MAX_BYTES, Operation, new_bytes, parse, waiting};

/// More of the kernel's table of locks is not read.
const MAX_TABLE_BYTES: usize = 256 * 1024;

/// A block after all contents that exists only until a program truncates the file.
const MARK_BYTES: u64 = 4096;

/// The kernel function in which a process waits that opens a leased file.
const WAITS_IN: &str = "break_lease";

/// Checks in a row at which at most one process must be waiting.
const LOOKS: u32 = 2;

/// One file.
#[derive(Debug)]
pub(super) struct LeasedFile {
    file: OwnedFd,
    inode: u64,
    /// Its size in blocks until it is truncated; `None` if that cannot be used.
    marked_blocks: Option<i64>,
    was_emptied: bool,
    /// The contents that were read.
    seen: Vec<u8>,
    /// The contents at the last check that read nothing.
    settling: Option<Vec<u8>>,
    /// The processes that were seen waiting for it, with how many threads each.
    rivals: BTreeMap<i32, usize>,
    /// How often at most one waited, since more did.
    looks_alone: u32,
}

impl LeasedFile {
    /// Makes a file, leases it, and gives it a name in place of whatever has that name.
    pub(super) fn publish(
        directory: &OwnedFd,
        new: &str,
        name: &str,
        value: u32,
    ) -> Result<Self, Errno> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(directory, new, flags, Mode::from_raw_mode(0o666))?;
        let inode = fstat(&file)?.st_ino;
        let mut leased = Self {
            file,
            inode,
            marked_blocks: None,
            was_emptied: false,
            seen: Vec::new(),
            settling: None,
            rivals: BTreeMap::new(),
            looks_alone: 0,
        };
        leased.write(value)?;
        lease::take(leased.file.as_fd())?;
        renameat(directory, new, directory, name)?;
        Ok(leased)
    }

    pub(super) fn inode(&self) -> u64 {
        self.inode
    }

    /// Whether a process waits for it.
    pub(super) fn is_requested(&self) -> bool {
        lease::is_requested(self.file.as_fd())
    }

    /// Makes sure that at most one process waits for it: the others open the path again and find
    /// `next`, which must already have the name. Whether that is achieved.
    ///
    /// One entry in the table does not prove it. While the table is read, a process that is about
    /// to wait cannot appear in it, so one check is not enough; and a process that was woken
    /// because another gave up is not in it either, so all that were seen must be seen again at the
    /// next check.
    pub(super) fn single_out(&mut self, next: &Self, locks: &OwnedFd) -> bool {
        let Ok(locks) = read_again(locks) else { return true };
        let here = counted(&waiting(&locks, self.inode));
        for (&pid, &count) in &here {
            let seen = self.rivals.entry(pid).or_default();
            *seen = count.max(*seen);
        }
        let first = here.keys().next().copied();
        if here.values().sum::<usize>() > 1 {
            self.looks_alone = 0;
            for &pid in here.keys() {
                let mut threads = waiting_threads(pid);
                if Some(pid) == first && !threads.is_empty() {
                    threads.remove(0);
                }
                reap::nudge(pid, &threads);
            }
            return false;
        }
        let there = counted(&waiting(&locks, next.inode));
        let is_settled = self.rivals.iter().all(|(pid, &count)| {
            let away = count - usize::from(Some(*pid) == first);
            there.get(pid).copied().unwrap_or(0) >= away || !is_there(*pid)
        });
        if is_settled {
            self.looks_alone += 1;
        }
        self.looks_alone >= LOOKS
    }

    /// Lets the waiting process go on, and find this value.
    pub(super) fn hand_out(&mut self, value: u32) {
        // Without space, the file shows its old value or nothing.
        let _ = self.write(value);
        let marked = fallocate(&self.file, FallocateFlags::KEEP_SIZE, MARK_BYTES, MARK_BYTES)
            .and_then(|()| fstat(&self.file));
        self.marked_blocks = marked.ok().map(|found| found.st_blocks);
        let _ = lease::give_back(self.file.as_fd());
    }

    fn write(&mut self, value: u32) -> Result<(), Errno> {
        let text = format!("={value}\n").into_bytes();
        pwrite(&self.file, &text, 0)?;
        ftruncate(&self.file, text.len() as u64)?;
        self.seen = text;
        Ok(())
    }

    /// Whether no process has it open any more.
    pub(super) fn is_closed(&self) -> bool {
        lease::take(self.file.as_fd()).is_ok()
    }

    /// What was written since the last check. Of a file that is still open, only what is the same
    /// as at the last check, unless `all` is set.
    pub(super) fn take_in(&mut self, all: bool) -> Vec<Operation> {
        let mut now = vec![0; MAX_BYTES];
        let (Ok(count), Ok(found)) = (pread(&self.file, &mut now, 0), fstat(&self.file)) else {
            return Vec::new();
        };
        now.truncate(count);
        if !all && self.settling.as_ref() != Some(&now) {
            self.settling = Some(now);
            return Vec::new();
        }
        // Truncated: the marker block is gone for good.
        if !self.was_emptied && self.is_emptied(found.st_blocks, &now) {
            self.was_emptied = true;
            self.seen.clear();
        }
        let is_anew = self.was_emptied && !now.starts_with(&self.seen);
        let found = parse(new_bytes(&self.seen, &now, is_anew));
        self.seen = now;
        found
    }

    /// Without the marker it is a guess: a program that overwrites one character leaves the rest.
    fn is_emptied(&self, blocks: i64, now: &[u8]) -> bool {
        match self.marked_blocks {
            Some(marked) => blocks < marked,
            None => !now.starts_with(&self.seen) && now.get(1..) != self.seen.get(1..),
        }
    }
}

/// The contents of a file of `/proc` that is already open, as they are now.
fn read_again(file: &OwnedFd) -> Result<String, Errno> {
    let mut text = Vec::new();
    let mut part = [0; 4096];
    while text.len() < MAX_TABLE_BYTES {
        match pread(file, &mut part, text.len() as u64) {
            Ok(0) => break,
            Ok(count) => text.extend_from_slice(&part[..count]),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn counted(pids: &[i32]) -> BTreeMap<i32, usize> {
    let mut counted = BTreeMap::new();
    for &pid in pids {
        *counted.entry(pid).or_default() += 1;
    }
    counted
}

/// Whether a process exists and has not ended.
fn is_there(pid: i32) -> bool {
    fs::read(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.iter().rposition(|&byte| byte == b')').and_then(|at| stat.get(at + 2));
        !matches!(state, None | Some(b'Z' | b'X'))
    })
}

/// Threads of a process that wait for a lease; all threads where the kernel does not show it.
fn waiting_threads(pid: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let thread = |task: fs::DirEntry| task.file_name().to_str()?.parse::<i32>().ok();
    let waits = |thread: &i32| {
        fs::read_to_string(format!("/proc/{pid}/task/{thread}/wchan"))
            .map_or(true, |place| place == "0" || place.contains(WAITS_IN))
    };
    tasks.map_while(Result::ok).filter_map(thread).filter(waits).collect()
}
