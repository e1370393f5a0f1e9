//! All records, in memory: the one place that knows what a [`JournalEntry`]
//! does to them. Stores use it, and tests compare stores with it. It validates nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::{SandboxId, SessionId, TemplateName, WorkspaceId};
use crate::record::{Journal, JournalEntry, PoolRecord, SandboxRecord, SessionRecord};
use crate::why::Ended;

/// The records as they are after every entry so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Records {
    /// Pools, by name of their template.
    pub pools: BTreeMap<TemplateName, PoolRecord>,
    /// Sandboxes.
    pub sandboxes: BTreeMap<SandboxId, SandboxRecord>,
    /// Sessions.
    pub sessions: BTreeMap<SessionId, SessionRecord>,
    /// Workspaces whose deletion is not confirmed.
    pub doomed: BTreeSet<WorkspaceId>,
    /// Sandboxes that ended lately, oldest first.
    pub ended: VecDeque<Ended>,
    ends_kept: usize,
}

impl Records {
    /// Nothing yet. Of sandboxes that ended, the last `ends_kept` are remembered.
    pub const fn new(ends_kept: usize) -> Self {
        Self {
            pools: BTreeMap::new(),
            sandboxes: BTreeMap::new(),
            sessions: BTreeMap::new(),
            doomed: BTreeSet::new(),
            ended: VecDeque::new(),
            ends_kept,
        }
    }

    /// Makes one change.
    pub fn write(&mut self, entry: JournalEntry) {
        match entry {
            JournalEntry::SandboxPut(record) => {
                self.sandboxes.insert(record.id, record);
            }
            JournalEntry::SandboxRemoved(id) => {
                self.sandboxes.remove(&id);
            }
            JournalEntry::SessionPut(record) => {
                self.sessions.insert(record.id, record);
            }
            JournalEntry::SessionRemoved(id) => {
                self.sessions.remove(&id);
            }
            JournalEntry::PoolPut(record) => {
                self.pools.insert(record.template.name.clone(), record);
            }
            JournalEntry::PoolRemoved(name) => {
                self.pools.remove(&name);
            }
            JournalEntry::WorkspaceDoomed(id) => {
                self.doomed.insert(id);
            }
            JournalEntry::WorkspaceDeleted(id) => {
                self.doomed.remove(&id);
            }
            JournalEntry::Ended(ended) => {
                self.ended.push_back(ended);
                if self.ended.len() > self.ends_kept {
                    self.ended.pop_front();
                }
            }
        }
    }

    /// Everything, as a kernel is rebuilt from it.
    pub fn journal(&self) -> Journal {
        Journal {
            pools: self.pools.values().cloned().collect(),
            sandboxes: self.sandboxes.values().cloned().collect(),
            sessions: self.sessions.values().cloned().collect(),
            doomed_workspaces: self.doomed.iter().copied().collect(),
            ended: self.ended.iter().cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Generation;
    use crate::reason::EndCause;
    use crate::state::PoolPhase;
    use crate::template::{Recycle, RuntimeTraits, Template};
    use crate::time::Wall;

    fn ended(n: u128) -> Ended {
        Ended {
            sandbox: SandboxId::from_u128(n),
            generation: Generation::FIRST,
            template: TemplateName::new("t").unwrap(),
            lease: None,
            lease_end: None,
            tenant: crate::KeyId::NIL,
            session: None,
            cause: EndCause::Returned,
            detail: None,
            eviction: None,
            created_at: Wall(0),
            ended_at: Wall(n as u64),
        }
    }

    fn pool(phase: PoolPhase) -> PoolRecord {
        let traits = RuntimeTraits {
            recycle: Recycle::Recreate,
            can_freeze: true,
            workspace_survives: true,
            disk: None,
        };
        let template = Template::named(TemplateName::new("t").unwrap());
        PoolRecord { template: template.into(), traits, phase }
    }

    #[test]
    fn records_have_the_last_change_of_each_thing() {
        let mut records = Records::new(10);
        let (name, workspace) = (TemplateName::new("t").unwrap(), WorkspaceId::from_u128(1));
        records.write(JournalEntry::PoolPut(pool(PoolPhase::Active)));
        records.write(JournalEntry::PoolPut(pool(PoolPhase::Draining)));
        records.write(JournalEntry::WorkspaceDoomed(workspace));
        assert_eq!(records.journal().pools, [pool(PoolPhase::Draining)]);
        assert_eq!(records.journal().doomed_workspaces, [workspace]);
        records.write(JournalEntry::PoolRemoved(name));
        records.write(JournalEntry::WorkspaceDeleted(workspace));
        assert_eq!(records.journal(), Journal::default());
    }

    #[test]
    fn tombstones_are_dropped_oldest_first() {
        for (kept, expected) in [(0, vec![]), (1, vec![ended(3)]), (2, vec![ended(2), ended(3)])] {
            let mut records = Records::new(kept);
            (1..=3).for_each(|n| records.write(JournalEntry::Ended(ended(n))));
            assert_eq!(records.journal().ended, expected, "{kept}");
        }
    }

    #[test]
    fn journal_entries_survive_a_round_trip_through_json() {
        for entry in [
            JournalEntry::PoolPut(pool(PoolPhase::Active)),
            JournalEntry::PoolRemoved(TemplateName::new("t").unwrap()),
            JournalEntry::WorkspaceDoomed(WorkspaceId::from_u128(1)),
            JournalEntry::Ended(ended(1)),
        ] {
            let text = serde_json::to_string(&entry).unwrap();
            assert_eq!(serde_json::from_str::<JournalEntry>(&text).unwrap(), entry, "{text}");
        }
    }
}
