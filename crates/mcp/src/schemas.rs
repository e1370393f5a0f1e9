//! JSON schemas of arguments and results: of our own types, and of the types in the OpenAPI
//! document. Unknown arguments are forbidden everywhere.

use std::collections::BTreeSet;

use rmcp::model::JsonObject;
use rmcp::schemars::JsonSchema;
use rmcp::schemars::generate::SchemaSettings;
use serde_json::{Value, json};

const COMPONENTS: &str = "#/components/schemas/";
const DEFINITIONS: &str = "#/$defs/";

/// The schema of a type.
pub(super) fn of<T: JsonSchema>() -> JsonObject {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut schema = match schema.to_value() {
        Value::Object(schema) => schema,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            JsonObject::new()
        }
    };
    schema.remove("title");
    schema.remove("description");
    schema.entry("properties").or_insert_with(|| json!({}));
    let mut schema = Value::Object(schema);
    drop_number_formats(&mut schema);
    object(schema)
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(object) => object,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            JsonObject::new()
        }
    }
}

/// Removes number formats: they are type names of Rust, which some clients reject.
fn drop_number_formats(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("format").and_then(Value::as_str).is_some_and(|format| {
                format.starts_with("uint") || format.starts_with("int") || format == "double"
            }) {
                fields.remove("format");
            }
            fields.values_mut().for_each(drop_number_formats);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_number_formats),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The OpenAPI document, to take schemas from.
pub(super) struct ApiDocument(Value);

impl ApiDocument {
    pub(super) fn new(document: &str) -> Self {
        Self(serde_json::from_str(document).unwrap_or_default())
    }

    /// The description of a route.
    pub(super) fn operation(&self, path: &str, method: &str) -> &Value {
        &self.0["paths"][path][method]
    }

    /// A schema with everything that it refers to, if it is one of an object.
    pub(super) fn whole(&self, schema: &Value) -> Option<JsonObject> {
        let mut root = object(self.followed(schema).clone());
        if root.get("type").and_then(Value::as_str) != Some("object") {
            return None;
        }
        self.define(&mut root);
        Some(root)
    }

    /// What a reference leads to; itself if it is none.
    pub(super) fn followed<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let name = schema["$ref"].as_str().and_then(|text| text.strip_prefix(COMPONENTS));
        name.map_or(schema, |name| &self.0["components"]["schemas"][name])
    }

    /// Puts what a schema refers to beside it.
    pub(super) fn define(&self, root: &mut JsonObject) {
        let mut schema = Value::Object(std::mem::take(root));
        let mut wanted = BTreeSet::new();
        rename(&mut schema, &mut wanted);
        let mut definitions = JsonObject::new();
        while let Some(name) = wanted.pop_first() {
            if definitions.contains_key(&name) {
                continue;
            }
            let mut definition = self.0["components"]["schemas"][&name].clone();
            rename(&mut definition, &mut wanted);
            definitions.insert(name, definition);
        }
        drop_number_formats(&mut schema);
        *root = object(schema);
        if !definitions.is_empty() {
            let mut definitions = Value::Object(definitions);
            drop_number_formats(&mut definitions);
            root.insert("$defs".to_owned(), definitions);
        }
    }
}

/// Lets references lead to where a schema of its own keeps what it refers to.
fn rename(schema: &mut Value, wanted: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(to)) = fields.get_mut("$ref")
                && let Some(name) = to.strip_prefix(COMPONENTS)
            {
                wanted.insert(name.to_owned());
                *to = format!("{DEFINITIONS}{name}");
            }
            fields.values_mut().for_each(|value| rename(value, wanted));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| rename(value, wanted)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
