//! Keys of pages in browsers, which can send no header of their own when they open a WebSocket: one
//! of the subprotocols that they offer is `shoal.key.KEY`, another is `shoal`, which is the one
//! that is agreed on. No key is ever passed on to what runs in a sandbox.

use http::header::{SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL};
use http::{HeaderMap, HeaderValue};

/// The subprotocol of this server.
pub const NAME: &str = "shoal";
const KEY: &str = "shoal.key.";

fn offered(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lists = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    lists.filter_map(|list| list.to_str().ok()).flat_map(|list| list.split(',')).map(str::trim)
}

/// The key among the subprotocols of a WebSocket that is to be opened.
pub fn key(headers: &HeaderMap) -> Option<&str> {
    if !headers.contains_key(SEC_WEBSOCKET_KEY) {
        return None;
    }
    offered(headers).find_map(|one| one.strip_prefix(KEY))
}

/// Takes every key out of what is offered, and what was offered only beside one; says whether there
/// was any, since who offered something expects that something is chosen.
pub fn without_keys(headers: &mut HeaderMap) -> bool {
    let has_key = offered(headers).any(|one| one.starts_with(KEY));
    let is_ours = |one: &&str| one.starts_with(KEY) || (has_key && *one == NAME);
    let others: Vec<_> = offered(headers).filter(|one| !is_ours(one)).collect();
    match HeaderValue::try_from(others.join(", ")) {
        Ok(value) if !value.is_empty() => {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
        }
        Ok(_) | Err(_) => {
            headers.remove(SEC_WEBSOCKET_PROTOCOL);
        }
    }
    has_key
}

/// Chooses ours where the inside chose none, in the answer to a page that offered it.
pub fn choose(headers: &mut HeaderMap) {
    headers.entry(SEC_WEBSOCKET_PROTOCOL).or_insert_with(|| HeaderValue::from_static(NAME));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_in_a_subprotocol_is_found_and_removed() {
        let mut headers = HeaderMap::new();
        let offer = HeaderValue::from_static("graphql-ws, shoal.key.secret_1,shoal");
        headers.insert(SEC_WEBSOCKET_PROTOCOL, offer);
        assert_eq!(key(&headers), None, "no WebSocket is opened");
        headers.insert(SEC_WEBSOCKET_KEY, HeaderValue::from_static("x"));
        assert_eq!(key(&headers), Some("secret_1"));
        assert!(without_keys(&mut headers));
        assert_eq!(headers[SEC_WEBSOCKET_PROTOCOL], "graphql-ws");
        assert!(!without_keys(&mut headers), "there is none any more");
        choose(&mut headers);
        assert_eq!(headers[SEC_WEBSOCKET_PROTOCOL], "graphql-ws", "what the inside chose stays");
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("shoal.key.a"));
        without_keys(&mut headers);
        assert!(!headers.contains_key(SEC_WEBSOCKET_PROTOCOL));
        choose(&mut headers);
        assert_eq!(headers[SEC_WEBSOCKET_PROTOCOL], "shoal");
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("shoal"));
        assert!(!without_keys(&mut headers));
        assert_eq!(
            headers[SEC_WEBSOCKET_PROTOCOL], "shoal",
            "without a key it is the inside's own"
        );
    }
}
