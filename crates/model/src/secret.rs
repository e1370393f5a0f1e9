//! Secrets, as templates and claims name them: which value, and where the sandbox finds it. Values
//! are never part of a use, except those that a claim brings itself, which nothing here prints.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::host_name::HostName;

/// The name of a secret: letters, digits, `_`, `-` and `.`, at most 128.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = String, pattern = "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$"))]
pub struct SecretName(String);

/// The most bytes of one value.
pub const SECRET_BYTES_MAX: usize = 64 * 1024;

/// The most uses of secrets in one template or claim.
pub const SECRET_USES_MAX: usize = 32;

/// The most hosts of one use at the boundary.
pub const BOUNDARY_HOSTS_MAX: usize = 16;

impl SecretName {
    /// Reads a name.
    pub fn new(text: &str) -> Result<Self, &'static str> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        if !(1..=128).contains(&text.len()) || !text.bytes().all(plain) || text.starts_with('.') {
            return Err("the name of a secret has 1 to 128 letters, digits, `_`, `-` or `.`, and \
                        does not begin with a dot");
        }
        Ok(Self(text.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for SecretName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        Self::new(&text)
    }
}

impl From<SecretName> for String {
    fn from(name: SecretName) -> Self {
        name.0
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a sandbox uses one secret. `env` and `file` say where it finds it. With `boundary` it finds a
/// placeholder there, and never the value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SecretUse {
    /// Which secret.
    pub secret: SecretName,
    /// The variable of the environment that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// The file beneath `/run/secrets` that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The value stays outside: it is put into requests to these hosts on their way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boundary: Option<Boundary>,
}

/// Where the value of a secret replaces its placeholder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Boundary {
    /// The hosts, on port 443.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub hosts: Vec<HostName>,
    /// The header of requests in which the placeholder is replaced.
    #[serde(default = "default_header")]
    pub header: String,
}

fn default_header() -> String {
    "authorization".to_owned()
}

/// Headers that carry connections, not credentials: replacing in them would change where a request
/// goes or where it ends.
const HEADERS_NEVER: &[&str] = &[
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

impl SecretUse {
    /// The problem with it, if there is one.
    pub fn problem(&self) -> Option<&'static str> {
        if self.env.is_none() && self.file.is_none() {
            return Some("a secret needs `env` or `file`, so that the sandbox can find it");
        }
        if self.env.as_ref().is_some_and(|name| !is_variable(name)) {
            return Some("`env` is the name of a variable: 1 to 128 letters, digits and `_`");
        }
        if self.file.as_ref().is_some_and(|name| SecretName::new(name).is_err()) {
            return Some("`file` is a single name of letters, digits, `_`, `-` and `.`");
        }
        let Some(boundary) = &self.boundary else { return None };
        if boundary.hosts.is_empty() || boundary.hosts.len() > BOUNDARY_HOSTS_MAX {
            return Some("`boundary.hosts` has 1 to 16 hosts");
        }
        let token = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let header = boundary.header.as_str();
        if header.is_empty() || header.len() > 64 || !header.bytes().all(token) {
            return Some("`boundary.header` is the name of a header in lower case");
        }
        HEADERS_NEVER.contains(&header).then_some(
            "`boundary.header` is a header of the connection, which carries no credentials",
        )
    }
}

/// The problem with the uses of a template or claim, if there is one.
pub fn problem_of_uses(uses: &[SecretUse]) -> Option<&'static str> {
    if uses.len() > SECRET_USES_MAX {
        return Some("at most 32 secrets are allowed");
    }
    if let Some(problem) = uses.iter().find_map(SecretUse::problem) {
        return Some(problem);
    }
    for (index, one) in uses.iter().enumerate() {
        for other in &uses[..index] {
            if one.env.is_some() && one.env == other.env {
                return Some("two secrets have the same `env`");
            }
            if one.file.is_some() && one.file == other.file {
                return Some("two secrets have the same `file`");
            }
            if let (Some(mine), Some(theirs)) = (&one.boundary, &other.boundary)
                && one.secret != other.secret
                && mine.header == theirs.header
                && mine.hosts.iter().any(|host| theirs.hosts.contains(host))
            {
                return Some("two secrets have the same `boundary` host and header");
            }
        }
    }
    None
}

fn is_variable(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&name.len())
        && name.bytes().all(plain)
        && !name.starts_with(|first: char| first.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> SecretUse {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn uses_without_a_place_or_with_a_header_of_the_connection_are_refused() {
        let good = read(
            r#"{"secret":"openai","env":"OPENAI_API_KEY","boundary":{"hosts":["api.openai.com"]}}"#,
        );
        assert_eq!(good.problem(), None);
        assert_eq!(good.boundary.as_ref().unwrap().header, "authorization");
        for text in [
            r#"{"secret":"a"}"#,
            r#"{"secret":"a","env":"1A"}"#,
            r#"{"secret":"a","env":"A=B"}"#,
            r#"{"secret":"a","file":"../x"}"#,
            r#"{"secret":"a","file":".x"}"#,
            r#"{"secret":"a","env":"A","boundary":{"hosts":[]}}"#,
            r#"{"secret":"a","env":"A","boundary":{"hosts":["a.test"],"header":"host"}}"#,
            r#"{"secret":"a","env":"A","boundary":{"hosts":["a.test"],"header":"X-Key"}}"#,
            r#"{"secret":"a","env":"A","boundary":{"hosts":["a.test"],"header":"x\r\ny"}}"#,
        ] {
            assert!(read(text).problem().is_some(), "{text}");
        }
        for name in ["", "a/b", "a b", ".a", "ä"] {
            assert!(SecretName::new(name).is_err(), "{name}");
        }
    }

    #[test]
    fn two_uses_never_share_a_place() {
        let one = read(r#"{"secret":"a","env":"A","boundary":{"hosts":["a.test"]}}"#);
        let same_env = read(r#"{"secret":"b","env":"A"}"#);
        let same_header = read(r#"{"secret":"b","env":"B","boundary":{"hosts":["a.test"]}}"#);
        let other_host = read(r#"{"secret":"b","env":"B","boundary":{"hosts":["b.test"]}}"#);
        assert!(problem_of_uses(&[one.clone(), same_env]).is_some());
        assert!(problem_of_uses(&[one.clone(), same_header]).is_some());
        assert_eq!(problem_of_uses(&[one, other_host]), None);
    }
}
