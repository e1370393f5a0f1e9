//! What the settings of a claim mean to a sandbox, in every runtime.

use guest_protocol::Env;
use model::ClaimSettings;

use crate::error::{RuntimeError, RuntimeErrorCode};

/// The environment that the settings ask for. Refuses settings that no runtime can serve.
pub(crate) fn environment(settings: &ClaimSettings) -> Result<Env, RuntimeError> {
    let refuse = |cause| Err(RuntimeError::new(RuntimeErrorCode::Unsupported, "claim", cause));
    if !settings.secrets.is_empty() || !settings.secret_values.is_empty() {
        return refuse("secrets must be resolved to values before a claim");
    }
    if settings.network.is_some() {
        return refuse("a network policy is attached beside a claim, not by it");
    }
    Ok(settings.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
}
