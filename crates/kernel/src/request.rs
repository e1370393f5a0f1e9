//! Requests that wait for their answer. Each is answered exactly once, wherever the answer comes
//! from.

use std::sync::Arc;

use model::{ClaimSettings, ErrorCode, KeyId, LeaseId, Mono, Refusal, RequestId, TurnId, UseId};

use crate::Kernel;
use crate::alarms::Ringer;
use crate::effect::Notice;
use crate::entry::EntryIx;
use crate::event::{CheckoutPolicy, UseKind};
use crate::pool::PoolIx;
use crate::reply::{CheckoutPath, Reply};
use crate::session::SessionIx;
use crate::slab::SlabIndex;

/// The index of a waiting request.
pub(crate) type RequestIx = SlabIndex<Request>;

/// How many requests may wait for one sandbox, or for one session.
pub(crate) const WAITING_MAX: usize = 1024;

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: RequestId,
    pub(crate) deadline: Mono,
    /// Until when it waits for a place, if it wants the sandbox of a session.
    pub(crate) place_by: Mono,
    pub(crate) what: WaitingFor,
    pub(crate) alarm: Mono,
}

/// What a request waits for.
#[derive(Debug)]
pub(crate) enum WaitingFor {
    /// A sandbox of a pool.
    Checkout(Box<Waiter>),
    /// A session's sandbox, to use it: any, or the present one by its id.
    SessionUse { session: SessionIx, use_id: UseId, kind: UseKind, by_id: bool },
    /// A session's sandbox, to bind it.
    Bind { session: SessionIx },
    /// The start of a turn.
    Turn { session: SessionIx, turn: TurnId },
    /// The end of an operation on a session.
    Control { session: SessionIx },
    /// The thaw of a leased sandbox, to use it.
    LeaseUse { entry: EntryIx, use_id: UseId, kind: UseKind },
    /// A freeze, or a thaw.
    Freeze { entry: EntryIx, frozen: bool },
    /// The removal of a sandbox.
    Delete { entry: EntryIx },
    /// Files that can be read.
    Read,
    /// The removal of a pool.
    Destroy { pool: PoolIx },
}

/// A checkout that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) pool: PoolIx,
    /// Its number in the order of arrival.
    pub(crate) seq: u64,
    pub(crate) terms: Terms,
    /// The memory of the sandbox that it wants.
    pub(crate) memory_mb: u64,
    pub(crate) policy: CheckoutPolicy,
    pub(crate) path: CheckoutPath,
    /// The sandbox that is being claimed for it.
    pub(crate) entry: Option<EntryIx>,
    /// How many claims have failed for it.
    pub(crate) failed_claims: u32,
}

/// The terms of a lease.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub(crate) lease: LeaseId,
    pub(crate) tenant: KeyId,
    pub(crate) ttl_ms: u64,
    /// The settings to bind, if there are any.
    pub(crate) claim: Option<Arc<ClaimSettings>>,
}

impl Kernel {
    /// Lets a request wait until its deadline, if it is not answered before.
    pub(crate) fn wait_until(
        &mut self,
        id: RequestId,
        deadline: Mono,
        what: WaitingFor,
    ) -> RequestIx {
        let req = self.wait(id, deadline, what);
        self.arm_request(req);
        req
    }

    /// Lets a request wait without an alarm, because something else bounds the wait.
    pub(crate) fn wait(&mut self, id: RequestId, deadline: Mono, what: WaitingFor) -> RequestIx {
        let place_by = Mono::NEVER;
        self.requests.insert(Request { id, deadline, place_by, what, alarm: Mono::NEVER })
    }

    /// Lets a request wait for the sandbox of a session: `wait_ms` for a place, and then as long as
    /// a launch may take.
    pub(crate) fn wait_for_session(
        &mut self,
        id: RequestId,
        wait_ms: Option<u64>,
        what: WaitingFor,
    ) -> RequestIx {
        let (place_by, deadline) = self.session_deadlines(wait_ms);
        let req = self.wait(id, deadline, what);
        self.requests[req].place_by = place_by;
        self.arm_request(req);
        req
    }

    /// Until when a request waits for a place, and for the sandbox of a session.
    pub(crate) fn session_deadlines(&self, wait_ms: Option<u64>) -> (Mono, Mono) {
        let place_by = self.now.mono.plus(wait_ms.unwrap_or(self.config.wait_ms));
        (place_by, place_by.plus(self.config.bind_timeout_ms))
    }

    /// Refuses a request where too many wait already.
    pub(crate) fn refuse_when_crowded(waiting: usize) -> Result<(), Refusal> {
        if waiting < WAITING_MAX {
            return Ok(());
        }
        let cause = format!("{WAITING_MAX} requests wait for this sandbox or session already");
        Err(Refusal::new(ErrorCode::QueueFull, cause).retry_after(1_000))
    }

    pub(crate) fn arm_request(&mut self, req: RequestIx) {
        let request = &mut self.requests[req];
        let waits = request.place_by > self.now.mono;
        let at = if waits { request.deadline.min(request.place_by) } else { request.deadline };
        self.alarms.at_latest(Ringer::Request(req), &mut request.alarm, at);
    }

    /// Takes a request out of waiting without an answer.
    pub(crate) fn forget_request(&mut self, req: RequestIx) -> Request {
        let mut request = self.requests.remove(req);
        self.alarms.clear(Ringer::Request(req), &mut request.alarm);
        request
    }

    pub(crate) fn answer(&mut self, req: RequestIx, result: Result<Reply, Refusal>) {
        let request = self.forget_request(req);
        self.out.notices.push(Notice::Answer { request: request.id, result });
    }

    /// The deadline of a request passed.
    pub(crate) fn request_overdue(&mut self, req: RequestIx) {
        let request = &mut self.requests[req];
        request.alarm = Mono::NEVER;
        let place_is_overdue = self.now.mono >= request.place_by && self.waits_in_vain(req);
        if self.now.mono < self.requests[req].deadline && !place_is_overdue {
            self.arm_request(req);
            return;
        }
        if self.flaws.ignores_deadlines() {
            return;
        }
        match &self.requests[req].what {
            WaitingFor::Checkout(waiter) if waiter.entry.is_some() => {
                // Its sandbox is being claimed, which has its own deadline.
            }
            WaitingFor::Checkout(_) => self.checkout_overdue(req),
            WaitingFor::SessionUse { session, .. }
            | WaitingFor::Bind { session }
            | WaitingFor::Turn { session, .. } => {
                let session = *session;
                let refusal = self.bind_overdue(session);
                self.withdraw_request(req, &refusal);
            }
            WaitingFor::Control { .. }
            | WaitingFor::LeaseUse { .. }
            | WaitingFor::Freeze { .. }
            | WaitingFor::Delete { .. }
            | WaitingFor::Read
            | WaitingFor::Destroy { .. } => {
                let cause = "the operation was not confirmed in time; it may still complete";
                self.withdraw_request(req, &Refusal::new(ErrorCode::DeadlineExceeded, cause));
            }
        }
    }

    /// Whether a request waits for the sandbox of a session that has no place, and none is coming.
    fn waits_in_vain(&self, req: RequestIx) -> bool {
        match &self.requests[req].what {
            WaitingFor::SessionUse { session, .. }
            | WaitingFor::Bind { session }
            | WaitingFor::Turn { session, .. } => self.lacks_place(*session),
            WaitingFor::Checkout(_)
            | WaitingFor::Control { .. }
            | WaitingFor::LeaseUse { .. }
            | WaitingFor::Freeze { .. }
            | WaitingFor::Delete { .. }
            | WaitingFor::Read
            | WaitingFor::Destroy { .. } => false,
        }
    }

    /// Refuses a request and removes all references to it.
    pub(crate) fn withdraw_request(&mut self, req: RequestIx, refusal: &Refusal) {
        let request = self.forget_request(req);
        self.out.notices.push(Notice::Answer { request: request.id, result: Err(refusal.clone()) });
        self.unlink_request(req, &request, refusal);
    }

    /// A client went away before it got its answer.
    pub(crate) fn client_gone(&mut self, id: RequestId) {
        if let Some(req) = self.requests.by_id(id) {
            if matches!(self.requests[req].what, WaitingFor::Checkout(_)) {
                self.checkout_abandoned(req);
            } else {
                let request = self.forget_request(req);
                let refusal = Refusal::new(ErrorCode::ClientGone, "the client went away");
                self.unlink_request(req, &request, &refusal);
            }
        } else if let Some(session) = self.sessions.by_client(id) {
            self.turn_client_lost(session, id);
        }
    }

    /// Removes all references to a request that no longer waits.
    fn unlink_request(&mut self, req: RequestIx, request: &Request, refusal: &Refusal) {
        match &request.what {
            WaitingFor::Checkout(_) => {}
            WaitingFor::SessionUse { session, .. } | WaitingFor::Bind { session } => {
                self.sessions[*session].wanting.retain(|waiting| *waiting != req);
                self.session_unwanted(*session);
            }
            WaitingFor::Turn { session, turn } => self.turn_client_gone(*session, *turn, refusal),
            WaitingFor::Control { session } => {
                if let Some(control) = &mut self.sessions[*session].control {
                    control.requests.retain(|waiting| *waiting != req);
                }
            }
            WaitingFor::LeaseUse { entry, .. }
            | WaitingFor::Freeze { entry, .. }
            | WaitingFor::Delete { entry } => {
                if let Some(rare) = &mut self.entries[*entry].rare {
                    rare.waiting.retain(|waiting| *waiting != req);
                }
                self.recompute_demand(*entry);
            }
            WaitingFor::Read => self.reader_gone(request.id),
            WaitingFor::Destroy { pool } => {
                self.pools[*pool].destroyers.retain(|waiting| *waiting != req);
            }
        }
    }
}
