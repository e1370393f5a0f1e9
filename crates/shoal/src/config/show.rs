//! The configuration that holds, as a file that could be used as it is, with the source of each
//! value beside it.

use serde_json::{Map, json};
use toml::{Table, Value};

use super::keys;
use super::layers::Effective;

/// As TOML. Reading it gives the same configuration.
pub(super) fn as_toml(effective: &Effective) -> String {
    let mut text = String::new();
    let mut section = String::new();
    let width = effective
        .values
        .iter()
        .map(|(path, sourced)| assignment(path, &sourced.value).chars().count())
        .max()
        .unwrap_or(0);
    for path in in_order() {
        let (table, key) = path.rsplit_once('.').unwrap_or(("", &path));
        if table != section {
            let gap = if text.is_empty() { "" } else { "\n" };
            text.extend([gap, "[", table, "]\n"]);
            table.clone_into(&mut section);
        }
        let line = match effective.values.get(&path) {
            Some(sourced) => {
                format!("{:width$}  # {}\n", assignment(&path, &sourced.value), sourced.source)
            }
            None => format!("# {key} is not set\n"),
        };
        text.push_str(&line);
    }
    for (template, source) in effective.config.templates.iter().zip(&effective.templates) {
        let mut table = Table::new();
        let value = Value::try_from(template).unwrap_or(Value::Table(Table::new()));
        table.insert(keys::TEMPLATES.to_owned(), Value::Array(vec![value]));
        let written = table.to_string();
        let header = format!("[[{}]]", keys::TEMPLATES);
        text.push('\n');
        text.push_str(&written.replacen(&header, &format!("{header}  # {source}"), 1));
    }
    text
}

/// As JSON, for scripts.
pub(super) fn as_json(effective: &Effective) -> serde_json::Value {
    let values = effective.values.iter().map(|(path, sourced)| {
        let about = json!({ "value": sourced.value, "source": sourced.source.to_string() });
        (path.clone(), about)
    });
    let templates: Vec<_> = effective
        .config
        .templates
        .iter()
        .zip(&effective.templates)
        .map(|(template, source)| json!({ "value": template, "source": source.to_string() }))
        .collect();
    json!({
        "file": effective.file,
        "values": values.collect::<Map<_, _>>(),
        "templates": templates,
    })
}

fn assignment(path: &str, value: &Value) -> String {
    let key = path.rsplit('.').next().unwrap_or(path);
    format!("{key} = {value}")
}

/// All keys, each section's own before those of its parts, the server first.
fn in_order() -> Vec<String> {
    let mut keys: Vec<String> = keys::all().keys().cloned().collect();
    let section = |path: &str| path.rsplit_once('.').map_or("", |(table, _)| table).to_owned();
    keys.sort_by_key(|path| (!path.starts_with("server."), section(path), path.clone()));
    keys
}
