//! Reports changes in a directory or a tree. Changes that the host does not read wait in the
//! kernel, which keeps a limited number and then reports that some are lost. This module never
//! holds more than that.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;

use guest_protocol::look::{Change, Sighting};
use guest_protocol::message::{EntryKind, Fault, FaultCode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, open, statat};
use rustix::io::Errno;

use super::super::fault::{fault, refused};
use super::super::files::{kind_of, refuse_proc};
use super::record_writer::RecordWriter;

/// The most directories that are watched.
const MAX_WATCHES: usize = 8192;

/// The most paths that were reported before the kernel reported them.
const MAX_ANNOUNCED: usize = 4096;

/// How long the second half of a move may take to come.
const MOVE_TIMEOUT_MS: i64 = 10;

/// The events to ask the kernel for.
const WATCHED_EVENTS: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// One event of the kernel.
struct KernelEvent {
    watch: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Vec<u8>,
}

/// A running watch.
struct DirectoryWatch<'a> {
    inotify: rustix::fd::OwnedFd,
    recursive: bool,
    root: i32,
    places: BTreeMap<i32, Vec<u8>>,
    /// Reported with a new directory; the kernel may report them again.
    announced: BTreeSet<Vec<u8>>,
    /// A directory that was moved; its new name may follow.
    moved: Option<(u32, Vec<u8>)>,
    last: Option<(Change, Vec<u8>)>,
    records: &'a mut RecordWriter,
}

/// Reports changes until the directory is gone or the host is.
pub(super) fn watch(path: &str, recursive: bool, records: &mut RecordWriter) -> Result<(), Fault> {
    let place = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| refused(errno, path))?;
    refuse_proc(&place, path)?;
    drop(place);
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
        .map_err(|errno| refused(errno, "cannot start the watch"))?;
    let mut watching = DirectoryWatch {
        inotify,
        recursive,
        root: 0,
        places: BTreeMap::new(),
        announced: BTreeSet::new(),
        moved: None,
        last: None,
        records,
    };
    let trimmed = path.trim_end_matches('/').as_bytes().to_vec();
    watching.root = watching.add(&trimmed, WATCHED_EVENTS).map_err(|errno| refused(errno, path))?;
    if recursive && !watching.add_beneath(trimmed, false) {
        let message = format!("{path} has more than {MAX_WATCHES} directories");
        return Err(fault(FaultCode::Limit, message));
    }
    watching.records.write(&Sighting::Armed);
    watching.run();
    watching.records.write(&Sighting::Over { truncated: false, count: 0 });
    Ok(())
}

impl DirectoryWatch<'_> {
    fn add(&mut self, path: &[u8], flags: WatchFlags) -> Result<i32, Errno> {
        let name = if path.is_empty() { b"/" } else { path };
        let watch = inotify::add_watch(&self.inotify, name, flags)?;
        self.places.insert(watch, path.to_vec());
        Ok(watch)
    }

    /// Watches everything beneath a directory, and reports it if it is new. False if there are too
    /// many directories. What is removed meanwhile or may not be read is left out.
    fn add_beneath(&mut self, path: Vec<u8>, is_new: bool) -> bool {
        let mut waiting = vec![path];
        while let Some(directory) = waiting.pop() {
            for (name, kind) in names_in(&directory) {
                let path = [&directory[..], b"/", &name].concat();
                let is_directory = kind == EntryKind::Directory;
                if is_new {
                    if self.announced.len() < MAX_ANNOUNCED {
                        self.announced.insert(path.clone());
                    }
                    self.report(Change::Created, path.clone(), is_directory);
                }
                if !is_directory {
                    continue;
                }
                if self.places.len() >= MAX_WATCHES {
                    return false;
                }
                match self.add(&path, WATCHED_EVENTS | WatchFlags::DONT_FOLLOW) {
                    Ok(_) => waiting.push(path),
                    Err(Errno::NOSPC | Errno::NOMEM) => return false,
                    Err(_) => {}
                }
            }
        }
        true
    }

    fn run(&mut self) {
        loop {
            let Ok(events) = self.read() else { return };
            if events.is_empty() {
                self.records.flush();
                self.last = None;
                if self.records.is_closed() || !self.wait() {
                    return;
                }
                continue;
            }
            for one in events {
                if !self.on_event(one) {
                    return;
                }
            }
        }
    }

    /// Waits for more events. False when the host is gone.
    fn wait(&mut self) -> bool {
        let moment = Timespec { tv_sec: 0, tv_nsec: MOVE_TIMEOUT_MS * 1_000_000 };
        let patience = self.moved.is_some().then_some(&moment);
        let output = self.records.output();
        let mut polled =
            [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(&output, PollFlags::empty())];
        let count = poll(&mut polled, patience);
        let is_gone = !polled[1].revents().is_empty();
        match count {
            Ok(0) => self.forget_moved(),
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return false,
        }
        !is_gone
    }

    /// Reads the events of the kernel. When there are none left, nothing that came with a new
    /// directory can be reported again.
    fn read(&mut self) -> Result<Vec<KernelEvent>, Errno> {
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        let mut events = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => events.push(KernelEvent {
                    watch: event.wd(),
                    flags: event.events(),
                    cookie: event.cookie(),
                    name: event.file_name().map_or_else(Vec::new, |name| name.to_bytes().to_vec()),
                }),
                Err(Errno::AGAIN) => {
                    if events.is_empty() {
                        self.announced.clear();
                    }
                    return Ok(events);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            if reader.is_buffer_empty() {
                return Ok(events);
            }
        }
    }

    /// Whether to go on.
    fn on_event(&mut self, event: KernelEvent) -> bool {
        let KernelEvent { watch, flags, cookie, name } = event;
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.lost();
            return true;
        }
        let is_self = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT;
        if flags.intersects(is_self) && watch == self.root {
            return false;
        }
        if flags.contains(ReadFlags::IGNORED) {
            self.places.remove(&watch);
            return watch != self.root;
        }
        let Some(place) = self.places.get(&watch).filter(|_| !name.is_empty()) else {
            return true;
        };
        let path = [&place[..], b"/", &name].concat();
        let is_directory = flags.contains(ReadFlags::ISDIR);
        let is_second_half = flags.contains(ReadFlags::MOVED_TO)
            && self.moved.as_ref().is_some_and(|(from, _)| *from == cookie);
        if !is_second_half {
            self.forget_moved();
        }
        if flags.contains(ReadFlags::CREATE) {
            if !self.announced.remove(&path) {
                self.report(Change::Created, path.clone(), is_directory);
                self.arrived(path, is_directory);
            }
        } else if flags.contains(ReadFlags::MOVED_TO) {
            self.report(Change::Created, path.clone(), is_directory);
            match self.moved.take() {
                Some((_, from)) => self.rename_places(&from, &path),
                None => self.arrived(path, is_directory),
            }
        } else if flags.contains(ReadFlags::MOVED_FROM) {
            if is_directory && self.recursive {
                self.moved = Some((cookie, path.clone()));
            }
            self.report(Change::Renamed, path, is_directory);
        } else if flags.contains(ReadFlags::DELETE) {
            self.report(Change::Removed, path, is_directory);
        } else if flags.contains(ReadFlags::MODIFY) {
            self.report(Change::Written, path, is_directory);
        } else if flags.contains(ReadFlags::ATTRIB) {
            self.report(Change::About, path, is_directory);
        }
        true
    }

    /// A directory is new: it is watched, with what it already contains.
    fn arrived(&mut self, path: Vec<u8>, is_directory: bool) {
        if !is_directory || !self.recursive {
            return;
        }
        let added = self.places.len() < MAX_WATCHES
            && match self.add(&path, WATCHED_EVENTS | WatchFlags::DONT_FOLLOW) {
                Ok(_) => self.add_beneath(path, true),
                Err(errno) => !matches!(errno, Errno::NOSPC | Errno::NOMEM),
            };
        if !added {
            self.report(Change::Lost, Vec::new(), false);
        }
    }

    /// Some changes are lost, and with them perhaps new directories.
    fn lost(&mut self) {
        self.report(Change::Lost, Vec::new(), false);
        if self.recursive
            && let Some(root) = self.places.get(&self.root).cloned()
        {
            self.add_beneath(root, false);
        }
    }

    fn rename_places(&mut self, from: &[u8], to: &[u8]) {
        for place in self.places.values_mut() {
            if let Some(rest) = beneath(place, from) {
                *place = [to, rest].concat();
            }
        }
    }

    /// A directory that was moved out of the tree is not watched any more.
    fn forget_moved(&mut self) {
        let Some((_, from)) = self.moved.take() else { return };
        let gone: Vec<i32> = self
            .places
            .iter()
            .filter(|(_, place)| beneath(place, &from).is_some())
            .map(|(&watch, _)| watch)
            .collect();
        for watch in gone {
            self.places.remove(&watch);
            // An error means that the watch is gone already.
            let _ = inotify::remove_watch(&self.inotify, watch);
        }
    }

    /// Reports a change once if it comes several times in a row.
    fn report(&mut self, kind: Change, path: Vec<u8>, is_directory: bool) {
        let this = (kind, path);
        if self.last.as_ref() != Some(&this) {
            let sighting = Sighting::Change { kind, path: this.1.clone(), is_directory };
            self.records.write(&sighting);
            self.last = Some(this);
        }
    }
}

/// The rest of a path after a directory; `None` if the path is not beneath it.
fn beneath<'a>(place: &'a [u8], directory: &[u8]) -> Option<&'a [u8]> {
    let rest = place.strip_prefix(directory)?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

/// The names in a directory, sorted, with their kinds.
fn names_in(path: &[u8]) -> Vec<(Vec<u8>, EntryKind)> {
    let name = if path.is_empty() { b"/" } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::openat(CWD, name, flags, Mode::empty()) else {
        return Vec::new();
    };
    let Ok(entries) = Dir::read_from(&directory) else { return Vec::new() };
    let described = |name: &[u8]| {
        let stat = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some((name.to_vec(), kind_of(&stat)))
    };
    let mut names: Vec<_> = entries
        .map_while(Result::ok)
        .map(|entry| entry.file_name().to_bytes().to_vec())
        .filter(|name| name != b"." && name != b"..")
        .take(super::walk::MAX_NAMES)
        .filter_map(|name| described(&name))
        .collect();
    names.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    names
}

#[cfg(test)]
mod tests {
    use super::beneath;

    #[test]
    fn watched_paths_are_beneath_directories_not_similar_names() {
        assert_eq!(beneath(b"/a/b", b"/a"), Some(&b"/b"[..]));
        assert_eq!(beneath(b"/a", b"/a"), Some(&b""[..]));
        assert_eq!(beneath(b"/ab", b"/a"), None);
        assert_eq!(beneath(b"/b", b"/a"), None);
        assert_eq!(beneath(b"/a", b""), Some(&b"/a"[..]));
    }
}
