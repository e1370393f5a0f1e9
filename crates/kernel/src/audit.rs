//! Recomputes every derived fact from the plain ones and compares. For tests and the simulator: it
//! looks at everything, so it is too slow to run after every event in production.

use std::collections::{BTreeMap, BTreeSet};

use model::state::PoolPhase;
use model::why::Tier;
use model::{InstanceId, KeyId, SandboxState, SessionStatus, WorkspaceId};

use crate::Kernel;
use crate::entry::{EntryIx, EntryOwner, OpKind, Phase, Readiness};
use crate::keys::Keys;
use crate::pool::PoolIx;
use crate::request::{RequestIx, WaitingFor};

type Audit = Result<(), String>;

fn same<T: PartialEq + std::fmt::Debug>(what: &str, counted: &T, found: &T) -> Audit {
    if counted == found {
        Ok(())
    } else {
        Err(format!("{what}: counted {counted:?}, found {found:?}"))
    }
}

impl Kernel {
    /// Checks every count and index.
    pub fn audit(&self) -> Result<(), String> {
        self.audit_counts()?;
        self.audit_tiers()?;
        self.audit_keys()?;
        for (pool, _) in self.pools.iter() {
            self.audit_pool(pool)?;
        }
        for (entry, _) in self.entries.iter() {
            self.audit_entry(entry)?;
        }
        self.audit_reads()?;
        self.audit_sessions()?;
        self.audit_shelved_files()?;
        self.audit_removals()?;
        self.audit_requests()
    }

    fn audit_counts(&self) -> Audit {
        let mut by_state = [0; SandboxState::ALL.len()];
        let (mut live, mut memory_mb) = (self.pending_removals.orphans() as u32, 0);
        let mut dying = (0, 0, 0);
        let archiving = self.entries.iter().filter(|(_, entry)| entry.is_archiving()).count();
        same(
            "workspaces on their way into archives",
            &self.archives.running(),
            &(archiving as u32),
        )?;
        for (_, entry) in self.entries.iter() {
            by_state[entry.derived.state as usize] += 1;
            if entry.is_live() {
                live += 1;
                memory_mb += entry.memory_mb();
            }
            if entry.derived.dying_live {
                dying.0 += 1;
                dying.1 += entry.memory_mb();
            }
            dying.2 += u32::from(entry.derived.dying_entry);
        }
        same("sandboxes by state", self.counts.by_state(), &by_state)?;
        same("live sandboxes", &self.admission.live(), &live)?;
        same("memory of live sandboxes", &self.admission.memory_mb(), &memory_mb)?;
        same("what is dying", &self.admission.dying(), &dying)?;
        same("ids of sandboxes", &self.entries.ids(), &self.entries.len())?;
        let (ids, ages, _) = self.sessions.indexed();
        same("ordered sessions", &ages, &self.sessions.len())?;
        same("ids of sessions", &ids, &self.sessions.len())
    }

    /// Recounts what each key has and waits for.
    fn audit_keys(&self) -> Audit {
        let mut found = Keys::default();
        for (_, entry) in self.entries.iter() {
            let (derived, memory_mb) = (entry.derived, entry.memory_mb());
            found.count(entry.tenant(), |key| key.has(derived, memory_mb));
        }
        for (_, pool) in self.pools.iter() {
            for (_, key, req) in pool.queue.iter() {
                let WaitingFor::Checkout(waiter) = &self.requests[*req].what else { continue };
                found.count(key, |key| key.waits(waiter.memory_mb));
            }
        }
        for (seq, key, session, memory_mb) in self.admission.sessions() {
            same(
                "the place of a session in the queue",
                &self.sessions[session].applied,
                &Some(seq),
            )?;
            found.count(key, |key| key.waits(memory_mb));
        }
        for (key, known) in self.keys.iter() {
            same("what a key has", &known.without_limits(), &found.of(key))?;
        }
        for (key, counted) in found.iter() {
            same("what a key has", &self.keys.of(key).without_limits(), counted)?;
        }
        Ok(())
    }

    fn audit_tiers(&self) -> Audit {
        for tier in Tier::ALL {
            let lists = self.tiers.of(tier).flat_map(|(key, list)| {
                list.list(&self.entries).into_iter().map(move |entry| (key, entry))
            });
            let listed: BTreeSet<(KeyId, EntryIx)> = lists.collect();
            let found: BTreeSet<(KeyId, EntryIx)> = self
                .entries
                .iter()
                .filter(|(_, sandbox)| sandbox.derived.tier == Some(tier))
                .map(|(entry, sandbox)| (sandbox.tenant(), entry))
                .collect();
            same("an eviction tier", &listed, &found)?;
        }
        Ok(())
    }

    fn audit_pool(&self, pool: PoolIx) -> Audit {
        let known = &self.pools[pool];
        let idle: BTreeSet<EntryIx> = known.idle.list(&self.entries).into_iter().collect();
        let (mut found, mut slots) = (BTreeSet::new(), known.occupied.applying());
        let (mut launching, mut cleaning, mut leased, mut failing) = (0, 0, 0, 0);
        for (entry, sandbox) in self.entries.iter().filter(|(_, e)| e.slot == Some(pool)) {
            slots += 1;
            failing += u32::from(sandbox.ready == Readiness::Failed);
            match sandbox.phase() {
                Phase::Idle => {
                    found.insert(entry);
                }
                Phase::Launching => launching += 1,
                Phase::Wiping | Phase::Proving => cleaning += 1,
                Phase::Claiming(_) | Phase::InUse => leased += 1,
                Phase::Cold | Phase::Killing => {}
            }
        }
        same("idle sandboxes of a pool", &idle, &found)?;
        let applying = self.admission.applying(pool);
        same("applications of a pool", &known.occupied.applying(), &applying)?;
        same("slots of a pool", &known.occupied.slots(), &slots)?;
        same("launches of a pool", &known.occupied.launching(), &launching)?;
        same("sandboxes being cleaned", &known.occupied.cleaning(), &cleaning)?;
        same("failed launches", &known.occupied.failing(), &failing)?;
        same("leased sandboxes", &known.occupied.leased(), &leased)?;
        if known.phase == PoolPhase::Active && !known.queue.is_empty() && known.idle.len() > 0 {
            return Err("a caller waits while a sandbox is idle".to_owned());
        }
        Ok(())
    }

    fn audit_entry(&self, entry: EntryIx) -> Audit {
        let sandbox = &self.entries[entry];
        same("what follows from a sandbox", &sandbox.derived, &sandbox.derive(self.now.mono))?;
        same("what users see of a sandbox", &sandbox.visible.state(), &sandbox.derived.state)?;
        same("an id", &self.entries.by_id(sandbox.id), &Some(entry))?;
        let launched = sandbox.instance != InstanceId::NIL;
        same("a process has an instance", &sandbox.is_live(), &launched)?;
        if launched {
            let indexed = self.entries.by_instance(sandbox.instance);
            same("an instance", &indexed, &Some(entry))?;
        }
        same("a live phase", &sandbox.is_live(), &(sandbox.phase() != Phase::Cold))?;
        let tenant = match sandbox.owner() {
            EntryOwner::Unowned => KeyId::NIL,
            EntryOwner::Lease(_) => sandbox.tenant(),
            EntryOwner::Session(session) => self.sessions[session].settings.tenant,
        };
        same("the key of a sandbox", &sandbox.tenant(), &tenant)?;
        if let Some(session) = sandbox.session() {
            same("the sandbox of a session", &self.sessions[session].entry, &Some(entry))?;
            same("a session's sandbox has no slot", &sandbox.slot, &None)?;
        }
        if let (EntryOwner::Lease(lease), Phase::InUse | Phase::Claiming(_)) =
            (sandbox.owner(), sandbox.phase())
        {
            same("a lease", &self.entries.by_lease(lease), &Some(entry))?;
        }
        if self.readers.of(entry) > 0 && !sandbox.holds.is_copied() {
            return Err("files are read from a sandbox that is not held for that".to_owned());
        }
        if sandbox.phase() == Phase::Killing && sandbox.termination.is_none() {
            return Err("a sandbox is being killed without a cause".to_owned());
        }
        if sandbox.phase() == Phase::Killing && !sandbox.end_notified {
            return Err("the user of a sandbox that is being killed was not notified".to_owned());
        }
        if sandbox.termination.is_some()
            && sandbox.alarm == model::Mono::NEVER
            && sandbox.ops.is_free()
            && !sandbox.ops.is_saving()
        {
            return Err("no alarm or effect is set for a termination".to_owned());
        }
        Ok(())
    }

    /// The index of waiting forks is complete.
    fn audit_reads(&self) -> Audit {
        let waits = self.entries.iter().filter(|(_, copy)| copy.ops.is_doing(OpKind::AwaitSource));
        let waits: BTreeSet<EntryIx> = waits.map(|(copy, _)| copy).collect();
        same("forks that wait for files", &self.readers.all_waiting_copies(), &waits)
    }

    fn audit_sessions(&self) -> Audit {
        let mut clients = 0;
        for (session, known) in self.sessions.iter() {
            let running = known.turn.iter().filter_map(|turn| turn.client);
            for client in running.chain(known.queued.iter().filter_map(|queued| queued.client)) {
                clients += 1;
                let knows = self.sessions.by_client(client);
                same("the session of a client", &knows, &Some(session))?;
            }
            if let Some(entry) = known.entry {
                same(
                    "the owner of a sandbox",
                    &self.entries[entry].owner(),
                    &EntryOwner::Session(session),
                )?;
            }
            for req in &known.wanting {
                if self.requests.get(*req).is_none() {
                    return Err("a request that a session knows is gone".to_owned());
                }
            }
        }
        let (_, _, indexed) = self.sessions.indexed();
        same("clients of turns", &indexed, &clients)
    }

    /// Files are in one place, and those that must be archived are in the queue.
    fn audit_shelved_files(&self) -> Audit {
        let mut wanted = BTreeMap::new();
        for (session, known) in self.sessions.iter() {
            let Some(shelved) = &known.shelved else { continue };
            let workspace = shelved.files.workspace;
            if known.entry.is_some() {
                return Err(format!("{} has a sandbox and shelved files", known.id));
            }
            if known.status == SessionStatus::Ended {
                return Err(format!("{} has ended and has shelved files", known.id));
            }
            if self.pending_removals.will_delete(workspace) {
                return Err(format!("the shelved files of {} are being deleted", known.id));
            }
            if !shelved.files.archived {
                wanted.insert(workspace, session);
            }
        }
        same("archives of shelved files", &self.archives.shelved.audited()?, &wanted)
    }

    /// A workspace is deleted as soon as no fork reads it.
    fn audit_removals(&self) -> Audit {
        let read: BTreeSet<WorkspaceId> =
            self.entries.iter().filter_map(|(_, entry)| Some(entry.copying?.from)).collect();
        for (workspace, waits) in self.pending_removals.workspace_deletions() {
            same("a deletion waits for a fork", &waits, &read.contains(&workspace))?;
        }
        for (_, entry) in self.entries.iter() {
            if entry.files.has_files() && self.pending_removals.will_delete(entry.workspace) {
                return Err(format!("the files of {} are being deleted", entry.id));
            }
        }
        Ok(())
    }

    fn audit_requests(&self) -> Audit {
        same("ids of requests", &self.requests.ids(), &self.requests.len())?;
        for (req, request) in self.requests.iter() {
            let (WaitingFor::LeaseUse { entry, .. }
            | WaitingFor::Freeze { entry, .. }
            | WaitingFor::Delete { entry }) = request.what
            else {
                continue;
            };
            let known = self.entries.get(entry).and_then(|e| e.rare.as_ref());
            if !known.is_some_and(|rare| rare.waiting.contains(&req)) {
                return Err(format!("no sandbox refers to a request that waits: {request:?}"));
            }
        }
        let mut waiting: BTreeMap<RequestIx, usize> = BTreeMap::new();
        for (_, pool) in self.pools.iter() {
            for (_, _, req) in pool.queue.iter() {
                *waiting.entry(*req).or_default() += 1;
            }
        }
        for (req, times) in waiting {
            same("places of a waiter in line", &times, &1)?;
            if self.requests.get(req).is_none() {
                return Err("a waiter in line is gone".to_owned());
            }
        }
        Ok(())
    }
}
