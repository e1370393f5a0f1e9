//! All keys of the configuration, derived from `Config`: path, kind, environment variable.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use toml::{Table, Value};

use super::settings::Config;

/// The section whose name is left out of its variables, because most users set those.
const PLAIN_SECTION: &str = "server.";
/// Our variables that are not keys.
const NO_KEYS: [&str; 4] = ["SHOAL_CONFIG", "SHOAL_URL", "SHOAL_KEY", "SHOAL_COLOR"];
/// Variables that orchestrators set for a service called `shoal`.
const FOREIGN: [&str; 2] = ["SHOAL_PORT", "SHOAL_SERVICE_"];
/// Variables of Ash that set one of our keys.
pub(super) const OF_ASH: [(&str, &str); 2] =
    [("ASH_MAX_SANDBOXES", "node.max_sandboxes"), ("ASH_IDLE_TIMEOUT_MS", "node.idle_timeout_ms")];
/// Variables of Ash that count only with `--ash`: otherwise they may be meant for Ash itself.
pub(super) const OF_ASH_WHERE_ASKED: [(&str, &str); 3] = [
    ("ASH_DATA_DIR", "server.data_dir"),
    ("ASH_SANDBOX_MEMORY_MB", "ash.memory_mb"),
    ("ASH_BRIDGE_ENTRY", "ash.bridge_entry"),
];
/// How many letters may be wrong in a key that we suggest.
const GUESS_MAX: usize = 4;

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Number,
    Flag,
    List,
}

impl Kind {
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Text => "a text",
            Self::Number => "a whole number",
            Self::Flag => "true or false",
            Self::List => "a list, with commas between its parts",
        }
    }

    /// Parses a value from the environment or a flag.
    pub(super) fn read(self, text: &str) -> Option<Value> {
        Some(match self {
            Self::Text => Value::String(text.to_owned()),
            Self::Number => Value::Integer(text.replace('_', "").parse().ok()?),
            Self::Flag => Value::Boolean(text.parse().ok()?),
            Self::List => {
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                Value::Array(parts.map(|part| Value::String(part.to_owned())).collect())
            }
        })
    }
}

/// All keys by path, in order.
pub(super) fn all() -> &'static BTreeMap<String, Kind> {
    static KEYS: OnceLock<BTreeMap<String, Kind>> = OnceLock::new();
    KEYS.get_or_init(|| {
        let specimen = Table::try_from(Config::specimen()).unwrap_or_default();
        let kind = |value: &Value| match value {
            Value::Integer(_) => Kind::Number,
            Value::Array(_) => Kind::List,
            Value::Boolean(_) => Kind::Flag,
            Value::String(_) | Value::Float(_) | Value::Datetime(_) | Value::Table(_) => Kind::Text,
        };
        let mut keys: BTreeMap<_, _> =
            leaves(&specimen).into_iter().map(|(path, value)| (path, kind(&value))).collect();
        keys.remove(TEMPLATES);
        keys
    })
}

/// The section that is not made of plain keys.
pub(super) const TEMPLATES: &str = "templates";

/// The values in a table, by path.
pub(super) fn leaves(table: &Table) -> BTreeMap<String, Value> {
    fn walk(at: &str, table: &Table, found: &mut BTreeMap<String, Value>) {
        for (key, value) in table {
            let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
            match value {
                Value::Table(inner) => walk(&path, inner, found),
                Value::String(_)
                | Value::Integer(_)
                | Value::Float(_)
                | Value::Boolean(_)
                | Value::Datetime(_)
                | Value::Array(_) => {
                    found.insert(path, value.clone());
                }
            }
        }
    }
    let mut found = BTreeMap::new();
    walk("", table, &mut found);
    found
}

/// Puts a value where its path says.
pub(super) fn insert(table: &mut Table, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            table.insert(path.to_owned(), value);
        }
        Some((section, rest)) => {
            let inner = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

/// The variable of a key.
pub(super) fn variable(path: &str) -> String {
    let path = path.strip_prefix(PLAIN_SECTION).unwrap_or(path);
    format!("SHOAL_{}", path.replace('.', "_").to_ascii_uppercase())
}

/// Whether a variable begins with SHOAL_ and is not known.
pub(super) fn is_unknown(name: &str) -> bool {
    name.starts_with("SHOAL_")
        && !NO_KEYS.contains(&name)
        && !FOREIGN.iter().any(|foreign| name.starts_with(foreign))
        && !all().keys().any(|path| variable(path) == name)
}

/// The key that was probably meant.
pub(super) fn guess<'a>(
    typed: &str,
    among: impl IntoIterator<Item = &'a String>,
) -> Option<&'a String> {
    let last = |path: &str| path.rsplit('.').next().map(str::to_owned);
    // The right key in the wrong section, or one with a few wrong letters.
    let distance = |known: &&String| {
        let whole = strsim::damerau_levenshtein(typed, known);
        if last(typed) == last(known) { whole.min(1) } else { whole }
    };
    // Of two that are equally near, the one in the same section is likelier, then the one in `server`.
    let section = |path: &str| path.rsplit_once('.').map(|(section, _)| section.to_owned());
    let rank = |known: &&String| {
        let elsewhere = section(typed) != section(known);
        (distance(known), elsewhere, !known.starts_with(PLAIN_SECTION))
    };
    among.into_iter().min_by_key(rank).filter(|known| distance(known) <= GUESS_MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn config_keys_have_a_variable_each() {
        let variables: BTreeSet<_> = all().keys().map(|path| variable(path)).collect();
        assert_eq!(variables.len(), all().len());
        for (path, expected) in [
            ("server.listen", "SHOAL_LISTEN"),
            ("server.data_dir", "SHOAL_DATA_DIR"),
            ("node.max_sandboxes", "SHOAL_NODE_MAX_SANDBOXES"),
            ("node.memory_budget_mb", "SHOAL_NODE_MEMORY_BUDGET_MB"),
            ("node.deadlines.kill_ms", "SHOAL_NODE_DEADLINES_KILL_MS"),
            ("store.kind", "SHOAL_STORE_KIND"),
        ] {
            assert!(all().contains_key(path), "{path}");
            assert_eq!(variable(path), expected);
        }
        for name in NO_KEYS {
            assert!(!variables.contains(name), "{name} is taken");
        }
        for (_, path) in OF_ASH.into_iter().chain(OF_ASH_WHERE_ASKED) {
            assert!(all().contains_key(path), "{path}");
        }
    }

    #[test]
    fn unknown_variables_are_recognised() {
        let cases = [
            ("SHOAL_LISTN", true),
            ("SHOAL_LISTEN", false),
            ("SHOAL_URL", false),
            ("SHOAL_SERVICE_HOST", false),
            ("SHOAL_PORT_7600_TCP", false),
            ("SHOALS", false),
        ];
        for (name, stray) in cases {
            assert_eq!(is_unknown(name), stray, "{name}");
        }
    }

    #[test]
    fn config_key_suggestions_find_the_nearest_key() {
        let cases = [
            ("node.max_livee", Some("node.max_live")),
            ("server.lisen", Some("server.listen")),
            ("server.max_live", Some("node.max_live")),
            ("egress.host", Some("egress.hosts")),
            ("data_dir", Some("server.data_dir")),
            ("something.else", None),
        ];
        for (typed, expected) in cases {
            assert_eq!(guess(typed, all().keys()).map(String::as_str), expected, "{typed}");
        }
    }
}
