//! Who calls: a key of ours, in the header that `curl` is shown with or in the one that the clients
//! of Blaxel send. A listener that takes requests without a key takes none from web pages.

use engine::Caller;
use http::HeaderMap;
use http::header::{AUTHORIZATION, ORIGIN};
use model::{ErrorCode, KeyId, Role};

use super::Mounted;
use crate::app::App;
use crate::refused::Refused;

/// The sandbox of the listener of its own belongs to this one, whoever calls there.
pub(crate) const OF_LISTENER: KeyId = KeyId::from_u128(0x0062_6c61_7800_8000_8000_0000_0000_0001);

const X_BLAXEL_AUTHORIZATION: &str = "x-blaxel-authorization";
/// What is for us alone, and never for a server inside.
pub(super) const SECRETS: [&str; 2] = [X_BLAXEL_AUTHORIZATION, "x-blaxel-preview-token"];
/// What browsers say about who calls, also where they send no origin.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

pub(crate) fn authenticate(
    app: &App,
    mounted: Mounted,
    headers: &HeaderMap,
) -> Result<Caller, Refused> {
    let given = [AUTHORIZATION.as_str(), X_BLAXEL_AUTHORIZATION];
    let given = given.into_iter().find_map(|name| headers.get(name));
    if mounted == Mounted::Listener && app.settings.blaxel.keyless {
        let site = headers.get(SEC_FETCH_SITE);
        let from_page = headers.contains_key(ORIGIN) || site.is_some_and(|site| site != "none");
        if from_page {
            let cause = "web pages may not call a server that asks for no key";
            return Err(Refused::new(ErrorCode::Forbidden, cause));
        }
        return Ok(Caller { key: OF_LISTENER, role: Role::Use });
    }
    let refused = |cause: &'static str| Refused::new(ErrorCode::Unauthorized, cause);
    let Some(given) = given else {
        return Err(refused("there is no Authorization or X-Blaxel-Authorization header"));
    };
    let secret = given.to_str().ok().and_then(|text| {
        let (scheme, secret) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
    });
    let Some(secret) = secret else {
        return Err(refused("the Authorization header is not of the form `Bearer KEY`"));
    };
    app.engine
        .authenticate(secret)
        .ok_or_else(|| refused("the key is not known, or it is expired or revoked"))
}
