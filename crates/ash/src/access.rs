//! Authentication: by a key of the server, or the one from the environment. The three refusals have
//! the texts of Ash.

use engine::Caller;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use model::{ErrorCode, KeyId, Role};
use sha2::{Digest as _, Sha256};

use crate::app::App;
use web::refused::Refused;

/// The owner of everything that is created with the key from the environment, whatever that key is
/// at the time: it may be changed between two starts.
pub const OF_ENVIRONMENT: KeyId = KeyId::from_u128(0x0061_7368_0000_8000_8000_0000_0000_0001);

pub(crate) fn authenticate(app: &App, headers: &HeaderMap) -> Result<Caller, Refused> {
    let refused = |cause: &'static str| Refused::new(ErrorCode::Unauthorized, cause);
    let Some(given) = headers.get(AUTHORIZATION) else {
        return Err(refused("Missing Authorization header"));
    };
    let secret = given.to_str().ok().and_then(|text| {
        let (scheme, secret) = text.split_once(' ')?;
        let is_one_word = !secret.is_empty() && !secret.contains(' ');
        (scheme == "Bearer" && is_one_word).then_some(secret)
    });
    let Some(secret) = secret else {
        return Err(refused("Invalid Authorization header format"));
    };
    if let Some(caller) = app.engine.authenticate(secret) {
        return Ok(caller);
    }
    match &app.options.api_key {
        Some(key) if is_same(key, secret) => Ok(Caller { key: OF_ENVIRONMENT, role: Role::Admin }),
        Some(_) | None => Err(refused("Invalid API key")),
    }
}

/// Digests are compared, whose first difference says nothing about the keys.
fn is_same(one: &str, other: &str) -> bool {
    Sha256::digest(one.as_bytes()) == Sha256::digest(other.as_bytes())
}
