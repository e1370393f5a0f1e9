//! What a claim binds to a sandbox besides its own settings: secrets as variables, files and
//! placeholders, the variables of the proxy, and the certificates that clients inside trust. Values
//! must never be logged or stored; a secret that is missing fails the claim by its name.

use std::collections::BTreeMap;
use std::sync::Arc;

use egress::{BoundarySecret, Reservation};
use kernel::{NetworkView, UseTarget};
use model::{
    ClaimSettings, ErrorCode, InstanceId, KeyId, NetworkPolicy, Refusal, SecretUse, Template,
};
use runtime::{RuntimeError, Sandbox};

use super::trust;
use crate::core::Core;
use crate::secrets;

/// The directory of secrets that are files.
pub(crate) const SECRETS: &str = "/run/secrets";

/// Everything that is bound to a sandbox.
#[derive(Default)]
pub(crate) struct Binding {
    /// Its environment.
    pub(crate) env: BTreeMap<String, String>,
    /// Files that only its user may read, by their names.
    files: BTreeMap<String, String>,
    /// Values that stay outside.
    pub(crate) boundary: Vec<BoundarySecret>,
    /// The certificate that clients inside must trust.
    trusted: Option<String>,
}

impl Binding {
    /// What the kernel's settings of a sandbox mean now.
    pub(crate) async fn of(core: &Core, view: &NetworkView) -> Result<Self, Refusal> {
        let settings = view.settings.as_deref();
        let empty = ClaimSettings::default();
        let settings = settings.unwrap_or(&empty);
        let mut binding = Self::default();
        let mut ours =
            if view.policy.is_none() { BTreeMap::new() } else { proxy_variables(view.instance) };
        // A sandbox that waits in its pool has no owner, and no secrets: its claim binds them.
        let owned = view.tenant != KeyId::NIL;
        for used in uses(&view.template, settings).filter(|_| owned) {
            let value = value_of(core, view.tenant, used, settings).await?;
            binding.bind(used, value, &view.policy)?;
        }
        if !binding.boundary.is_empty() {
            let authority = core.networks.authority(view.tenant);
            let authority = authority.map_err(Refusal::from)?;
            binding.trusted = Some(authority.certificate_pem());
            ours.extend(trust::variables());
        }
        // What the caller sets comes before what we set, and secrets before both.
        let secrets = std::mem::take(&mut binding.env);
        ours.extend(settings.env.clone());
        ours.extend(secrets);
        binding.env = ours;
        Ok(binding)
    }

    fn bind(
        &mut self,
        used: &SecretUse,
        value: String,
        policy: &NetworkPolicy,
    ) -> Result<(), Refusal> {
        let found = match &used.boundary {
            None => value,
            Some(boundary) => {
                if let Some(host) = boundary.hosts.iter().find(|host| !policy.may_reach(host, 443))
                {
                    let cause = format!(
                        "secrets: \"{}\" is for {host}, which the network policy does not allow on \
                         port 443",
                        used.secret
                    );
                    return Err(Refusal::new(ErrorCode::NetworkRefused, cause));
                }
                if value.contains(['\r', '\n']) {
                    let cause = format!(
                        "secrets: the value of \"{}\" has a line break in it, so it cannot be put \
                         into a header",
                        used.secret
                    );
                    return Err(Refusal::new(ErrorCode::InvalidArgument, cause));
                }
                let placeholder = self.placeholder_of(used)?;
                self.boundary.push(BoundarySecret {
                    secret: used.secret.to_string(),
                    placeholder: placeholder.clone(),
                    value: value.into(),
                    header: boundary.header.clone(),
                    hosts: boundary.hosts.clone(),
                });
                placeholder
            }
        };
        if let Some(name) = &used.env {
            self.env.insert(name.clone(), found.clone());
        }
        if let Some(name) = &used.file {
            self.files.insert(name.clone(), found);
        }
        Ok(())
    }

    /// A text that no other sandbox knows. Two uses of one secret share it.
    fn placeholder_of(&self, used: &SecretUse) -> Result<String, Refusal> {
        let known = self.boundary.iter().find(|known| known.secret == used.secret.as_str());
        if let Some(known) = known {
            return Ok(known.placeholder.clone());
        }
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?;
        Ok(format!("shoal-placeholder-{:032x}", u128::from_ne_bytes(random)))
    }

    /// The settings as a runtime takes them: everything is resolved.
    pub(crate) fn settings(&self, asked: Option<&ClaimSettings>) -> ClaimSettings {
        ClaimSettings {
            env: self.env.clone(),
            labels: asked.map(|asked| asked.labels.clone()).unwrap_or_default(),
            config: asked.and_then(|asked| asked.config.clone()),
            seed: asked.and_then(|asked| asked.seed),
            ..ClaimSettings::default()
        }
    }

    /// Writes the files into the memory of the sandbox.
    pub(crate) async fn write_files(
        &self,
        core: &Core,
        sandbox: &Arc<dyn Sandbox>,
    ) -> Result<(), RuntimeError> {
        for (name, value) in &self.files {
            let path = format!("{SECRETS}/{name}");
            sandbox.inside().write_all(&path, value.as_bytes(), Some(0o400)).await?;
        }
        if let Some(certificate) = &self.trusted {
            trust::write(sandbox, &core.networks.roots, certificate).await?;
        }
        Ok(())
    }
}

/// The secrets of the template, and those of the claim, which come after them: the later one has a
/// variable that both name.
fn uses<'a>(
    template: &'a Template,
    settings: &'a ClaimSettings,
) -> impl Iterator<Item = &'a SecretUse> {
    template.secrets.iter().chain(&settings.secrets)
}

/// The value of a secret: the claim's own, that of the key, that of the node.
async fn value_of(
    core: &Core,
    key: KeyId,
    used: &SecretUse,
    settings: &ClaimSettings,
) -> Result<String, Refusal> {
    if let Some(value) = settings.secret_values.get(&used.secret) {
        return Ok(value.clone());
    }
    let stored = secrets::stored(core, key, &used.secret).await?;
    let value = stored.ok_or_else(|| secrets::secret_missing(&used.secret))?;
    Ok(value.expose().to_owned())
}

/// Refuses a claim whose secrets are missing, or which the way out has no room for, before a sandbox
/// is taken for it. What it returns keeps that room until the claim has ended.
pub(crate) async fn check_secrets(
    core: &Core,
    key: KeyId,
    template: &Template,
    settings: &ClaimSettings,
) -> Result<Option<Reservation>, Refusal> {
    if let Some(problem) = model::secret::problem_of_uses(&settings.secrets) {
        return Err(Refusal::new(ErrorCode::InvalidArgument, format!("secrets: {problem}")));
    }
    let policy = template.network.within(settings.network.as_ref());
    let mut binding = Binding::default();
    for used in uses(template, settings) {
        let value = value_of(core, key, used, settings).await?;
        binding.bind(used, value, &policy)?;
    }
    if binding.boundary.is_empty() {
        return Ok(None);
    }
    core.networks.reserve(key)
}

/// Asks for something for which a session may need another sandbox. Where its secrets or its network do
/// not fit any more, that is refused before a sandbox is launched or taken.
pub(crate) async fn with_next_binding<T>(
    core: &Core,
    target: UseTarget,
    resumes: bool,
    asking: impl Future<Output = Result<T, Refusal>>,
) -> Result<T, Refusal> {
    // Kept until the answer: what was found to fit still does.
    let _reserved = check_next(core, target, resumes).await?;
    match asking.await {
        // They may have changed in between, and a launch that fails does not say so.
        Err(failed) if failed.code == ErrorCode::LaunchFailed => {
            check_next(core, target, resumes).await?;
            Err(failed)
        }
        answer => answer,
    }
}

async fn check_next(
    core: &Core,
    target: UseTarget,
    resumes: bool,
) -> Result<Option<Reservation>, Refusal> {
    let Some(next) = core.read(|kernel| kernel.next_binding(target, resumes)) else {
        return Ok(None);
    };
    let empty = ClaimSettings::default();
    let settings = next.settings.as_deref().unwrap_or(&empty);
    check_secrets(core, next.tenant, &next.template, settings).await
}

/// Tools that know a proxy report refusals better through it. Everything else needs no settings.
fn proxy_variables(instance: InstanceId) -> BTreeMap<String, String> {
    const PROXY: &str = "http://127.0.0.1:3128";
    let direct = format!("localhost,127.0.0.1,::1,{}", runtime::host_name(instance));
    let mut variables = BTreeMap::new();
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        variables.insert(name.to_owned(), PROXY.to_owned());
        variables.insert(name.to_ascii_lowercase(), PROXY.to_owned());
    }
    for name in ["NO_PROXY", "no_proxy"] {
        variables.insert(name.to_owned(), direct.clone());
    }
    // They try refused names again for up to a minute. A pip that never does says no reason.
    for (name, value) in [
        ("PIP_RETRIES", "1"),
        ("NPM_CONFIG_FETCH_RETRY_MINTIMEOUT", "200"),
        ("NPM_CONFIG_FETCH_RETRY_MAXTIMEOUT", "500"),
    ] {
        variables.insert(name.to_owned(), value.to_owned());
    }
    variables
}
