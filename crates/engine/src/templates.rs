//! Templates: taken only if what they ask for exists on this node.

use std::sync::Arc;

use kernel::{Event, Kernel};
use model::template::Harness;
use model::{ErrorCode, NetworkPolicy, Refusal, Template, TemplateName};

use crate::Engine;

/// The most templates.
const TEMPLATES_MAX: usize = 1_000;

/// What became of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It is new.
    Created,
    /// It took the place of another.
    Replaced,
}

impl Engine {
    /// All templates, by name.
    pub fn templates(&self) -> Vec<Arc<Template>> {
        self.core.read(Kernel::templates)
    }

    /// One template.
    pub fn template(&self, name: &TemplateName) -> Option<Arc<Template>> {
        self.core.read(|kernel| kernel.template(name))
    }

    /// Makes a template, or replaces the one of the same name.
    pub async fn put_template(&self, template: Template) -> Result<Put, Refusal> {
        template
            .validate()
            .map_err(|invalid| Refusal::new(ErrorCode::TemplateInvalid, invalid.to_string()))?;
        refuse_unserved(&template)?;
        self.core.roots.check(&template.root).await?;
        let runtime = self.core.runtimes.of(&template.runtime)?;
        if let Some(cause) = runtime.capabilities().refuses(&template.limits) {
            return Err(Refusal::new(ErrorCode::Unsupported, cause));
        }
        let traits = runtime.traits();
        let known = self.template(&template.name).is_some();
        if !known && self.templates().len() >= TEMPLATES_MAX {
            let cause = format!("there are {TEMPLATES_MAX} templates already");
            return Err(Refusal::new(ErrorCode::LimitReached, cause));
        }
        let event = Event::TemplatePut { template: Arc::new(template), traits };
        self.core.ask(self.core.request(), event).await?;
        Ok(if known { Put::Replaced } else { Put::Created })
    }
}

/// What would be ignored is refused.
fn refuse_unserved(template: &Template) -> Result<(), Refusal> {
    let unserved = |cause: &'static str| Err(Refusal::new(ErrorCode::Unsupported, cause));
    match template.harness {
        Harness::Shell => {}
        Harness::Jsonl(_) | Harness::AshBridge(_) => {
            return unserved("harness: only the shell is served here");
        }
    }
    match template.network {
        NetworkPolicy::None => Ok(()),
        NetworkPolicy::Allow(_) => unserved("network: sandboxes have loopback only"),
    }
}
