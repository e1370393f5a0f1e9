//! Names and values for the environment of programs. Values are often secrets: they are sent to
//! programs, but must never be printed.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Names and values. `Debug` shows the names only.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Env(pub Vec<(String, String)>);

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl From<Vec<(String, String)>> for Env {
    fn from(pairs: Vec<(String, String)>) -> Self {
        Self(pairs)
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Env {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::Env;
    use crate::message::Request;

    #[test]
    fn environment_values_are_not_printed() {
        let env: Env = [("TOKEN", "hunter2"), ("MODE", "fast")].into_iter().collect();
        let request = Request::Claim { env };
        for text in [format!("{request:?}"), format!("{request:#?}")] {
            assert!(text.contains("TOKEN") && text.contains("MODE"), "{text}");
            assert!(!text.contains("hunter2") && !text.contains("fast"), "{text}");
        }
    }
}
