//! Templates: accepted only if this node has what they ask for.

use std::path::PathBuf;
use std::sync::Arc;

use kernel::{Event, Kernel};
use model::template::{RootFs, RuntimeTraits, WorkspaceKind, WorkspaceLimit};
use model::{ErrorCode, Placed, Refusal, Template, TemplateName};
use runtime::{NetworkAbility, Runtime};

use crate::boxed;
use crate::mounts::Mounts;
use crate::network::finished;
use crate::roots::check_directory;
use crate::{Engine, image_pins};

/// The most templates.
const TEMPLATES_MAX: usize = 1_000;

/// What happened to a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It is new.
    Created,
    /// It replaced one of the same name.
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

    /// The same, or a refusal.
    pub fn known_template(&self, name: &TemplateName) -> Result<Arc<Template>, Refusal> {
        self.template(name).ok_or_else(|| {
            Refusal::new(
                ErrorCode::TemplateUnknown,
                format!("this server has no template \"{name}\""),
            )
        })
    }

    /// Makes a template, or replaces the one of the same name.
    #[boxed]
    pub async fn put_template(&self, template: Template) -> Result<Put, Refusal> {
        let name = template.name.clone();
        let put = self.put_unlogged(template).await?;
        if let Some(template) = self.template(&name) {
            log_placement(&template, &self.placed(&template)?);
        }
        Ok(put)
    }

    /// Where the files of a template's workspaces are on this node, and how their size is limited.
    pub fn placed(&self, template: &Template) -> Result<Placed, Refusal> {
        self.core.disk.placed(template)
    }

    /// The same without the log line.
    pub(crate) async fn put_unlogged(&self, template: Template) -> Result<Put, Refusal> {
        template
            .validate()
            .map_err(|invalid| Refusal::new(ErrorCode::TemplateInvalid, invalid.to_string()))?;
        self.refuse_unserved(&template)?;
        let _alone = self.core.image_pins.changes.lock().await;
        let runtime = self.core.runtimes.of(template.runtime)?;
        if let Some(cause) = refused_by(&**runtime, &template) {
            return Err(Refusal::new(ErrorCode::Unsupported, cause));
        }
        self.core.mounts.check(&template).await?;
        let _held = self.core.roots.check(template.runtime, &template.root).await?;
        let (traits, _) = self.traits_for(runtime.traits(), &template)?;
        let known = self.template(&template.name).is_some();
        if !known && self.templates().len() >= TEMPLATES_MAX {
            let cause = format!("there are {TEMPLATES_MAX} templates already");
            return Err(Refusal::new(ErrorCode::LimitReached, cause));
        }
        let name = template.name.clone();
        let event = Event::TemplatePut { template: Arc::new(template), traits };
        let engine = self.clone();
        let putting = tasks::spawn(async move {
            engine.core.ask(engine.core.request(), event).await?;
            // Sandboxes in use may reach what the new template allows, from now on, also if the caller
            // goes away.
            engine.apply_network_of_template(&name).await;
            Ok(())
        });
        finished(putting).await?;
        image_pins::pin_now(&self.core).await;
        Ok(if known { Put::Replaced } else { Put::Created })
    }
}

impl Engine {
    /// A setting that would be ignored is refused.
    fn refuse_unserved(&self, template: &Template) -> Result<(), Refusal> {
        if template.network.is_none() || self.core.networks.is_available() {
            return Ok(());
        }
        let cause = "network: this server has no way out of sandboxes (`egress.enabled` is off)";
        Err(Refusal::new(ErrorCode::Unsupported, cause))
    }

    /// What a runtime can do for the sandboxes of a template, and where their files are.
    pub(crate) fn traits_for(
        &self,
        traits: RuntimeTraits,
        template: &Template,
    ) -> Result<(RuntimeTraits, Placed), Refusal> {
        let placed = self.placed(template)?;
        let disk = placed.disk();
        // A workspace in memory goes with the sandbox.
        let workspace_survives = traits.workspace_survives && disk.is_some();
        Ok((RuntimeTraits { workspace_survives, disk, ..traits }, placed))
    }
}

/// Logs where files are; warns if that is weaker than the template might expect.
pub(crate) fn log_placement(template: &Template, placed: &Placed) {
    let (name, why) = (&template.name, placed.why.as_deref().unwrap_or_default());
    match (placed.kind, placed.limit, template.workspace.limit) {
        (WorkspaceKind::Memory, ..) if placed.why.is_some() => {
            tracing::warn!(
                template = %name,
                why,
                "workspaces of a template are in memory: a crash loses what was not saved"
            );
        }
        (WorkspaceKind::Disk, WorkspaceLimit::Soft, Some(WorkspaceLimit::Hard)) => {
            tracing::warn!(
                template = %name,
                why,
                "workspaces of a template get a soft limit: this node cannot enforce a hard one; \
                 see `shoal doctor`"
            );
        }
        (WorkspaceKind::Memory | WorkspaceKind::Disk, ..) => {
            tracing::debug!(
                template = %name,
                kind = placed.kind.as_str(),
                limit = placed.limit.as_str(),
                why,
                "where the workspaces of a template are"
            );
        }
    }
}

/// What a runtime cannot do for a template, if anything.
fn refused_by(runtime: &dyn Runtime, template: &Template) -> Option<String> {
    let capabilities = runtime.capabilities();
    if !capabilities.aliases && !template.workspace.aliases.is_empty() {
        let kind = template.runtime.as_str();
        return Some(format!("workspace.aliases: {kind} gives the workspace one name only"));
    }
    if let Some(cause) = runtime.refuses(template) {
        return Some(cause);
    }
    if !template.network.is_none() && capabilities.network == NetworkAbility::None {
        let kind = template.runtime.as_str();
        return Some(format!("network: sandboxes of {kind} have loopback only on this machine"));
    }
    capabilities.refuses(&template.limits)
}

/// Refuses what no node with these mounts and directories could serve, whatever its runtimes are:
/// the part of [`Engine::put_template`] that needs no node. Blocks.
pub fn check_settings_of_template(
    template: &Template,
    mounts: &Mounts,
    directories: &[PathBuf],
) -> Result<(), Refusal> {
    mounts.check_blocking(template)?;
    match &template.root {
        RootFs::Directory(name) => check_directory(directories, name),
        RootFs::Host | RootFs::Image(_) => Ok(()),
    }
}
