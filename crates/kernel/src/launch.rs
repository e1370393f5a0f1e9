//! Starting sandboxes: for those who wait for a pool, to refill one, and for sessions. The place is
//! reserved and the instance written down before the effect exists.

use std::sync::Arc;

use model::{EndCause, InstanceId, KeyId, Mono, SandboxId, WorkspaceId};

use crate::effect::{Action, Launch};
use crate::entry::{After, Birth, Entry, OpKind, Own, Phase, Resolve};
use crate::event::{FailureKind, Outcome};
use crate::slab::Ix;
use crate::{Flaw, Kernel};

impl Kernel {
    pub(crate) fn mint(&mut self) -> u128 {
        self.minter.id(self.now.wall)
    }

    /// Makes a record, reserving its place among the entries.
    pub(crate) fn create_entry(&mut self, pool: Ix, owner: Own, slot: Option<Ix>) -> Ix {
        let id = SandboxId::from_u128(self.mint());
        let workspace = WorkspaceId::from_u128(self.mint());
        let Self { pools, sessions, now, .. } = self;
        let template = Arc::clone(&pools[pool].template);
        let traits = pools[pool].traits;
        let tenant = match owner {
            Own::Session(session) => sessions[session].settings.tenant,
            Own::Nobody | Own::Lease(_) => KeyId::NIL,
        };
        let birth = Birth { id, workspace, template, traits, owner, tenant, slot, now: *now };
        let ix = self.entries.insert(Entry::new(birth));
        self.entry_index.insert(id.as_u128(), ix);
        self.admission.entries += 1;
        self.count_in(ix);
        ix
    }

    /// A place was found for someone who waits for a pool; its slot was taken when it was asked
    /// for.
    pub(crate) fn place_for_pool(&mut self, pool: Ix) {
        self.pools[pool].applying -= 1;
        let ix = self.create_entry(pool, Own::Nobody, Some(pool));
        self.start(ix);
    }

    /// Starts a sandbox to refill a pool.
    pub(crate) fn launch_spare(&mut self, pool: Ix) {
        self.pools[pool].slots_used += 1;
        let ix = self.create_entry(pool, Own::Nobody, Some(pool));
        self.start(ix);
    }

    /// Starts the process of a sandbox that has none.
    pub(crate) fn start(&mut self, ix: Ix) {
        self.reserve_live(ix);
        let instance = InstanceId::from_u128(self.mint());
        let entry = &mut self.entries[ix];
        entry.instance = instance;
        entry.generation = entry.generation.next();
        entry.phase = Phase::Launching;
        entry.slept = None;
        entry.uses = 0;
        entry.archived = false;
        entry.kept_bytes = None;
        entry.disk_bytes = 0;
        entry.disk_hidden = 0;
        entry.spared_until = Mono(0);
        entry.last_used = self.now;
        entry.hard_expires_at = entry.template.max_lifetime_ms.map(|ms| self.now.wall.plus(ms));
        entry.expires_at = entry.hard_expires_at;
        let launch = Launch {
            instance,
            sandbox: entry.id,
            generation: entry.generation,
            template: Arc::clone(&entry.template),
            workspace: entry.workspace,
            restore: entry.has_files,
            settings: entry.settings.clone(),
        };
        let seeded = entry.settings.as_ref().is_some_and(|settings| settings.seed.is_some());
        let mut timeout_ms = entry.template.ready_timeout_ms;
        if entry.has_files || seeded {
            // Files may have to be put into it.
            timeout_ms = timeout_ms.saturating_add(self.config.deadlines.workspace_ms);
        }
        if let Some(pool) = entry.slot {
            self.pools[pool].launching += 1;
        }
        self.instance_index.insert(instance.as_u128(), ix);
        self.begin(ix, OpKind::Launch, timeout_ms, Action::Launch(Box::new(launch)));
        if !self.flawed(Flaw::UnwrittenLaunch) {
            self.mark(ix);
        }
        self.settle(ix);
    }

    pub(crate) fn launch_ended(&mut self, ix: Ix, outcome: Outcome) {
        match outcome {
            Outcome::Done => self.launched(ix),
            Outcome::TimedOut => {
                let detail = "guest and harness were not ready in time".into();
                self.launch_failed(ix, EndCause::ReadyTimeout, detail);
            }
            Outcome::Failed(failure) => {
                let (cause, detail) = match failure.kind {
                    FailureKind::Gone | FailureKind::Trouble => {
                        (EndCause::LaunchFailed, failure.detail)
                    }
                    FailureKind::Unsupported => {
                        let detail = format!("unsupported: {}", failure.detail);
                        (EndCause::LaunchFailed, detail.into())
                    }
                    FailureKind::FilesGone => (EndCause::FilesGone, failure.detail),
                };
                self.launch_failed(ix, cause, detail);
            }
        }
    }

    fn launched(&mut self, ix: Ix) {
        let entry = &mut self.entries[ix];
        entry.announced = true;
        // What is only in memory is nothing to come back to before it was saved.
        entry.has_files |= entry.traits.workspace_survives;
        entry.proven_at = self.now.mono;
        entry.extra = None;
        self.mark(ix);
        if let Some(pool) = self.entries[ix].slot {
            let counted = &mut self.pools[pool];
            counted.launching -= 1;
            counted.counters.launched += 1;
            self.pool_recovered(pool);
            self.put_idle(ix);
        } else {
            let entry = &mut self.entries[ix];
            entry.phase = Phase::InUse;
            entry.used |= entry.exec_wanted;
            self.settle(ix);
            self.arm_quiet(ix);
            self.arm_expiry(ix);
            if let Own::Session(session) = self.entries[ix].owner {
                self.session_due(session);
            }
        }
    }

    fn launch_failed(&mut self, ix: Ix, cause: EndCause, detail: Arc<str>) {
        if let Some(pool) = self.entries[ix].slot {
            self.pools[pool].counters.launch_failed += 1;
            let began = self.entries[ix].last_used.mono;
            self.entries[ix].failed = true;
            self.pools[pool].failing += 1;
            self.pool_failed(pool, began, &detail);
        }
        // Whatever was made must be removed first; those who wait are told then.
        self.end_unready(ix, cause, detail);
    }

    /// Ends a sandbox that never became ready.
    pub(crate) fn end_unready(&mut self, ix: Ix, cause: EndCause, detail: Arc<str>) {
        let entry = &self.entries[ix];
        // A session that had files before keeps them, unless they are gone, and it is told so; one
        // that never had any keeps nothing.
        let after = match entry.owner {
            Own::Session(_) if entry.has_files && cause != EndCause::FilesGone => After::Cold,
            Own::Session(_) | Own::Nobody | Own::Lease(_) => After::Gone,
        };
        self.end(ix, cause, after, Resolve::Now);
        if let Some(ending) = self.entries.get_mut(ix).and_then(|e| e.ending.as_mut()) {
            ending.detail = Some(detail);
        }
    }
}
