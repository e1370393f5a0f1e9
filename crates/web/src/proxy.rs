//! Headers of a proxied request and its answer. Keys of this server must never reach the sandbox,
//! and hop-by-hop headers are not forwarded.

use http::header::{
    AUTHORIZATION, CONNECTION, EXPECT, HOST, HeaderName, LOCATION, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, STRICT_TRANSPORT_SECURITY, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Uri};

use crate::subprotocol;

/// The header that is forwarded as `Authorization`, since that one carries our key.
pub const INNER_AUTHORIZATION: HeaderName = HeaderName::from_static("x-shoal-authorization");
/// Headers that may carry a key of this server, in any dialect.
const SECRETS: [HeaderName; 3] = [
    AUTHORIZATION,
    HeaderName::from_static("x-blaxel-authorization"),
    HeaderName::from_static("x-blaxel-preview-token"),
];
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");

const BETWEEN_NEIGHBOURS: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Headers that apply to a whole origin: no single sandbox may set them for this server.
const OF_THE_WHOLE_ORIGIN: [HeaderName; 3] = [
    HeaderName::from_static("service-worker-allowed"),
    HeaderName::from_static("clear-site-data"),
    STRICT_TRANSPORT_SECURITY,
];

/// How many parts of a path come before the path for the server inside.
const PREFIX_PARTS: usize = 5;

/// Where a request goes: the part of its path that is ours, and what is left of it.
#[derive(Debug, PartialEq, Eq)]
pub struct ProxyPath {
    /// The prefix that the server inside does not see.
    pub prefix: String,
    /// The path that the server inside sees.
    pub inside: PathAndQuery,
}

/// `/v1/sandboxes/ID/ports/PORT/...`, cut before the last part.
pub fn proxy_path(uri: &Uri) -> Option<ProxyPath> {
    let path = uri.path();
    let end = path.match_indices('/').nth(PREFIX_PARTS).map_or(path.len(), |(at, _)| at);
    let (prefix, rest) = path.split_at(end);
    let rest = if rest.is_empty() { "/" } else { rest };
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let inside = PathAndQuery::try_from(format!("{rest}{query}")).ok()?;
    Some(ProxyPath { prefix: prefix.to_owned(), inside })
}

/// The protocol to upgrade to, if any.
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let words = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let wanted = words
        .flat_map(|value| value.split(','))
        .any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    headers.get(UPGRADE).filter(|_| wanted).cloned()
}

/// Removes hop-by-hop headers, named by the standard or by the sender.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|word| word.trim().parse().ok())
        .collect();
    for name in BETWEEN_NEIGHBOURS.iter().chain(&named) {
        headers.remove(name);
    }
}

fn go_over(headers: &mut HeaderMap, to: Option<HeaderValue>) {
    if let Some(to) = to {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, to);
    }
}

/// The headers of a request as they are forwarded; and whether a key came as a subprotocol.
pub fn inward(headers: &mut HeaderMap, prefix: &str, port: u16) -> bool {
    let to = upgrade(headers);
    strip(headers);
    for name in &SECRETS {
        headers.remove(name);
    }
    // The body is forwarded as it comes; this server answers `Expect` itself.
    headers.remove(EXPECT);
    if let Some(inner) = headers.remove(INNER_AUTHORIZATION) {
        headers.insert(AUTHORIZATION, inner);
    }
    let had_key = subprotocol::without_keys(headers);
    if let Some(host) = headers.remove(HOST) {
        headers.insert(FORWARDED_HOST, host);
    }
    // Development servers accept only this host name.
    if let Ok(host) = HeaderValue::try_from(format!("localhost:{port}")) {
        headers.insert(HOST, host);
    }
    if !headers.contains_key(FORWARDED_PROTO) {
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static("http"));
    }
    if let Ok(prefix) = HeaderValue::try_from(prefix) {
        headers.insert(FORWARDED_PREFIX, prefix);
    }
    go_over(headers, to);
    had_key
}

/// The headers of an answer as they are forwarded.
pub fn outward(headers: &mut HeaderMap, prefix: &str, port: u16) {
    let to = upgrade(headers);
    strip(headers);
    for name in OF_THE_WHOLE_ORIGIN {
        headers.remove(name);
    }
    if let Some(rewritten) =
        headers.get(LOCATION).and_then(|to| rewritten_location(to, prefix, port))
    {
        headers.insert(LOCATION, rewritten);
    }
    go_over(headers, to);
}

/// A location inside, rewritten for clients outside; none if it needs no change.
fn rewritten_location(to: &HeaderValue, prefix: &str, port: u16) -> Option<HeaderValue> {
    let to = to.to_str().ok()?;
    let own = format!("http://localhost:{port}");
    let path = match to.strip_prefix(&own) {
        Some("") => "/",
        Some(rest) => rest,
        None => to,
    };
    let is_path = path.starts_with('/') && !path.starts_with("//");
    let is_moved =
        path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    (is_path && !is_moved).then(|| HeaderValue::try_from(format!("{prefix}{path}")).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn proxied_path_is_forwarded_unchanged() {
        for (uri, inside) in [
            ("/v1/sandboxes/a/ports/80", "/"),
            ("/v1/sandboxes/a/ports/80/", "/"),
            ("/v1/sandboxes/a/ports/80?x=1", "/?x=1"),
            ("/v1/sandboxes/a/ports/80/b%2Fc/../d?e=f%20g&h", "/b%2Fc/../d?e=f%20g&h"),
            ("/v1/sandboxes/a/ports/80//b", "//b"),
        ] {
            let path = proxy_path(&uri.parse().unwrap()).unwrap();
            assert_eq!(path.inside.as_str(), inside, "{uri}");
            assert_eq!(path.prefix, "/v1/sandboxes/a/ports/80");
        }
    }

    #[test]
    fn proxy_removes_keys_and_hop_by_hop_headers() {
        let mut given = headers(&[
            ("authorization", "Bearer ours"),
            ("x-blaxel-authorization", "Bearer ours"),
            ("x-blaxel-preview-token", "ours"),
            ("x-shoal-authorization", "Basic theirs"),
            ("connection", "keep-alive, x-private"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("expect", "100-continue"),
            ("host", "shoal.example:7600"),
            ("cookie", "a=b"),
        ]);
        inward(&mut given, "/p", 3000);
        let expected = headers(&[
            ("authorization", "Basic theirs"),
            ("host", "localhost:3000"),
            ("x-forwarded-host", "shoal.example:7600"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-prefix", "/p"),
            ("cookie", "a=b"),
        ]);
        assert_eq!(given, expected);
    }

    #[test]
    fn proxy_forwards_upgrades() {
        let mut given = headers(&[
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-protocol", "shoal.key.ours, chat"),
        ]);
        inward(&mut given, "/p", 80);
        assert_eq!(given["upgrade"], "websocket");
        assert_eq!(given["connection"], "upgrade");
        assert_eq!(given["sec-websocket-protocol"], "chat");
        let mut plain = headers(&[("upgrade", "h2c")]);
        inward(&mut plain, "/p", 80);
        assert!(!plain.contains_key("upgrade"), "without being named it is no wish");
    }

    #[test]
    fn proxy_rewrites_locations() {
        for (to, expected) in [
            ("/login?a=b", "/p/login?a=b"),
            ("http://localhost:80/x", "/p/x"),
            ("http://localhost:80", "/p/"),
            ("/p/already", "/p/already"),
            ("/p", "/p"),
            ("/pother", "/p/pother"),
            ("//elsewhere.example/x", "//elsewhere.example/x"),
            ("https://elsewhere.example/", "https://elsewhere.example/"),
            ("relative", "relative"),
        ] {
            let mut given = headers(&[]);
            given.insert(LOCATION, HeaderValue::from_static(to));
            outward(&mut given, "/p", 80);
            assert_eq!(given[LOCATION], expected, "{to}");
        }
    }
}
