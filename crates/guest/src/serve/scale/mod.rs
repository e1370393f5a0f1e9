//! The scale file: programs write to it how much they want to keep the sandbox alive, and read what
//! keeps it so. To them it is a plain file. A program that opens it waits for a moment, in the
//! kernel, until the guest has read all earlier writes, and then has a file of its own; the name
//! already belongs to a new file. So no write is lost, and a read sees every write before it.
//!
//! The guest must never wait for a program: a file that a program keeps open is checked now and
//! then, and a program that breaks the file breaks only its own.

mod leased_file;
mod operations;

use std::os::fd::OwnedFd;

use guest_protocol::message::Reply;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat, unlinkat};
use rustix::io::Errno;

use super::ScaleSettings;
use leased_file::LeasedFile;
use operations::Operation;

/// Its name in its directory.
const NAME: &str = "scale";

/// The name of a file that is being made.
const NEW: &str = ".new";

/// The most files that programs have open. With more, the oldest are forgotten.
const MAX_HANDED_OUT: usize = 64;

/// The shortest and the longest pause between two checks of the files that were handed out.
const SOONEST_MS: u64 = 1;
const LATEST_MS: u64 = 128;

/// The shortest pause between two reports to the host: each may be stored.
const REPORT_INTERVAL_MS: u64 = 50;

/// How long the guest tries to give a file to one of several waiting programs alone. It is long
/// because a write is lost if two of them get the same file, and a machine under load may let none
/// of them run for seconds. After 45 seconds the kernel would let all of them have it.
const SINGLE_OUT_MS: u64 = 10_000;

/// The scale file of a sandbox.
#[derive(Debug)]
pub(super) struct Scale {
    directory: OwnedFd,
    path: String,
    /// The kernel's table of locks, if the guest has it.
    locks: Option<OwnedFd>,
    /// The file that has the name.
    current: Option<LeasedFile>,
    /// A file that a program waits for, and since when.
    requested: Option<(LeasedFile, u64)>,
    handed_out: Vec<LeasedFile>,
    next_look_ms: u64,
    pause_ms: u64,
    count: Count,
}

/// The counter, and what the host knows of it.
#[derive(Debug, Default)]
struct Count {
    scale: u32,
    processes: u32,
    reported_scale: u32,
    /// A write set the scale to a number and was not reported yet.
    drops: bool,
    reported: u64,
    acknowledged: u64,
    /// Process counts of the host from before this report are out of date.
    last_drop: u64,
    next_report_ms: u64,
}

impl Scale {
    /// Makes one in a directory.
    pub(super) fn start(settings: ScaleSettings) -> Result<Self, Errno> {
        let ScaleSettings { directory, locks } = settings;
        let path = format!("{directory}/{NAME}");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, directory.as_str(), flags, Mode::empty())?;
        let mut scale = Self {
            directory,
            path,
            locks,
            current: None,
            requested: None,
            handed_out: Vec::new(),
            next_look_ms: 0,
            pause_ms: SOONEST_MS,
            count: Count::default(),
        };
        scale.publish()?;
        Ok(scale)
    }

    /// The path for programs.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    fn publish(&mut self) -> Result<(), Errno> {
        // A file that was not finished, or that a program put there.
        let _ = unlinkat(&self.directory, NEW, AtFlags::empty());
        let published = LeasedFile::publish(&self.directory, NEW, NAME, self.count.value());
        if published.is_err() {
            let _ = unlinkat(&self.directory, NEW, AtFlags::empty());
        }
        self.current = Some(published?);
        Ok(())
    }

    /// Restores the file before a program starts, whatever other programs did to it.
    pub(super) fn restore(&mut self) {
        let found = statat(&self.directory, NAME, AtFlags::SYMLINK_NOFOLLOW);
        let is_ours = match (&self.current, &found) {
            (Some(current), Ok(found)) => found.st_ino == current.inode(),
            (Some(_) | None, _) => false,
        };
        if is_ours || self.requested.is_some() {
            return;
        }
        if found.is_ok() {
            // A rename cannot replace a directory. A non-empty directory stays.
            let _ = unlinkat(&self.directory, NAME, AtFlags::REMOVEDIR);
        }
        let _ = self.publish();
    }

    /// When to check again.
    pub(super) fn due_ms(&self) -> Option<u64> {
        let look =
            (self.requested.is_some() || !self.handed_out.is_empty()).then_some(self.next_look_ms);
        let report = self.count.may_report().then_some(self.count.next_report_ms);
        look.into_iter().chain(report).min()
    }

    /// Hands the file out if programs wait for it and one of them can have it alone.
    pub(super) fn on_requests(&mut self, now_ms: u64) {
        loop {
            if self.requested.is_none() {
                let Some(current) = self.current.take_if(|current| current.is_requested()) else {
                    return;
                };
                self.requested = Some((current, now_ms));
                // From here on, other programs find a new file. Without room for one, several
                // programs may get the same.
                let _ = self.publish();
            }
            let Some((mut leased, since_ms)) = self.requested.take() else { return };
            let is_late = now_ms >= since_ms + SINGLE_OUT_MS;
            self.pause_ms = SOONEST_MS;
            self.next_look_ms = now_ms + SOONEST_MS;
            if let (Some(next), Some(locks)) = (&self.current, &self.locks)
                && !is_late
                && !leased.single_out(next, locks)
            {
                self.requested = Some((leased, since_ms));
                return;
            }
            self.hand_out(leased);
        }
    }

    fn hand_out(&mut self, mut leased: LeasedFile) {
        self.take_in(true);
        leased.hand_out(self.count.value());
        if self.handed_out.len() >= MAX_HANDED_OUT {
            self.handed_out.remove(0);
        }
        self.handed_out.push(leased);
    }

    /// Checks the files that were handed out, when it is time.
    pub(super) fn look_if_due(&mut self, now_ms: u64) {
        let is_open = self.requested.is_some() || !self.handed_out.is_empty();
        if !is_open || now_ms < self.next_look_ms {
            return;
        }
        if self.take_in(false) {
            self.pause_ms = SOONEST_MS;
        } else {
            self.pause_ms = (self.pause_ms * 2).min(LATEST_MS);
        }
        self.next_look_ms = now_ms + self.pause_ms;
        if self.current.is_none() {
            // There was no room for a new file.
            let _ = self.publish();
        }
        self.on_requests(now_ms);
    }

    /// Reads what was written. Whether anything was.
    fn take_in(&mut self, all: bool) -> bool {
        let mut found = false;
        let Self { handed_out, count, .. } = self;
        handed_out.retain_mut(|leased| {
            let is_closed = leased.is_closed();
            for operation in leased.take_in(all || is_closed) {
                found = true;
                count.apply(operation);
            }
            !is_closed
        });
        found
    }

    /// The next report to the host, if it has acknowledged the last one and that was long enough
    /// ago.
    pub(super) fn next_report(&mut self, now_ms: u64) -> Option<Reply> {
        self.count.next_report(now_ms)
    }

    /// The host has acknowledged a report.
    pub(super) fn acknowledged(&mut self, seq: u64) {
        self.count.acknowledged = self.count.acknowledged.max(seq.min(self.count.reported));
    }

    /// Sets how many processes keep the sandbox alive, as the host counts them.
    pub(super) fn show_holds(&mut self, processes: u32, seen: u64) {
        if !self.count.drops && seen >= self.count.last_drop {
            self.count.processes = processes;
        }
    }
}

impl Count {
    /// The number that the file shows.
    fn value(&self) -> u32 {
        self.scale.saturating_add(self.processes)
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::More(by) => self.scale = self.scale.saturating_add(by),
            Operation::Fewer(by) => self.scale = self.scale.saturating_sub(by),
            Operation::Exactly(number) => {
                self.scale = number;
                self.processes = 0;
                self.drops = true;
            }
        }
    }

    /// Whether there is something to report, and the host has acknowledged the last report.
    fn may_report(&self) -> bool {
        let is_new = self.drops || self.scale != self.reported_scale;
        is_new && self.acknowledged >= self.reported
    }

    fn next_report(&mut self, now_ms: u64) -> Option<Reply> {
        if !self.may_report() || now_ms < self.next_report_ms {
            return None;
        }
        self.next_report_ms = now_ms + REPORT_INTERVAL_MS;
        self.reported += 1;
        self.reported_scale = self.scale;
        let drops = std::mem::take(&mut self.drops);
        if drops {
            self.last_drop = self.reported;
        }
        Some(Reply::Scale { seq: self.reported, scale: self.scale, drops })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_scale_report_contains_all_changes() {
        let mut count = Count::default();
        assert_eq!(count.next_report(1000), None);
        count.apply(Operation::More(2));
        assert_eq!(count.next_report(1000), Some(Reply::Scale { seq: 1, scale: 2, drops: false }));
        count.apply(Operation::Fewer(9));
        count.apply(Operation::More(1));
        assert_eq!((count.next_report(2000), count.value()), (None, 1));
        count.acknowledged = 1;
        assert_eq!(count.next_report(1049), None, "not so soon");
        assert_eq!(count.next_report(1050), Some(Reply::Scale { seq: 2, scale: 1, drops: false }));
        count.acknowledged = 2;
        assert_eq!(count.next_report(2000), None);
    }

    #[test]
    fn dropped_holds_stay_dropped_despite_older_counts() {
        let mut count = Count { processes: 3, ..Count::default() };
        count.apply(Operation::Exactly(1));
        assert_eq!(count.value(), 1);
        assert_eq!(count.next_report(0), Some(Reply::Scale { seq: 1, scale: 1, drops: true }));
        assert_eq!(count.last_drop, 1);
    }
}
