//! Takes values out of the headers of answers, where some hosts repeat what they received. What a host
//! encodes in its own way, or puts into a body, is not found: a host that repeats secrets is no place
//! for them.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue};
use memchr::memmem;
use model::HostName;
use zeroize::Zeroizing;

use super::placeholders::replace_all;
use super::{BoundSecret, BoundaryNote};

const UNPADDED: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// How many encodings of a value are taken out of one run of letters.
const ENCODINGS_MAX: usize = 8;

/// Replaces the values of a host's secrets by their placeholders.
pub(super) fn redact(
    headers: &mut HeaderMap,
    host: &HostName,
    secrets: &[BoundSecret],
    log: &dyn Fn(BoundaryNote),
) {
    for secret in secrets.iter().filter(|one| one.is_for(host) && !one.value.is_empty()) {
        let (value, placeholder) = (secret.value.as_bytes(), secret.placeholder.as_bytes());
        let mut found = false;
        for (_, header) in headers.iter_mut().filter(|(name, _)| *name != CONTENT_LENGTH) {
            let plain = replace_all(header.as_bytes(), value, placeholder);
            let text = plain.as_ref().map_or(header.as_bytes(), |new| new.as_slice());
            let Some(new) = without_encoded(text, value, placeholder).or(plain) else { continue };
            // A header that cannot be repaired is emptied, never passed.
            *header = HeaderValue::from_bytes(&new).unwrap_or(HeaderValue::from_static(""));
            found = true;
        }
        if found {
            log(BoundaryNote::EchoRedacted { secret: secret.secret.clone() });
        }
    }
}

/// The text without a value in base64, alone or within more, as in `Basic`; `None` if it has none.
fn without_encoded(text: &[u8], value: &[u8], placeholder: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let mut new = Zeroizing::new(Vec::with_capacity(text.len() + placeholder.len() * 2));
    let mut found = false;
    let mut rest = text;
    while !rest.is_empty() {
        let run = rest.iter().take_while(|byte| is_encoded(**byte)).count();
        let (encoded, after) = rest.split_at(run);
        if let Some(shown) = shown_in_place(encoded, value, placeholder) {
            new.extend_from_slice(&shown);
            found = true;
        } else {
            new.extend_from_slice(encoded);
        }
        let plain = after.iter().take_while(|byte| !is_encoded(**byte)).count();
        new.extend_from_slice(&after[..plain]);
        rest = &after[plain..];
    }
    found.then_some(new)
}

fn is_encoded(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_')
}

/// What to show in place of a run of base64, if the value is in it. A run may be several encodings with
/// a slash between them, so one is taken out after the other; what does not end is not shown at all.
fn shown_in_place(run: &[u8], value: &[u8], placeholder: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let mut shown = without_one(run, value, placeholder)?;
    if memmem::find(placeholder, value).is_some() {
        return Some(shown);
    }
    for _ in 0..ENCODINGS_MAX {
        match without_one(&shown, value, placeholder) {
            Some(less) => shown = less,
            None => return Some(shown),
        }
    }
    Some(Zeroizing::default())
}

/// The same for one encoding. Letters before it may belong to something else, as the slash of a path:
/// each of the four beginnings is tried.
fn without_one(run: &[u8], value: &[u8], placeholder: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    if run.len() < (value.len() * 4).div_ceil(3) {
        return None;
    }
    let standard = |byte: &u8| match byte {
        b'-' => b'+',
        b'_' => b'/',
        other => *other,
    };
    for skipped in 0..4 {
        let mut letters: Vec<u8> = run.iter().skip(skipped).map(standard).collect();
        if letters.len() % 4 == 1 {
            letters.pop();
        }
        let Ok(decoded) = UNPADDED.decode(&letters).map(Zeroizing::new) else { continue };
        if memmem::find(&decoded, value).is_none() {
            continue;
        }
        let shown = replace_all(&decoded, value, placeholder)?;
        let mut new = Zeroizing::new(run[..skipped].to_vec());
        new.extend_from_slice(UNPADDED.encode(&*shown).as_bytes());
        return Some(new);
    }
    None
}
