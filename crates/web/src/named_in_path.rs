//! The ids and names in the path of a request, for the request log. A route's pattern says which
//! part of the path names what. Only text that can be an id or a name is shown: never the path of a
//! file, and nothing of the query or the body, which may be secret.

use std::str::FromStr;

use model::{KeyId, LeaseId, SandboxId, SessionId, TurnId};

/// The longest name that is shown; a longer one is left out.
const NAME_BYTES_MAX: usize = 64;

/// What the path names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NamedInPath {
    pub(crate) sandbox: Option<String>,
    pub(crate) session: Option<String>,
    pub(crate) lease: Option<String>,
    pub(crate) template: Option<String>,
    pub(crate) image: Option<String>,
    pub(crate) process: Option<String>,
    pub(crate) turn: Option<String>,
    pub(crate) agent: Option<String>,
    /// Not the key of the caller.
    pub(crate) named_key: Option<String>,
}

impl NamedInPath {
    /// Reads the path by the pattern of its route. The path of a dialect's route comes without the
    /// prefix of the dialect.
    pub(crate) fn read(route: &str, path: &str) -> Self {
        let mut named = Self::default();
        let prefix_parts = if route.starts_with("/compat/") { 2 } else { 0 };
        let mut before = "";
        let parts = route.split('/').skip(1 + prefix_parts).zip(path.split('/').skip(1));
        for (pattern, given) in parts {
            let parameter = pattern.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            if let Some(parameter) = parameter {
                named.set(before, parameter, given);
            } else if pattern != given {
                // The path is not of this form, so its parts may be anything.
                break;
            }
            before = pattern;
        }
        named
    }

    /// Sets what one parameter names. `before` is the part of the pattern before it.
    fn set(&mut self, before: &str, parameter: &str, given: &str) {
        match (before, parameter) {
            ("sandboxes", "id") => self.sandbox = canonical::<SandboxId>(given),
            ("sessions", "id") => self.session = canonical::<SessionId>(given),
            ("checkouts", "id") => self.lease = canonical::<LeaseId>(given),
            ("keys", "id") => self.named_key = canonical::<KeyId>(given),
            ("pools", "template") | ("templates", "name") => {
                self.template = name(given);
            }
            ("images", "image") => self.image = name(given),
            ("turns", "turn") => self.turn = canonical::<TurnId>(given),
            ("agents", "name") => self.agent = name(given),
            ("processes", "process") => self.process = name(given),
            _ => {}
        }
    }
}

/// An id as the server writes it, if it is one.
fn canonical<T: FromStr + ToString>(given: &str) -> Option<String> {
    given.parse::<T>().ok().map(|id| id.to_string())
}

/// A name, if it is short and has only letters, digits, `.`, `_`, `:` and `-`.
pub(crate) fn name(given: &str) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    let fits = !given.is_empty() && given.len() <= NAME_BYTES_MAX;
    (fits && given.bytes().all(is_plain)).then(|| given.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0192f3a0-0000-7000-8000-0000000000ab";

    #[test]
    fn named_in_path_has_canonical_ids() {
        let read = NamedInPath::read;
        let upper = ID.to_uppercase();
        let exec = read("/v1/sandboxes/{id}/exec", &format!("/v1/sandboxes/{upper}/exec"));
        assert_eq!(exec, NamedInPath { sandbox: Some(ID.to_owned()), ..NamedInPath::default() });
        let turn = read("/v1/sessions/{id}/turns/{turn}", &format!("/v1/sessions/{ID}/turns/{ID}"));
        assert_eq!((turn.session.as_deref(), turn.turn.as_deref()), (Some(ID), Some(ID)));
        let lease = read("/v1/checkouts/{id}/renew", &format!("/v1/checkouts/{ID}/renew"));
        assert_eq!(lease.lease.as_deref(), Some(ID));
        let pool = read("/v1/pools/{template}/drain", "/v1/pools/small/drain");
        assert_eq!(pool.template.as_deref(), Some("small"));
        let process = "/v1/sandboxes/{id}/processes/{process}";
        let process = read(process, &format!("/v1/sandboxes/{ID}/processes/web"));
        assert_eq!(process.process.as_deref(), Some("web"));
        let dialect = read("/compat/ash/api/agents/{name}/files", "/api/agents/a-1/files");
        assert_eq!(dialect.agent.as_deref(), Some("a-1"));
    }

    #[test]
    fn named_in_path_leaves_out_what_is_no_id() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for (route, path) in [
            ("/v1/sandboxes/{id}", "/v1/sandboxes/hunter2".to_owned()),
            (
                "/v1/sandboxes/{id}/ports/{port}/{path}",
                "/v1/sandboxes/x/ports/80/secret".to_owned(),
            ),
            ("/v1/templates/{name}", format!("/v1/templates/{long}")),
            ("/v1/pools/{template}", "/v1/pools/a%20b=c".to_owned()),
            ("/v1/pools/{template}/drain", "/v2/hunter2/drain".to_owned()),
            ("other", "/v1/nothing".to_owned()),
        ] {
            assert_eq!(NamedInPath::read(route, &path), NamedInPath::default(), "{route} {path}");
        }
    }
}
