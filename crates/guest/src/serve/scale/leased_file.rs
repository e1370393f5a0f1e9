//! One file that once had the name of the scale file, or has it now. Each goes to whoever opens it,
//! alone if that can be arranged, so that no two writers write over each other.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};

use jail::sys::{lease, reap};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fstat, ftruncate, openat, renameat};
use rustix::io::{Errno, pread, pwrite};

use super::operations::{MAX_BYTES, Operation, new_bytes, parse, waiting};

/// More of the table of locks is not read.
const MAX_TABLE_BYTES: u64 = 256 * 1024;

/// A place behind all contents that is there only as long as nobody has emptied the file.
const MARK_BYTES: u64 = 4096;

/// The function of the kernel in which whoever opens a leased file waits.
const WAITS_IN: &str = "break_lease";

/// Looks in a row at which one at most must be waiting.
const LOOKS: u32 = 2;

/// One file.
#[derive(Debug)]
pub(super) struct LeasedFile {
    file: OwnedFd,
    inode: u64,
    /// What it takes as long as nobody has emptied it; none if that cannot be told.
    marked_blocks: Option<i64>,
    was_emptied: bool,
    /// What was taken in.
    seen: Vec<u8>,
    /// What was there at the last look that took nothing in.
    settling: Option<Vec<u8>>,
    /// Who was seen waiting for it, and with how many threads at once.
    rivals: BTreeMap<i32, usize>,
    /// How often no more than one waited for it, since the last time that more did.
    looks_alone: u32,
}

impl LeasedFile {
    /// Makes one, leases it, and gives it a name in place of whatever has that.
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

    /// Whether somebody waits for it.
    pub(super) fn is_requested(&self) -> bool {
        lease::is_requested(self.file.as_fd())
    }

    /// Sees to it that one at most waits for it: the others begin anew, and find `next`, which must
    /// have the name by now. Whether it is so yet.
    ///
    /// That one alone is in the table does not say so. While the table is read, whoever is about to
    /// wait is kept from showing up in it, so one look is not enough; and whoever was woken because
    /// another gave up is not in it either, so all that were seen must be seen again at the next one.
    pub(super) fn single_out(&mut self, next: &Self) -> bool {
        let Ok(table) = fs::File::open("/proc/locks") else { return true };
        let mut locks = String::new();
        if table.take(MAX_TABLE_BYTES).read_to_string(&mut locks).is_err() {
            return true;
        }
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

    /// Lets whoever waits for it go on, and find this value.
    pub(super) fn hand_out(&mut self, value: u32) {
        // Where there is no room, it shows what it showed before, or nothing.
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

    /// Whether nobody has it open any more.
    pub(super) fn is_closed(&self) -> bool {
        lease::take(self.file.as_fd()).is_ok()
    }

    /// What was written since the last time. Of one that is still being written, only what is the
    /// same as at the last look, unless all of it is wanted.
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
        // Emptied, it is so for good: what is behind is gone.
        if !self.was_emptied && self.is_emptied(found.st_blocks, &now) {
            self.was_emptied = true;
            self.seen.clear();
        }
        let is_anew = self.was_emptied && !now.starts_with(&self.seen);
        let found = parse(new_bytes(&self.seen, &now, is_anew));
        self.seen = now;
        found
    }

    /// Without a mark it is guessed: whoever writes one sign over what is there leaves the rest.
    fn is_emptied(&self, blocks: i64, now: &[u8]) -> bool {
        match self.marked_blocks {
            Some(marked) => blocks < marked,
            None => !now.starts_with(&self.seen) && now.get(1..) != self.seen.get(1..),
        }
    }
}

fn counted(pids: &[i32]) -> BTreeMap<i32, usize> {
    let mut counted = BTreeMap::new();
    for &pid in pids {
        *counted.entry(pid).or_default() += 1;
    }
    counted
}

/// Whether a process is there and not over.
fn is_there(pid: i32) -> bool {
    fs::read(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.iter().rposition(|&byte| byte == b')').and_then(|at| stat.get(at + 2));
        !matches!(state, None | Some(b'Z' | b'X'))
    })
}

/// Threads of a process that wait for a lease; all of them where that is not told.
fn waiting_threads(pid: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let thread = |task: fs::DirEntry| task.file_name().to_str()?.parse::<i32>().ok();
    let waits = |thread: &i32| {
        fs::read_to_string(format!("/proc/{pid}/task/{thread}/wchan"))
            .map_or(true, |place| place == "0" || place.contains(WAITS_IN))
    };
    tasks.map_while(Result::ok).filter_map(thread).filter(waits).collect()
}
