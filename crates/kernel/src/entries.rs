//! All sandboxes, and the indexes to find one: by id, by instance, by lease, by use. An id always
//! leads to the sandbox that has it now.

use std::ops::{Index, IndexMut};

use model::{InstanceId, LeaseId, SandboxId, UseId};

use crate::entry::{Entry, EntryIx};
use crate::index::IdIndex;
use crate::slab::Slab;

/// All sandboxes.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    slab: Slab<Entry>,
    by_id: IdIndex<EntryIx>,
    by_instance: IdIndex<EntryIx>,
    by_lease: IdIndex<EntryIx>,
    by_use: IdIndex<EntryIx>,
}

impl Entries {
    pub(crate) fn insert(&mut self, sandbox: Entry) -> EntryIx {
        let (id, instance) = (sandbox.id, sandbox.instance);
        let entry = self.slab.insert(sandbox);
        self.by_id.insert(id.as_u128(), entry);
        if instance != InstanceId::NIL {
            self.by_instance.insert(instance.as_u128(), entry);
        }
        entry
    }

    pub(crate) fn remove(&mut self, entry: EntryIx) -> Entry {
        let sandbox = self.slab.remove(entry);
        self.by_id.remove(sandbox.id.as_u128());
        sandbox
    }

    /// Gives a sandbox another id. Returns the old one.
    pub(crate) fn rename(&mut self, entry: EntryIx, id: SandboxId) -> SandboxId {
        let old = std::mem::replace(&mut self.slab[entry].id, id);
        self.by_id.remove(old.as_u128());
        self.by_id.insert(id.as_u128(), entry);
        old
    }

    /// An instance is being launched for a sandbox.
    pub(crate) fn launched(&mut self, entry: EntryIx, instance: InstanceId) {
        self.slab[entry].instance = instance;
        self.by_instance.insert(instance.as_u128(), entry);
    }

    /// The instance of a sandbox is removed.
    pub(crate) fn instance_gone(&mut self, entry: EntryIx) {
        let instance = std::mem::replace(&mut self.slab[entry].instance, InstanceId::NIL);
        self.by_instance.remove(instance.as_u128());
    }

    pub(crate) fn lease_began(&mut self, lease: LeaseId, entry: EntryIx) {
        self.by_lease.insert(lease.as_u128(), entry);
    }

    pub(crate) fn lease_ended(&mut self, lease: LeaseId) {
        self.by_lease.remove(lease.as_u128());
    }

    pub(crate) fn use_began(&mut self, use_id: UseId, entry: EntryIx) {
        self.by_use.insert(use_id.as_u128(), entry);
    }

    /// Returns the sandbox of the use, if the use was in progress.
    pub(crate) fn use_ended(&mut self, use_id: UseId) -> Option<EntryIx> {
        self.by_use.remove(use_id.as_u128())
    }

    pub(crate) fn has_use(&self, use_id: UseId) -> bool {
        self.by_use.contains(use_id.as_u128())
    }

    pub(crate) fn by_id(&self, id: SandboxId) -> Option<EntryIx> {
        self.by_id.get(id.as_u128())
    }

    pub(crate) fn by_instance(&self, instance: InstanceId) -> Option<EntryIx> {
        self.by_instance.get(instance.as_u128())
    }

    pub(crate) fn by_lease(&self, lease: LeaseId) -> Option<EntryIx> {
        self.by_lease.get(lease.as_u128())
    }

    pub(crate) fn get(&self, entry: EntryIx) -> Option<&Entry> {
        self.slab.get(entry)
    }

    pub(crate) fn get_mut(&mut self, entry: EntryIx) -> Option<&mut Entry> {
        self.slab.get_mut(entry)
    }

    /// All sandboxes, in the order of their indexes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (EntryIx, &Entry)> {
        self.slab.iter()
    }

    /// All indexes in use, so that sandboxes may change or be removed during the loop.
    pub(crate) fn indices(&self) -> Vec<EntryIx> {
        self.slab.indices()
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// How many there are, as a number that limits use.
    pub(crate) fn count(&self) -> u32 {
        self.slab.len() as u32
    }

    /// How many ids lead to a sandbox, for audits.
    pub(crate) fn ids(&self) -> usize {
        self.by_id.len()
    }
}

impl Index<EntryIx> for Entries {
    type Output = Entry;

    #[inline]
    fn index(&self, entry: EntryIx) -> &Entry {
        &self.slab[entry]
    }
}

impl IndexMut<EntryIx> for Entries {
    #[inline]
    fn index_mut(&mut self, entry: EntryIx) -> &mut Entry {
        &mut self.slab[entry]
    }
}
