//! Authentication: by a key of the server, in the header that `curl` is shown with or in the one
//! that the clients of Blaxel send. A listener that takes requests without a key takes none from
//! web pages.

use engine::Caller;
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, HeaderValue};
use model::{ErrorCode, KeyId, Role};

use super::Mounted;
use super::paths::RequestPath;
use super::routes::Route;
use crate::app::App;
use web::refused::Refused;

/// The key that owns the sandbox of the separate listener, whichever key the caller has.
pub const OF_LISTENER: KeyId = KeyId::from_u128(0x0062_6c61_7800_8000_8000_0000_0000_0001);

const X_BLAXEL_AUTHORIZATION: &str = "x-blaxel-authorization";
/// The header in which browsers name the calling site, even without an origin.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

pub(crate) fn authenticate(
    app: &App,
    mounted: Mounted,
    path: &str,
    headers: &HeaderMap,
) -> Result<Caller, Refused> {
    // The header of Blaxel counts first: then `Authorization` may be for a server inside.
    let given = [X_BLAXEL_AUTHORIZATION, AUTHORIZATION.as_str()];
    let given = given.into_iter().find_map(|name| headers.get(name));
    if mounted == Mounted::Listener && app.options.keyless {
        if is_of_page(path, headers) {
            let cause = "web pages may not call a server that requires no key";
            return Err(Refused::new(ErrorCode::Forbidden, cause));
        }
        return Ok(Caller { key: OF_LISTENER, role: Role::Use });
    }
    let refused = |cause: &'static str| Refused::new(ErrorCode::Unauthorized, cause);
    let Some(given) = given else {
        return Err(refused("the Authorization and X-Blaxel-Authorization headers are missing"));
    };
    let Some(secret) = secret(given) else {
        return Err(refused("the Authorization header is not of the form `Bearer KEY`"));
    };
    app.engine.authenticate(secret).ok_or_else(|| refused("the key is unknown, expired or revoked"))
}

/// Whether a page asks. What a server inside has shown may go on asking servers inside, since both
/// are of the one sandbox there is; it may ask nothing else.
fn is_of_page(path: &str, headers: &HeaderMap) -> bool {
    let (site, origin) = (headers.get(SEC_FETCH_SITE), headers.get(ORIGIN));
    if origin.is_none() && site.is_none_or(|site| site == "none") {
        return false;
    }
    let is_port =
        RequestPath::new(path).is_ok_and(|asked| matches!(Route::of(&asked), Route::Port(..)));
    let from_here = site.is_none_or(|site| site == "none" || site == "same-origin");
    let of_here = origin.is_none_or(|origin| {
        let host = headers.get(HOST).map(HeaderValue::as_bytes);
        let of = |scheme: &[u8]| origin.as_bytes().strip_prefix(scheme);
        host.is_some() && (of(b"http://") == host || of(b"https://") == host)
    });
    !(is_port && from_here && of_here)
}

fn secret(given: &HeaderValue) -> Option<&str> {
    let (scheme, secret) = given.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// The `Authorization` header for a server inside: one that this server did not need, and that is
/// not one of its keys sent in both headers.
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
    use web::proxy;

    #[test]
    fn pages_of_servers_inside_reach_servers_inside_and_no_other_page_does() {
        let (own, other) = (Some("http://localhost:8080"), Some("http://evil.example"));
        let port = "/port/3000/a";
        for (path, site, origin, refused) in [
            (port, None, None, false),
            (port, Some("none"), None, false),
            (port, Some("same-origin"), None, false),
            (port, Some("same-origin"), own, false),
            (port, None, own, false),
            (port, None, other, true),
            (port, Some("same-origin"), other, true),
            (port, Some("same-site"), own, true),
            (port, Some("cross-site"), None, true),
            (port, None, Some("null"), true),
            ("/process", Some("same-origin"), own, true),
            ("/process", None, own, true),
            ("/filesystem/port/3000", Some("same-origin"), None, true),
            ("/port/0/a", Some("same-origin"), None, true),
            ("/process", Some("none"), None, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("localhost:8080"));
            for (name, value) in [(SEC_FETCH_SITE, site), ("origin", origin)] {
                if let Some(value) = value {
                    headers.insert(name, HeaderValue::from_static(value));
                }
            }
            assert_eq!(is_of_page(path, &headers), refused, "{path} {site:?} {origin:?}");
        }
    }

    /// What authenticates, against what arrives inside.
    #[tokio::test]
    async fn proxy_forwards_authorization_of_the_app_but_no_key_of_the_server() {
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
                let admitted = authenticate(&app, Mounted::Prefix, "/box/port/80", &headers);
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
