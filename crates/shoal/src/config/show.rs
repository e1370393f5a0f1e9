//! Prints the configuration in effect as a valid file, with the source of each value. A value that
//! is not set becomes a comment, with what it means on this machine: as a plain line it would be
//! set.

use model::{Placed, Template};
use serde_json::{Map, json};
use toml::{Table, Value};

use super::keys;
use super::layers::Effective;
use super::settings::Config;

/// Where the workspaces of a template are on this machine.
pub(super) type Placing<'a> = &'a dyn Fn(&Template) -> Result<Placed, String>;

/// As TOML. Parsing it gives the same configuration.
pub(super) fn as_toml(effective: &Effective, placing: Placing<'_>) -> String {
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
    for (template, source) in effective.config.given_templates().iter().zip(&effective.templates) {
        text.push('\n');
        text.push_str(&template_in_toml(template, &source.to_string()));
        text.push_str(&remark(template, placing));
    }
    if effective.config.templates.is_none() {
        text.push_str("\n# no templates are set: a node without templates starts with this one\n");
        for template in Config::built_in() {
            for line in template_in_toml(&template, "default").lines() {
                text.push_str(format!("# {line}").trim_end());
                text.push('\n');
            }
            text.push_str(&remark(&template, placing));
        }
    }
    text
}

fn template_in_toml(template: &Template, source: &str) -> String {
    let mut table = Table::new();
    let value = Value::try_from(template).unwrap_or(Value::Table(Table::new()));
    table.insert(keys::TEMPLATES.to_owned(), Value::Array(vec![value]));
    let header = format!("[[{}]]", keys::TEMPLATES);
    table.to_string().replacen(&header, &format!("{header}  # {source}"), 1)
}

/// A comment: where the workspaces of a template are, and why if the template does not say so.
fn remark(template: &Template, placing: Placing<'_>) -> String {
    match placing(template) {
        Ok(Placed { kind, limit, why }) => {
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            let (kind, limit) = (kind.as_str(), limit.as_str());
            format!("# {}: workspace on {kind}, limit {limit}{why}\n", template.name)
                .replace(" on memory,", " in memory,")
        }
        Err(why) => {
            format!("# {}: where its workspaces are is not known: {why}\n", template.name)
        }
    }
}

/// As JSON, for scripts.
pub(super) fn as_json(effective: &Effective, placing: Placing<'_>) -> serde_json::Value {
    let values = effective.values.iter().map(|(path, sourced)| {
        let about = json!({ "value": sourced.value, "source": sourced.source.to_string() });
        (path.clone(), about)
    });
    let entry = |template: &Template, source: String| match placing(template) {
        Ok(placed) => {
            let effective = json!({ "workspace": placed });
            json!({ "value": template, "source": source, "effective": effective })
        }
        Err(why) => json!({ "value": template, "source": source, "why_not": why }),
    };
    let templates: Vec<_> = match &effective.config.templates {
        Some(given) => {
            let sourced = given.iter().zip(&effective.templates);
            sourced.map(|(template, source)| entry(template, source.to_string())).collect()
        }
        None => Config::built_in().iter().map(|one| entry(one, "default".to_owned())).collect(),
    };
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
