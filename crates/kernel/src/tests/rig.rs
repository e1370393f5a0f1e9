//! A rig for the kernel: events go in one by one, effects are kept until the test ends them, and
//! all output is collected. After every event the kernel is audited.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use model::stats::PoolStats;
use model::template::{Recycle, RuntimeTraits, WorkspaceLimit};
use model::{
    ClaimSettings, EndCause, ErrorCode, InstanceId, KeyId, LeaseId, LifecycleEvent, Mono,
    NodeConfig, Now, ProcessEnd, ProcessId, Records, Refusal, RequestId, SandboxId, SandboxState,
    Template, TemplateName, UseId, Wall,
};

use super::open_uses::Users;
use crate::{
    Action, Boot, CheckedOut, Checkout, CheckoutPolicy, DeathCause, Effect, Event, Failure,
    FailureKind, Grant, Kernel, Loss, Notice, Outcome, Reply, Transition, UseKind, UseTarget,
};

pub(super) const NATIVE: RuntimeTraits = RuntimeTraits {
    recycle: Recycle::Recreate,
    can_freeze: true,
    workspace_survives: true,
    disk: None,
};

/// Workspaces on a disk of ours, so that they can go into archives.
pub(super) const ON_DISK: RuntimeTraits =
    RuntimeTraits { disk: Some(WorkspaceLimit::Soft), ..NATIVE };

pub(super) const DOCKER: RuntimeTraits = RuntimeTraits {
    recycle: Recycle::Wipe,
    can_freeze: true,
    workspace_survives: false,
    disk: None,
};

/// The key to whom everything belongs, unless a test says otherwise.
pub(super) const TENANT: KeyId = KeyId::from_u128(0x7e_4a47);

/// How long the word of a sandbox is taken, on a node with the usual settings.
pub(super) const FRESH_MS: u64 = 5_000;

pub(super) const START: Now = Now { mono: Mono(1_000_000), wall: Wall(1_700_000_000_000) };

pub(super) struct Rig {
    pub(super) kernel: Kernel,
    pub(super) now: Now,
    pub(super) effects: VecDeque<Effect>,
    pub(super) published: Vec<LifecycleEvent>,
    /// Whose business each of those was.
    pub(super) published_to: Vec<KeyId>,
    pub(super) broken: Vec<(UseId, Refusal)>,
    pub(super) transitions: Vec<Transition>,
    /// Notified ends of instances, in order.
    pub(super) over: Vec<(InstanceId, EndCause)>,
    /// Process holds as they are to be shown, and as of which note.
    pub(super) shown: Vec<(u32, u64)>,
    /// Notified ends of processes: how, and whether they kept their sandboxes alive.
    pub(super) overs: Vec<(ProcessId, ProcessEnd, bool)>,
    /// Scheduled restarts of processes: number and limit.
    pub(super) resting: Vec<(ProcessId, u32, Option<u32>)>,
    pub(super) stopped: bool,
    pub(super) store: Records,
    /// Instances that may exist: launched, and not confirmed as removed.
    pub(super) existing: BTreeSet<InstanceId>,
    /// If wanted, what a crash after each event would have left.
    pub(super) moments: Option<Vec<Moment>>,
    boots: u64,
    answers: BTreeMap<RequestId, Result<Reply, Refusal>>,
    /// Losses that answers reported and that the kernel does not know to be reported yet.
    lost: Vec<Loss>,
    /// Whether answers arrive, so that what they say of losses is known.
    pub(super) answers_arrive: bool,
    /// How long requests for a session wait for a place.
    pub(super) session_wait_ms: Option<u64>,
    asked: BTreeSet<RequestId>,
    users: Users,
    config: NodeConfig,
    next: u128,
}

/// What a crash would leave.
pub(super) struct Moment {
    pub(super) store: Records,
    pub(super) now: Now,
    pub(super) existing: BTreeSet<InstanceId>,
    pub(super) published: usize,
}

/// A template `t` with this pool.
pub(super) fn template(pool_size: u32, max_overflow: u32) -> Template {
    let mut template = Template::named(name());
    template.pool.pool_size = pool_size;
    template.pool.max_overflow = max_overflow;
    template
}

pub(super) fn name() -> TemplateName {
    TemplateName::new("t").unwrap()
}

pub(super) fn trouble() -> Outcome {
    Outcome::Failed(Failure { kind: FailureKind::Trouble, detail: "trouble".into() })
}

pub(super) fn unsupported() -> Outcome {
    Outcome::Failed(Failure { kind: FailureKind::Unsupported, detail: "not here".into() })
}

pub(super) fn gone() -> Outcome {
    Outcome::Failed(Failure { kind: FailureKind::Gone, detail: "gone".into() })
}

/// Settings that leave a trace in a sandbox.
pub(super) fn secret_settings() -> Arc<ClaimSettings> {
    let env = BTreeMap::from([("TOKEN".to_owned(), "1".to_owned())]);
    Arc::new(ClaimSettings { env, ..ClaimSettings::default() })
}

/// A node that takes no sandbox's word for longer than a moment.
pub(super) fn ask_always() -> NodeConfig {
    NodeConfig { probe_fresh_ms: 0, ..NodeConfig::default() }
}

/// A pool with one slot, which is leased.
pub(super) fn full() -> (Rig, LeaseId) {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let lease = rig.lease().lease;
    (rig, lease)
}

/// The refusal that a request got.
#[track_caller]
pub(super) fn refusal(rig: &Rig, request: RequestId) -> Refusal {
    rig.answer(request).cloned().expect("an answer").expect_err("a refusal")
}

/// What an action is done to, where that is something that was launched.
pub(super) fn instance_of(action: &Action) -> Option<InstanceId> {
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
        Action::CopyWorkspace { instance, .. } => *instance,
        Action::DeleteWorkspace { .. } | Action::ArchiveWorkspace { .. } => None,
    }
}

impl Rig {
    pub(super) fn new(config: NodeConfig) -> Self {
        Self {
            kernel: Kernel::new(Boot::new(config.clone(), 7, START)),
            now: START,
            effects: VecDeque::new(),
            published: Vec::new(),
            published_to: Vec::new(),
            broken: Vec::new(),
            transitions: Vec::new(),
            over: Vec::new(),
            shown: Vec::new(),
            overs: Vec::new(),
            resting: Vec::new(),
            stopped: false,
            store: Records::new(usize::MAX),
            existing: BTreeSet::new(),
            moments: None,
            boots: 7,
            answers: BTreeMap::new(),
            lost: Vec::new(),
            answers_arrive: true,
            session_wait_ms: None,
            asked: BTreeSet::new(),
            users: Users::default(),
            config,
            next: 0,
        }
    }

    /// A node with room for anything and one pool, warmed up.
    pub(super) fn with_pool(template: Template, traits: RuntimeTraits) -> Self {
        Self::with(NodeConfig::default(), template, traits)
    }

    /// The same, where every sandbox is heard from before it is handed out.
    pub(super) fn asking(template: Template, traits: RuntimeTraits) -> Self {
        Self::with(ask_always(), template, traits)
    }

    pub(super) fn with(config: NodeConfig, template: Template, traits: RuntimeTraits) -> Self {
        let mut rig = Self::new(config);
        rig.put(template, traits);
        rig.run();
        rig
    }

    pub(super) fn put(&mut self, template: Template, traits: RuntimeTraits) {
        let put = Event::TemplatePut { template: Arc::new(template), traits };
        assert_eq!(self.apply(put), Ok(Reply::Noted));
    }

    pub(super) fn id(&mut self) -> u128 {
        self.next += 1;
        self.next
    }

    #[track_caller]
    pub(super) fn apply(&mut self, event: Event) -> Result<Reply, Refusal> {
        let wants_use = self.users.hear(&event);
        let reply = self.kernel.apply(self.now, event);
        if let Some(request) = wants_use {
            self.users.answered(request, &reply);
        }
        self.collect();
        // Answers are taken, and what they say of losses is read.
        let arrive = self.answers_arrive;
        for Loss { session, generation, .. } in
            std::mem::take(&mut self.lost).into_iter().filter(|_| arrive)
        {
            let _ = self.kernel.apply(self.now, Event::LossReported { session, generation });
            self.collect();
        }
        self.kernel.audit().expect("the kernel's books are in order");
        if let Some(moments) = &mut self.moments {
            moments.push(Moment {
                store: self.store.clone(),
                now: self.now,
                existing: self.existing.clone(),
                published: self.published.len(),
            });
        }
        reply
    }

    fn collect(&mut self) {
        let out = std::mem::take(self.kernel.outbox());
        for entry in out.journal {
            self.store.write(entry);
        }
        for published in out.published {
            self.published_to.push(published.tenant);
            self.published.push(published.event);
        }
        for effect in &out.effects {
            if let Action::Launch(launch) = &effect.action {
                self.existing.insert(launch.instance);
            }
        }
        self.effects.extend(out.effects);
        self.transitions.extend(out.transitions);
        for notice in out.notices {
            match notice {
                Notice::Answer { request, result } => {
                    self.lost.extend(match &result {
                        Ok(Reply::Granted(grant)) => grant.lost,
                        Ok(Reply::SessionReady(ready) | Reply::TurnStarted(ready)) => ready.lost(),
                        Ok(_) | Err(_) => None,
                    });
                    self.users.answered(request, &result);
                    let before = self.answers.insert(request, result);
                    assert!(before.is_none(), "a request is answered once");
                }
                Notice::InstanceEnded { instance, cause } => {
                    self.over.push((instance, cause));
                    self.broken.extend(self.users.broken(instance, cause));
                }
                Notice::KeepAliveCountChanged { processes, seen, .. } => {
                    self.shown.push((processes, seen));
                }
                Notice::ProcessRestartScheduled { process, attempt, of, .. } => {
                    self.resting.push((process, attempt, of));
                }
                Notice::ProcessOver { process, end, keeps_alive, .. } => {
                    self.overs.push((process, end, keeps_alive));
                }
                Notice::ShutdownComplete => {
                    assert!(!self.stopped, "the shutdown is reported complete once");
                    self.stopped = true;
                }
            }
        }
    }

    /// Applies a request and gives back its id, with the answer kept for [`Rig::answer`].
    #[track_caller]
    pub(super) fn ask(&mut self, event: impl FnOnce(RequestId) -> Event) -> RequestId {
        let request = RequestId::from_u128(self.id());
        self.asked.insert(request);
        match self.apply(event(request)) {
            Ok(Reply::Pending) => {}
            answer => {
                assert!(self.answers.insert(request, answer).is_none(), "answered twice");
            }
        }
        request
    }

    pub(super) fn answer(&self, request: RequestId) -> Option<&Result<Reply, Refusal>> {
        self.answers.get(&request)
    }

    #[track_caller]
    pub(super) fn answered(&self, request: RequestId) -> Reply {
        match self.answer(request) {
            Some(Ok(reply)) => reply.clone(),
            other => panic!("expected an answer, found {other:?}"),
        }
    }

    #[track_caller]
    pub(super) fn refused(&self, request: RequestId) -> ErrorCode {
        match self.answer(request) {
            Some(Err(refusal)) => refusal.code,
            other => panic!("expected a refusal, found {other:?}"),
        }
    }

    pub(super) fn pending(&self, request: RequestId) -> bool {
        self.answer(request).is_none()
    }

    /// Ends the oldest effect of this kind.
    #[track_caller]
    pub(super) fn finish(&mut self, wanted: fn(&Action) -> bool, outcome: Outcome) -> Effect {
        let at = self
            .effects
            .iter()
            .position(|effect| wanted(&effect.action))
            .unwrap_or_else(|| panic!("no such effect among {:?}", self.effects));
        let effect = self.effects.remove(at).unwrap();
        self.end_effect(&effect, outcome);
        effect
    }

    #[track_caller]
    pub(super) fn end_effect(&mut self, effect: &Effect, outcome: Outcome) {
        if let (Action::Kill { instance, .. }, Outcome::Done) = (&effect.action, &outcome) {
            self.existing.remove(instance);
        }
        let _ = self.apply(Event::EffectEnded { id: effect.id, outcome });
    }

    /// Ends effects as wanted until there are none.
    #[track_caller]
    pub(super) fn run(&mut self) {
        for _ in 0..5_000 {
            let Some(effect) = self.effects.pop_front() else { return };
            self.end_effect(&effect, Outcome::Done);
        }
        panic!("effects go on for ever");
    }

    /// How many effects of this kind are in progress.
    pub(super) fn count(&self, wanted: fn(&Action) -> bool) -> usize {
        self.effects.iter().filter(|effect| wanted(&effect.action)).count()
    }

    /// Lets time pass on both clocks, with a tick whenever one is wanted. Effects stay as they are.
    #[track_caller]
    pub(super) fn pass(&mut self, ms: u64) {
        let end = self.now.mono.plus(ms);
        for _ in 0..5_000 {
            let next = self.kernel.next_wake().unwrap_or(Mono::NEVER).max(self.now.mono).min(end);
            let step_ms = next.since(self.now.mono);
            self.now = Now { mono: next, wall: self.now.wall.plus(step_ms) };
            let _ = self.apply(Event::Ticked);
            if self.now.mono == end && self.kernel.next_wake().is_none_or(|at| at > end) {
                return;
            }
        }
        panic!("ticks go on for ever");
    }

    /// Lets time pass while effects end as wanted.
    #[track_caller]
    pub(super) fn live(&mut self, ms: u64) {
        let end = self.now.mono.plus(ms);
        while self.now.mono < end {
            self.run();
            let next = self.kernel.next_wake().unwrap_or(Mono::NEVER);
            let step_ms = next.min(end).since(self.now.mono);
            self.pass(step_ms.max(1).min(end.since(self.now.mono)));
        }
        self.run();
    }

    pub(super) fn checkout_with(&mut self, change: impl FnOnce(&mut Checkout)) -> RequestId {
        let lease = LeaseId::from_u128(self.id());
        self.ask(|request| {
            let mut checkout = Checkout {
                request,
                lease,
                tenant: TENANT,
                template: name(),
                ttl_ms: None,
                wait_ms: None,
                policy: CheckoutPolicy::Wait,
                claim: None,
            };
            change(&mut checkout);
            Event::CheckoutRequested(checkout)
        })
    }

    pub(super) fn checkout(&mut self) -> RequestId {
        self.checkout_with(|_| {})
    }

    /// A checkout that works, with whatever it takes done.
    #[track_caller]
    pub(super) fn lease(&mut self) -> CheckedOut {
        let request = self.checkout();
        self.run();
        self.checked_out(request)
    }

    #[track_caller]
    pub(super) fn checked_out(&self, request: RequestId) -> CheckedOut {
        let answer = self.answered(request);
        let Reply::CheckedOut(checked_out) = answer else {
            panic!("expected a checkout, found {answer:?}")
        };
        checked_out
    }

    #[track_caller]
    pub(super) fn give_back(&mut self, lease: LeaseId) {
        assert_eq!(self.apply(Event::LeaseReturned { lease }), Ok(Reply::Noted));
    }

    pub(super) fn use_of(&mut self, target: UseTarget, kind: UseKind) -> (RequestId, UseId) {
        let use_id = UseId::from_u128(self.id());
        let wait_ms = self.session_wait_ms;
        let request =
            self.ask(|request| Event::UseRequested { request, target, use_id, kind, wait_ms });
        (request, use_id)
    }

    /// An exec that is granted and goes on until [`Rig::use_over`].
    #[track_caller]
    pub(super) fn exec(&mut self, sandbox: SandboxId) -> UseId {
        let (request, use_id) = self.use_of(UseTarget::Sandbox(sandbox), UseKind::Exec);
        self.run();
        assert!(matches!(self.answered(request), Reply::Granted(_)));
        use_id
    }

    pub(super) fn use_ended(&mut self, use_id: UseId) {
        let _ = self.apply(Event::UseEnded { use_id });
    }

    #[track_caller]
    pub(super) fn granted(&self, request: RequestId) -> Grant {
        let answer = self.answered(request);
        let Reply::Granted(grant) = answer else { panic!("expected a grant, found {answer:?}") };
        grant
    }

    /// Uses a leased sandbox once.
    #[track_caller]
    pub(super) fn use_once(&mut self, sandbox: SandboxId) {
        let use_id = self.exec(sandbox);
        self.use_ended(use_id);
    }

    #[track_caller]
    pub(super) fn state(&self, sandbox: SandboxId) -> SandboxState {
        self.kernel.sandbox(sandbox).expect("a sandbox that is known").state
    }

    pub(super) fn instance(&self, sandbox: SandboxId) -> InstanceId {
        self.kernel.sandbox(sandbox).and_then(|view| view.instance).unwrap_or(InstanceId::NIL)
    }

    /// What the pool of the template `t` has and did.
    #[track_caller]
    pub(super) fn pool(&self) -> PoolStats {
        self.kernel.pool_stats(&name()).expect("a pool that is known")
    }

    pub(super) fn die(&mut self, instance: InstanceId, cause: DeathCause) {
        let _ = self.apply(Event::InstanceDied { instance, cause, detail: None });
    }

    /// Moves both clocks without a tick, as if the next event came late.
    pub(super) fn skip(&mut self, ms: u64) {
        self.now = Now { mono: self.now.mono.plus(ms), wall: self.now.wall.plus(ms) };
    }

    #[track_caller]
    pub(super) fn tick(&mut self) {
        let _ = self.apply(Event::Ticked);
    }

    /// Drops everything in memory and restores the kernel from the journal.
    pub(super) fn restart(&mut self, alive: &[InstanceId]) -> crate::Recovery {
        self.boots += 1;
        self.stopped = false;
        let boot = Boot::new(self.config.clone(), self.boots, self.now);
        let (kernel, recovery) = Kernel::restore(boot, self.store.journal(), alive);
        self.kernel = kernel;
        self.effects.clear();
        self.collect();
        self.kernel.audit().expect("the kernel's books are in order");
        recovery
    }

    /// A node that was killed at a moment of another's life, not started again yet.
    pub(super) fn after_crash(config: NodeConfig, moment: &Moment) -> Self {
        let mut rig = Self::new(config);
        rig.store = moment.store.clone();
        rig.now = moment.now;
        rig.existing.clone_from(&moment.existing);
        rig.next = 1 << 64;
        rig.boots = 1_000;
        rig
    }
}

macro_rules! actions {
    ($($name:ident => $pattern:pat,)+) => {$(
        pub(super) fn $name(action: &Action) -> bool {
            matches!(action, $pattern)
        }
    )+};
}

actions! {
    launch => Action::Launch(_),
    claim => Action::Claim { .. },
    probe => Action::Probe { .. },
    wipe => Action::Wipe { .. },
    prove => Action::Prove { .. },
    freeze => Action::Freeze { .. },
    thaw => Action::Thaw { .. },
    quiesce => Action::Quiesce { .. },
    unquiesce => Action::Unquiesce { .. },
    start_turn => Action::StartTurn { .. },
    stop_turn => Action::StopTurn { .. },
    kill_process => Action::KillProcess { .. },
    restart_process => Action::RestartProcess { .. },
    persist => Action::Persist { .. },
    kill => Action::Kill { .. },
    copy => Action::CopyWorkspace { .. },
    archive => Action::ArchiveWorkspace { .. },
    delete_workspace => Action::DeleteWorkspace { .. },
}
