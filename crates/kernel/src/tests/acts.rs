//! What the tests of sessions do and look at, in a word each.

use model::lifecycle::TurnOutcome;
use model::record::Owner;
use model::why::Why;
use model::{
    EndCause, InstanceId, LifecycleEvent, ProcessId, RequestId, SandboxId, SandboxState, SessionId,
    TerminatedReason, TurnId,
};

use super::moves::Active;
use super::rig::{Rig, instance_of, kill, launch};
use crate::{Action, Event, Outcome, Reply, SandboxView, WakeReport};

impl Rig {
    pub(super) fn ask_freeze(&mut self, sandbox: SandboxId) -> RequestId {
        self.ask(|request| Event::FreezeRequested { request, sandbox })
    }

    pub(super) fn ask_thaw(&mut self, sandbox: SandboxId) -> RequestId {
        self.ask(|request| Event::ThawRequested { request, sandbox })
    }

    pub(super) fn shut_down(&mut self, grace_ms: u64) {
        assert_eq!(self.apply(Event::ShutdownBegan { grace_ms }), Ok(Reply::Noted));
    }

    /// A turn that has started and goes on.
    #[track_caller]
    pub(super) fn running_turn(&mut self, session: SessionId) -> (RequestId, TurnId) {
        let (request, turn) = self.turn(session);
        self.run();
        self.session_ready(request);
        (request, turn)
    }

    /// Something is done in a session that leaves files to save.
    #[track_caller]
    pub(super) fn session_work(&mut self, session: SessionId) {
        let use_id = self.session_exec(session);
        self.use_over(use_id);
    }

    /// A session whose sandbox the sweep made cold, with files.
    #[track_caller]
    pub(super) fn slept_session(&mut self) -> (SessionId, SandboxId) {
        let (session, sandbox) = self.session();
        self.session_work(session);
        self.live(3_600_000);
        assert_eq!(self.state(sandbox), SandboxState::Cold);
        (session, sandbox)
    }

    pub(super) fn starts(&mut self, sandbox: SandboxId, process: u64, timeout_ms: Option<u64>) {
        let (instance, process) = (self.instance(sandbox), ProcessId::from_u128(process.into()));
        let timeout_ms = self.kernel.process_timeout_ms(true, timeout_ms);
        let started = Event::ProcessStarted { instance, process, keep_alive: true, timeout_ms };
        assert_eq!(self.apply(started), Ok(Reply::Noted));
    }

    pub(super) fn exits(&mut self, sandbox: SandboxId, process: u64) {
        let (instance, process) = (self.instance(sandbox), ProcessId::from_u128(process.into()));
        let _ = self.apply(Event::ProcessEnded { instance, process });
    }

    /// A program adds to the scale file.
    pub(super) fn scale(&mut self, sandbox: SandboxId, scale: u32) {
        self.write_scale(self.instance(sandbox), scale, false);
    }

    pub(super) fn write_scale(&mut self, instance: InstanceId, scale: u32, drops: bool) {
        let written = Event::ScaleWritten { instance, seq: 1, scale, drops };
        assert_eq!(self.apply(written), Ok(Reply::Noted));
    }

    #[track_caller]
    pub(super) fn stop_processes(&mut self, sandbox: SandboxId, after_ms: u64) -> WakeReport {
        match self.apply(Event::StopRequested { sandbox, after_ms }) {
            Ok(Reply::Wakefulness(report)) => report,
            other => panic!("expected a report, found {other:?}"),
        }
    }

    pub(super) fn frozen(&self, sandbox: SandboxId) -> bool {
        self.kernel.sandbox(sandbox).is_some_and(|view| view.frozen)
    }

    /// The sandboxes that may be handed out, in a fixed order.
    pub(super) fn idle(&self) -> Vec<SandboxView> {
        let idle = |view: &SandboxView| {
            view.owner == Owner::Nobody && view.state == SandboxState::Warm && view.ending.is_none()
        };
        self.kernel.sandboxes().into_iter().filter(idle).collect()
    }

    /// What was launched for each effect of this kind that is in progress.
    pub(super) fn instances(&self, wanted: fn(&Action) -> bool) -> Vec<InstanceId> {
        let these = self.effects.iter().filter(|effect| wanted(&effect.action));
        these.filter_map(|effect| instance_of(&effect.action)).collect()
    }

    /// Why a sandbox ended.
    #[track_caller]
    pub(super) fn end_cause(&self, sandbox: SandboxId) -> EndCause {
        match self.kernel.why(self.now, sandbox) {
            Some(Why::Ended(ended)) => ended.cause,
            other => panic!("expected an end, found {other:?}"),
        }
    }

    /// The causes with which the end of a sandbox was announced.
    pub(super) fn end_causes(&self, sandbox: SandboxId) -> Vec<EndCause> {
        let of = |event: &LifecycleEvent| {
            if let LifecycleEvent::SandboxTerminated { sandbox_id, cause, .. } = event {
                (*sandbox_id == sandbox).then_some(*cause)
            } else {
                None
            }
        };
        self.published.iter().filter_map(of).collect()
    }

    /// How a turn ended: once, if all is well.
    pub(super) fn turn_outcomes(&self, wanted: TurnId) -> Vec<TurnOutcome> {
        let outcome = |event: &LifecycleEvent| {
            let LifecycleEvent::TurnEnded { turn, outcome, .. } = event else { return None };
            (*turn == wanted).then_some(*outcome)
        };
        self.published.iter().filter_map(outcome).collect()
    }

    #[track_caller]
    pub(super) fn last_active(&self, session: SessionId) -> Active {
        *self.actives(session).last().expect("a session whose sandbox was told of")
    }

    /// The losses that a session's clients were told of.
    pub(super) fn loss_reasons(&self, wanted: SessionId) -> Vec<TerminatedReason> {
        let lost = |event: &LifecycleEvent| {
            let LifecycleEvent::StateLost { session, reason, .. } = event else { return None };
            (*session == wanted).then_some(*reason)
        };
        self.published.iter().filter_map(lost).collect()
    }

    /// What the launch in progress was asked to do.
    #[track_caller]
    pub(super) fn launching(&self) -> &crate::Launch {
        let found = self.effects.iter().find_map(|effect| {
            let Action::Launch(launch) = &effect.action else { return None };
            Some(launch)
        });
        found.expect("a launch in progress")
    }

    /// The launch in progress ends as wanted.
    #[track_caller]
    pub(super) fn launched(&mut self) {
        self.finish(launch, Outcome::Done);
    }

    /// The removal in progress is confirmed.
    #[track_caller]
    pub(super) fn killed(&mut self) -> InstanceId {
        let effect = self.finish(kill, Outcome::Done);
        let Action::Kill { instance, .. } = effect.action else { unreachable!("it is a kill") };
        instance
    }
}
