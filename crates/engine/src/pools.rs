//! Pools: their numbers, and how they are resized, drained and removed.

use kernel::{Event, Kernel};
use model::stats::PoolStats;
use model::{ErrorCode, Refusal, TemplateName};

use crate::boxed;
use crate::{Engine, image_pins};

impl Engine {
    /// All pools, by the names of their templates.
    pub fn pools(&self) -> Vec<PoolStats> {
        self.core.read(Kernel::pools)
    }

    /// One pool.
    pub fn pool(&self, template: &TemplateName) -> Option<PoolStats> {
        self.core.read(|kernel| kernel.pool_stats(template))
    }

    /// Changes the size or maximum of a pool; what is not given stays.
    #[boxed]
    pub async fn resize_pool(
        &self,
        template: &TemplateName,
        pool_size: Option<u32>,
        max_overflow: Option<u32>,
    ) -> Result<PoolStats, Refusal> {
        let current = self.known_pool(template)?;
        let event = Event::PoolResized {
            template: template.clone(),
            pool_size: pool_size.unwrap_or(current.pool_size),
            max_overflow: max_overflow.unwrap_or(current.max_overflow),
        };
        self.core.ask(self.core.request(), event).await?;
        self.known_pool(template)
    }

    /// Drains a pool: it hands out nothing and keeps nothing idle.
    #[boxed]
    pub async fn drain_pool(&self, template: &TemplateName) -> Result<PoolStats, Refusal> {
        let event = Event::PoolDrained { template: template.clone() };
        self.core.ask(self.core.request(), event).await?;
        self.known_pool(template)
    }

    /// Lets a drained pool hand out sandboxes again.
    #[boxed]
    pub async fn resume_pool(&self, template: &TemplateName) -> Result<PoolStats, Refusal> {
        let event = Event::PoolResumed { template: template.clone() };
        self.core.ask(self.core.request(), event).await?;
        self.known_pool(template)
    }

    /// Removes a pool and its template; done when nothing of it is left. With `force` also
    /// sandboxes that are in use or being launched.
    #[boxed]
    pub async fn destroy_pool(&self, template: &TemplateName, force: bool) -> Result<(), Refusal> {
        let request = self.core.request();
        let event = Event::PoolDestroyed { request, template: template.clone(), force };
        self.core.ask(request, event).await?;
        image_pins::pin_now(&self.core).await;
        Ok(())
    }

    fn known_pool(&self, template: &TemplateName) -> Result<PoolStats, Refusal> {
        self.pool(template).ok_or_else(|| {
            let cause = format!("this server has no template \"{template}\"");
            Refusal::new(ErrorCode::TemplateUnknown, cause)
        })
    }
}
