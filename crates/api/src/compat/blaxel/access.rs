//! Who calls: a key of ours, in the header that `curl` is shown with or in the one that the clients
//! of Blaxel send. A listener that takes requests without a key takes none from web pages.

use engine::Caller;
use http::header::{AUTHORIZATION, ORIGIN};
use http::{HeaderMap, HeaderValue};
use model::{ErrorCode, KeyId, Role};

use super::Mounted;
use crate::app::App;
use crate::refused::Refused;

/// The sandbox of the listener of its own belongs to this one, whoever calls there.
pub(crate) const OF_LISTENER: KeyId = KeyId::from_u128(0x0062_6c61_7800_8000_8000_0000_0000_0001);

const X_BLAXEL_AUTHORIZATION: &str = "x-blaxel-authorization";
/// What browsers say about who calls, also where they send no origin.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

pub(crate) fn authenticate(
    app: &App,
    mounted: Mounted,
    headers: &HeaderMap,
) -> Result<Caller, Refused> {
    // What only we understand counts first: beside it, the other may be for a server inside.
    let given = [X_BLAXEL_AUTHORIZATION, AUTHORIZATION.as_str()];
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
    let Some(secret) = secret(given) else {
        return Err(refused("the Authorization header is not of the form `Bearer KEY`"));
    };
    app.engine
        .authenticate(secret)
        .ok_or_else(|| refused("the key is not known, or it is expired or revoked"))
}

fn secret(given: &HeaderValue) -> Option<&str> {
    let (scheme, secret) = given.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// What a server inside may get as `Authorization`: what was not needed for us, and is no key of ours
/// that somebody sent in both headers.
pub(super) fn for_inside(app: &App, needs_key: bool, headers: &HeaderMap) -> Option<HeaderValue> {
    if needs_key && !headers.contains_key(X_BLAXEL_AUTHORIZATION) {
        return None;
    }
    let is_key = |secret: &str| app.engine.authenticate(secret).is_some();
    let given = headers.get(AUTHORIZATION)?;
    (!secret(given).is_some_and(is_key)).then(|| given.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy;

    /// What authenticates, against what arrives inside.
    #[tokio::test]
    async fn no_key_of_ours_gets_inside_and_what_is_the_apps_own_does() {
        let (app, _stop) = App::for_tests().await;
        let key = app.engine.create_key("k", Role::Use, None).await.unwrap();
        let ours = format!("Bearer {}", key.secret);
        let (ours, theirs) = (ours.as_str(), "Bearer theirs");
        for (needs_key, plain, of_blaxel, let_in, arrives) in [
            (true, Some(ours), None, true, None),
            (true, None, Some(ours), true, None),
            (true, Some(theirs), Some(ours), true, Some(theirs)),
            (true, Some("Basic dTpw"), Some(ours), true, Some("Basic dTpw")),
            (true, Some(ours), Some(ours), true, None),
            (true, Some(theirs), None, false, None),
            (true, Some(ours), Some(theirs), false, None),
            (false, Some(theirs), None, true, Some(theirs)),
            (false, Some(ours), None, true, None),
            (false, None, None, true, None),
        ] {
            let mut headers = HeaderMap::new();
            let given = [("authorization", plain), (X_BLAXEL_AUTHORIZATION, of_blaxel)];
            for (name, value) in given.into_iter().filter_map(|(name, value)| Some((name, value?)))
            {
                headers.insert(name, value.parse().unwrap());
            }
            headers.insert("x-blaxel-preview-token", ours.parse().unwrap());
            let case = format!("{needs_key} {plain:?} {of_blaxel:?}");
            if needs_key {
                let admitted = authenticate(&app, Mounted::Prefix, &headers);
                assert_eq!(admitted.is_ok(), let_in, "{case}");
            }
            if let Some(own) = for_inside(&app, needs_key, &headers) {
                headers.insert(proxy::INNER_AUTHORIZATION, own);
            }
            proxy::inward(&mut headers, "/p", 80);
            if let_in {
                let arrived = headers.get(AUTHORIZATION).map(|value| value.to_str().unwrap());
                assert_eq!(arrived, arrives, "{case}");
            }
            let leaks = headers.values().any(|value| value == ours);
            assert!(!leaks, "{case}: {headers:?}");
        }
    }
}
