//! The server for clients of Ash: the template of their sessions, the first key where they expect
//! it, and which of our variables sessions get. Does nothing unless Ash is configured.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use api::AshSettings;
use engine::Engine;
use model::template::{Harness, HarnessProgram};
use model::{ErrorCode, Refusal, Role, Template, TemplateName};
use tokio::time::sleep;

use super::data_dir::DataDir;
use crate::config::{Ash, Config, HostContext};
use crate::failure::Failure;

/// Where `npm install -g` puts the bridge.
const BRIDGE_ENTRY: &str = "/usr/local/lib/node_modules/@ash-ai/bridge/dist/index.js";
/// The size of a workspace of Ash.
const WORKSPACE_MB: u32 = 1024;
const KEY_NAME: &str = "ash-initial";
const KEY_VARIABLE: &str = "ASH_API_KEY";

/// The settings of the dialect.
pub(super) fn settings(config: &Config, context: &HostContext) -> AshSettings {
    let ash = &config.ash;
    let roots = if ash.agent_roots.is_empty() {
        vec![config.server.data_dir.join("agents")]
    } else {
        ash.agent_roots.clone()
    };
    let text = |name: &str| context.variable(name).and_then(|value| value.to_str());
    let passed =
        ash.pass_env.iter().filter_map(|name| Some((name.clone(), text(name)?.to_owned())));
    // Without `--ash` the variable is meant for Ash itself, not for us.
    let api_key = ash.listen.and_then(|_| text(KEY_VARIABLE)).map(str::to_owned);
    AshSettings {
        template: ash.template.clone(),
        agent_roots: roots,
        strict: ash.strict,
        public_metrics: ash.public_metrics,
        api_key,
        env: passed.collect::<BTreeMap<_, _>>(),
    }
}

/// Why the template could not be put.
pub(super) enum PutError {
    /// The store cannot be written now, for example because the disk is full.
    RetryLater(Refusal),
    /// The engine refused the template.
    Refused(Failure),
}

/// Pause between two attempts.
const PUT_PAUSE: Duration = Duration::from_secs(1);

/// Puts the template once the store can be written.
pub(super) async fn put_template_later(engine: Engine, config: Config, best_effort: bool) {
    loop {
        sleep(PUT_PAUSE).await;
        match put_template(&engine, &config, best_effort).await {
            Err(PutError::RetryLater(_)) if !engine.health().stopping => {}
            Ok(()) | Err(PutError::RetryLater(_)) => return,
            Err(PutError::Refused(failure)) => {
                tracing::error!(%failure, "cannot make the template of Ash");
                return;
            }
        }
    }
}

impl Config {
    /// The template of Ash's sessions that the server makes, unless the configuration has one.
    pub(crate) fn template_of_ash(&self) -> Option<Template> {
        let ash = &self.ash;
        let name = TemplateName::new(&ash.template).ok()?;
        let configured = self.given_templates().iter().any(|template| template.name == name);
        if ash.listen.is_none() || configured || ash.template != Ash::TEMPLATE {
            return None;
        }
        let entry = ash.bridge_entry.as_deref().unwrap_or(BRIDGE_ENTRY);
        Some(template(name, entry, ash.memory_mb))
    }
}

fn template(name: TemplateName, entry: &str, memory_mb: u32) -> Template {
    let command = vec!["node".to_owned(), entry.to_owned()];
    let mut template = Template::named(name);
    template.harness = Harness::AshBridge(HarnessProgram { command, prewarm: true });
    template.limits.memory_mb = memory_mb;
    template.limits.workspace_mb = WORKSPACE_MB;
    template
}

/// Puts the template of Ash's sessions, unless the configuration has one.
pub(super) async fn put_template(
    engine: &Engine,
    config: &Config,
    best_effort: bool,
) -> Result<(), PutError> {
    let Some(mut template) = config.template_of_ash() else { return Ok(()) };
    if config.ash.bridge_entry.is_none() && !Path::new(BRIDGE_ENTRY).exists() {
        tracing::warn!(
            entry = BRIDGE_ENTRY,
            "the bridge of Ash is not installed: install it, or set ash.bridge_entry to its path inside \
             sandboxes (docs/guides/ash.md)"
        );
    }
    template.limits.best_effort = best_effort;
    if engine.template(&template.name).is_some_and(|known| *known == template) {
        return Ok(());
    }
    match engine.put_template(template).await {
        Ok(_) => Ok(()),
        Err(refusal) if refusal.code == ErrorCode::StoreUnavailable => {
            Err(PutError::RetryLater(refusal))
        }
        Err(refusal) => {
            let failure = Failure::new("cannot make the template of Ash", &refusal);
            Err(PutError::Refused(failure.remedy(refusal.code.remedy())))
        }
    }
}

/// Makes the first key, in the file where Ash leaves it. A key is made once: a removed file is not
/// written again. With a key in the environment none is made.
pub(super) async fn ensure_key(
    engine: &Engine,
    config: &Config,
    place: &DataDir,
) -> Result<(), Failure> {
    let has_one = HostContext::read().variable(KEY_VARIABLE).is_some();
    let made = engine.keys().iter().any(|key| key.name == KEY_NAME);
    if config.ash.listen.is_none() || has_one || made {
        return Ok(());
    }
    let made = engine.create_key(KEY_NAME, Role::Admin, None).await.map_err(|refusal| {
        Failure::new("cannot make a key", &refusal).remedy(refusal.code.remedy())
    })?;
    place.write_ash_key(&made.secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(env: &[(&str, &str)]) -> HostContext {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).into()));
        HostContext { root: true, cores: 2, env: env.collect() }
    }

    #[test]
    fn ash_template_is_valid() {
        let made = template(TemplateName::new("ash").unwrap(), "/usr/lib/bridge.js", 2048);
        assert_eq!(made.validate(), Ok(()));
        assert_eq!((made.limits.memory_mb, made.limits.workspace_mb), (2048, 1024));
        let program = made.harness.program().unwrap();
        assert_eq!(program.command, ["node", "/usr/lib/bridge.js"]);
    }

    #[test]
    fn ash_settings_pass_on_named_variables_and_take_the_key_only_with_ash() {
        let mut config = Config::default();
        config.server.data_dir = "/data".into();
        let context = context(&[
            ("ASH_API_KEY", "k"),
            ("ASH_REAL_SDK", "1"),
            ("ANTHROPIC_API_KEY", "secret"),
            ("ASH_DEBUG_TIMING", ""),
        ]);
        let found = settings(&config, &context);
        assert_eq!(found.api_key, None);
        assert_eq!(found.agent_roots, [Path::new("/data/agents")]);
        assert_eq!(found.env, BTreeMap::from([("ASH_REAL_SDK".to_owned(), "1".to_owned())]));
        config.ash.listen = Some(([127, 0, 0, 1], 4100).into());
        config.ash.pass_env.push("ANTHROPIC_API_KEY".to_owned());
        config.ash.agent_roots = vec!["/agents".into()];
        let found = settings(&config, &context);
        assert_eq!(found.api_key.as_deref(), Some("k"));
        assert_eq!(found.env["ANTHROPIC_API_KEY"], "secret");
        assert_eq!(found.agent_roots, [Path::new("/agents")]);
    }
}
