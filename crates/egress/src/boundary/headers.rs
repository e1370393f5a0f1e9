//! Headers between two connections that may speak different versions of HTTP. What belongs to one
//! connection stays there, so that both ends of it agree where each message ends.

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Authority, Scheme};
use http::{Method, Request, Uri, Version};
use model::HostName;

const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const WEBSOCKET: &str = "websocket";

/// Whether a request asks to speak WebSocket. Other upgrades are not passed on: the host may ignore
/// the wish to change, and what would be spoken afterwards is unknown.
pub(super) fn asks_for_websocket(method: &Method, version: Version, headers: &HeaderMap) -> bool {
    *method == Method::GET
        && version == Version::HTTP_11
        && names(headers, &CONNECTION, "upgrade")
        && headers.get(UPGRADE).is_some_and(|value| {
            value.as_bytes().trim_ascii().eq_ignore_ascii_case(WEBSOCKET.as_bytes())
        })
}

/// Whether a request can receive trailers, as gRPC asks.
pub(super) fn takes_trailers(headers: &HeaderMap) -> bool {
    names(headers, &TE, "trailers")
}

fn names(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case(word))
}

/// Removes what belongs to the connection that a message came by.
pub(super) fn strip(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let lengths = headers.get_all(CONTENT_LENGTH).iter().count();
    if headers.contains_key(TRANSFER_ENCODING) || lengths > 1 {
        // Both, or two, would be an argument about where the message ends.
        headers.remove(CONTENT_LENGTH);
    }
    for name in [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, TE, TRANSFER_ENCODING, UPGRADE, EXPECT] {
        headers.remove(name);
    }
    for name in listed {
        headers.remove(name);
    }
}

/// Asks for WebSocket, or agrees to it.
pub(super) fn upgrade(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(WEBSOCKET));
}

/// Shapes a request for a connection that speaks HTTP/1.1.
pub(super) fn shape_http1<B>(request: &mut Request<B>, host: &HostName) -> Result<(), http::Error> {
    *request.version_mut() = Version::HTTP_11;
    let mut parts = request.uri().clone().into_parts();
    parts.scheme = None;
    parts.authority = None;
    *request.uri_mut() = Uri::from_parts(parts)?;
    let headers = request.headers_mut();
    headers.remove(TE);
    headers.insert(HOST, HeaderValue::from_str(host.as_str())?);
    join_cookies(headers)
}

/// Shapes a request for a connection that speaks HTTP/2.
pub(super) fn shape_http2<B>(
    request: &mut Request<B>,
    host: &HostName,
    takes_trailers: bool,
) -> Result<(), http::Error> {
    *request.version_mut() = Version::HTTP_2;
    let mut parts = request.uri().clone().into_parts();
    parts.scheme = Some(Scheme::HTTPS);
    parts.authority = Some(Authority::try_from(host.as_str())?);
    *request.uri_mut() = Uri::from_parts(parts)?;
    let headers = request.headers_mut();
    headers.remove(HOST);
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    Ok(())
}

/// HTTP/2 sends cookies one by one; HTTP/1.1 has one header for all.
fn join_cookies(headers: &mut HeaderMap) -> Result<(), http::Error> {
    let mut cookies = headers.get_all(COOKIE).iter();
    let (Some(first), Some(_)) = (cookies.next(), cookies.next()) else { return Ok(()) };
    let mut sensitive = first.is_sensitive();
    let mut joined = zeroize::Zeroizing::new(Vec::new());
    for cookie in headers.get_all(COOKIE) {
        if !joined.is_empty() {
            joined.extend_from_slice(b"; ");
        }
        sensitive |= cookie.is_sensitive();
        joined.extend_from_slice(cookie.as_bytes());
    }
    let mut joined = HeaderValue::from_bytes(&joined)?;
    joined.set_sensitive(sensitive);
    headers.insert(COOKIE, joined);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_lengths_are_no_length() {
        for (lengths, kept) in [(&["5"][..], 1), (&["5", "0"], 0), (&["5", "5"], 0)] {
            let mut headers = HeaderMap::new();
            for length in lengths {
                headers.append(CONTENT_LENGTH, HeaderValue::from_static(length));
            }
            strip(&mut headers);
            assert_eq!(headers.len(), kept, "{lengths:?}");
        }
    }
}
