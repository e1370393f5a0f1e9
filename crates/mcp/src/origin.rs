//! Checks the `Origin` header: web pages may call only from this machine or a configured origin.
//! Programs send none.

use std::net::IpAddr;

use http::HeaderMap;
use http::Uri;
use http::header::ORIGIN;
use model::ErrorCode;

use web::app::App;
use web::refused::Refused;

/// Lets in programs, pages of this machine, and pages of origins that are named in the settings.
pub(super) fn check(app: &App, headers: &HeaderMap) -> Result<(), Refused> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let is_local = origin.to_str().is_ok_and(is_loopback);
    if is_local || app.cors.allowed(headers).is_some() {
        return Ok(());
    }
    let cause =
        "pages of this origin may not call the server: the origin is neither local nor configured";
    let mut refused = Refused::new(ErrorCode::Forbidden, cause);
    refused.field = Some("Origin".into());
    Err(refused)
}

fn is_loopback(origin: &str) -> bool {
    let Ok(uri) = origin.parse::<Uri>() else { return false };
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return false;
    }
    let Some(host) = uri.host() else { return false };
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_is_local_only_on_this_machine() {
        for (origin, local) in [
            ("http://localhost:3000", true),
            ("https://LOCALHOST", true),
            ("http://127.0.0.1:7600", true),
            ("http://[::1]:7600", true),
            ("http://localhost.evil.example", false),
            ("http://127.0.0.1.evil.example", false),
            ("http://evil.example", false),
            ("http://10.0.0.1", false),
            ("file://localhost", false),
            ("localhost", false),
            ("null", false),
            ("", false),
        ] {
            assert_eq!(is_loopback(origin), local, "{origin:?}");
        }
    }
}
