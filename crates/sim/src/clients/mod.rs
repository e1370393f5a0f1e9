//! What clients and operators do. Each act is one event with random ids and options; an act without
//! a subject does nothing. Clients follow no rules: they use stale ids, return twice and go away in
//! the middle.

mod holds;
mod leases;
mod operators;
mod processes;
mod reads;
mod sessions;

use std::collections::BTreeMap;
use std::sync::Arc;

use kernel::Event;
use model::{ClaimSettings, KeyId, LeaseId, NetworkPolicy, RequestId, SessionId, TemplateName};

use crate::checks::Judged;
use crate::scenario::{Act, GREEDY_KEY, rule};
use crate::world::World;

impl World {
    /// A client does something.
    pub(crate) fn act(&mut self) -> Judged {
        let index = self.choices.weighted(&self.scenario.weights);
        match Act::ALL[index].0 {
            Act::Checkout => self.act_checkout(),
            Act::Return => self.act_return(),
            Act::Renew => self.act_renew(),
            Act::LeaseUse => self.act_lease_use(),
            Act::EndUse => self.act_end_use(),
            Act::StaleUse => self.act_stale_use(),
            Act::StartProcess => self.act_start_process(),
            Act::EndProcess => self.act_end_process(),
            Act::WriteScale => self.act_write_scale(),
            Act::StopKeepAlive => self.act_stop_keep_alive(),
            Act::Freeze => self.act_freeze(true),
            Act::Thaw => self.act_freeze(false),
            Act::Delete => self.act_delete(),
            Act::CreateSession => self.act_create_session(),
            Act::Turn => self.act_turn(),
            Act::SessionUse => self.act_session_use(),
            Act::Abort => self.act_abort(),
            Act::Pause => self.act_pause(),
            Act::Resume => self.act_resume(),
            Act::StopSession => self.act_stop_session(),
            Act::EndSession => self.act_end_session(),
            Act::Fork => self.act_fork(),
            Act::Vanish => self.act_vanish(),
            Act::Resize => self.act_resize(),
            Act::Drain => {
                let template = self.any_template();
                self.notify(Event::PoolDrained { template })
            }
            Act::ResumePool => {
                let template = self.any_template();
                self.notify(Event::PoolResumed { template })
            }
            Act::Destroy => self.act_destroy(),
            Act::PutTemplate => self.act_put_template(),
            Act::Read => self.act_read(),
            Act::PollProcesses => self.act_poll_processes(),
        }
    }

    fn request(&mut self) -> RequestId {
        RequestId::from_u128(self.ledger.fresh())
    }

    fn any_template(&mut self) -> TemplateName {
        let count = self.scenario.recipes.len() as u32;
        let index = self.choices.below(count) as usize;
        self.scenario.recipes[index].template.name.clone()
    }

    /// The place of a template in the scenario.
    pub(crate) fn recipe_index(&self, name: &TemplateName) -> usize {
        self.scenario.recipes.iter().position(|one| one.template.name == *name).unwrap_or(0)
    }

    fn held_lease(&mut self) -> Option<LeaseId> {
        self.choices.pick(&self.ledger.held)
    }

    fn some_session(&mut self) -> Option<SessionId> {
        self.choices.pick(&self.ledger.open_sessions)
    }

    /// One of a few keys, for the next request.
    fn some_tenant(&mut self) -> KeyId {
        let drawn = self.ledger.fresh() / 7;
        if self.scenario.greedy && !drawn.is_multiple_of(4) {
            return GREEDY_KEY;
        }
        KeyId::from_u128(1 + drawn % 3)
    }

    fn claim(&mut self) -> Option<Arc<ClaimSettings>> {
        match self.choices.below(4) {
            0 | 1 => None,
            2 => Some(Arc::new(ClaimSettings::default())),
            _ => {
                let drawn = self.ledger.fresh() as u64;
                let env = BTreeMap::from([("OWNER".to_owned(), format!("{drawn:x}"))]);
                let network = match drawn % 3 {
                    0 => None,
                    1 => Some(NetworkPolicy::None),
                    _ => Some(NetworkPolicy::Allow(vec![rule("b.test:443")])),
                };
                Some(Arc::new(ClaimSettings { env, network, ..ClaimSettings::default() }))
            }
        }
    }
}
