//! Spares from the launcher's side: how many there are, making more, mapping their users, and
//! handing one out. A launch that finds no spare waits for one to be made; spares for later are
//! made when nobody waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use guest_protocol::launcher::Root;
use jail::groups::Groups;
use jail::packet;
use jail::sys::clone::{Side, exit_now, first_of_new_process_namespace};
use rustix::process::{Pid, Signal, kill_process};

use super::seeds::{self, Seed};
use super::start::Shared;
use super::watch::{Watch, Watched};
use super::{stem, token};

/// How many stems may be in the making at once: more would only wait for each other.
const MAKING_AT_MOST: usize = 4;

/// How long nobody must have launched before spares are made at leisure.
const PAUSE: Duration = Duration::from_millis(2);

/// How long to wait after a stem failed, so that a broken machine is not kept busy.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(200);

/// How long a stem may be in the making.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// A stem that waits for a spec.
pub(super) struct Ready {
    pub slot: u32,
    /// When it was born.
    pub born_at: Duration,
    pub pid: Pid,
    pub socket: Watched,
    /// Which root it has layers over.
    pub root: Root,
}

/// A stem that did not come about.
pub(super) struct Failure {
    pub step: String,
    pub errno: i32,
}

#[derive(Default)]
pub(super) struct Spares {
    wanted: usize,
    making: BTreeMap<u32, Ready>,
    /// Where groups are v1: the seed of each slot that was ever used.
    seeds: BTreeMap<u32, Seed>,
    /// Slots whose seed is not settled yet, and that want a stem as soon as it is.
    settling: BTreeSet<u32>,
    /// Seeds that are no use any more and have not been reaped yet.
    withered: Vec<Pid>,
    ready: VecDeque<Ready>,
    /// Stems that are no use any more and have not been reaped yet.
    ending: BTreeMap<u32, Pid>,
    /// When one failed, if none has worked since.
    failed_at: Option<Duration>,
    /// When the last one was handed out.
    taken_at: Duration,
    closed: bool,
}

impl Spares {
    pub(super) fn new(wanted: usize) -> Self {
        Self { wanted, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.making.is_empty()
            && self.ready.is_empty()
            && self.ending.is_empty()
            && self.seeds.is_empty()
            && self.withered.is_empty()
    }

    pub(super) fn wants_more(&self) -> bool {
        !self.closed && self.ready.len() + self.in_the_making() < self.wanted
    }

    /// How long to wait before making one at leisure.
    pub(super) fn pause(&self) -> Duration {
        if self.failed_at.is_some() { PAUSE_AFTER_FAILURE } else { PAUSE }
    }

    /// One that has layers over this root, or else any.
    pub(super) fn take(&mut self, root: &Root) -> Option<Ready> {
        let fitting = self.ready.iter().position(|stem| stem.root == *root);
        let stem = self.ready.remove(fitting.unwrap_or(0))?;
        self.taken_at = now();
        Some(stem)
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Ends stems that do not come to be: frozen by someone who meant the one before, say.
    pub(super) fn give_up_on_slow_ones(&mut self, groups: &Groups) {
        let limit = now().saturating_sub(PATIENCE);
        let slow: Vec<u32> = self
            .making
            .values()
            .filter(|stem| stem.born_at < limit)
            .map(|stem| stem.slot)
            .collect();
        for slot in slow {
            if let Some(stem) = self.making.remove(&slot) {
                self.fail(&stem);
                groups.thaw(slot);
            }
        }
    }

    /// Whether one will be ready without anyone asking again.
    pub(super) fn is_making(&self) -> bool {
        self.in_the_making() > 0
    }

    fn in_the_making(&self) -> usize {
        self.making.len() + self.settling.len()
    }

    /// Makes stems: at once for launches that wait, one per round for later ones.
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
        // Without a slot there is nothing to do but wait for one.
        let Some(slot) = shared.slots.take() else { return Ok(()) };
        let made = self.make_in(shared, watch, slot);
        if made.is_err() {
            shared.release(slot);
        }
        made
    }

    fn make_in(&mut self, shared: &mut Shared, watch: &Watch, slot: u32) -> io::Result<()> {
        if !shared.groups.must_join() {
            return self.bear_ourselves(shared, watch, slot);
        }
        match self.seeds.get(&slot) {
            Some(seed) if seed.settled => self.bear(shared, watch, slot),
            Some(_) => {
                self.settling.insert(slot);
                Ok(())
            }
            None => {
                self.seeds.insert(slot, Seed::plant(shared, watch, slot)?);
                self.settling.insert(slot);
                Ok(())
            }
        }
    }

    fn bear_ourselves(&mut self, shared: &mut Shared, watch: &Watch, slot: u32) -> io::Result<()> {
        let (socket, theirs) = pair(watch, slot)?;
        let birthplace = shared.groups.birthplace(slot)?;
        match first_of_new_process_namespace(birthplace.as_ref().map(OwnedFd::as_fd))? {
            Side::Child => {
                stem::live(&shared.origin(slot), &theirs);
                // Nothing of the launcher's may be dropped or flushed by its copy.
                exit_now(0);
            }
            Side::Parent(pid) => {
                shared.slots.limits_written(slot, shared.usual_limits);
                let root = shared.usual_root.clone();
                self.making.insert(slot, Ready { slot, born_at: now(), pid, socket, root });
                Ok(())
            }
        }
    }

    /// Has the seed of a slot give birth.
    fn bear(&mut self, shared: &Shared, watch: &Watch, slot: u32) -> io::Result<()> {
        let (socket, theirs) = pair(watch, slot)?;
        let seed = self.seeds.get(&slot).ok_or(io::ErrorKind::NotFound)?;
        let root = shared.usual_root.clone();
        match seed.bear(theirs.as_fd(), &shared.world.roots.known(&root).built) {
            Ok(pid) => {
                self.making.insert(slot, Ready { slot, born_at: now(), pid, socket, root });
                Ok(())
            }
            Err(error) => {
                self.wither(slot);
                Err(error)
            }
        }
    }

    /// A seed that does not work is replaced when its slot is used next.
    fn wither(&mut self, slot: u32) {
        if let Some(seed) = self.seeds.remove(&slot) {
            seed.kill();
            self.withered.push(seed.pid);
        }
    }

    /// Reads what a seed has to say.
    pub(super) fn hear_seed(
        &mut self,
        shared: &mut Shared,
        watch: &Watch,
        slot: u32,
    ) -> Result<(), Failure> {
        let Some(seed) = self.seeds.get_mut(&slot) else { return Ok(()) };
        let mut buffer = [0; 512];
        let length = packet::receive(&seed.socket, &mut buffer).map_or(0, |packet| packet.bytes);
        let wanted = self.settling.remove(&slot);
        if seed.settled {
            // It has nothing to say any more but its end, and that is nobody else's affair.
            self.wither(slot);
            return Ok(());
        }
        let heard = if buffer[..length] == [seeds::SETTLED] {
            seed.settled = true;
            shared.slots.limits_written(slot, seed.limits);
            if !wanted {
                return Ok(());
            }
            self.bear(shared, watch, slot).map_err(|error| Failure {
                step: "make a process".to_owned(),
                errno: error.raw_os_error().unwrap_or(0),
            })
        } else {
            self.wither(slot);
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

    /// Reads what a stem has to say.
    pub(super) fn hear(&mut self, shared: &Shared, slot: u32) -> Result<(), Failure> {
        let Some(stem) = self.making.remove(&slot) else {
            self.drop_broken(slot);
            return Ok(());
        };
        let mut buffer = [0; 512];
        let heard = packet::receive(&stem.socket, &mut buffer);
        let length = heard.map_or(0, |packet| packet.bytes);
        match buffer[..length].first() {
            Some(&stem::word::UNMAPPED) => {
                let mapped = shared
                    .map_users(slot, stem.pid)
                    .and_then(|()| packet::send(&stem.socket, &[stem::MAPPED], &[]));
                match mapped {
                    Ok(()) => {
                        self.making.insert(slot, stem);
                        Ok(())
                    }
                    Err(error) => {
                        self.fail(&stem);
                        let errno = error.raw_os_error().unwrap_or(0);
                        Err(Failure { step: "map users".to_owned(), errno })
                    }
                }
            }
            Some(&stem::word::PREPARED) => {
                // Someone may have meant the one before when he froze the slot.
                shared.groups.thaw(slot);
                self.failed_at = None;
                self.ready.push_back(stem);
                Ok(())
            }
            Some(&stem::word::FAILED) => {
                self.fail(&stem);
                let (_, step, errno): (u8, String, i32) =
                    postcard::from_bytes(&buffer[..length]).unwrap_or_default();
                Err(Failure { step, errno })
            }
            Some(_) | None => {
                self.fail(&stem);
                Err(Failure { step: "prepare (the process died)".to_owned(), errno: 0 })
            }
        }
    }

    /// Ends stems that have layers over a root which is let go of.
    pub(super) fn drop_root(&mut self, root: &Root) {
        let making: Vec<u32> =
            self.making.values().filter(|stem| stem.root == *root).map(|stem| stem.slot).collect();
        let mut ending: Vec<Ready> =
            making.iter().filter_map(|slot| self.making.remove(slot)).collect();
        let (gone, kept) = self.ready.drain(..).partition(|stem| stem.root == *root);
        self.ready = kept;
        ending.extend::<VecDeque<Ready>>(gone);
        for stem in &ending {
            self.discard(stem);
        }
    }

    /// A stem that was ready has hung up: it is no use any more.
    fn drop_broken(&mut self, slot: u32) {
        if let Some(at) = self.ready.iter().position(|stem| stem.slot == slot)
            && let Some(stem) = self.ready.remove(at)
        {
            self.discard(&stem);
        }
    }

    fn fail(&mut self, stem: &Ready) {
        self.failed_at = Some(now());
        self.discard(stem);
    }

    pub(super) fn discard(&mut self, stem: &Ready) {
        let _ = kill_process(stem.pid, Signal::KILL);
        self.ending.insert(stem.slot, stem.pid);
    }

    /// Whether a dead child was a seed.
    pub(super) fn seed_died(&mut self, shared: &mut Shared, pid: Pid) -> bool {
        let withered = self.withered.iter().position(|one| *one == pid);
        if let Some(at) = withered {
            self.withered.swap_remove(at);
            return true;
        }
        let slot = self.seeds.iter().find(|(_, seed)| seed.pid == pid).map(|(slot, _)| *slot);
        let Some(slot) = slot else { return false };
        self.seeds.remove(&slot);
        if self.settling.remove(&slot) {
            self.failed_at = Some(now());
            shared.release(slot);
        }
        true
    }

    /// Which slot a dead child had, if it was a stem.
    pub(super) fn died(&mut self, pid: Pid) -> Option<u32> {
        let making = self.making.values().map(|stem| (stem.slot, stem.pid));
        let ready = self.ready.iter().map(|stem| (stem.slot, stem.pid));
        let ending = self.ending.iter().map(|(slot, pid)| (*slot, *pid));
        let (slot, _) = making.chain(ready).chain(ending).find(|(_, one)| *one == pid)?;
        if self.making.remove(&slot).is_some() {
            self.failed_at = Some(now());
        }
        self.ready.retain(|stem| stem.slot != slot);
        self.ending.remove(&slot);
        Some(slot)
    }

    /// Ends all, and makes none any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
        let all: Vec<Ready> =
            std::mem::take(&mut self.making).into_values().chain(self.ready.drain(..)).collect();
        for stem in &all {
            self.discard(stem);
        }
        self.settling.clear();
        for (_, seed) in std::mem::take(&mut self.seeds) {
            seed.kill();
            self.withered.push(seed.pid);
        }
    }
}

/// The launcher's end of a stem's socket, and the stem's.
fn pair(watch: &Watch, slot: u32) -> io::Result<(Watched, OwnedFd)> {
    let (ours, theirs) = seeds::pair()?;
    Ok((watch.socket(ours, token::STEMS + u64::from(slot))?, theirs))
}

/// Since some fixed moment.
pub(super) fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned() as u32)
}
