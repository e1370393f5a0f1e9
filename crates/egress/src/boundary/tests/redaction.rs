//! Values that a host sends back in a header, encoded.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::{
    GeneralPurpose, NO_PAD, STANDARD, STANDARD_NO_PAD, URL_SAFE,
};
use http::header::{HeaderMap, HeaderValue};
use memchr::memmem;

use super::support::*;
use crate::boundary::redaction::redact;

/// Whether a program that decodes any part of a text finds the value.
fn is_in(text: &str) -> bool {
    let lenient = NO_PAD.with_decode_allow_trailing_bits(true);
    let lenient = GeneralPurpose::new(&alphabet::STANDARD, lenient);
    let text = text.replace('-', "+").replace('_', "/");
    let runs = text.split(|letter: char| !letter.is_ascii_alphanumeric() && !"+/".contains(letter));
    runs.into_iter().any(|run| {
        (0..run.len().min(4)).any(|skipped| {
            let letters = &run[skipped..];
            let letters = &letters[..letters.len() - usize::from(letters.len() % 4 == 1)];
            let decoded = lenient.decode(letters).unwrap();
            memmem::find(&decoded, VALUE.as_bytes()).is_some()
        })
    })
}

fn redacted(text: &str, value: &str) -> String {
    let mut headers = HeaderMap::new();
    headers.insert("x-echo", HeaderValue::from_str(text).unwrap());
    let secrets = [secret("openai", "authorization", PLACEHOLDER, value)];
    redact(&mut headers, &host(), &secrets, &|_| {});
    headers["x-echo"].to_str().unwrap().to_owned()
}

#[test]
fn an_encoded_value_is_taken_out_wherever_it_begins_and_ends() {
    for before in ["", "a", "ab", "abc"] {
        for after in ["", "x", "xy", "xyz"] {
            let whole = format!("{before}{VALUE}{after}");
            for engine in [STANDARD, STANDARD_NO_PAD, URL_SAFE] {
                for lead in ["", "p/", "pp/", "ppp/", "Basic ", "k="] {
                    let text = format!("{lead}{}", engine.encode(&whole));
                    assert!(is_in(&text), "{text}");
                    assert!(!is_in(&redacted(&text, VALUE)), "{text}");
                }
            }
        }
    }
}

#[test]
fn several_encodings_in_one_run_are_all_taken_out() {
    let of = |before: &str| STANDARD_NO_PAD.encode(format!("{before}{VALUE}"));
    let text = format!("{}/{}/{}", of(""), of("a"), of("ab"));
    assert!(!is_in(&redacted(&text, VALUE)));
    assert!(!is_in(&redacted(&vec![of(""); 50].join("/"), VALUE)));
    // A value that is part of its own placeholder is replaced once, and that ends.
    let text = STANDARD.encode("a placeholder");
    assert_ne!(redacted(&text, "placeholder"), text);
}
