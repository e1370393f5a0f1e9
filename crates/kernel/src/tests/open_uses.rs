//! The open uses in a test, by instance, as an interpreter knows them, so that the end of an
//! instance finds them.

use std::collections::BTreeMap;

use model::{EndCause, InstanceId, Refusal, RequestId, UseId};

use crate::{Event, Reply, interrupted_use_refusal};

/// Uses that were asked for and those in progress.
#[derive(Default)]
pub(super) struct Users {
    asked: BTreeMap<RequestId, UseId>,
    using: Vec<(UseId, InstanceId)>,
}

impl Users {
    /// Something happens. Gives the request that may be answered by a grant.
    pub(super) fn hear(&mut self, event: &Event) -> Option<RequestId> {
        if let Event::UseEnded { use_id } = event {
            self.using.retain(|(using, _)| using != use_id);
        }
        let Event::UseRequested { request, use_id, .. } = event else { return None };
        self.asked.insert(*request, *use_id);
        Some(*request)
    }

    /// A request is answered.
    pub(super) fn answered(&mut self, request: RequestId, answer: &Result<Reply, Refusal>) {
        if let (Some(use_id), Ok(Reply::Granted(grant))) = (self.asked.get(&request), answer) {
            self.using.push((*use_id, grant.instance));
        }
    }

    /// An instance ended: its open uses, with their refusal.
    pub(super) fn broken(&mut self, over: InstanceId, cause: EndCause) -> Vec<(UseId, Refusal)> {
        let broken = self.using.extract_if(.., |(_, instance)| *instance == over);
        broken.map(|(use_id, _)| (use_id, interrupted_use_refusal(cause))).collect()
    }
}
