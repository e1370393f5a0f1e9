//! The harness programs that answer turns, at most one per sandbox: started for a turn or session,
//! bound to the session, restarted if they died. The last lines of their own output are kept in
//! memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use harness::{
    Binding, HarnessError, HarnessErrorCode, HarnessLink, HeldHarness, LogStream, Logs, StartedFor,
};
use kernel::{Grant, SessionView};
use model::record::Owner;
use model::template::Harness;
use model::{ClaimSettings, InstanceId, LeaseId, Refusal, SessionId, Template, Wall};
use runtime::Sandbox;

use crate::Engine;
use crate::clock::Clock;
use crate::core::Core;
use crate::keys::Caller;
use crate::known_bridges::KnownBridges;

/// The most lines that are kept of one harness.
const LINES_MAX: usize = 10_000;
/// The longest line.
const LINE_MAX: usize = 64 * 1024;
/// The most bytes of all lines of one harness.
const LINE_BYTES_MAX: usize = 1024 * 1024;

/// A line of a harness's own output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Its number: later lines have higher ones, also those of other harnesses.
    pub index: u64,
    /// When it arrived.
    pub at: Wall,
    /// The stream it was written to.
    pub stream: LogStream,
    /// Its text.
    pub text: String,
}

/// The harnesses of all sandboxes.
#[derive(Default)]
pub(crate) struct Harnesses {
    all: Mutex<BTreeMap<InstanceId, Arc<One>>>,
    /// The number of the next line of any harness, so that a reader misses nothing when the sandbox
    /// of a session is replaced.
    next_line: Arc<AtomicU64>,
    known_bridges: KnownBridges,
}

/// The harness of one sandbox.
struct One {
    /// Locked while the harness is being started or bound.
    link: tokio::sync::Mutex<Option<Linked>>,
    logs: Arc<Ring>,
}

struct Linked {
    link: HarnessLink,
    session: Option<SessionId>,
}

impl Harnesses {
    fn all(&self) -> MutexGuard<'_, BTreeMap<InstanceId, Arc<One>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn one(&self, core: &Core, instance: InstanceId) -> Arc<One> {
        let fresh = || {
            let next = Arc::clone(&self.next_line);
            let logs = Arc::new(Ring { clock: core.clock.clone(), next, lines: Mutex::default() });
            Arc::new(One { link: tokio::sync::Mutex::default(), logs })
        };
        Arc::clone(self.all().entry(instance).or_insert_with(fresh))
    }

    /// A sandbox has ended or was wiped, and its harness with it.
    pub(crate) fn forget(&self, instance: InstanceId) {
        self.all().remove(&instance);
    }

    /// Starts the harness of a sandbox that no user has yet.
    pub(crate) async fn prewarm(
        &self,
        core: &Core,
        sandbox: Arc<dyn Sandbox>,
        template: &Template,
    ) -> Result<(), HarnessError> {
        let one = self.one(core, sandbox.instance());
        let mut linked = one.link.lock().await;
        let logs = Arc::clone(&one.logs) as Arc<dyn Logs>;
        let timeout = Duration::from_millis(template.ready_timeout_ms);
        let started =
            harness::start(sandbox, &template.harness, StartedFor::NoSession, logs, timeout).await;
        match (started, &template.harness) {
            (Ok(link), _) => *linked = Some(Linked { link, session: None }),
            // A bridge also starts with its session, which then learns what is wrong with it.
            (Err(error), Harness::AshBridge(_)) if error.code != HarnessErrorCode::SandboxGone => {
                let error = error.into_runtime_error();
                tracing::warn!(template = %template.name, %error, "a bridge cannot be started early");
            }
            (Err(error), Harness::Shell | Harness::Jsonl(_) | Harness::AshBridge(_)) => {
                return Err(error);
            }
        }
        Ok(())
    }

    /// The harness of a sandbox for a use that holds it, started if need be.
    pub(crate) async fn hold(
        &self,
        core: &Arc<Core>,
        grant: &Grant,
    ) -> Result<HeldHarness, HarnessError> {
        let owner = core.read(|kernel| kernel.sandbox(grant.sandbox).map(|view| view.owner));
        for is_last in [false, true] {
            let link = match owner {
                Some(Owner::Session(id)) => self.ready(core, grant.instance, id).await?.0,
                Some(Owner::Lease(lease)) => self.leased(core, grant, lease).await?,
                Some(Owner::Unowned) | None => return Err(HarnessError::sandbox_gone()),
            };
            match link.hold().await {
                // It died without notice: start another.
                Err(error) if error.code == HarnessErrorCode::Died && !is_last => {}
                held => return held,
            }
        }
        Err(HarnessError::sandbox_gone())
    }

    /// The harness of a leased sandbox, bound to no session. A prewarmed harness does not know what
    /// its user bound to the sandbox: if there is anything, it is replaced by a new one.
    async fn leased(
        &self,
        core: &Arc<Core>,
        grant: &Grant,
        lease: LeaseId,
    ) -> Result<HarnessLink, HarnessError> {
        let template =
            core.read(|kernel| kernel.template(&kernel.sandbox(grant.sandbox)?.template));
        let sandbox = core.runtimes.sandbox(grant.instance);
        let (Some(template), Some(sandbox)) = (template, sandbox) else {
            return Err(HarnessError::sandbox_gone());
        };
        let env = grant.settings.as_ref().map(|claim| claim.env.clone()).unwrap_or_default();
        let has_secrets = uses_secrets(&template, grant.settings.as_deref());
        let one = self.one(core, grant.instance);
        let mut linked = one.link.lock().await;
        if let Some(found) = linked.take()
            && found.link.is_alive()
            && found.link.works_unbound()
            && env.is_empty()
            && !has_secrets
        {
            return Ok(linked.insert(found).link.clone());
        }
        let binding = Binding {
            // A lease is the conversation of its holder.
            session: SessionId::from_u128(lease.as_u128()),
            sandbox: grant.sandbox,
            generation: grant.generation,
            resumed: false,
            env,
            config: None,
        };
        let logs = Arc::clone(&one.logs) as Arc<dyn Logs>;
        let timeout = Duration::from_millis(template.ready_timeout_ms);
        let started_for = StartedFor::Caller(&binding);
        let link = harness::start(sandbox, &template.harness, started_for, logs, timeout).await?;
        Ok(linked.insert(Linked { link, session: None }).link.clone())
    }

    /// Gives the bridge that waits in the sandbox of a new session its settings, without waiting
    /// until it is ready: the first turn does. False if there is none, or if it is not known
    /// whether such a bridge can start.
    pub(crate) fn begin_known_bridge(&self, core: &Arc<Core>, id: SessionId) -> bool {
        let found = core.read(|kernel| {
            let session = kernel.session(id)?;
            let instance = kernel.sandbox(session.sandbox_id?)?.instance?;
            Some((kernel.template(&session.template)?, instance, session))
        });
        let Some((template, instance, session)) = found else { return false };
        match template.harness {
            Harness::AshBridge(_) => {}
            Harness::Shell | Harness::Jsonl(_) => return false,
        }
        if uses_secrets(&template, session.claim.as_deref())
            || !self.known_bridges.is_known(self.known_bridges.key(&template, &session))
        {
            return false;
        }
        let Some(one) = self.all().get(&instance).cloned() else { return false };
        let fits = |linked: &Linked| {
            let is_free = linked.session.is_none() && linked.link.is_alive();
            is_free && linked.link.can_bind(&binding(&session))
        };
        if !one.link.try_lock().is_ok_and(|linked| linked.as_ref().is_some_and(fits)) {
            return false;
        }
        let core = Arc::clone(core);
        tasks::spawn(async move {
            match core.harnesses.ready_in(&core, &one, instance, id).await {
                Err(error) if error.code != HarnessErrorCode::SandboxGone => {
                    // What the bridge said is for its session alone.
                    let error = error.into_runtime_error();
                    tracing::warn!(session = %id, %error, "a bridge cannot be loaded");
                }
                Ok(_) | Err(_) => {}
            }
        });
        true
    }

    /// The harness of a session's sandbox, bound to it and ready for a turn, and the configuration
    /// to send with a turn.
    pub(crate) async fn ready(
        &self,
        core: &Arc<Core>,
        instance: InstanceId,
        id: SessionId,
    ) -> Result<(HarnessLink, Option<Arc<str>>), HarnessError> {
        let one = self.one(core, instance);
        let ready = self.ready_in(core, &one, instance, id).await;
        if core.runtimes.sandbox(instance).is_none() {
            self.forget(instance);
        }
        ready
    }

    async fn ready_in(
        &self,
        core: &Arc<Core>,
        one: &One,
        instance: InstanceId,
        id: SessionId,
    ) -> Result<(HarnessLink, Option<Arc<str>>), HarnessError> {
        let found = core.read(|kernel| {
            let session = kernel.session(id)?;
            let template = kernel.template(&session.template)?;
            Some((session, template))
        });
        let sandbox = core.runtimes.sandbox(instance);
        let (Some((session, template)), Some(sandbox)) = (found, sandbox) else {
            return Err(HarnessError::sandbox_gone());
        };
        let config = session.claim.as_ref().and_then(|claim| claim.config.clone());
        let mut linked = one.link.lock().await;
        let binding = binding(&session);
        let has_secrets = uses_secrets(&template, session.claim.as_deref());
        if linked.as_ref().is_some_and(|it| it.session.is_none() && !it.link.is_alive()) {
            tracing::warn!(template = %template.name, "a harness that was started early has ended");
        }
        let alive = linked.take().filter(|linked| {
            let is_bound = linked.session == Some(id);
            let can_be_bound = || !has_secrets && linked.link.can_bind(&binding);
            linked.link.is_alive() && (is_bound || can_be_bound())
        });
        let bound = match alive {
            Some(found) if found.session == Some(id) => {
                return Ok((linked.insert(found).link.clone(), config));
            }
            Some(found) => found.link.bind(&binding).await,
            None => {
                let logs = Arc::clone(&one.logs) as Arc<dyn Logs>;
                let timeout = Duration::from_millis(template.ready_timeout_ms);
                let started_for = StartedFor::Session(&binding);
                harness::start(sandbox, &template.harness, started_for, logs, timeout).await
            }
        };
        let bridge = self.known_bridges.key(&template, &session);
        match bound {
            Ok(link) => {
                self.known_bridges.learn(bridge);
                *linked = Some(Linked { link: link.clone(), session: Some(id) });
                Ok((link, config))
            }
            Err(error) => {
                // The end of a sandbox says nothing about its bridge.
                if error.code != HarnessErrorCode::SandboxGone {
                    self.known_bridges.forget(bridge);
                }
                Err(error)
            }
        }
    }
}

/// Whether a sandbox gets secrets with its claim. A harness that was started before has none of them, nor
/// the certificates that programs must trust then: it is started anew.
fn uses_secrets(template: &Template, claim: Option<&ClaimSettings>) -> bool {
    !template.secrets.is_empty() || claim.is_some_and(|claim| !claim.secrets.is_empty())
}

fn binding(session: &SessionView) -> Binding {
    Binding {
        session: session.id,
        sandbox: session.sandbox_id.unwrap_or(model::SandboxId::NIL),
        generation: session.generation,
        resumed: session.generation > model::Generation::FIRST,
        env: session.claim.as_ref().map(|claim| claim.env.clone()).unwrap_or_default(),
        config: session.claim.as_ref().and_then(|claim| claim.config.clone()),
    }
}

/// The last lines that a harness wrote.
struct Ring {
    clock: Clock,
    next: Arc<AtomicU64>,
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    bytes: usize,
    kept: VecDeque<LogLine>,
}

impl Logs for Ring {
    fn line(&self, stream: LogStream, text: &str) {
        let at = self.clock.now().wall;
        let text = &text[..text.floor_char_boundary(LINE_MAX)];
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        lines.bytes += text.len();
        lines.kept.push_back(LogLine { index, at, stream, text: text.to_owned() });
        while lines.kept.len() > LINES_MAX || lines.bytes > LINE_BYTES_MAX {
            let Some(oldest) = lines.kept.pop_front() else { break };
            lines.bytes -= oldest.text.len();
        }
    }
}

impl Engine {
    /// What the harness of a session wrote after a line; empty if it has none.
    pub fn session_logs(
        &self,
        caller: Caller,
        id: SessionId,
        after: Option<u64>,
    ) -> Result<Vec<LogLine>, Refusal> {
        self.check_session(caller, id)?;
        let instance = self.core.read(|kernel| {
            kernel.session(id)?.sandbox_id.and_then(|id| kernel.sandbox(id)?.instance)
        });
        let found = instance.and_then(|instance| {
            self.core.harnesses.all().get(&instance).map(|one| Arc::clone(&one.logs))
        });
        let Some(logs) = found else { return Ok(Vec::new()) };
        let lines = logs.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = lines.kept.iter().filter(|line| after.is_none_or(|after| line.index > after));
        Ok(wanted.cloned().collect())
    }
}
