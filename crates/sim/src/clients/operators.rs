//! Clients that go away in the middle, and operators that change pools while clients use them.

use std::sync::Arc;

use kernel::Event;
use model::record::OnDisconnect;
use model::{RequestId, SessionId, Template, TurnId};

use crate::checks::{Judged, Promise, holds};
use crate::ledger::{Ask, LeasePhase};
use crate::scenario::Recipe;
use crate::world::World;

impl World {
    pub(super) fn act_vanish(&mut self) -> Judged {
        match self.choices.below(5) {
            4 => self.vanish_from_queue(),
            // A lease is forgotten, and left to expire.
            3 => {
                if let Some(lease) = self.held_lease() {
                    self.ledger.held.retain(|held| *held != lease);
                }
                Ok(())
            }
            2 => {
                let index = self.choices.below(self.ledger.turns.len() as u32) as usize;
                let Some((session, request)) = self.ledger.turns.values().nth(index).copied()
                else {
                    return Ok(());
                };
                // The harness has not taken it yet, and the client still waits for that.
                if self.ledger.pending.contains_key(&request) {
                    return self.vanish(request);
                }
                if let Some(one) = self.ledger.sessions.get_mut(&session)
                    && one.on_disconnect == OnDisconnect::Abort
                {
                    one.abort_asked = true;
                }
                self.notify(Event::ClientGone { request })
            }
            _ => {
                let index = self.choices.below(self.ledger.pending.len() as u32) as usize;
                let Some(request) = self.ledger.pending.keys().nth(index).copied() else {
                    return Ok(());
                };
                self.vanish(request)
            }
        }
    }

    /// A client whose turn waits for others goes away.
    fn vanish_from_queue(&mut self) -> Judged {
        let waits = |turn: &TurnId, session: &SessionId| {
            let record = self.store.sessions.get(session);
            record.is_some_and(|record| record.queued.contains(turn))
        };
        let asked = self.ledger.asked_turns.iter();
        let queued: Vec<_> = asked.filter(|(turn, (of, _))| waits(turn, of)).collect();
        let index = self.choices.below(queued.len() as u32) as usize;
        let Some((&turn, &(session, request))) = queued.get(index).copied() else {
            return Ok(());
        };
        // It is recorded behind a turn whose end is not published yet, and its client still waits.
        if self.ledger.pending.contains_key(&request) {
            return self.vanish(request);
        }
        self.coverage.count("faults", "queued_client_gone");
        let ends = self.ledger.sessions.get(&session).map(|one| one.on_disconnect)
            == Some(OnDisconnect::Abort);
        self.notify(Event::ClientGone { request })?;
        let has_ended = !self.ledger.asked_turns.contains_key(&turn);
        holds(Promise::TurnsEndOnce, has_ended || !ends, || {
            format!("{turn:?} waits on, though its client went away")
        })
    }

    pub(super) fn vanish(&mut self, request: RequestId) -> Judged {
        self.coverage.count("faults", "client_gone");
        if let Some(pending) = self.ledger.close(request) {
            match pending.ask {
                Ask::Checkout { lease, .. } => {
                    self.ledger.drop_lease(lease, LeasePhase::Returned);
                }
                Ask::Turn { session, .. } => {
                    if let Some(one) = self.ledger.sessions.get_mut(&session)
                        && one.on_disconnect == OnDisconnect::Abort
                    {
                        one.abort_asked = true;
                    }
                }
                Ask::Use { .. }
                | Ask::Freeze { .. }
                | Ask::Thaw { .. }
                | Ask::Delete { .. }
                | Ask::Create { .. }
                | Ask::Abort { .. }
                | Ask::Pause { .. }
                | Ask::Resume { .. }
                | Ask::Stop { .. }
                | Ask::End { .. }
                | Ask::Fork { .. }
                | Ask::Read { .. }
                | Ask::Destroy { .. } => {}
            }
            self.watch.gone.insert(request);
        }
        self.notify(Event::ClientGone { request })
    }

    pub(super) fn act_resize(&mut self) -> Judged {
        let template = self.any_template();
        let pool_size = self.choices.below(4);
        let max_overflow = u32::from(pool_size == 0) + self.choices.below(5);
        self.notify(Event::PoolResized { template, pool_size, max_overflow })
    }

    pub(super) fn act_destroy(&mut self) -> Judged {
        let template = self.any_template();
        let force = self.choices.below(2) == 1;
        let request = self.request();
        if force {
            self.watch.forced.insert(template.clone());
        }
        let patience_ms = self.scenario.config.control_timeout_ms;
        let ask = Ask::Destroy { template: template.clone() };
        self.ask(request, patience_ms, ask, Event::PoolDestroyed { request, template, force })
    }

    pub(super) fn act_put_template(&mut self) -> Judged {
        let index = self.choices.below(self.scenario.recipes.len() as u32);
        let old = &self.scenario.recipes[index as usize];
        let (traits, memory_mb) = (old.traits, old.template.limits.memory_mb);
        let drawn =
            Recipe::draw(&mut self.choices, index, &[memory_mb], self.scenario.config.max_live);
        let template: Arc<Template> = drawn.template;
        let event = Event::TemplatePut { template: Arc::clone(&template), traits };
        if let Some(Ok(_)) = self.submit(event, None)? {
            self.scenario.recipes[index as usize] = Recipe { template, traits };
        }
        Ok(())
    }
}
