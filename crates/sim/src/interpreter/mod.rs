//! Carries out effects in the simulated runtime: slowly, wrongly, twice, or not at all. How an
//! effect goes is drawn when it starts; what it does is decided by the true state when it ends. It
//! changes what the kernel knows only by reports.

mod lanes;
mod perform;
mod programs;

use std::sync::Arc;

use kernel::{
    Action, DeathCause, Effect, Event, Failure, FailureKind, Outcome, ProgramEnd, StartedProcess,
};
use model::lifecycle::TurnOutcome;
use model::record::Owner;
use model::{EffectId, ErrorCode, InstanceId, ProcessId, RequestId, SessionId, TurnId, UseId};

use crate::checks::{self, Judged};
pub(crate) use crate::interpreter::programs::ProgramFate;
use crate::runtime::{Instance, Phase, Saved};
use crate::world::World;

/// Something that will happen by itself.
#[derive(Debug)]
pub(crate) enum Item {
    /// An effect ends.
    Act {
        /// It.
        effect: Box<Effect>,
        /// How.
        how: How,
        /// What its workspace held when it started.
        began_with: u64,
    },
    /// The end of an effect becomes known.
    Report {
        /// Which.
        id: EffectId,
        /// How it ended.
        outcome: Outcome,
    },
    /// A use ends.
    UseEnds(UseId),
    /// Files were read for a backup.
    ReadEnds(RequestId),
    /// The harness is done with a turn.
    TurnEnds {
        /// Where.
        instance: InstanceId,
        /// Of which session.
        session: SessionId,
        /// Which.
        turn: TurnId,
    },
    /// That a process was started becomes known.
    ProcessStarted(StartedProcess),
    /// The program of a process ends.
    ProgramEnds {
        /// Where.
        instance: InstanceId,
        /// Of which process.
        process: ProcessId,
        /// Which of its programs.
        program: u32,
        /// Why.
        fate: ProgramFate,
    },
    /// The end of a program becomes known.
    ProgramReported {
        /// Where.
        instance: InstanceId,
        /// Of which process.
        process: ProcessId,
        /// Which of its programs.
        program: u32,
        /// How it ended.
        how: ProgramEnd,
    },
    /// The kernel hears that the guest of an instance is gone.
    GuestLost { instance: InstanceId },
    /// The death of an instance becomes known.
    Death {
        /// Which.
        instance: InstanceId,
        /// Of what.
        cause: DeathCause,
    },
}

/// How an effect goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum How {
    /// As wanted, if that is possible.
    Well,
    /// As wanted, and reported twice.
    Twice,
    /// Badly, whether or not it happened.
    Badly {
        /// What is reported.
        kind: FailureKind,
        /// Whether it happened nevertheless.
        happened: bool,
    },
    /// Unknown: it is reported as timed out, too late, or never.
    Unknown {
        /// Whether it happened.
        happened: bool,
        /// When it is reported after its deadline.
        reported_after_ms: Option<u64>,
    },
    /// It is reported as done, and was not.
    Lie,
}

impl World {
    /// Starts an effect.
    pub(crate) fn start(&mut self, effect: Effect) {
        let left_ms = effect.deadline.since(self.now.mono).max(1);
        if let Action::Launch(launch) = &effect.action {
            // Files may lie in another way than their template says: they are older than that.
            let closed = self.scenario.recipes.iter().any(|recipe| {
                recipe.template.name == launch.template.name && recipe.traits.disk.is_some()
            }) && self.choices.below(3) == 2;
            let recipe = self.recipe_index(&launch.template.name);
            self.runtime.begin(
                launch.instance,
                Instance {
                    phase: Phase::Starting,
                    recipe,
                    memory_mb: u64::from(launch.template.limits.memory_mb),
                    traits: self.scenario.recipes[recipe].traits,
                    workspace: launch.workspace,
                    frozen: false,
                    frozen_since: self.now.mono,
                    quiesced_since: None,
                    closed,
                    readings: 0,
                    changing_turns: Vec::new(),
                    busy_until: self.now.mono,
                    marks: Vec::new(),
                    bound: None,
                    holder: Owner::Unowned,
                    processes: Vec::new(),
                    scale: 0,
                    stop: None,
                    turn: None,
                    uses: Vec::new(),
                    answered_at: self.now.mono,
                    asked: false,
                    active_at: self.now.mono,
                    stirred_at: self.now.mono,
                    died: false,
                    death_reported: false,
                    guest_lost: false,
                    troubled: false,
                    disk_reported: false,
                    lives_until: launch.template.max_lifetime_ms.map(|ms| self.now.wall.plus(ms)),
                    kill_asked: false,
                    saved: Saved::NotTried,
                    left_over: false,
                    freeze_asked: false,
                    polled_at: None,
                    effects: 0,
                    stopped_turn: None,
                    unstoppable: false,
                },
            );
        }
        if let Some(instance) = instance_of(&effect.action)
            && let Some(one) = self.runtime.instances.get_mut(&instance)
        {
            one.effects += 1;
        }
        if let Some(one) = self.read_by_guest(&effect.action) {
            one.readings += 1;
        }
        if let Some((one, turn)) = self.turn_changed_by(&effect.action) {
            one.changing_turns.push(turn);
        }
        let (how, takes_ms) = self.draw_how(&effect, left_ms);
        let (how, takes_ms) = self.in_turn(&effect, how, takes_ms);
        let began_with = self.held_by_workspace_of(&effect.action);
        self.plan(takes_ms, Item::Act { effect: Box::new(effect), how, began_with });
    }

    fn draw_how(&mut self, effect: &Effect, left_ms: u64) -> (How, u64) {
        if self.calm {
            return (How::Well, 1);
        }
        let usual_ms = match effect.action {
            Action::Launch(_) => 60,
            Action::Persist { .. } | Action::CopyWorkspace { .. } => 40,
            Action::ArchiveWorkspace { .. } => 400,
            Action::Claim { .. }
            | Action::Probe { .. }
            | Action::Wipe { .. }
            | Action::Prove { .. }
            | Action::Freeze { .. }
            | Action::Thaw { .. }
            | Action::Quiesce { .. }
            | Action::Unquiesce { .. }
            | Action::StartTurn { .. }
            | Action::StopTurn { .. }
            | Action::KillProcess { .. }
            | Action::RestartProcess { .. }
            | Action::Kill { .. }
            | Action::DeleteWorkspace { .. } => 12,
        };
        let rates = self.scenario.rates;
        let slow = self.choices.chance(rates.slow);
        let takes_ms = if slow { left_ms - 1 } else { usual_ms.min(left_ms) };
        let takes_ms = self.choices.between(0, takes_ms);
        // Quiesces are rare, so failures of a release are drawn more often.
        let often = if matches!(effect.action, Action::Unquiesce { .. }) { 10 } else { 1 };
        let fail = rates.fail * often;
        let weights = [1000, fail, rates.late, rates.silent, rates.twice, rates.lie];
        let how = match self.choices.weighted(&weights) {
            0 => How::Well,
            1 => {
                let happened = self.choices.below(2) == 1;
                match self.choices.below(8) {
                    7 => How::Badly { kind: REFUSED, happened: false },
                    6 => How::Badly { kind: FailureKind::FilesGone, happened: false },
                    4 => How::Badly { kind: FailureKind::Gone, happened: true },
                    5 => How::Badly { kind: FailureKind::Unsupported, happened: false },
                    _ => How::Badly { kind: FailureKind::Trouble, happened },
                }
            }
            2 => How::Unknown {
                happened: self.choices.below(2) == 1,
                reported_after_ms: Some(self.choices.between(0, 300)),
            },
            3 => How::Unknown { happened: self.choices.below(2) == 1, reported_after_ms: None },
            4 => How::Twice,
            _ => How::Lie,
        };
        (how, takes_ms)
    }

    /// Something on the agenda happens.
    pub(crate) fn happen(&mut self, item: Item) -> Judged {
        match item {
            Item::Act { effect, how, began_with } => self.end_effect(&effect, how, began_with),
            Item::Report { id, outcome } => {
                // A report this late comes after the deadline of the effect.
                self.coverage.count("faults", "late_report");
                let boots = self.boots;
                self.tick()?;
                if self.boots != boots {
                    return Ok(());
                }
                let late = Event::EffectEnded { id, outcome };
                self.watch.expect_silence = true;
                let judged = self.notify(late);
                self.watch.expect_silence = false;
                judged
            }
            Item::UseEnds(use_id) => self.end_use(use_id),
            Item::ReadEnds(request) => self.end_read(request),
            Item::TurnEnds { instance, session, turn } => {
                let outcome = match self.choices.below(5) {
                    4 => TurnOutcome::Failed,
                    _ => TurnOutcome::Completed,
                };
                self.end_turn(instance, session, turn, outcome)
            }
            Item::ProcessStarted(started) => self.process_started(started),
            Item::ProgramEnds { instance, process, program, fate } => {
                self.program_ends(instance, process, program, fate);
                Ok(())
            }
            Item::ProgramReported { instance, process, program, how } => {
                self.program_reported(instance, process, program, how)
            }
            Item::GuestLost { instance } => {
                if let Some(one) = self.runtime.instances.get_mut(&instance) {
                    one.guest_lost = true;
                }
                self.notify(Event::GuestLost { instance })
            }
            Item::Death { instance, cause } => {
                if let Some(one) = self.runtime.instances.get_mut(&instance) {
                    one.death_reported = true;
                }
                let boots = self.boots;
                self.notify(Event::InstanceDied { instance, cause, detail: None })?;
                // A kernel that was killed before finds out when it is started again.
                if self.boots == boots {
                    checks::terminations::death_reported(self, instance)
                } else {
                    Ok(())
                }
            }
        }
    }

    fn end_turn(
        &mut self,
        instance: InstanceId,
        session: SessionId,
        turn: TurnId,
        outcome: TurnOutcome,
    ) -> Judged {
        let now = self.now.mono;
        let Some(one) = self.runtime.up(instance) else { return Ok(()) };
        if one.turn.is_none_or(|(running, _)| running != turn) {
            return Ok(());
        }
        if one.frozen {
            // Nothing runs in a frozen sandbox, so its turn goes on when it is thawed.
            self.plan(50, Item::TurnEnds { instance, session, turn });
            return Ok(());
        }
        one.active_at = now;
        one.stirred_at = now;
        // What a cancelled turn still writes need not be kept, also if the end of its sandbox comes
        // before its own.
        if self.kernel.turn_of(session) == Some(turn) {
            self.session_writes(instance, session);
        }
        if let Some(one) = self.runtime.up(instance) {
            one.turn = None;
            one.changing_turns.retain(|changing| *changing != turn);
        }
        self.notify(Event::TurnEnded { session, turn, outcome })
    }

    fn end_effect(&mut self, effect: &Effect, how: How, began_with: u64) -> Judged {
        let id = effect.id;
        if let Some(instance) = instance_of(&effect.action)
            && let Some(one) = self.runtime.instances.get_mut(&instance)
        {
            one.effects -= 1;
        }
        if let Some(one) = self.read_by_guest(&effect.action) {
            one.readings = one.readings.saturating_sub(1);
        }
        if let Some((one, turn)) = self.turn_changed_by(&effect.action)
            && let Some(at) = one.changing_turns.iter().position(|changing| *changing == turn)
        {
            one.changing_turns.remove(at);
        }
        match how {
            How::Well => {
                let outcome = self.perform(&effect.action, began_with)?;
                self.report(effect, outcome)
            }
            How::Twice => {
                self.coverage.count("faults", "reported_twice");
                let outcome = self.perform(&effect.action, began_with)?;
                let again_ms = self.choices.between(1, 500);
                self.plan(again_ms, Item::Report { id, outcome: outcome.clone() });
                self.report(effect, outcome)
            }
            How::Lie => {
                if matches!(effect.action, Action::Wipe { .. }) {
                    self.coverage.count("faults", "lying_wipe");
                    return self.report(effect, Outcome::Done);
                }
                let outcome = self.perform(&effect.action, began_with)?;
                self.report(effect, outcome)
            }
            How::Badly { kind, happened } => {
                let kind = honest(&effect.action, kind);
                self.coverage.count("faults", failure_name(kind));
                self.go_wrong(&effect.action, happened, kind, began_with)?;
                self.report(effect, failed(kind))
            }
            How::Unknown { happened, reported_after_ms } => {
                let outcome = if happened {
                    self.perform(&effect.action, began_with)?
                } else {
                    self.go_wrong(&effect.action, false, FailureKind::Trouble, began_with)?;
                    failed(FailureKind::Trouble)
                };
                self.spoil(effect);
                self.coverage.count("faults", "timed_out");
                let left_ms = effect.deadline.since(self.now.mono);
                match reported_after_ms {
                    Some(after_ms) if after_ms < 20 => {
                        self.plan(left_ms, Item::Report { id, outcome: Outcome::TimedOut });
                    }
                    Some(after_ms) => self.plan(left_ms + after_ms, Item::Report { id, outcome }),
                    None => {}
                }
                Ok(())
            }
        }
    }

    /// The effect does not go as wanted; perhaps it happened nevertheless.
    fn go_wrong(
        &mut self,
        action: &Action,
        happened: bool,
        kind: FailureKind,
        began_with: u64,
    ) -> Judged {
        match action {
            Action::Launch(launch) => match kind {
                FailureKind::Gone | FailureKind::Unsupported => {
                    self.runtime.remove(launch.instance);
                }
                FailureKind::Trouble | FailureKind::NeedsGuest | FailureKind::Refused(_) => {
                    if happened {
                        self.perform(action, began_with)?;
                    } else {
                        self.runtime.die(launch.instance);
                    }
                }
                FailureKind::FilesGone => {
                    self.runtime.die(launch.instance);
                    self.lose_workspace(launch.workspace);
                }
            },
            Action::Kill { .. } => {
                if happened || kind == FailureKind::Gone {
                    self.perform(action, began_with)?;
                }
            }
            Action::Claim { instance, .. }
            | Action::Probe { instance }
            | Action::Wipe { instance }
            | Action::Prove { instance }
            | Action::Freeze { instance }
            | Action::Thaw { instance }
            | Action::Quiesce { instance }
            | Action::Unquiesce { instance }
            | Action::StartTurn { instance, .. }
            | Action::StopTurn { instance, .. }
            | Action::KillProcess { instance, .. }
            | Action::RestartProcess { instance, .. }
            | Action::Persist { instance, .. } => {
                if kind == FailureKind::Gone {
                    self.runtime.die(*instance);
                } else if happened {
                    self.perform(action, began_with)?;
                }
            }
            Action::CopyWorkspace { .. }
            | Action::DeleteWorkspace { .. }
            | Action::ArchiveWorkspace { .. } => {
                if happened {
                    self.perform(action, began_with)?;
                }
            }
        }
        Ok(())
    }

    fn report(&mut self, effect: &Effect, outcome: Outcome) -> Judged {
        if outcome != Outcome::Done {
            self.spoil(effect);
        }
        checks::quiesce::reported(self, effect, &outcome);
        if let Some(instance) = instance_of(&effect.action)
            && let Some(one) = self.runtime.instances.get_mut(&instance)
        {
            one.stirred_at = self.now.mono;
            if let Action::RestartProcess { process, .. } = &effect.action
                && let Some(known) = one.process(*process)
            {
                known.start_heard(self.now.mono);
            }
            if matches!(effect.action, Action::Persist { .. }) && outcome == Outcome::Done {
                one.saved = Saved::Yes;
            }
        }
        self.notify(Event::EffectEnded { id: effect.id, outcome })
    }

    /// Remembers that an effect on an instance did not end well.
    fn spoil(&mut self, effect: &Effect) {
        if let Some(instance) = instance_of(&effect.action)
            && let Some(one) = self.runtime.instances.get_mut(&instance)
        {
            one.troubled = true;
            one.unstoppable |= matches!(effect.action, Action::StopTurn { .. });
            if matches!(effect.action, Action::Persist { .. }) {
                one.saved = Saved::No;
            }
        }
    }
}

/// The instance that an effect is about.
pub(crate) fn instance_of(action: &Action) -> Option<InstanceId> {
    match action {
        Action::Launch(launch) => Some(launch.instance),
        Action::Claim { instance, .. }
        | Action::Probe { instance }
        | Action::Wipe { instance }
        | Action::Prove { instance }
        | Action::Freeze { instance }
        | Action::Thaw { instance }
        | Action::Quiesce { instance }
        | Action::Unquiesce { instance }
        | Action::StartTurn { instance, .. }
        | Action::StopTurn { instance, .. }
        | Action::KillProcess { instance, .. }
        | Action::RestartProcess { instance, .. }
        | Action::Persist { instance, .. }
        | Action::Kill { instance, .. } => Some(*instance),
        Action::CopyWorkspace { .. }
        | Action::DeleteWorkspace { .. }
        | Action::ArchiveWorkspace { .. } => None,
    }
}

/// A reason that lies outside of the sandbox.
const REFUSED: FailureKind = FailureKind::Refused(ErrorCode::EgressUnavailable);

/// What a runtime may say of this effect: a removal cannot be unsupported, and a workspace
/// that no sandbox uses cannot be gone with one.
const fn honest(action: &Action, kind: FailureKind) -> FailureKind {
    match (action, kind) {
        (Action::Launch(launch), FailureKind::FilesGone) if launch.restore => kind,
        (Action::Launch(_) | Action::Claim { .. }, FailureKind::Refused(_)) => kind,
        (Action::Kill { .. }, FailureKind::Unsupported)
        | (_, FailureKind::FilesGone | FailureKind::Refused(_))
        | (
            Action::CopyWorkspace { .. }
            | Action::DeleteWorkspace { .. }
            | Action::ArchiveWorkspace { .. },
            FailureKind::Gone,
        ) => FailureKind::Trouble,
        (
            Action::Launch(_)
            | Action::Claim { .. }
            | Action::Probe { .. }
            | Action::Wipe { .. }
            | Action::Prove { .. }
            | Action::Freeze { .. }
            | Action::Thaw { .. }
            | Action::Quiesce { .. }
            | Action::Unquiesce { .. }
            | Action::StartTurn { .. }
            | Action::StopTurn { .. }
            | Action::KillProcess { .. }
            | Action::RestartProcess { .. }
            | Action::Persist { .. }
            | Action::Kill { .. }
            | Action::CopyWorkspace { .. }
            | Action::DeleteWorkspace { .. }
            | Action::ArchiveWorkspace { .. },
            kind,
        ) => kind,
    }
}

fn failed(kind: FailureKind) -> Outcome {
    Outcome::Failed(Failure { kind, detail: Arc::from(failure_name(kind)) })
}

const fn failure_name(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Gone => "gone",
        FailureKind::Trouble => "trouble",
        FailureKind::Unsupported => "unsupported",
        FailureKind::FilesGone => "files_gone",
        FailureKind::NeedsGuest => "needs_guest",
        FailureKind::Refused(_) => "refused",
    }
}
