//! The configuration file: parsed with the position of each value, checked as a whole, never
//! changed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::keys;
use super::settings::Config;
use super::source::{ConfigError, Source};

/// Longest file that is read.
pub(super) const BYTES_MAX: u64 = 1 << 20;
const EVERY_KEY: &str = "`shoal config` shows every key there is";

/// A parsed configuration file.
#[derive(Debug)]
pub(super) struct File {
    path: Arc<Path>,
    text: String,
    /// The position of every value, by path. Parts of lists have numbers.
    places: BTreeMap<String, Range<usize>>,
    table: Table,
}

impl File {
    /// Parses the text of a file.
    pub(super) fn parse(path: &Path, text: String) -> Result<Self, ConfigError> {
        let mut file =
            Self { path: path.into(), text, places: BTreeMap::new(), table: Table::new() };
        let mut places = BTreeMap::new();
        let parsed = DeTable::parse(&file.text).map_err(|error| file.refused(&error))?;
        note_table("", parsed.get_ref(), &mut places);
        file.places = places;
        file.refuse_unknown()?;
        // As `Config` first: those errors have a position.
        toml::from_str::<Config>(&file.text).map_err(|error| file.refused(&error))?;
        file.table = toml::from_str(&file.text).map_err(|error| file.refused(&error))?;
        Ok(file)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The plain values, by path.
    pub(super) fn values(&self) -> BTreeMap<String, Value> {
        let mut values = keys::leaves(&self.table);
        values.remove(keys::TEMPLATES);
        values
    }

    /// The templates, if it has some.
    pub(super) fn templates(&self) -> Option<&Value> {
        self.table.get(keys::TEMPLATES)
    }

    /// The position of a key, or of the nearest key above it that exists.
    pub(super) fn source(&self, path: &str) -> Option<Source> {
        let mut path = path;
        loop {
            if let Some(place) = self.places.get(path) {
                return Some(self.place(place.start));
            }
            path = path.rsplit_once('.')?.0;
        }
    }

    fn place(&self, offset: usize) -> Source {
        let before = &self.text[..self.text.floor_char_boundary(offset)];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Source::File {
            path: Arc::clone(&self.path),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    /// The innermost key around a position.
    fn key_at(&self, span: &Range<usize>) -> Option<String> {
        let around = self
            .places
            .iter()
            .filter(|(_, place)| place.contains(&span.start) || place.start == span.start);
        around.max_by_key(|(path, _)| path.matches('.').count()).map(|(path, _)| path.clone())
    }

    fn refused(&self, error: &toml::de::Error) -> ConfigError {
        let span = error.span().unwrap_or(0..0);
        let problem = error.message().trim().replace('\n', ", ");
        let remedy = if problem.starts_with("unknown field") {
            EVERY_KEY
        } else {
            "correct it; docs/guides/serve.md explains the file"
        };
        ConfigError {
            source: self.place(span.start),
            key: self.key_at(&span),
            problem,
            remedy: remedy.to_owned(),
        }
    }

    /// Refuses unknown keys, and suggests the key that was probably meant.
    fn refuse_unknown(&self) -> Result<(), ConfigError> {
        let of_templates = format!("{}.", keys::TEMPLATES);
        for (path, place) in &self.places {
            let section = format!("{path}.");
            let known = path == keys::TEMPLATES
                || path.starts_with(&of_templates)
                || keys::all().keys().any(|key| {
                    // A part of a list lies beneath its key.
                    key == path || key.starts_with(&section) || path.starts_with(&format!("{key}."))
                });
            if !known {
                let remedy = keys::guess(path, keys::all().keys())
                    .map_or_else(|| EVERY_KEY.to_owned(), |key| format!("did you mean {key}?"));
                return Err(ConfigError {
                    source: self.place(place.start),
                    key: Some(path.clone()),
                    problem: "there is no such key".to_owned(),
                    remedy,
                });
            }
        }
        Ok(())
    }
}

/// Records the positions of the keys of a table.
fn note_table(at: &str, table: &DeTable<'_>, places: &mut BTreeMap<String, Range<usize>>) {
    for (key, value) in table {
        let name: &str = key.get_ref();
        let path = if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
        places.insert(path.clone(), key.span().start..value.span().end.max(key.span().end));
        note_value(&path, value, places);
    }
}

fn note_value(
    path: &str,
    value: &Spanned<DeValue<'_>>,
    places: &mut BTreeMap<String, Range<usize>>,
) {
    match value.get_ref() {
        DeValue::Table(table) => note_table(path, table, places),
        DeValue::Array(parts) => {
            for (n, part) in parts.iter().enumerate() {
                let path = format!("{path}.{n}");
                places.insert(path.clone(), part.span());
                note_value(&path, part, places);
            }
        }
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> (String, String) {
        let error = File::parse(Path::new("s.toml"), text.to_owned()).unwrap_err();
        (error.to_string(), error.remedy)
    }

    #[test]
    fn config_file_errors_name_line_column_key_and_remedy() {
        let cases = [
            ("[server]\nlisten = 5\n", "s.toml:2:10: server.listen: ", "correct it"),
            ("[server]\nlisten = \"x\"\n", "s.toml:2:10: server.listen: ", "correct it"),
            ("[node]\nmax_live = -1\n", "s.toml:2:12: node.max_live: ", "correct it"),
            (
                "[node]\n\n  max_lve = 1\n",
                "s.toml:3:3: node.max_lve: there is no",
                "node.max_live?",
            ),
            ("[nodes]\n", "s.toml:1:2: nodes: there is no such key", ""),
            ("listen = 1\n", "s.toml:1:1: listen: there is no such key", "server.listen?"),
            ("[node.deadlines]\nkil_ms = 1\n", "s.toml:2:1: node.deadlines.kil_ms: ", "kill_ms?"),
            ("[node]\ndeadlines = 3\n", "s.toml:2:13: node.deadlines: ", "correct it"),
            ("[log]\nformat = \"xml\"\n", "s.toml:2:10: log.format: unknown variant", "correct"),
            ("[server]\nhosts = [\"a\", 3]\n", "s.toml:2:15: server.hosts.1: ", "correct it"),
            ("[server\n", "s.toml:1:", "correct it"),
            ("[server]\nlisten = \"a\"\nlisten = \"b\"\n", "s.toml:3:1: ", "correct it"),
            ("[[templates]]\n", "s.toml:1:1: templates.0: missing", "correct it"),
            (
                "[[templates]]\nname = \"t\"\n[templates.pool]\npol_size = 3\n",
                "s.toml:4:1: templates.0.pool.pol_size: unknown field",
                "every key",
            ),
            ("[[templates]]\nname = \"T\"\n", "s.toml:2:8: templates.0.name: a template", ""),
        ];
        for (text, expected, remedy) in cases {
            let (error, hint) = refusal(text);
            assert!(error.starts_with(expected), "{text:?} gave {error:?}");
            assert!(hint.contains(remedy), "{text:?} hinted {hint:?}");
        }
    }

    #[test]
    fn config_file_columns_count_characters() {
        let (error, _) = refusal("log = { format = \"ä\", x = 1 }\n");
        assert!(error.starts_with("s.toml:1:23: log.x: "), "{error}");
    }

    #[test]
    fn config_file_values_know_their_lines() {
        let text = "[server]\nlisten = \"0.0.0.0:1\"\n[[templates]]\nname = \"a\"\n";
        let file = File::parse(Path::new("s.toml"), text.to_owned()).unwrap();
        assert_eq!(file.values().keys().collect::<Vec<_>>(), ["server.listen"]);
        for (key, expected) in [
            ("server.listen", Some("s.toml:2")),
            ("templates.0.name", Some("s.toml:4")),
            ("templates.0.pool.pool_size", Some("s.toml:3")),
            ("node.max_live", None),
        ] {
            let source = file.source(key).map(|source| source.to_string());
            assert_eq!(source.as_deref(), expected, "{key}");
        }
    }
}
