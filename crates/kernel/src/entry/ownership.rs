//! Whose a sandbox is: its pool's, a lease's or a session's, and by that which key's. It must never
//! name a key for a sandbox that belongs to none.

use model::{EndCause, KeyId, LeaseId};

use crate::session::SessionIx;

/// Whose a sandbox is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ownership {
    owner: EntryOwner,
    /// The key that its owner belongs to; nil while it has none.
    tenant: KeyId,
    /// How its lease ended, while it is still known as that lease's.
    lease_end: Option<EndCause>,
}

/// Who has the exclusive use of a sandbox.
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

    /// What was written down before a restart.
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

    /// Its lease is over. What happens to the sandbox afterwards changes nothing of how it ended.
    pub(crate) fn lease_ended(&mut self, cause: EndCause) -> EndCause {
        *self.lease_end.get_or_insert(cause)
    }

    /// It is its pool's alone, and no key's.
    pub(crate) const fn returned_to_pool(&mut self) {
        *self = Self { owner: EntryOwner::Unowned, tenant: KeyId::NIL, lease_end: None };
    }

    /// It stays its last user's, by key: only a kernel that is broken on purpose does that.
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
