//! All waiting requests, by id, and the leases of checkouts that have no sandbox yet: no lease is
//! checked out twice.

use std::ops::{Index, IndexMut};

use model::{LeaseId, RequestId};

use crate::index::IdIndex;
use crate::request::{Request, RequestIx};
use crate::slab::Slab;

/// All requests that wait.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    slab: Slab<Request>,
    by_id: IdIndex<RequestIx>,
    /// Leases of checkouts that have no sandbox yet.
    leases: IdIndex<()>,
}

impl Requests {
    pub(crate) fn insert(&mut self, request: Request) -> RequestIx {
        let id = request.id;
        let index = self.slab.insert(request);
        self.by_id.insert(id.as_u128(), index);
        index
    }

    pub(crate) fn remove(&mut self, index: RequestIx) -> Request {
        let request = self.slab.remove(index);
        self.by_id.remove(request.id.as_u128());
        request
    }

    pub(crate) fn by_id(&self, id: RequestId) -> Option<RequestIx> {
        self.by_id.get(id.as_u128())
    }

    /// A checkout waits for a sandbox.
    pub(crate) fn lease_wanted(&mut self, lease: LeaseId) {
        self.leases.insert(lease.as_u128(), ());
    }

    /// A checkout has a sandbox, or no longer wants one.
    pub(crate) fn lease_unwanted(&mut self, lease: LeaseId) {
        self.leases.remove(lease.as_u128());
    }

    pub(crate) fn wants_lease(&self, lease: LeaseId) -> bool {
        self.leases.contains(lease.as_u128())
    }

    pub(crate) fn get(&self, index: RequestIx) -> Option<&Request> {
        self.slab.get(index)
    }

    /// All requests, in the order of their indexes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RequestIx, &Request)> {
        self.slab.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// How many ids lead to a request, for audits.
    pub(crate) fn ids(&self) -> usize {
        self.by_id.len()
    }
}

impl Index<RequestIx> for Requests {
    type Output = Request;

    fn index(&self, index: RequestIx) -> &Request {
        &self.slab[index]
    }
}

impl IndexMut<RequestIx> for Requests {
    fn index_mut(&mut self, index: RequestIx) -> &mut Request {
        &mut self.slab[index]
    }
}
