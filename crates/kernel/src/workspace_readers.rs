//! The readers of a session's files, and those that wait until the files can be read: forks, and
//! the server itself for a backup. The server asks first. As for a fork, the answer comes when the
//! sandbox of the session is ready, and the kernel keeps the sandbox ready until the server is
//! done. It must never keep a sandbox for a reader that is gone.

use std::collections::{BTreeMap, BTreeSet};

use model::{Refusal, RequestId, WorkspaceId};

use crate::Kernel;
use crate::entry::{Entry, EntryIx, Phase, Reach};
use crate::reply::Reply;
use crate::request::{RequestIx, WaitingFor};

/// The readers of files, and those that wait.
#[derive(Debug, Default)]
pub(crate) struct WorkspaceReaders {
    /// Reads of the server, by request.
    all: BTreeMap<RequestId, ServerRead>,
    /// The sandboxes of forks that wait for the files of a workspace, by workspace.
    copies: BTreeMap<WorkspaceId, BTreeSet<EntryIx>>,
}

#[derive(Debug, Clone, Copy)]
struct ServerRead {
    entry: EntryIx,
    /// The request that is not answered yet.
    waits: Option<RequestIx>,
}

impl WorkspaceReaders {
    /// The server's requests that wait for a sandbox to be ready.
    fn waiting(&self, entry: EntryIx) -> Vec<(RequestId, RequestIx)> {
        let waiting = |(id, read): (&RequestId, &ServerRead)| {
            read.waits.filter(|_| read.entry == entry).map(|req| (*id, req))
        };
        self.all.iter().filter_map(waiting).collect()
    }

    /// Whether a fork or the server waits for a sandbox that has this workspace.
    pub(crate) fn has_waiting(&self, entry: EntryIx, workspace: WorkspaceId) -> bool {
        self.copies.contains_key(&workspace)
            || self.all.values().any(|read| read.entry == entry && read.waits.is_some())
    }

    /// How often the server reads the files of a sandbox, or waits to.
    pub(crate) fn of(&self, entry: EntryIx) -> usize {
        self.all.values().filter(|read| read.entry == entry).count()
    }

    /// The sandboxes of forks that wait for the files of a workspace.
    pub(crate) fn waiting_copies(&self, workspace: WorkspaceId) -> Vec<EntryIx> {
        self.copies.get(&workspace).into_iter().flatten().copied().collect()
    }

    pub(crate) fn copy_waits(&mut self, workspace: WorkspaceId, copy: EntryIx) {
        self.copies.entry(workspace).or_default().insert(copy);
    }

    /// A fork stops waiting, if it did.
    pub(crate) fn copy_stops_waiting(&mut self, workspace: WorkspaceId, copy: EntryIx) {
        if let Some(copies) = self.copies.get_mut(&workspace) {
            copies.remove(&copy);
            if copies.is_empty() {
                self.copies.remove(&workspace);
            }
        }
    }

    /// The forks that wait, for audits.
    pub(crate) fn all_waiting_copies(&self) -> BTreeSet<EntryIx> {
        self.copies.values().flatten().copied().collect()
    }
}

impl Kernel {
    pub(crate) fn read_requested(&mut self, request: RequestId, workspace: WorkspaceId) -> Reply {
        let has_files = |sandbox: &Entry| {
            let in_use = sandbox.phase() == Phase::InUse && sandbox.session().is_some();
            in_use && sandbox.workspace == workspace
        };
        let found = self.entries.iter().find(|(_, sandbox)| has_files(sandbox));
        let Some((entry, _)) = found else {
            // No live sandbox has them: the saved files are all there is.
            return Reply::Readable { instance: None, guest_awake: false };
        };
        let deadline = self.now.mono.plus(self.config.control_timeout_ms);
        let req = self.wait_until(request, deadline, WaitingFor::Read);
        self.readers.all.insert(request, ServerRead { entry, waits: Some(req) });
        self.hold_for_copy(entry);
        self.source_changed(entry);
        Reply::Pending
    }

    /// How the files of a sandbox can be read now.
    fn readable(&self, entry: EntryIx) -> Reply {
        let sandbox = &self.entries[entry];
        let instance = (sandbox.phase() == Phase::InUse).then_some(sandbox.instance);
        let inside = sandbox.reach() >= Reach::GuestReads;
        let guest_awake = instance.is_some() && inside && self.can_read(entry, Reach::GuestReads);
        Reply::Readable { instance, guest_awake }
    }

    /// A sandbox is ready: answers the readers that waited for it.
    pub(crate) fn answer_readers(&mut self, entry: EntryIx) {
        for (id, req) in self.readers.waiting(entry) {
            if let Some(read) = self.readers.all.get_mut(&id) {
                read.waits = None;
            }
            let answer = self.readable(entry);
            self.answer(req, Ok(answer));
        }
    }

    /// A reader went away before it was answered.
    pub(crate) fn reader_gone(&mut self, request: RequestId) {
        if let Some(read) = self.readers.all.remove(&request) {
            self.release_copy_hold(read.entry);
        }
    }

    /// A reader is done, or found that only the guest reaches the files.
    pub(crate) fn read_ended(&mut self, request: RequestId, needs_guest: bool) {
        let Some(read) = self.readers.all.remove(&request) else { return };
        if let Some(req) = read.waits {
            self.forget_request(req);
        }
        if needs_guest {
            self.entries[read.entry].file_access.learn(Reach::GuestReads);
        }
        self.release_copy_hold(read.entry);
    }

    /// A sandbox is removed: refuses the readers that waited for it.
    pub(crate) fn readers_lost(&mut self, entry: EntryIx, refusal: &Refusal) {
        for (_, req) in self.readers.waiting(entry) {
            self.answer(req, Err(refusal.clone()));
        }
        self.readers.all.retain(|_, read| read.entry != entry);
    }
}
