//! The launcher's side of preforks: how many there are, making more, mapping their users, and
//! handing one out. A launch that finds no prefork waits until one is made. Preforks for later are
//! made while no launch waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use guest_protocol::launcher::Root;
use jail::groups::Groups;
use jail::packet;
use jail::sys::clone::{Side, exit_now, first_of_new_process_namespace};
use rustix::process::{Pid, Signal, kill_process};

use super::slot_parents::{self, SlotParent};
use super::start::Shared;
use super::watch::{Watch, Watched};
use super::{prefork, token};

/// How many preforks may be made at once: more would only wait for each other.
const MAKING_AT_MOST: usize = 4;

/// How long there must be no launch before preforks are made for later.
const PAUSE: Duration = Duration::from_millis(2);

/// How long to wait after a prefork failed, so that a broken machine is not kept busy.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(200);

/// How long making a prefork may take.
pub(super) const PREPARE_TIMEOUT: Duration = Duration::from_secs(5);

/// A prefork that waits for a spec.
pub(super) struct Prefork {
    pub slot: u32,
    /// When it was forked.
    pub forked_at: Duration,
    pub pid: Pid,
    pub socket: Watched,
    /// The root that it has layers over.
    pub root: Root,
}

/// A prefork that could not be made.
pub(super) struct Failure {
    pub step: String,
    pub errno: i32,
}

#[derive(Default)]
pub(super) struct PreforkPool {
    wanted: usize,
    making: BTreeMap<u32, Prefork>,
    /// With control groups v1: the parent of each slot that was ever used.
    slot_parents: BTreeMap<u32, SlotParent>,
    /// Slots whose parent has not joined its groups yet, and that need a prefork as soon as it has.
    joining: BTreeSet<u32>,
    /// Slot parents that were killed and have not been reaped yet.
    dying_parents: Vec<Pid>,
    ready: VecDeque<Prefork>,
    /// Preforks that were killed and have not been reaped yet.
    ending: BTreeMap<u32, Pid>,
    /// When a prefork failed, if none has succeeded since.
    failed_at: Option<Duration>,
    /// When the last prefork was handed out.
    taken_at: Duration,
    closed: bool,
}

impl PreforkPool {
    pub(super) fn new(wanted: usize) -> Self {
        Self { wanted, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.making.is_empty()
            && self.ready.is_empty()
            && self.ending.is_empty()
            && self.slot_parents.is_empty()
            && self.dying_parents.is_empty()
    }

    pub(super) fn wants_more(&self) -> bool {
        !self.closed && self.ready.len() + self.in_the_making() < self.wanted
    }

    /// How long to wait before making a prefork for later.
    pub(super) fn pause(&self) -> Duration {
        if self.failed_at.is_some() { PAUSE_AFTER_FAILURE } else { PAUSE }
    }

    /// A prefork with layers over this root, or else any.
    pub(super) fn take(&mut self, root: &Root) -> Option<Prefork> {
        let fitting = self.ready.iter().position(|prefork| prefork.root == *root);
        let prefork = self.ready.remove(fitting.unwrap_or(0))?;
        self.taken_at = now();
        Some(prefork)
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Kills preforks that take too long, for example because the slot was frozen for the sandbox
    /// before.
    pub(super) fn give_up_on_slow_ones(&mut self, groups: &Groups) {
        let limit = now().saturating_sub(PREPARE_TIMEOUT);
        let slow: Vec<u32> = self
            .making
            .values()
            .filter(|prefork| prefork.forked_at < limit)
            .map(|prefork| prefork.slot)
            .collect();
        for slot in slow {
            if let Some(prefork) = self.making.remove(&slot) {
                self.fail(&prefork);
                groups.thaw(slot);
            }
        }
    }

    /// Whether a prefork will become ready without another call.
    pub(super) fn is_making(&self) -> bool {
        self.in_the_making() > 0
    }

    fn in_the_making(&self) -> usize {
        self.making.len() + self.joining.len()
    }

    /// Makes preforks: at once for waiting launches, one per round for later.
    pub(super) fn refill(
        &mut self,
        shared: &mut Shared,
        watch: &Watch,
        waiting: usize,
    ) -> Result<(), Failure> {
        let lately = |at: Duration| now().saturating_sub(at) < PAUSE_AFTER_FAILURE;
        if self.closed || self.failed_at.is_some_and(lately) {
            return Ok(());
        }
        let missing = waiting.saturating_sub(self.in_the_making() + self.ready.len());
        let room = MAKING_AT_MOST.saturating_sub(self.in_the_making());
        let urgent = missing.min(room);
        let low = self.wants_more() && self.ready.len() * 2 < self.wanted && room > 0;
        let leisure = || waiting == 0 && now().saturating_sub(self.taken_at) >= self.pause();
        let later = usize::from(urgent == 0 && room > 0 && self.wants_more() && (low || leisure()));
        for _ in 0..urgent.max(later) {
            if let Err(error) = self.make(shared, watch) {
                self.failed_at = Some(now());
                let errno = error.raw_os_error().unwrap_or(0);
                return Err(Failure { step: "make a process".to_owned(), errno });
            }
        }
        Ok(())
    }

    fn make(&mut self, shared: &mut Shared, watch: &Watch) -> io::Result<()> {
        // Without a free slot there is nothing to do but wait for one.
        let Some(slot) = shared.slots.take() else { return Ok(()) };
        let made = self.make_in(shared, watch, slot);
        if made.is_err() {
            shared.release(slot);
        }
        made
    }

    fn make_in(&mut self, shared: &mut Shared, watch: &Watch, slot: u32) -> io::Result<()> {
        if !shared.groups.must_join() {
            return self.fork_directly(shared, watch, slot);
        }
        match self.slot_parents.get(&slot) {
            Some(parent) if parent.has_joined => self.fork_from_slot_parent(shared, watch, slot),
            Some(_) => {
                self.joining.insert(slot);
                Ok(())
            }
            None => {
                self.slot_parents.insert(slot, SlotParent::start(shared, watch, slot)?);
                self.joining.insert(slot);
                Ok(())
            }
        }
    }

    fn fork_directly(&mut self, shared: &mut Shared, watch: &Watch, slot: u32) -> io::Result<()> {
        let (socket, theirs) = pair(watch, slot)?;
        let cgroup_for_clone = shared.groups.cgroup_for_clone(slot)?;
        match first_of_new_process_namespace(cgroup_for_clone.as_ref().map(OwnedFd::as_fd))? {
            Side::Child => {
                prefork::run(&shared.context(slot), &theirs);
                // The copy must neither drop nor flush anything of the launcher.
                exit_now(0);
            }
            Side::Parent(pid) => {
                shared.slots.limits_written(slot, shared.usual_limits);
                let root = shared.usual_root.clone();
                self.making.insert(slot, Prefork { slot, forked_at: now(), pid, socket, root });
                Ok(())
            }
        }
    }

    /// Lets the parent of a slot fork.
    fn fork_from_slot_parent(
        &mut self,
        shared: &Shared,
        watch: &Watch,
        slot: u32,
    ) -> io::Result<()> {
        let (socket, theirs) = pair(watch, slot)?;
        let parent = self.slot_parents.get(&slot).ok_or(io::ErrorKind::NotFound)?;
        let root = shared.usual_root.clone();
        match parent.fork_prefork(theirs.as_fd(), &shared.host_access.roots.built_root(&root).built)
        {
            Ok(pid) => {
                self.making.insert(slot, Prefork { slot, forked_at: now(), pid, socket, root });
                Ok(())
            }
            Err(error) => {
                self.drop_slot_parent(slot);
                Err(error)
            }
        }
    }

    /// A slot parent that does not work is replaced when its slot is used next.
    fn drop_slot_parent(&mut self, slot: u32) {
        if let Some(parent) = self.slot_parents.remove(&slot) {
            parent.kill();
            self.dying_parents.push(parent.pid);
        }
    }

    /// Reads the message of a slot parent.
    pub(super) fn read_slot_parent(
        &mut self,
        shared: &mut Shared,
        watch: &Watch,
        slot: u32,
    ) -> Result<(), Failure> {
        let Some(parent) = self.slot_parents.get_mut(&slot) else { return Ok(()) };
        let mut buffer = [0; 512];
        let length = packet::receive(&parent.socket, &mut buffer).map_or(0, |packet| packet.bytes);
        let wanted = self.joining.remove(&slot);
        if parent.has_joined {
            // After it has joined, the only message is its end, which concerns no launch.
            self.drop_slot_parent(slot);
            return Ok(());
        }
        let heard = if buffer[..length] == [slot_parents::JOINED] {
            parent.has_joined = true;
            shared.slots.limits_written(slot, parent.limits);
            if !wanted {
                return Ok(());
            }
            self.fork_from_slot_parent(shared, watch, slot).map_err(|error| Failure {
                step: "make a process".to_owned(),
                errno: error.raw_os_error().unwrap_or(0),
            })
        } else {
            self.drop_slot_parent(slot);
            let (_, step, errno): (u8, String, i32) =
                postcard::from_bytes(&buffer[..length]).unwrap_or_default();
            Err(Failure { step, errno })
        };
        if heard.is_err() {
            self.failed_at = Some(now());
            if wanted {
                shared.release(slot);
            }
        }
        heard
    }

    /// Reads the message of a prefork.
    pub(super) fn read_prefork(&mut self, shared: &Shared, slot: u32) -> Result<(), Failure> {
        let Some(prefork) = self.making.remove(&slot) else {
            self.drop_broken(slot);
            return Ok(());
        };
        let mut buffer = [0; 512];
        let heard = packet::receive(&prefork.socket, &mut buffer);
        let length = heard.map_or(0, |packet| packet.bytes);
        match buffer[..length].first() {
            Some(&prefork::message::UNMAPPED) => {
                let mapped = shared
                    .map_users(slot, prefork.pid)
                    .and_then(|()| packet::send(&prefork.socket, &[prefork::MAPPED], &[]));
                match mapped {
                    Ok(()) => {
                        self.making.insert(slot, prefork);
                        Ok(())
                    }
                    Err(error) => {
                        self.fail(&prefork);
                        let errno = error.raw_os_error().unwrap_or(0);
                        Err(Failure { step: "map users".to_owned(), errno })
                    }
                }
            }
            Some(&prefork::message::PREPARED) => {
                // A freeze may have been meant for the sandbox before it in this slot.
                shared.groups.thaw(slot);
                self.failed_at = None;
                self.ready.push_back(prefork);
                Ok(())
            }
            Some(&prefork::message::FAILED) => {
                self.fail(&prefork);
                let (_, step, errno): (u8, String, i32) =
                    postcard::from_bytes(&buffer[..length]).unwrap_or_default();
                Err(Failure { step, errno })
            }
            Some(_) | None => {
                self.fail(&prefork);
                Err(Failure { step: "prepare (the process died)".to_owned(), errno: 0 })
            }
        }
    }

    /// Kills preforks that have layers over a root which is being dropped.
    pub(super) fn drop_root(&mut self, root: &Root) {
        let making: Vec<u32> = self
            .making
            .values()
            .filter(|prefork| prefork.root == *root)
            .map(|prefork| prefork.slot)
            .collect();
        let mut ending: Vec<Prefork> =
            making.iter().filter_map(|slot| self.making.remove(slot)).collect();
        let (gone, kept) = self.ready.drain(..).partition(|prefork| prefork.root == *root);
        self.ready = kept;
        ending.extend::<VecDeque<Prefork>>(gone);
        for prefork in &ending {
            self.discard(prefork);
        }
    }

    /// A ready prefork has closed its socket: it is of no use any more.
    fn drop_broken(&mut self, slot: u32) {
        if let Some(at) = self.ready.iter().position(|prefork| prefork.slot == slot)
            && let Some(prefork) = self.ready.remove(at)
        {
            self.discard(&prefork);
        }
    }

    fn fail(&mut self, prefork: &Prefork) {
        self.failed_at = Some(now());
        self.discard(prefork);
    }

    pub(super) fn discard(&mut self, prefork: &Prefork) {
        let _ = kill_process(prefork.pid, Signal::KILL);
        self.ending.insert(prefork.slot, prefork.pid);
    }

    /// Whether a dead child was a slot parent.
    pub(super) fn slot_parent_died(&mut self, shared: &mut Shared, pid: Pid) -> bool {
        let dying = self.dying_parents.iter().position(|one| *one == pid);
        if let Some(at) = dying {
            self.dying_parents.swap_remove(at);
            return true;
        }
        let slot =
            self.slot_parents.iter().find(|(_, parent)| parent.pid == pid).map(|(slot, _)| *slot);
        let Some(slot) = slot else { return false };
        self.slot_parents.remove(&slot);
        if self.joining.remove(&slot) {
            self.failed_at = Some(now());
            shared.release(slot);
        }
        true
    }

    /// The slot of a dead child, if it was a prefork.
    pub(super) fn died(&mut self, pid: Pid) -> Option<u32> {
        let making = self.making.values().map(|prefork| (prefork.slot, prefork.pid));
        let ready = self.ready.iter().map(|prefork| (prefork.slot, prefork.pid));
        let ending = self.ending.iter().map(|(slot, pid)| (*slot, *pid));
        let (slot, _) = making.chain(ready).chain(ending).find(|(_, one)| *one == pid)?;
        if self.making.remove(&slot).is_some() {
            self.failed_at = Some(now());
        }
        self.ready.retain(|prefork| prefork.slot != slot);
        self.ending.remove(&slot);
        Some(slot)
    }

    /// Kills all, and stops making them.
    pub(super) fn close(&mut self) {
        self.closed = true;
        let all: Vec<Prefork> =
            std::mem::take(&mut self.making).into_values().chain(self.ready.drain(..)).collect();
        for prefork in &all {
            self.discard(prefork);
        }
        self.joining.clear();
        for (_, parent) in std::mem::take(&mut self.slot_parents) {
            parent.kill();
            self.dying_parents.push(parent.pid);
        }
    }
}

/// The launcher's end of a prefork's socket, and the prefork's end.
fn pair(watch: &Watch, slot: u32) -> io::Result<(Watched, OwnedFd)> {
    let (ours, theirs) = slot_parents::pair()?;
    Ok((watch.socket(ours, token::PREFORKS + u64::from(slot))?, theirs))
}

/// The time since a fixed moment.
pub(super) fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned() as u32)
}
