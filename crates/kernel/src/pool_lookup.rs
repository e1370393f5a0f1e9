//! Which pool serves a template, and whether it accepts callers. A template that this node was not
//! started for may be known, and is never served.

use model::state::PoolPhase;
use model::{ErrorCode, Refusal, TemplateName};

use crate::Kernel;
use crate::pool::PoolIx;

impl Kernel {
    pub(crate) fn pool_named(&self, template: &TemplateName) -> Result<PoolIx, Refusal> {
        self.pools.named(template).ok_or_else(|| {
            Refusal::new(
                ErrorCode::TemplateUnknown,
                format!("this server has no template \"{template}\""),
            )
        })
    }

    /// The same, for a caller that wants a sandbox of it.
    pub(crate) fn served_pool(&self, template: &TemplateName) -> Result<PoolIx, Refusal> {
        let pool = self.pool_named(template)?;
        if self.is_served(template) {
            return Ok(pool);
        }
        let cause = format!(
            "the template \"{template}\" is not among those this server was started for \
             (node.templates, --templates)"
        );
        Err(Refusal::new(ErrorCode::TemplateUnknown, cause))
    }

    /// Whether this node was started for a template.
    pub(crate) fn is_served(&self, template: &TemplateName) -> bool {
        self.config.templates.is_empty() || self.config.templates.contains(template)
    }

    pub(crate) fn refuse_when_closed(&self, pool: PoolIx) -> Result<(), Refusal> {
        match self.pools[pool].phase {
            PoolPhase::Active => Ok(()),
            PoolPhase::Draining => {
                Err(Refusal::new(ErrorCode::PoolClosed, "the pool is being drained"))
            }
            PoolPhase::Destroying => {
                Err(Refusal::new(ErrorCode::TemplateUnknown, "the pool is being destroyed"))
            }
        }
    }
}
