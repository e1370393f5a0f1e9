//! What sandboxes may reach, carried out: the runtime prepares the network of a sandbox, the egress
//! process serves it. Both follow what the kernel says at the moment of the call, so that calls may
//! come in any order. A policy that cannot be attached fails its caller; it must never be taken for
//! a wider one.

mod binding;
mod log;
mod refused;
mod requests;
mod trust;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use egress::{
    Attachment, Authority, Egress, EgressCounts, EgressError, Reach, Reported, Reservation, Sockets,
};
use kernel::NetworkView;
use model::{ErrorCode, InstanceId, KeyId, NetworkPolicy, NetworkRule, Refusal, RuleTarget};
use runtime::{RuntimeError, RuntimeErrorCode, Sandbox};
use tokio::sync::{OwnedMutexGuard, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub(crate) use self::binding::{Binding, check_secrets, with_next_binding};
use self::log::{NetworkLog, Whose};
pub use self::log::{NetworkLogEntry, NetworkLogPage, NetworkLogQuery, Wanted};
pub use self::requests::NetworkReport;
use crate::core::Core;
use crate::effects::EffectError;

/// How long one step of attaching a policy may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// How long a caller waits for the end of what could not be attached.
const CLOSING: Duration = Duration::from_secs(1);

/// When a caller that was refused by the egress process may try again.
const RETRY_AFTER_MS: u64 = 1_000;

/// The networks of all sandboxes of a node.
pub(crate) struct Networks {
    /// The way out; none if the node has none.
    egress: Option<Egress>,
    sandboxes: Mutex<BTreeMap<InstanceId, Arc<tokio::sync::Mutex<Attached>>>>,
    /// The certificate authority of each key that uses secrets at the boundary.
    authorities: Mutex<BTreeMap<KeyId, Arc<Authority>>>,
    /// What programs in warm sandboxes trust already.
    roots: trust::Roots,
    log: NetworkLog,
    /// Which refusals of the machine's kernel are in the log.
    noted: refused::Noted,
}

/// What was attached to a sandbox.
#[derive(Default)]
struct Attached {
    /// What the egress process has, if it has anything.
    reach: Option<Reach>,
    /// The key that it counts connections for.
    counted_for: KeyId,
    /// What is put into its requests at the boundary.
    secrets: Vec<egress::BoundarySecret>,
    /// A change has begun and has not ended: it may hold or not, also if its caller went away.
    unsure: bool,
}

impl Attached {
    /// What is attached is not known any more. What a claim bound stays bound.
    fn lose(&mut self) {
        let secrets = std::mem::take(&mut self.secrets);
        *self = Self { secrets, ..Self::default() };
    }
}

/// What a call says of the secrets at the boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Secrets {
    /// Nothing: they stay.
    Kept,
    /// There were none, and there are none.
    None,
    /// They may be others.
    New,
}

impl Networks {
    pub(crate) fn new(egress: Option<Egress>) -> Self {
        Self {
            egress,
            sandboxes: Mutex::default(),
            authorities: Mutex::default(),
            roots: trust::Roots::default(),
            log: NetworkLog::default(),
            noted: refused::Noted::default(),
        }
    }

    pub(crate) fn is_available(&self) -> bool {
        self.egress.is_some()
    }

    pub(crate) fn counts(&self) -> Option<EgressCounts> {
        let mut counts = self.egress.as_ref().map(Egress::counts)?;
        counts.refused += self.noted.count();
        Some(counts)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<InstanceId, Arc<tokio::sync::Mutex<Attached>>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is attached to a sandbox, for one call at a time. A call that waited while the sandbox was
    /// forgotten begins anew: else nothing would know what it attaches.
    async fn one(&self, instance: InstanceId) -> OwnedMutexGuard<Attached> {
        loop {
            let one = Arc::clone(self.known().entry(instance).or_default());
            let attached = Arc::clone(&one).lock_owned().await;
            if self.known().get(&instance).is_some_and(|known| Arc::ptr_eq(known, &one)) {
                return attached;
            }
        }
    }

    /// Makes the network of a sandbox what the kernel says now. `binding` has what a claim puts into
    /// requests at the boundary; without it, that stays as it is.
    pub(crate) async fn apply(
        &self,
        core: &Core,
        sandbox: &dyn Sandbox,
        binding: Option<&Binding>,
    ) -> Result<(), EffectError> {
        let instance = sandbox.instance();
        if self.known().get(&instance).is_none() {
            let wanted = core.read(|kernel| kernel.network_of(instance));
            if wanted.is_none_or(|view| view.policy.is_none()) {
                return Ok(());
            }
        }
        let mut attached = self.one(instance).await;
        // Read behind the lock: the last to write is the one that knows most.
        let Some(view) = core.read(|kernel| kernel.network_of(instance)) else {
            self.close(sandbox, &mut attached).await;
            self.known().remove(&instance);
            return Ok(());
        };
        // A claim may bring other values under the same names.
        let secrets = match binding {
            None => Secrets::Kept,
            Some(binding) => {
                let none = attached.secrets.is_empty() && binding.boundary.is_empty();
                attached.secrets.clone_from(&binding.boundary);
                if none { Secrets::None } else { Secrets::New }
            }
        };
        let applied = timeout(PATIENCE, self.attach(sandbox, &mut attached, &view, secrets)).await;
        let applied = applied.unwrap_or_else(|_| Err(no_answer()));
        if applied.is_err() {
            // What it may reach is not known any more: nothing.
            self.close(sandbox, &mut attached).await;
            if sandbox.ended().is_some() {
                // It is forgotten once, which may have been before.
                self.known().remove(&instance);
            }
        }
        applied
    }

    async fn attach(
        &self,
        sandbox: &dyn Sandbox,
        attached: &mut Attached,
        view: &NetworkView,
        secrets: Secrets,
    ) -> Result<(), EffectError> {
        let instance = view.instance;
        let Some(egress) = &self.egress else {
            let cause = "this server has no egress process: `egress.enabled` is off";
            return Err(failed(RuntimeErrorCode::Unsupported, cause).into());
        };
        let key = (view.tenant != KeyId::NIL).then_some(view.tenant);
        let wanted_for = (!attached.secrets.is_empty()).then_some(view.tenant);
        let reach = Reach { policy: view.policy.clone(), template: view.template.network.clone() };
        // Attaching anew cuts connections: only a claim does that, when there are none.
        let stays = match secrets {
            Secrets::Kept | Secrets::None => true,
            Secrets::New => false,
        };
        if let Some(known) = &attached.reach {
            let unsure = std::mem::replace(&mut attached.unsure, true);
            if unsure || address_rules(&known.template) != address_rules(&reach.template) {
                sandbox.change_network(&reach.template).await?;
            }
            if stays {
                // A harness that runs already may have connections.
                let program = view.template.harness.program();
                let is_first = secrets == Secrets::None && !program.is_some_and(|one| one.prewarm);
                let outside = if *known != reach && is_first && !unsure {
                    // No program runs yet.
                    egress.change_ahead(instance, key, reach.clone()).await
                } else if unsure || *known != reach {
                    egress.change(instance, key, reach.clone()).await
                } else if attached.counted_for != view.tenant {
                    // A claim of what its template allows waits for nothing.
                    egress.count_for(instance, key, reach.clone())
                } else {
                    Ok(())
                };
                // A process that has died closed everything: then it is attached anew.
                if !matches!(outside, Err(EgressError::NotAttached | EgressError::Lost)) {
                    outside.map_err(|error| not_attached(&error))?;
                    attached.reach = Some(reach);
                    attached.counted_for = view.tenant;
                    attached.unsure = false;
                    return Ok(());
                }
            }
        }
        let sockets = match attached.reach.take() {
            Some(_) => egress.release(instance).await,
            None => None,
        };
        let sockets = if let Some(sockets) = sockets {
            sockets
        } else {
            // The machine's kernel has the rules of the template: a claim does not wait for the launcher,
            // and what it leaves out the egress process refuses.
            let armed = sandbox.arm_network(&reach.template).await?;
            Sockets { connections: armed.connections, names: armed.names }
        };
        let authority = wanted_for.map(|key| self.authority(key)).transpose()?;
        let attachment = Attachment {
            sandbox: instance,
            key,
            policy: reach.clone(),
            sockets: Some(sockets),
            secrets: attached.secrets.clone(),
            authority,
        };
        egress.attach(attachment).await.map_err(|error| not_attached(&error))?;
        attached.reach = Some(reach);
        attached.counted_for = view.tenant;
        attached.unsure = false;
        Ok(())
    }

    /// Whether a sandbox reaches nothing because its policy could not be attached.
    fn is_detached(&self, instance: InstanceId) -> bool {
        let Some(one) = self.known().get(&instance).cloned() else { return false };
        // A call in progress decides that.
        one.try_lock().is_ok_and(|attached| attached.reach.is_none())
    }

    /// Whether the egress process counts a sandbox for its owner, or was told to.
    fn told(&self, attached: &mut Attached, instance: InstanceId, owner: KeyId) -> bool {
        let Attached { reach: Some(reach), unsure: false, .. } = &*attached else { return false };
        if attached.counted_for == owner {
            return true;
        }
        let Some(egress) = &self.egress else { return true };
        if egress.count_for(instance, Some(owner), reach.clone()).is_err() {
            return false;
        }
        attached.counted_for = owner;
        true
    }

    /// Reads what the image of a sandbox trusts if its claim will need it, so that the claim does not
    /// have to.
    pub(crate) async fn prepare_trust(&self, core: &Core, sandbox: &Arc<dyn Sandbox>) {
        let view = core.read(|kernel| kernel.network_of(sandbox.instance()));
        let waits_for_a_boundary = view.is_some_and(|view| {
            let secrets = &view.template.secrets;
            view.tenant == KeyId::NIL && secrets.iter().any(|used| used.boundary.is_some())
        });
        if waits_for_a_boundary {
            self.roots.learn(sandbox).await;
        }
    }

    /// Ends everything that a sandbox has outside.
    async fn close(&self, sandbox: &dyn Sandbox, attached: &mut Attached) {
        attached.lose();
        if let Some(egress) = &self.egress {
            // It is asked at once. A process that does not answer serves nothing before it has done it.
            let _ = timeout(CLOSING, egress.forget(sandbox.instance())).await;
        }
    }

    /// Forgets a sandbox that is wiped for its next user: what it did until now is its last user's.
    pub(crate) async fn forget_user(&self, core: &Core, instance: InstanceId) {
        self.note_refused(core, instance).await;
        let last = whose(core, instance);
        self.forget(instance).await;
        if let (Some(egress), Some(last)) = (&self.egress, last) {
            self.log.left(instance, egress.reported(), last);
        }
    }

    /// Forgets a sandbox that is removed, or wiped for its next user.
    async fn forget(&self, instance: InstanceId) {
        self.roots.forget(instance);
        let Some(one) = self.known().get(&instance).cloned() else { return };
        // A call in progress ends first, and one that waits finds that this was forgotten.
        let mut attached = one.lock().await;
        if !self.known().get(&instance).is_some_and(|known| Arc::ptr_eq(known, &one)) {
            return;
        }
        *attached = Attached::default();
        if let Some(egress) = &self.egress {
            egress.forget(instance).await;
        }
        self.known().remove(&instance);
        self.noted.forget(instance);
    }

    /// Keeps room for a sandbox with boundary secrets of a key, if there is a way out.
    fn reserve(&self, key: KeyId) -> Result<Option<Reservation>, Refusal> {
        let Some(egress) = &self.egress else { return Ok(None) };
        egress.reserve(key).map(Some).map_err(|error| not_attached(&error).into_refusal())
    }

    /// The certificate authority of a key, made when it is first needed.
    pub(crate) fn authority(&self, key: KeyId) -> Result<Arc<Authority>, RuntimeError> {
        let mut known = self.authorities.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(authority) = known.get(&key) {
            return Ok(Arc::clone(authority));
        }
        let made = Authority::new().map_err(|error| {
            failed(RuntimeErrorCode::System, &format!("make a certificate: {error}"))
        })?;
        Ok(Arc::clone(known.entry(key).or_insert(Arc::new(made))))
    }

    /// The egress process of these sandboxes has died: what they had is closed.
    async fn lost(&self, core: &Core, instances: Vec<InstanceId>) {
        for instance in instances {
            let Some(one) = self.known().get(&instance).cloned() else { continue };
            let mut attached = one.lock().await;
            if self.egress.as_ref().is_some_and(|egress| egress.serves(instance)) {
                // Another call has attached it again since: its sockets must not be made twice.
                continue;
            }
            attached.lose();
            drop(attached);
            let Some(sandbox) = core.runtimes.sandbox(instance) else { continue };
            if let Err(error) = self.apply(core, &*sandbox, None).await {
                tracing::warn!(%instance, %error, "a sandbox has no network: its policy was not attached again");
            }
        }
    }
}

/// A sandbox is about to be removed: its last events are its user's, also if they come later.
pub(crate) async fn ends(core: &Core, instance: InstanceId) {
    core.networks.note_refused(core, instance).await;
    if let Some(whose) = core.networks.egress.as_ref().and_then(|_| whose(core, instance)) {
        core.networks.log.ends(instance, whose);
    }
}

/// A warm sandbox has an owner from now on: its connections count for that key. Nothing waits for it.
pub(crate) fn handed_out(core: &Arc<Core>, instance: InstanceId, owner: KeyId) {
    let Some(one) = core.networks.known().get(&instance).cloned() else { return };
    let told =
        one.try_lock().is_ok_and(|mut attached| core.networks.told(&mut attached, instance, owner));
    if told {
        return;
    }
    let core = Arc::clone(core);
    tasks::spawn(async move {
        let Some(sandbox) = core.runtimes.sandbox(instance) else { return };
        if let Err(error) = core.networks.apply(&core, &*sandbox, None).await {
            tracing::warn!(%instance, %error, "a sandbox has no network: its policy was not attached");
        }
    });
}

/// Forgets a sandbox that is gone. Nothing waits for it: nothing in there can connect any more.
pub(crate) fn forget(core: &Arc<Core>, instance: InstanceId) {
    core.networks.roots.forget(instance);
    if !core.networks.known().contains_key(&instance) {
        return;
    }
    let core = Arc::clone(core);
    tasks::spawn(async move { core.networks.forget(instance).await });
}

/// Follows the egress processes for as long as the node runs, if there is a way out.
pub(crate) fn follow(core: &Arc<Core>, egress: Option<&Egress>) {
    let Some(egress) = egress else { return };
    core.keep_running(follow_losses(Arc::clone(core), egress.lost()));
    core.keep_running(follow_events(Arc::clone(core), egress.events()));
}

/// Attaches policies again after an egress process died, for as long as the node runs.
async fn follow_losses(core: Arc<Core>, mut lost: mpsc::UnboundedReceiver<Vec<InstanceId>>) {
    while let Some(instances) = lost.recv().await {
        let count = instances.len();
        tracing::warn!(sandboxes = count, "an egress process died; its sandboxes get another");
        let core = Arc::clone(&core);
        tasks::spawn(async move { core.networks.lost(&core, instances).await });
    }
}

/// Keeps what egress processes report, for as long as the node runs.
async fn follow_events(core: Arc<Core>, mut events: mpsc::Receiver<Reported>) {
    while let Some(event) = events.recv().await {
        core.networks.log.add(whose(&core, event.event.sandbox), core.clock.now().wall, event);
    }
}

fn whose(core: &Core, instance: InstanceId) -> Option<Whose> {
    core.read(|kernel| kernel.network_of(instance).as_ref().map(Whose::of))
}

/// The rules that the kernel of the machine enforces.
fn address_rules(policy: &NetworkPolicy) -> (bool, BTreeSet<String>) {
    let is_address = |rule: &&NetworkRule| matches!(rule.target, RuleTarget::Addresses(_));
    let rules = policy.rules().iter().filter(is_address);
    (*policy == NetworkPolicy::Open, rules.map(ToString::to_string).collect())
}

/// What came of a task that runs to its end even if its caller goes away.
pub(crate) async fn finished<T>(task: JoinHandle<Result<T, Refusal>>) -> Result<T, Refusal> {
    task.await.unwrap_or_else(|error| {
        Err(Refusal::new(ErrorCode::Internal, format!("internal error: {error}")))
    })
}

fn failed(code: RuntimeErrorCode, cause: &str) -> RuntimeError {
    RuntimeError::new(code, "attach a policy", cause.to_owned())
}

/// Why a policy is not attached. What is the fault of the node would fail with every other sandbox.
fn not_attached(error: &EgressError) -> EffectError {
    let code = match error {
        EgressError::TooManyKeys { .. } => ErrorCode::BoundaryFull,
        EgressError::Lost | EgressError::Unavailable => ErrorCode::EgressUnavailable,
        EgressError::Incomplete(_) | EgressError::NotAttached | EgressError::Refused(_) => {
            return failed(RuntimeErrorCode::System, &error.to_string()).into();
        }
    };
    EffectError::Refused(Refusal::new(code, error.to_string()).retry_after(RETRY_AFTER_MS))
}

/// The egress process did not answer in time.
pub(crate) fn no_answer() -> EffectError {
    not_attached(&EgressError::Unavailable)
}
