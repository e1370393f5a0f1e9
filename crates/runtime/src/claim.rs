//! What the settings of a claim mean to a sandbox, whatever isolates it.

use guest_protocol::Env;
use model::{ClaimSettings, NetworkPolicy};

use crate::error::{RuntimeError, RuntimeErrorCode};

/// The environment that settings ask for. Whatever else they ask for, and would silently not get,
/// is refused.
pub(crate) fn environment(settings: &ClaimSettings) -> Result<Env, RuntimeError> {
    let refuse = |cause| Err(RuntimeError::new(RuntimeErrorCode::Unsupported, "claim", cause));
    if !settings.secrets.is_empty() {
        return refuse("secrets must have become values before they get here");
    }
    match settings.network {
        NetworkPolicy::None => {}
        NetworkPolicy::Allow(_) => return refuse("sandboxes reach no network"),
    }
    Ok(settings.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
}
