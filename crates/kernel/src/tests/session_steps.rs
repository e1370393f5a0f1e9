//! Helpers for tests of sessions: short names for what they do and read.

use model::lifecycle::TurnOutcome;
use model::process::RestartPolicy;
use model::record::Owner;
use model::why::Why;
use model::{
    EndCause, InstanceId, LifecycleEvent, ProcessEnd, ProcessId, Refusal, RequestId, SandboxId,
    SandboxState, SessionId, TerminatedReason, TurnId,
};

use super::rig::{Rig, TENANT, instance_of, kill, launch, name};
use super::rig_steps::Active;
use crate::{
    Action, EndRequest, Event, KeepAliveReport, Outcome, ProgramEnd, ProgramExit, Reply,
    SandboxView, SessionReady, SessionSettings, StartedProcess, WhenBusy,
};

impl Rig {
    pub(super) fn create_session(&mut self) -> (SessionId, RequestId) {
        self.create_session_with(SessionSettings { tenant: TENANT, ..SessionSettings::default() })
    }

    pub(super) fn create_session_with(
        &mut self,
        settings: SessionSettings,
    ) -> (SessionId, RequestId) {
        let session = SessionId::from_u128(self.id());
        let wait_ms = self.session_wait_ms;
        let request = self.ask(|request| Event::SessionCreated {
            request,
            session,
            template: name(),
            settings,
            wait_ms,
        });
        (session, request)
    }

    /// A session with a sandbox.
    #[track_caller]
    pub(super) fn session(&mut self) -> (SessionId, SandboxId) {
        let (session, request) = self.create_session();
        self.run();
        (session, self.session_ready(request).sandbox)
    }

    #[track_caller]
    pub(super) fn session_ready(&self, request: RequestId) -> SessionReady {
        let answer = self.answered(request);
        let (Reply::SessionReady(ready) | Reply::TurnStarted(ready)) = answer else {
            panic!("expected a session, found {answer:?}")
        };
        ready
    }

    pub(super) fn turn_with(
        &mut self,
        session: SessionId,
        when_busy: WhenBusy,
    ) -> (RequestId, TurnId) {
        let turn = TurnId::from_u128(self.id());
        let wait_ms = self.session_wait_ms;
        let request =
            self.ask(|request| Event::TurnRequested { request, session, turn, when_busy, wait_ms });
        (request, turn)
    }

    pub(super) fn turn(&mut self, session: SessionId) -> (RequestId, TurnId) {
        self.turn_with(session, WhenBusy::Refuse)
    }

    /// A turn that starts and ends.
    #[track_caller]
    pub(super) fn whole_turn(&mut self, session: SessionId) -> SessionReady {
        let (request, turn) = self.turn(session);
        self.run();
        let ready = self.session_ready(request);
        self.end_turn(session, turn);
        ready
    }

    pub(super) fn end_turn(&mut self, session: SessionId, turn: TurnId) {
        let outcome = TurnOutcome::Completed;
        let _ = self.apply(Event::TurnEnded { session, turn, outcome });
    }

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
        self.use_ended(use_id);
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

    /// Starts a process that keeps its sandbox alive.
    #[track_caller]
    pub(super) fn starts(&mut self, sandbox: SandboxId, process: u64, timeout_ms: Option<u64>) {
        let timeout_ms = self.kernel.process_timeout_ms(true, timeout_ms);
        self.starts_as(sandbox, process, true, timeout_ms, None);
    }

    #[track_caller]
    pub(super) fn starts_as(
        &mut self,
        sandbox: SandboxId,
        process: u64,
        keep_alive: bool,
        timeout_ms: u64,
        restart: Option<RestartPolicy>,
    ) {
        let (instance, process) = (self.instance(sandbox), ProcessId::from_u128(process.into()));
        let started =
            StartedProcess { sandbox, instance, process, keep_alive, timeout_ms, restart };
        assert_eq!(self.apply(Event::ProcessStarted(started)), Ok(Reply::Noted));
    }

    /// The program of a process ends by itself, and well.
    pub(super) fn exits(&mut self, sandbox: SandboxId, process: u64) {
        self.exits_with(sandbox, process, Some(0), None);
    }

    /// The program of a process fails by itself.
    pub(super) fn fails(&mut self, sandbox: SandboxId, process: u64) {
        self.exits_with(sandbox, process, Some(3), None);
    }

    pub(super) fn exits_with(
        &mut self,
        sandbox: SandboxId,
        process: u64,
        code: Option<i32>,
        signal: Option<i32>,
    ) {
        let exit = ProgramExit { code, signal, out_of_memory: false };
        self.program_ends(self.instance(sandbox), process, ProgramEnd::Exited(exit));
    }

    pub(super) fn program_ends(&mut self, instance: InstanceId, process: u64, how: ProgramEnd) {
        let process = ProcessId::from_u128(process.into());
        let _ = self.apply(Event::ProgramEnded { instance, process, how });
    }

    pub(super) fn asks_end(
        &mut self,
        sandbox: SandboxId,
        process: u64,
        asked: EndRequest,
    ) -> Result<Reply, Refusal> {
        let (instance, process) = (self.instance(sandbox), ProcessId::from_u128(process.into()));
        self.apply(Event::ProcessEndRequested { instance, process, asked })
    }

    /// The end of a process, which the kernel must announce exactly once.
    #[track_caller]
    pub(super) fn over(&self, process: u64) -> &(ProcessId, ProcessEnd, bool) {
        let process = ProcessId::from_u128(process.into());
        let mut seen = self.overs.iter().filter(|(of, ..)| *of == process);
        match (seen.next(), seen.next()) {
            (Some(over), None) => over,
            seen => panic!("expected one end of {process}, found {seen:?}"),
        }
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
    pub(super) fn stop_processes(&mut self, sandbox: SandboxId, after_ms: u64) -> KeepAliveReport {
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
            view.owner == Owner::Unowned
                && view.state == SandboxState::Warm
                && view.ending.is_none()
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
        *self.actives(session).last().expect("a session whose sandbox was published")
    }

    /// The losses that were reported to a session's clients.
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
