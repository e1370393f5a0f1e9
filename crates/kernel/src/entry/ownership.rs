//! The owner of a sandbox: its pool, a lease or a session, and through the owner a key. An unowned
//! sandbox must never name a key.

use model::{EndCause, KeyId, LeaseId};

use crate::session::SessionIx;

/// The owner of a sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ownership {
    owner: EntryOwner,
    /// The key of its owner; nil while it has no owner.
    tenant: KeyId,
    /// How its lease ended, while the sandbox is still recorded as that lease's.
    lease_end: Option<EndCause>,
}

/// Who may use a sandbox exclusively.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryOwner {
    Unowned,
    Lease(LeaseId),
    Session(SessionIx),
}

impl Ownership {
    pub(crate) fn new(owner: EntryOwner, tenant: KeyId) -> Self {
        let tenant = if owner == EntryOwner::Unowned { KeyId::NIL } else { tenant };
        Self { owner, tenant, lease_end: None }
    }

    /// As recorded in the journal before a restart.
    pub(crate) fn recorded(owner: EntryOwner, tenant: KeyId, lease_end: Option<EndCause>) -> Self {
        Self { lease_end, ..Self::new(owner, tenant) }
    }

    pub(crate) const fn assigned_to_lease(&mut self, lease: LeaseId, tenant: KeyId) {
        self.owner = EntryOwner::Lease(lease);
        self.tenant = tenant;
    }

    pub(crate) const fn assigned_to_session(&mut self, session: SessionIx, tenant: KeyId) {
        self.owner = EntryOwner::Session(session);
        self.tenant = tenant;
    }

    /// Its lease ended. Returns the first cause: what happens to the sandbox later does not change
    /// it.
    pub(crate) fn lease_ended(&mut self, cause: EndCause) -> EndCause {
        *self.lease_end.get_or_insert(cause)
    }

    /// It belongs to its pool and to no key.
    pub(crate) const fn returned_to_pool(&mut self) {
        *self = Self { owner: EntryOwner::Unowned, tenant: KeyId::NIL, lease_end: None };
    }

    /// It keeps the key of its last user. Only a kernel that is broken on purpose does that.
    pub(crate) const fn keep_tenant(&mut self, tenant: KeyId) {
        self.tenant = tenant;
    }

    pub(crate) const fn owner(&self) -> EntryOwner {
        self.owner
    }

    pub(crate) const fn session(&self) -> Option<SessionIx> {
        match self.owner {
            EntryOwner::Session(session) => Some(session),
            EntryOwner::Unowned | EntryOwner::Lease(_) => None,
        }
    }

    pub(crate) const fn tenant(&self) -> KeyId {
        self.tenant
    }

    pub(crate) const fn lease_end(&self) -> Option<EndCause> {
        self.lease_end
    }
}
