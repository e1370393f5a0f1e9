//! Limits of the operator on the bytes of sleeping sessions' files. Without such a limit nothing is
//! deleted here. Above a limit the least recently used files go first; between keys, those of the
//! key furthest above its share: one key cannot displace another's files.

use std::collections::BTreeMap;

use model::why::Tier;
use model::{EndCause, KeyId, SandboxId, TerminatedReason, Wall, WorkspaceId};

use crate::Kernel;
use crate::entry::EntryIx;
use crate::session::SessionIx;

/// Where the files of a sleeping session are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeptIn {
    /// In a cold sandbox.
    ColdSandbox(EntryIx),
    /// In a shelved session.
    ShelvedSession(SessionIx),
}

/// The files of one sleeping session.
#[derive(Debug, Clone, Copy)]
struct SleepingFiles {
    at: KeptIn,
    tenant: KeyId,
    bytes: u64,
    last_used_at: Wall,
    workspace: WorkspaceId,
    /// Nothing uses or wants them.
    may_go: bool,
}

impl Kernel {
    /// Whether any setting depends on the size of sleeping files.
    fn counts_kept_bytes(&self) -> bool {
        self.config.kept_bytes_per_key.is_some()
            || self.config.kept_bytes_total.is_some()
            || self.config.give_up_at_floor
    }

    /// Sleeping files that must be measured, at most `limit` of them.
    pub fn unmeasured_files(&self, limit: usize) -> Vec<WorkspaceId> {
        if !self.counts_kept_bytes() {
            return Vec::new();
        }
        let cold = self.entries.iter().filter(|(_, entry)| {
            entry.derived.tier == Some(Tier::Cold)
                && entry.files.has_files()
                && entry.cold.bytes().is_none()
        });
        let cold = cold.map(|(_, entry)| entry.workspace);
        let shelved = self.sessions.iter().filter_map(|(_, known)| known.shelved.as_ref());
        let shelved = shelved.filter(|shelved| shelved.bytes.is_none());
        cold.chain(shelved.map(|shelved| shelved.files.workspace)).take(limit).collect()
    }

    /// How many sessions lost files because of the node's configuration since it started.
    pub const fn files_given_up(&self) -> u64 {
        self.counts.files_given_up()
    }

    pub(crate) fn files_measured(&mut self, workspace: WorkspaceId, bytes: u64) {
        let found = self.kept_files().into_iter().find(|kept| kept.workspace == workspace);
        match found.map(|kept| kept.at) {
            Some(KeptIn::ColdSandbox(entry)) => self.entries[entry].cold.measured(bytes),
            Some(KeptIn::ShelvedSession(session)) => {
                if let Some(shelved) = &mut self.sessions[session].shelved {
                    shelved.bytes = Some(bytes);
                }
            }
            None => return,
        }
        self.keep_within_limits();
    }

    /// Deletes files until the rest is within the limits, or none may be deleted.
    fn keep_within_limits(&mut self) {
        // Each round deletes the files of one session, so the number of sessions bounds the rounds.
        for _ in 0..=self.sessions.len() {
            let kept = self.kept_files();
            let by_key = bytes_by_key(&kept);
            let over_key = self.config.kept_bytes_per_key.and_then(|most| {
                let over = by_key.iter().filter(|(_, bytes)| **bytes > most);
                over.max_by_key(|(key, bytes)| (**bytes, **key)).map(|(key, _)| *key)
            });
            let total: u64 = by_key.values().sum();
            let over_total = self.config.kept_bytes_total.is_some_and(|most| total > most);
            let victim = match over_key {
                Some(key) => least_recent(&kept, |one| one.tenant == key),
                None if over_total => furthest_above(&kept, &by_key),
                None => None,
            };
            let Some(victim) = victim else { return };
            self.give_up(victim);
        }
    }

    /// The disk is short: deletes the files of one session, if the operator allows it.
    pub(crate) fn give_up_for_floor(&mut self) {
        if self.config.give_up_at_floor && self.shutdown.is_none() {
            let kept = self.kept_files();
            if let Some(victim) = furthest_above(&kept, &bytes_by_key(&kept)) {
                self.give_up(victim);
            }
        }
    }

    /// The measured bytes of a key's workspaces and archives.
    pub(crate) fn stored_bytes(&self, key: KeyId) -> u64 {
        let of_key = self.entries.iter().filter(|(_, sandbox)| sandbox.tenant() == key);
        let entries = of_key.map(|(_, sandbox)| {
            if sandbox.is_live() { sandbox.disk.bytes() } else { sandbox.cold.bytes().unwrap_or(0) }
        });
        let sessions = self.sessions.iter().filter(|(_, known)| known.settings.tenant == key);
        let shelved = sessions.filter_map(|(_, known)| known.shelved.as_ref()?.bytes);
        entries.chain(shelved).sum()
    }

    fn kept_files(&self) -> Vec<SleepingFiles> {
        let stopping = self.shutdown.is_some();
        let cold = self.entries.iter().filter(|(_, sandbox)| {
            let owned = sandbox.session().is_some();
            owned && !sandbox.is_live() && sandbox.files.has_files()
        });
        let cold = cold.map(|(entry, sandbox)| SleepingFiles {
            at: KeptIn::ColdSandbox(entry),
            tenant: sandbox.tenant(),
            bytes: sandbox.cold.bytes().unwrap_or(0),
            last_used_at: sandbox.last_used.wall,
            workspace: sandbox.workspace,
            may_go: sandbox.derived.tier == Some(Tier::Cold) && !stopping,
        });
        let shelved = self.sessions.iter().filter_map(|(session, known)| {
            let shelved = known.shelved.as_ref()?;
            Some(SleepingFiles {
                at: KeptIn::ShelvedSession(session),
                tenant: known.settings.tenant,
                bytes: shelved.bytes.unwrap_or(0),
                last_used_at: shelved.files.last_used_at,
                workspace: shelved.files.workspace,
                may_go: !known.wants() && known.control.is_none() && !stopping,
            })
        });
        cold.chain(shelved).collect()
    }

    fn give_up(&mut self, at: KeptIn) {
        match at {
            KeptIn::ColdSandbox(entry) => {
                self.counts.gave_up_files(true);
                self.lose_files(entry, EndCause::Pruned.reason());
                self.remove_entry(entry, EndCause::Pruned, None, None);
            }
            KeptIn::ShelvedSession(session) => self.give_up_shelved_files(session),
        }
    }

    /// Deletes the files of a shelved session and reports the loss.
    pub(crate) fn give_up_shelved_files(&mut self, session: SessionIx) {
        let Some(shelved) = &self.sessions[session].shelved else { return };
        let sandbox: SandboxId = shelved.files.sandbox;
        self.report_loss(session, sandbox, TerminatedReason::Policy);
        self.counts.gave_up_files(true);
        self.delete_shelved_files(session);
    }
}

fn bytes_by_key(kept: &[SleepingFiles]) -> BTreeMap<KeyId, u64> {
    let mut by_key = BTreeMap::new();
    for one in kept {
        *by_key.entry(one.tenant).or_insert(0) += one.bytes;
    }
    by_key
}

fn least_recent(kept: &[SleepingFiles], wanted: impl Fn(&SleepingFiles) -> bool) -> Option<KeptIn> {
    let may_go = kept.iter().filter(|one| one.may_go && wanted(one));
    may_go.min_by_key(|one| (one.last_used_at, one.workspace)).map(|one| one.at)
}

/// The least recently used files of the key with the most bytes: all shares are equal, so it is
/// furthest above its share. A key without deletable files is passed over.
fn furthest_above(kept: &[SleepingFiles], by_key: &BTreeMap<KeyId, u64>) -> Option<KeptIn> {
    let mut keys: Vec<(u64, KeyId)> = by_key.iter().map(|(key, bytes)| (*bytes, *key)).collect();
    keys.sort_unstable_by(|a, b| b.cmp(a));
    keys.into_iter().find_map(|(_, key)| least_recent(kept, |one| one.tenant == key))
}
