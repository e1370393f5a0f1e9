//! Names of hosts, as rules and programs write them. Pure: it must never resolve a name.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::network::{InvalidRule, OTHER_SCRIPT, invalid};

/// A name of a host: lower case, letters, digits, dashes and underscores, without a final dot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(String);

impl HostName {
    /// Reads a name as programs write it: any case, one final dot. Numbers that could be read as an
    /// address are refused.
    pub fn parse(text: &str) -> Result<Self, InvalidRule> {
        let name = text.strip_suffix('.').unwrap_or(text);
        if !name.is_ascii() {
            return invalid(text, OTHER_SCRIPT);
        }
        if name.contains('*') {
            return invalid(text, "`*` does not stand in a name: write each name");
        }
        if name.contains(['/', ':']) {
            return invalid(text, "a name stands alone, without `https://`, port or path");
        }
        if name.is_empty() || name.len() > 253 {
            return invalid(text, "a name has 1 to 253 letters");
        }
        for label in name.split('.') {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            if label.is_empty() || label.len() > 63 || !label.bytes().all(plain) {
                return invalid(
                    text,
                    "each part of a name has 1 to 63 letters, digits, dashes or underscores",
                );
            }
            if label.starts_with('-') || label.ends_with('-') {
                return invalid(text, "no part of a name begins or ends with a dash");
            }
        }
        let name = name.to_ascii_lowercase();
        let last = name.rsplit('.').next().unwrap_or_default();
        let hexadecimal =
            last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_hexdigit()));
        if hexadecimal || last.bytes().all(|byte| byte.is_ascii_digit()) {
            return invalid(
                text,
                "this is the name of a host, not an address: its last part is not a number",
            );
        }
        Ok(Self(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is below another name: `a.example.org` is below `example.org`.
    pub fn is_below(&self, other: &Self) -> bool {
        self.0
            .strip_suffix(other.as_str())
            .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
    }
}

impl TryFrom<String> for HostName {
    type Error = InvalidRule;

    fn try_from(text: String) -> Result<Self, InvalidRule> {
        Self::parse(&text)
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> Self {
        name.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
