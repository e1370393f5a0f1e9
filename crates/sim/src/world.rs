//! One world: a kernel, the true state around it, and the interpreter between the two. Every step
//! makes one thing happen, hands it to the kernel, commits the journal, and only then starts
//! effects and delivers answers, as a real interpreter must. Everything is checked on the way.

use std::collections::{BTreeMap, VecDeque};

use kernel::{Action, Boot, Event, Kernel, Notice, Outbox, Published, Reply};
use model::why::Ended;
use model::{MachineClocks, Mono, Now, Refusal, RequestId, RunClock, Wall};

use crate::checks::capacity::Ahead;
use crate::checks::{Judged, Promise, Watch, broken};
use crate::choices::Choices;
use crate::coverage::{Coverage, event_kind};
use crate::interpreter::Item;
use crate::ledger::{Ask, Ledger, Pending};
use crate::machine_faults::CrashAt;
use crate::runtime::Runtime;
use crate::scenario::Scenario;
use crate::store::{Change, Store};
use crate::trace::{Trace, entry_line, event_line};
use crate::{Flaw, checks};

/// Ticks in a row without time passing after which the kernel counts as spinning.
const MOST_TICKS_AT_ONCE: u32 = 64;

/// A kernel and everything around it.
pub struct World {
    pub(crate) choices: Choices,
    pub(crate) scenario: Scenario,
    pub(crate) now: Now,
    /// What the clocks of the machine show, of which one can be set.
    pub(crate) clocks: MachineClocks,
    /// The wall clock of the run, which cannot be set.
    run_clock: RunClock,
    pub(crate) kernel: Kernel,
    pub(crate) flaw: Option<Flaw>,
    pub(crate) runtime: Runtime,
    pub(crate) store: Store,
    pub(crate) ledger: Ledger,
    pub(crate) agenda: BTreeMap<(Mono, u64), Item>,
    pub(crate) agenda_next: u64,
    pub(crate) watch: Watch,
    pub(crate) ahead: Ahead,
    pub(crate) coverage: Coverage,
    pub(crate) trace: Trace,
    pub(crate) step: u32,
    /// Faults have stopped: new effects work.
    pub(crate) calm: bool,
    /// The kernel last heard that the disk is short.
    pub(crate) disk_short: bool,
    /// The server was asked to stop.
    pub(crate) stopping: bool,
    /// The server has stopped in order.
    pub(crate) stopped: bool,
    /// When the next event is to be the kernel's last.
    pub(crate) armed: Option<CrashAt>,
    pub(crate) boots: u64,
    pub(crate) digest: u64,
    /// What follows from an answer, once everything of its event is done.
    pub(crate) follow_ups: VecDeque<Event>,
    spare: Outbox,
    changes: Vec<Change>,
    ends: Vec<Ended>,
    ticks_at_once: u32,
}

/// What a kernel starts from, broken as its world wants it to be.
pub(crate) fn boot(scenario: &Scenario, seed: u64, now: Now, flaw: Option<Flaw>) -> Boot {
    let boot = Boot::new(scenario.config.clone(), seed, now);
    #[cfg(feature = "flaws")]
    let boot = boot.with_flaw(flaw);
    #[cfg(not(feature = "flaws"))]
    let _ = flaw;
    boot
}

/// What a submitted event was answered at once; nothing if the kernel did not survive it.
pub(crate) type Direct = Option<Result<Reply, Refusal>>;

impl World {
    /// A world before its first step.
    pub fn new(mut choices: Choices, flaw: Option<Flaw>, trace: Trace) -> Judged<Self> {
        let scenario = Scenario::draw(&mut choices);
        let now = Now { mono: Mono(1_000), wall: Wall(1_700_000_000_000) };
        let clocks = MachineClocks { boot_ms: 5_000, wall: now.wall };
        let kernel = Kernel::new(boot(&scenario, 1, now, flaw));
        let mut world = Self {
            choices,
            scenario,
            now,
            clocks,
            run_clock: RunClock::begun(clocks),
            kernel,
            flaw,
            runtime: Runtime::default(),
            store: Store::default(),
            ledger: Ledger::default(),
            agenda: BTreeMap::new(),
            agenda_next: 0,
            watch: Watch::default(),
            ahead: Ahead::default(),
            coverage: Coverage::default(),
            trace,
            step: 0,
            calm: false,
            disk_short: false,
            stopping: false,
            stopped: false,
            armed: None,
            boots: 1,
            digest: 0xcbf2_9ce4_8422_2325,
            follow_ups: VecDeque::new(),
            spare: Outbox::default(),
            changes: Vec::new(),
            ends: Vec::new(),
            ticks_at_once: 0,
        };
        let config = format!("{:?}", world.scenario.config);
        world.trace.note(0, now, || config);
        for recipe in world.scenario.recipes.clone() {
            world
                .notify(Event::TemplatePut { template: recipe.template, traits: recipe.traits })?;
        }
        world.notify(world.scenario.key_limits())?;
        Ok(world)
    }

    /// One step: time passes, a client does something, or something goes wrong.
    pub fn step(&mut self) -> Judged {
        self.step += 1;
        self.choices.begin_step();
        let rates = self.scenario.rates;
        let time = self.scenario.time_share;
        let faults = rates.death + rates.jump + rates.crash + rates.shutdown + rates.disk;
        let client = 1000_u32.saturating_sub(time + faults).max(50);
        let kinds =
            [time, client, rates.death, rates.jump, rates.crash, rates.shutdown, rates.disk];
        match self.choices.weighted(&kinds) {
            0 => self.pass_time()?,
            1 => self.act()?,
            2 => self.let_die(),
            3 => self.jump_clock()?,
            4 => self.arm_crash()?,
            5 => self.begin_shutdown()?,
            _ => self.look_at_disk()?,
        }
        if self.stopped {
            self.start_again()?;
        }
        if self.step.is_multiple_of(1000) {
            checks::full_audit::judge(self)?;
        }
        Ok(())
    }

    /// Goes to whatever is due next, and lets it happen.
    pub(crate) fn pass_time(&mut self) -> Judged {
        let due = self.agenda.keys().next().map(|(at, _)| *at);
        let wake = self.kernel.next_wake();
        let next = match (due, wake) {
            (Some(due), Some(wake)) => due.min(wake),
            (Some(at), None) | (None, Some(at)) => at,
            (None, None) => self.now.mono.plus(1_000),
        };
        self.advance(next.since(self.now.mono));
        if wake.is_some_and(|wake| wake <= self.now.mono) {
            return self.tick();
        }
        match self.agenda.first_entry() {
            Some(entry) if entry.key().0 <= self.now.mono => {
                let item = entry.remove();
                self.happen(item)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// All clocks move.
    pub(crate) fn advance(&mut self, by_ms: u64) {
        if by_ms > 0 {
            self.ticks_at_once = 0;
        }
        self.now.mono = self.now.mono.plus(by_ms);
        self.clocks.boot_ms += by_ms;
        self.clocks.wall = self.clocks.wall.plus(by_ms);
        self.read_clocks();
    }

    /// What the wall clock of the run shows, whatever the server believes.
    pub(crate) fn run_wall(&self) -> Wall {
        self.run_clock.wall(self.clocks)
    }

    /// The server reads the clocks.
    pub(crate) fn read_clocks(&mut self) {
        let believes = self.flaw == Some(Flaw::WallStepBelieved);
        self.now.wall = if believes { self.clocks.wall } else { self.run_wall() };
    }

    /// A run begins by what the wall clock of the machine shows, wherever it was set meanwhile.
    pub(crate) fn begin_run(&mut self) {
        let before = self.run_wall();
        self.watch.latest_wall = self.watch.latest_wall.max(before);
        self.watch.clock_jumped |= before != self.clocks.wall;
        self.watch.clock_went_back |= before > self.clocks.wall;
        self.run_clock = RunClock::begun(self.clocks);
        self.read_clocks();
    }

    /// Notifies the kernel that time passed.
    pub(crate) fn tick(&mut self) -> Judged {
        self.ticks_at_once += 1;
        if self.ticks_at_once > MOST_TICKS_AT_ONCE {
            let wake = self.kernel.next_wake();
            return broken(Promise::WakeMovesOn, || format!("still wants {wake:?}"));
        }
        for instance in self.runtime.instances.values_mut() {
            instance.settle_stop(self.now.mono);
        }
        self.notify(Event::Ticked)
    }

    /// Puts something on the agenda.
    pub(crate) fn plan(&mut self, in_ms: u64, item: Item) {
        self.agenda_next += 1;
        self.agenda.insert((self.now.mono.plus(in_ms), self.agenda_next), item);
    }

    /// Sends the kernel an event that needs no answer.
    pub(crate) fn notify(&mut self, event: Event) -> Judged {
        self.submit(event, None).map(|_| ())
    }

    /// Sends the kernel a request that is answered now or later.
    pub(crate) fn ask(
        &mut self,
        request: RequestId,
        wait_ms: u64,
        ask: Ask,
        event: Event,
    ) -> Judged {
        let deadline = self.now.mono.plus(wait_ms);
        self.ledger.open(request, Pending { ask, deadline });
        self.submit(event, Some(request)).map(|_| ())
    }

    /// Hands an event to the kernel, and does with its answer what an interpreter must.
    pub(crate) fn submit(&mut self, event: Event, request: Option<RequestId>) -> Judged<Direct> {
        let kind = event_kind(&event);
        self.coverage.event(kind);
        self.mix(kind as u64);
        self.trace.note(self.step, self.now, || event_line(&event));
        let result = self.kernel.apply(self.now, event);
        self.trace.note(self.step, self.now, || format!("  = {result:?}"));
        let mut out = std::mem::take(&mut self.spare);
        std::mem::swap(self.kernel.outbox(), &mut out);
        if let Some(at) = self.armed.take() {
            self.crash(at, out)?;
            return Ok(None);
        }
        if let Err(refusal) = &result {
            self.coverage.count("refusals", refusal.code.as_str());
            checks::refusals::judge(kind, refusal)?;
        }
        let direct = match (request, result) {
            (Some(_), Ok(Reply::Pending)) => None,
            (request, result) => Some((request, result)),
        };
        if self.watch.expect_silence {
            let quiet = out.journal.is_empty()
                && out.published.is_empty()
                && out.effects.is_empty()
                && out.notices.is_empty()
                && out.transitions.is_empty();
            checks::effects::late(kind, quiet)?;
        }
        self.settle(&mut out, direct.as_ref())?;
        checks::transitions::judge(self, &out.transitions)?;
        out.transitions.clear();
        self.spare = out;
        checks::after_event::judge(self, kind)?;
        while let Some(event) = self.follow_ups.pop_front() {
            self.notify(event)?;
        }
        Ok(direct.map(|(_, result)| result))
    }

    /// Commits, then delivers and starts, in that order.
    pub(crate) fn settle(
        &mut self,
        out: &mut Outbox,
        direct: Option<&(Option<RequestId>, Result<Reply, Refusal>)>,
    ) -> Judged {
        self.watch.answered.clear();
        for notice in &out.notices {
            if let Notice::Answer { request, .. } = notice {
                self.watch.answered.push(*request);
            }
        }
        self.mix(out.transitions.len() as u64);
        for transition in &out.transitions {
            self.trace.note(self.step, self.now, || format!("  ~ {transition:?}"));
        }
        self.commit(out)?;
        checks::turns::given(self, &out.effects)?;
        self.ahead = Ahead::default();
        // A process that this decision ends keeps nothing alive for the effects of the same
        // decision.
        for notice in &out.notices {
            if let Notice::ProcessOver { process, end, .. } = notice {
                checks::processes::over(self, *process, end)?;
            }
        }
        for effect in &out.effects {
            self.mix(effect.id.n);
            checks::effects::judge(self, effect)?;
        }
        if let Some((Some(request), result)) = direct {
            self.answered(*request, result.clone())?;
        }
        for notice in out.notices.drain(..) {
            self.trace.note(self.step, self.now, || format!("  ! {notice:?}"));
            match notice {
                Notice::Answer { request, result } => self.answered(request, result)?,
                Notice::InstanceEnded { instance, cause } => {
                    checks::uses::over(self, instance, cause)?;
                }
                // Logs and the scale file decide nothing, and ends are checked above.
                Notice::ProcessRestartScheduled { .. }
                | Notice::ProcessOver { .. }
                | Notice::KeepAliveCountChanged { .. } => {}
                Notice::ShutdownComplete => checks::full_audit::shut_down(self)?,
            }
        }
        checks::uses::all_notified(self)?;
        for effect in out.effects.drain(..) {
            if let Action::Kill { instance, .. } | Action::Wipe { instance } = effect.action {
                checks::processes::sandbox_ended(self, instance)?;
            }
            self.start(effect);
        }
        Ok(())
    }

    /// One transaction: what was written and what was published.
    pub(crate) fn commit(&mut self, out: &mut Outbox) -> Judged {
        self.mix(out.journal.len() as u64);
        for entry in &out.journal {
            self.trace.note(self.step, self.now, || entry_line(entry));
        }
        let mut changes = std::mem::take(&mut self.changes);
        let mut ends = std::mem::take(&mut self.ends);
        self.store.commit(&mut out.journal, &mut changes, &mut ends);
        checks::records::judge(self, &changes)?;
        for ended in ends.drain(..) {
            self.coverage.count("ends", ended.cause.as_str());
            checks::deadlines::ended(self, &ended)?;
            checks::eviction::ended(self, &ended)?;
            checks::cold_workspaces::ended(self, &ended)?;
            checks::tenants::ended(self, &ended)?;
            if let Some(lease) = ended.lease {
                checks::leases::written(self, lease, ended.lease_end)?;
            }
        }
        changes.clear();
        (self.changes, self.ends) = (changes, ends);
        for Published { tenant, event } in out.published.drain(..) {
            self.trace.note(self.step, self.now, || format!("  * {event:?} for {tenant:?}"));
            checks::tenants::published(self, tenant, &event)?;
            checks::published_events::judge(self, &event)?;
        }
        Ok(())
    }

    /// Stirs a number into the digest of this run.
    pub(crate) fn mix(&mut self, number: u64) {
        for part in [number, self.now.mono.0, u64::from(self.step)] {
            self.digest = (self.digest ^ part).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
        }
    }
}
