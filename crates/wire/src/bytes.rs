//! Bytes that are not text. JSON has no type for them, so they are sent as base64 beside an empty
//! text, never as text with replacement characters.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Bytes as base64 with padding.
pub fn to_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The bytes of a base64 text with padding.
pub fn from_base64(text: &str) -> Result<Vec<u8>, Base64Error> {
    STANDARD.decode(text).map_err(|error| Base64Error(error.to_string()))
}

/// A text that is not base64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base64Error(String);

impl fmt::Display for Base64Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not base64: {}", self.0)
    }
}

impl std::error::Error for Base64Error {}

/// Bytes as one of two fields: text if they are, else base64.
pub(crate) fn text_or_base64(bytes: Vec<u8>) -> (Option<String>, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(error) => (None, Some(to_base64(error.as_bytes()))),
    }
}

/// The bytes of two such fields.
pub(crate) fn join(text: Option<&str>, base64: Option<&str>) -> Result<Vec<u8>, Base64Error> {
    base64.map_or_else(|| Ok(text.unwrap_or_default().as_bytes().to_vec()), from_base64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_text_if_utf8_and_base64_otherwise() {
        for bytes in [&b""[..], b"hi\n", "grün".as_bytes(), b"\xff\xfe", b"a\0b", b"gr\xc3"] {
            let (text, base64) = text_or_base64(bytes.to_vec());
            assert_eq!(text.is_some(), std::str::from_utf8(bytes).is_ok(), "{bytes:?}");
            assert_eq!(text.is_none(), base64.is_some(), "{bytes:?}");
            assert_eq!(join(text.as_deref(), base64.as_deref()).unwrap(), bytes);
        }
        assert!(join(None, Some("not base64")).is_err());
    }
}
