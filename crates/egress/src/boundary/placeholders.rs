//! Puts values where placeholders are: in the header of each secret, for its hosts, and nowhere else.
//! It must never put a value into another header, and never into a header of another host.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use memchr::memmem;
use model::HostName;
use zeroize::Zeroizing;

use super::{BoundSecret, BoundaryNote, Place};

/// Reads base64 as programs write it, with padding or without.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// A value that cannot be in a header: the name of its secret.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unusable(pub(super) String);

/// Replaces the placeholders in the headers of a request to one host. Returns the names of the secrets
/// whose values it has now.
pub(super) fn replace(
    headers: &mut HeaderMap,
    host: &HostName,
    secrets: &[BoundSecret],
) -> Result<Vec<String>, Unusable> {
    let mut with = Vec::new();
    for secret in secrets.iter().filter(|secret| secret.is_for(host)) {
        let mut replaced = false;
        for (name, value) in headers.iter_mut() {
            if name.as_str() != secret.header {
                continue;
            }
            let Some(new) = replaced_in(name, value.as_bytes(), secret) else { continue };
            let unusable = |_| Unusable(secret.secret.clone());
            *value = HeaderValue::from_bytes(&new).map_err(unusable)?;
            // Kept out of debug output, and out of the tables that compress headers.
            value.set_sensitive(true);
            replaced = true;
        }
        if replaced {
            with.push(secret.secret.clone());
        }
    }
    Ok(with)
}

fn replaced_in(
    name: &HeaderName,
    value: &[u8],
    secret: &BoundSecret,
) -> Option<Zeroizing<Vec<u8>>> {
    let (from, to) = (secret.placeholder.as_bytes(), secret.value.as_bytes());
    if let Some(new) = replace_all(value, from, to) {
        return Some(new);
    }
    let (scheme, decoded) = basic(name, value)?;
    let new = replace_all(&decoded, from, to)?;
    let encoded = Zeroizing::new(STANDARD.encode(&*new));
    Some(Zeroizing::new([scheme, encoded.as_bytes()].concat()))
}

/// The first part of `Basic BASE64` with its space, and the second part decoded.
fn basic<'a>(name: &HeaderName, value: &'a [u8]) -> Option<(&'a [u8], Zeroizing<Vec<u8>>)> {
    if name != AUTHORIZATION || !value.get(..6)?.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let (scheme, rest) = value.split_at(6);
    LENIENT.decode(rest.trim_ascii()).ok().map(|decoded| (scheme, Zeroizing::new(decoded)))
}

/// Replaces every occurrence, if there is one. The new bytes are allocated once: growing would leave
/// copies behind that are never erased.
pub(super) fn replace_all(text: &[u8], from: &[u8], to: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let count = if from.is_empty() { 0 } else { memmem::find_iter(text, from).count() };
    if count == 0 {
        return None;
    }
    let mut new = Zeroizing::new(Vec::with_capacity(text.len() + count * to.len()));
    let mut after = 0;
    for at in memmem::find_iter(text, from) {
        new.extend_from_slice(&text[after..at]);
        new.extend_from_slice(to);
        after = at + from.len();
    }
    new.extend_from_slice(&text[after..]);
    Some(new)
}

/// Notes the placeholders that a request still has in its target and headers, which go out as they are.
pub(super) fn note_others(
    target: &str,
    headers: &HeaderMap,
    secrets: &[BoundSecret],
    log: &dyn Fn(BoundaryNote),
) {
    for secret in secrets.iter().filter(|secret| !secret.placeholder.is_empty()) {
        let placeholder = memmem::Finder::new(&secret.placeholder);
        let note = |place| {
            log(BoundaryNote::PlaceholderElsewhere { secret: secret.secret.clone(), place });
        };
        if placeholder.find(target.as_bytes()).is_some() {
            note(Place::Target);
        }
        for (name, value) in headers {
            let encoded = || basic(name, value.as_bytes());
            if placeholder.find(value.as_bytes()).is_some()
                || encoded().is_some_and(|(_, decoded)| placeholder.find(&decoded).is_some())
            {
                note(Place::Header(name.as_str().to_owned()));
            }
        }
    }
}
