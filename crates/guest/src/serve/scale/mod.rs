//! The scale file: programs write to it how much they want the sandbox to be kept awake, and read
//! what keeps it so. It is a plain file to them. Whoever opens it waits for a moment, in the kernel,
//! until the guest has taken in all that was written before, and gets a file of its own to write to;
//! another has its name by then. So no write is lost, and a read sees every write before it.
//!
//! It must never wait for a program: one that keeps its file open is looked at now and then, and one
//! that breaks the file breaks it for itself.

mod sheet;
mod words;

use std::os::fd::OwnedFd;

use guest_protocol::message::Reply;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat, unlinkat};
use rustix::io::Errno;

use sheet::Sheet;
use words::Word;

/// Its name in its directory.
const NAME: &str = "scale";

/// The name of one that is being made.
const NEW: &str = ".new";

/// Files that programs have open. Of more, those opened first are forgotten.
const MAX_HANDED_OUT: usize = 64;

/// How soon one that was handed out is looked at, and how seldom after a while.
const SOONEST_MS: u64 = 1;
const LATEST_MS: u64 = 128;

/// How soon after one change the host is told of another: every word to it may be stored.
const NOTE_MS: u64 = 50;

/// How long several that wait for the same file are told apart before they get it together. The
/// kernel lets them have it after 45 seconds.
const TELL_APART_MS: u64 = 1000;

/// The scale file of a sandbox.
#[derive(Debug)]
pub(super) struct Scale {
    directory: OwnedFd,
    path: String,
    /// The one that has the name.
    current: Option<Sheet>,
    /// One that is asked for, and since when.
    asked_for: Option<(Sheet, u64)>,
    handed_out: Vec<Sheet>,
    next_look_ms: u64,
    pause_ms: u64,
    count: Count,
}

/// What was counted, and what the host knows of it.
#[derive(Debug, Default)]
struct Count {
    scale: u32,
    processes: u32,
    told_scale: u32,
    /// Said, and not told yet.
    drops: bool,
    told: u64,
    heard: u64,
    /// What the host says of processes before it has heard this is out of date.
    last_drop: u64,
    next_note_ms: u64,
}

impl Scale {
    /// Makes one in a directory.
    pub(super) fn start(directory: &str) -> Result<Self, Errno> {
        let path = format!("{directory}/{NAME}");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, directory, flags, Mode::empty())?;
        let mut scale = Self {
            directory,
            path,
            current: None,
            asked_for: None,
            handed_out: Vec::new(),
            next_look_ms: 0,
            pause_ms: SOONEST_MS,
            count: Count::default(),
        };
        scale.publish()?;
        Ok(scale)
    }

    /// Where programs find it.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    fn publish(&mut self) -> Result<(), Errno> {
        // One that was not finished, or that somebody put there.
        let _ = unlinkat(&self.directory, NEW, AtFlags::empty());
        let published = Sheet::publish(&self.directory, NEW, NAME, self.count.value());
        if published.is_err() {
            let _ = unlinkat(&self.directory, NEW, AtFlags::empty());
        }
        self.current = Some(published?);
        Ok(())
    }

    /// A program is about to start: it is to find the file, whatever others did to it.
    pub(super) fn restore(&mut self) {
        let found = statat(&self.directory, NAME, AtFlags::SYMLINK_NOFOLLOW);
        let is_ours = match (&self.current, &found) {
            (Some(current), Ok(found)) => found.st_ino == current.inode(),
            (Some(_) | None, _) => false,
        };
        if is_ours || self.asked_for.is_some() {
            return;
        }
        if found.is_ok() {
            // A directory is not replaced by a file. One with something in it stays.
            let _ = unlinkat(&self.directory, NAME, AtFlags::REMOVEDIR);
        }
        let _ = self.publish();
    }

    /// When to look again.
    pub(super) fn due_ms(&self) -> Option<u64> {
        let look =
            (self.asked_for.is_some() || !self.handed_out.is_empty()).then_some(self.next_look_ms);
        let note = self.count.may_tell().then_some(self.count.next_note_ms);
        look.into_iter().chain(note).min()
    }

    /// Somebody may have asked for the file: gives it out, if there is one alone who wants it.
    pub(super) fn asked(&mut self, now_ms: u64) {
        loop {
            if self.asked_for.is_none() {
                let Some(current) = self.current.take_if(|current| current.is_asked_for()) else {
                    return;
                };
                self.asked_for = Some((current, now_ms));
                // From here on, whoever comes finds another one. Without room for one, all that is
                // lost is that several may get the same.
                let _ = self.publish();
            }
            let Some((mut sheet, since_ms)) = self.asked_for.take() else { return };
            let is_late = now_ms >= since_ms + TELL_APART_MS;
            self.pause_ms = SOONEST_MS;
            self.next_look_ms = now_ms + SOONEST_MS;
            if let Some(next) = &self.current
                && !is_late
                && !sheet.single_out(next)
            {
                self.asked_for = Some((sheet, since_ms));
                return;
            }
            self.hand_out(sheet);
        }
    }

    fn hand_out(&mut self, mut sheet: Sheet) {
        self.look(true);
        sheet.hand_out(self.count.value());
        if self.handed_out.len() >= MAX_HANDED_OUT {
            self.handed_out.remove(0);
        }
        self.handed_out.push(sheet);
    }

    /// It is time to look at what was handed out.
    pub(super) fn look_if_due(&mut self, now_ms: u64) {
        let is_open = self.asked_for.is_some() || !self.handed_out.is_empty();
        if !is_open || now_ms < self.next_look_ms {
            return;
        }
        if self.look(false) {
            self.pause_ms = SOONEST_MS;
        } else {
            self.pause_ms = (self.pause_ms * 2).min(LATEST_MS);
        }
        self.next_look_ms = now_ms + self.pause_ms;
        if self.current.is_none() {
            // There was no room for one.
            let _ = self.publish();
        }
        self.asked(now_ms);
    }

    /// Takes in what was written. Whether anything was.
    fn look(&mut self, all: bool) -> bool {
        let mut found = false;
        let Self { handed_out, count, .. } = self;
        handed_out.retain_mut(|sheet| {
            let is_closed = sheet.is_closed();
            for word in sheet.take_in(all || is_closed) {
                found = true;
                count.take(word);
            }
            !is_closed
        });
        found
    }

    /// What the host is to be told, if it has heard the last, and that was a while ago.
    pub(super) fn news(&mut self, now_ms: u64) -> Option<Reply> {
        self.count.news(now_ms)
    }

    /// The host has heard.
    pub(super) fn heard(&mut self, seq: u64) {
        self.count.heard = self.count.heard.max(seq.min(self.count.told));
    }

    /// The host says how many processes keep the sandbox awake.
    pub(super) fn show_holds(&mut self, processes: u32, seen: u64) {
        if !self.count.drops && seen >= self.count.last_drop {
            self.count.processes = processes;
        }
    }
}

impl Count {
    /// What the file shows.
    fn value(&self) -> u32 {
        self.scale.saturating_add(self.processes)
    }

    fn take(&mut self, word: Word) {
        match word {
            Word::More(by) => self.scale = self.scale.saturating_add(by),
            Word::Fewer(by) => self.scale = self.scale.saturating_sub(by),
            Word::Exactly(number) => {
                self.scale = number;
                self.processes = 0;
                self.drops = true;
            }
        }
    }

    /// Whether there is something to tell, and the host has heard the last.
    fn may_tell(&self) -> bool {
        let is_new = self.drops || self.scale != self.told_scale;
        is_new && self.heard >= self.told
    }

    fn news(&mut self, now_ms: u64) -> Option<Reply> {
        if !self.may_tell() || now_ms < self.next_note_ms {
            return None;
        }
        self.next_note_ms = now_ms + NOTE_MS;
        self.told += 1;
        self.told_scale = self.scale;
        let drops = std::mem::take(&mut self.drops);
        if drops {
            self.last_drop = self.told;
        }
        Some(Reply::Scale { seq: self.told, scale: self.scale, drops })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_note_at_a_time_tells_all_there_is() {
        let mut count = Count::default();
        assert_eq!(count.news(1000), None);
        count.take(Word::More(2));
        assert_eq!(count.news(1000), Some(Reply::Scale { seq: 1, scale: 2, drops: false }));
        count.take(Word::Fewer(9));
        count.take(Word::More(1));
        assert_eq!((count.news(2000), count.value()), (None, 1));
        count.heard = 1;
        assert_eq!(count.news(1049), None, "not so soon");
        assert_eq!(count.news(1050), Some(Reply::Scale { seq: 2, scale: 1, drops: false }));
        count.heard = 2;
        assert_eq!(count.news(2000), None);
    }

    #[test]
    fn what_was_dropped_stays_so_whatever_was_said_before() {
        let mut count = Count { processes: 3, ..Count::default() };
        count.take(Word::Exactly(1));
        assert_eq!(count.value(), 1);
        assert_eq!(count.news(0), Some(Reply::Scale { seq: 1, scale: 1, drops: true }));
        assert_eq!(count.last_drop, 1);
    }
}
