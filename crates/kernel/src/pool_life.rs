//! The life of pools and templates: put, resize, drain, resume, destroy. A pool that is being
//! destroyed is fenced: nothing enters it, and it is removed with the last of its sandboxes.

use std::sync::Arc;

use model::record::JournalEntry;
use model::state::PoolPhase;
use model::template::RuntimeTraits;
use model::{EndCause, ErrorCode, Refusal, RequestId, Template, TemplateName};

use crate::Kernel;
use crate::alarms::Ringer;
use crate::entry::{AfterEnd, Firmness, Phase};
use crate::pool::{Pool, PoolIx};
use crate::reply::Reply;
use crate::request::WaitingFor;

impl Kernel {
    pub(crate) fn template_put(
        &mut self,
        template: Arc<Template>,
        traits: RuntimeTraits,
    ) -> Result<Reply, Refusal> {
        self.refuse_when_stopping()?;
        template
            .validate()
            .map_err(|invalid| Refusal::new(ErrorCode::TemplateInvalid, invalid.to_string()))?;
        if let Some(pool) = self.pools.named(&template.name) {
            let known = &self.pools[pool];
            if known.phase == PoolPhase::Destroying {
                let cause = "a pool of this name is still being destroyed";
                return Err(Refusal::new(ErrorCode::TemplateInUse, cause));
            }
            let same = RuntimeTraits { recycle: traits.recycle, ..known.traits } == traits;
            if *known.template != *template || !same {
                self.replace_template(pool, template, traits);
            } else {
                self.learn_recycling(pool, traits.recycle);
            }
        } else {
            let pool = self.pools.insert(Pool::new(template, traits, self.now.mono));
            self.mark_pool(pool);
            self.pool_due(pool);
        }
        Ok(Reply::Noted)
    }

    /// Idle sandboxes of the old template end now; leased ones when they are returned.
    fn replace_template(&mut self, pool: PoolIx, template: Arc<Template>, traits: RuntimeTraits) {
        let known = &mut self.pools[pool];
        known.template = template;
        known.traits = traits;
        self.mark_pool(pool);
        while let Some(entry) = self.pools[pool].idle.first() {
            self.end(entry, EndCause::TemplateReplaced, AfterEnd::Gone, Firmness::Now);
        }
        self.pool_due(pool);
    }

    pub(crate) fn pool_resized(
        &mut self,
        template: &TemplateName,
        pool_size: u32,
        max_overflow: u32,
    ) -> Result<Reply, Refusal> {
        self.refuse_when_stopping()?;
        let pool = self.pool_named(template)?;
        self.refuse_when_closed(pool)?;
        let mut changed = Template::clone(&self.pools[pool].template);
        changed.pool.pool_size = pool_size;
        changed.pool.max_overflow = max_overflow;
        changed
            .validate()
            .map_err(|invalid| Refusal::new(ErrorCode::InvalidArgument, invalid.to_string()))?;
        // The change does not affect sandboxes: existing ones belong to the new template too.
        let old = Arc::clone(&self.pools[pool].template);
        let new = Arc::new(changed);
        self.pools[pool].template = Arc::clone(&new);
        for entry in self.entries.indices() {
            let sandbox = &mut self.entries[entry];
            if Arc::ptr_eq(&sandbox.template, &old) {
                sandbox.template = Arc::clone(&new);
            }
        }
        self.mark_pool(pool);
        self.pool_due(pool);
        Ok(Reply::Noted)
    }

    pub(crate) fn pool_drained(&mut self, template: &TemplateName) -> Result<Reply, Refusal> {
        self.change_phase(template, PoolPhase::Draining)
    }

    pub(crate) fn pool_resumed(&mut self, template: &TemplateName) -> Result<Reply, Refusal> {
        self.refuse_when_stopping()?;
        self.change_phase(template, PoolPhase::Active)
    }

    fn change_phase(
        &mut self,
        template: &TemplateName,
        phase: PoolPhase,
    ) -> Result<Reply, Refusal> {
        let pool = self.pool_named(template)?;
        if self.pools[pool].phase == PoolPhase::Destroying {
            let cause = "the pool is being destroyed";
            return Err(Refusal::new(ErrorCode::TemplateUnknown, cause));
        }
        self.pools[pool].phase = phase;
        self.mark_pool(pool);
        self.pool_due(pool);
        Ok(Reply::Noted)
    }

    pub(crate) fn pool_destroyed(
        &mut self,
        request: RequestId,
        template: &TemplateName,
        force: bool,
    ) -> Result<Reply, Refusal> {
        let pool = self.pool_named(template)?;
        let in_use = self.sessions.iter().any(|(_, session)| session.needs_template(template));
        if in_use && !force {
            let cause = "sessions of this template would be left without it";
            return Err(Refusal::new(ErrorCode::TemplateInUse, cause));
        }
        Self::refuse_when_crowded(self.pools[pool].destroyers.len())?;
        let deadline = self.now.mono.plus(self.config.control_timeout_ms);
        let req = self.wait_until(request, deadline, WaitingFor::Destroy { pool });
        let known = &mut self.pools[pool];
        known.phase = PoolPhase::Destroying;
        known.destroyers.push(req);
        self.mark_pool(pool);
        self.pool_due(pool);
        for entry in self.entries.indices() {
            let Some(sandbox) = self.entries.get(entry) else { continue };
            if sandbox.slot != Some(pool) {
                continue;
            }
            let ends = match sandbox.phase() {
                Phase::Launching | Phase::Wiping | Phase::Proving => true,
                Phase::Claiming(_) | Phase::InUse => force,
                // Idle ones end with the pool's list; the others have ended or are ending.
                Phase::Idle | Phase::Cold | Phase::Killing => false,
            };
            if ends {
                self.end(entry, EndCause::PoolClosed, AfterEnd::Gone, Firmness::Now);
            }
        }
        Ok(Reply::Pending)
    }

    /// Removes a pool when none of its sandboxes is left.
    pub(crate) fn finish_destroying(&mut self, pool: PoolIx) {
        let known = &self.pools[pool];
        if known.phase != PoolPhase::Destroying || known.occupied.slots() > 0 {
            return;
        }
        let mut known = self.pools.remove(pool);
        self.alarms.clear(Ringer::Pool(pool), &mut known.alarm);
        self.due.forget_starved(pool);
        self.out.journal.push(JournalEntry::PoolRemoved(known.template.name.clone()));
        for req in known.destroyers {
            self.answer(req, Ok(Reply::Gone));
        }
    }
}
