//! Launching sandboxes: for checkouts that wait, to refill a pool, and for sessions. The place is
//! reserved and the instance journalled before the launch is sent.

use std::sync::Arc;

use model::{EndCause, InstanceId, KeyId, SandboxId, WorkspaceId};

use crate::Kernel;
use crate::effect::{Action, Launch};
use crate::entry::{AfterEnd, Entry, EntryIx, EntryOwner, NewEntry, OpKind, Readiness, Step};
use crate::event::{FailureKind, Outcome};
use crate::handout::refused;
use crate::pool::PoolIx;

impl Kernel {
    pub(crate) fn mint(&mut self) -> u128 {
        self.minter.id(self.now.wall)
    }

    /// Makes an entry for a new sandbox.
    pub(crate) fn create_entry(
        &mut self,
        pool: PoolIx,
        owner: EntryOwner,
        slot: Option<PoolIx>,
    ) -> EntryIx {
        let id = SandboxId::from_u128(self.mint());
        let workspace = WorkspaceId::from_u128(self.mint());
        let Self { pools, sessions, now, .. } = self;
        let template = Arc::clone(&pools[pool].template);
        let traits = pools[pool].traits;
        let tenant = match owner {
            EntryOwner::Session(session) => sessions[session].settings.tenant,
            EntryOwner::Unowned | EntryOwner::Lease(_) => KeyId::NIL,
        };
        let new = NewEntry { id, workspace, template, traits, owner, tenant, slot, now: *now };
        let entry = self.entries.insert(Entry::new(new));
        self.count_in(entry);
        entry
    }

    /// A place is free for a caller that waits for a pool; its slot was taken when it applied.
    pub(crate) fn place_for_pool(&mut self, pool: PoolIx) {
        self.pools[pool].occupied.placed();
        let entry = self.create_entry(pool, EntryOwner::Unowned, Some(pool));
        self.start(entry);
    }

    /// Launches a sandbox to refill a pool.
    pub(crate) fn launch_for_refill(&mut self, pool: PoolIx) {
        self.pools[pool].occupied.slot_taken();
        let entry = self.create_entry(pool, EntryOwner::Unowned, Some(pool));
        self.start(entry);
    }

    /// Launches an instance for a cold sandbox.
    pub(crate) fn start(&mut self, entry: EntryIx) {
        self.reserve_live(entry);
        let instance = InstanceId::from_u128(self.mint());
        self.entries.launched(entry, instance);
        let sandbox = &mut self.entries[entry];
        sandbox.launch_began(self.now);
        let launch = Launch {
            instance,
            sandbox: sandbox.id,
            generation: sandbox.generation,
            template: Arc::clone(&sandbox.template),
            workspace: sandbox.workspace,
            restore: sandbox.files.has_files(),
            settings: sandbox.settings.clone(),
        };
        let seeded = sandbox.settings.as_ref().is_some_and(|settings| settings.seed.is_some());
        let mut timeout_ms = sandbox.template.ready_timeout_ms;
        if sandbox.files.has_files() || seeded {
            // Files may have to be restored into it.
            timeout_ms = timeout_ms.saturating_add(self.config.deadlines.workspace_ms);
        }
        if let Some(pool) = sandbox.slot {
            self.pools[pool].occupied.launch_began();
        }
        self.begin(entry, OpKind::Launch, timeout_ms, Action::Launch(Box::new(launch)));
        if !self.flaws.launches_unwritten() {
            self.mark(entry);
        }
        self.settle(entry);
    }

    pub(crate) fn launch_ended(&mut self, entry: EntryIx, outcome: Outcome) {
        match outcome {
            Outcome::Done => self.launched(entry),
            Outcome::TimedOut => {
                let detail = "guest and harness were not ready in time".into();
                self.launch_failed(entry, EndCause::ReadyTimeout, detail);
            }
            Outcome::Failed(failure) => {
                let session = self.entries[entry].session();
                let (cause, detail, refusal) = match failure.kind {
                    FailureKind::Gone | FailureKind::Trouble | FailureKind::NeedsGuest => {
                        (EndCause::LaunchFailed, failure.detail, None)
                    }
                    FailureKind::Unsupported => {
                        let detail = format!("unsupported: {}", failure.detail);
                        (EndCause::LaunchFailed, detail.into(), None)
                    }
                    FailureKind::FilesGone => (EndCause::FilesGone, failure.detail, None),
                    FailureKind::Refused(code) => {
                        let refusal = refused(code, &failure.detail);
                        (EndCause::LaunchFailed, failure.detail, Some(refusal))
                    }
                };
                self.launch_failed(entry, cause, detail);
                // They learn the code, and need not wait for the removal.
                if let (Some(session), Some(refusal)) = (session, refusal)
                    && self.sessions.get(session).is_some()
                {
                    self.fail_wants(session, &refusal);
                }
            }
        }
    }

    fn launched(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        sandbox.ready = Readiness::Ready;
        // Files that are only in memory cannot be restored before they were saved.
        if sandbox.traits.workspace_survives {
            sandbox.files.files_made();
        }
        sandbox.proven_at = self.now.mono;
        sandbox.rare = None;
        self.mark(entry);
        if let Some(pool) = self.entries[entry].slot {
            let counted = &mut self.pools[pool];
            counted.occupied.launch_ended();
            counted.counters.launched += 1;
            self.pool_recovered(pool);
            self.put_idle(entry, Step::Warm);
        } else {
            self.entries[entry].came_into_use(Step::Resume);
            self.settle(entry);
            self.arm_freeze_and_sweep(entry);
            self.arm_expiry(entry);
            if let Some(session) = self.entries[entry].session() {
                self.session_due(session);
            }
        }
    }

    fn launch_failed(&mut self, entry: EntryIx, cause: EndCause, detail: Arc<str>) {
        if let Some(pool) = self.entries[entry].slot {
            self.pools[pool].counters.launch_failed += 1;
            let began = self.entries[entry].last_used.mono;
            self.entries[entry].ready = Readiness::Failed;
            self.pools[pool].occupied.failure_began();
            self.pool_failed(pool, began, &detail);
        }
        // The instance must be removed first; waiting callers are refused then.
        self.end_unready(entry, cause, detail);
    }

    /// Ends a sandbox that never became ready.
    pub(crate) fn end_unready(&mut self, entry: EntryIx, cause: EndCause, detail: Arc<str>) {
        let sandbox = &self.entries[entry];
        // A session that had files keeps them, unless they are gone, which is reported. One that
        // never had any keeps nothing.
        let after = match sandbox.owner() {
            EntryOwner::Session(_) if sandbox.files.has_files() && cause != EndCause::FilesGone => {
                AfterEnd::Cold
            }
            EntryOwner::Session(_) | EntryOwner::Unowned | EntryOwner::Lease(_) => AfterEnd::Gone,
        };
        self.end_now(entry, cause, after, Some(detail));
    }
}
