//! The server reads the files of sessions for a backup: it asks, gets an answer when they can be
//! read, and reports when it is done. It may read from a sandbox that dies, or give up before the
//! answer.

use kernel::Event;
use model::{InstanceId, RequestId, WorkspaceId};

use crate::checks::{self, Judged};
use crate::interpreter::Item;
use crate::ledger::{Ask, Read};
use crate::world::World;

impl World {
    pub(super) fn act_read(&mut self) -> Judged {
        let index = self.choices.below(self.store.sandboxes.len() as u32) as usize;
        let record = self.store.sandboxes.values().nth(index);
        let Some(workspace) = record.map(|record| record.workspace) else { return Ok(()) };
        let request = self.request();
        let patience_ms = self.scenario.config.control_timeout_ms;
        let event = Event::ReadRequested { request, workspace };
        self.ask(request, patience_ms, Ask::Read { workspace }, event)
    }

    /// The files can be read, by the host or by a guest that runs.
    pub(crate) fn read(
        &mut self,
        request: RequestId,
        workspace: WorkspaceId,
        instance: Option<InstanceId>,
        guest_awake: bool,
    ) -> Judged {
        let instance = instance.filter(|id| self.runtime.up(*id).is_some());
        if let Some(id) = instance.filter(|_| guest_awake) {
            checks::quiesce::asked(self, id)?;
        }
        let inside = instance.and_then(|id| self.runtime.up(id)).filter(|one| one.is_read_inside());
        let needs_guest = inside.is_some() && !guest_awake;
        if let Some(one) = inside.filter(|_| guest_awake) {
            one.readings += 1;
        }
        let way = if guest_awake { "by_guest" } else { "by_host" };
        self.coverage.count("reads", if needs_guest { "needs_guest" } else { way });
        let by_guest = instance.filter(|_| guest_awake);
        self.ledger.reads.insert(request, Read { workspace, by_guest, needs_guest });
        let lasts_ms = if needs_guest || self.calm { 1 } else { self.choices.between(1, 3_000) };
        self.plan(lasts_ms, Item::ReadEnds(request));
        Ok(())
    }

    /// Files were read, or could not be.
    pub(crate) fn end_read(&mut self, request: RequestId) -> Judged {
        let Some(read) = self.ledger.reads.remove(&request) else { return Ok(()) };
        if let Some(one) = read.by_guest.and_then(|id| self.runtime.instances.get_mut(&id)) {
            one.readings = one.readings.saturating_sub(1);
        }
        self.notify(Event::ReadEnded { request, needs_guest: read.needs_guest })
    }
}
