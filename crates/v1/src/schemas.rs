//! Completes the schemas that are derived from types with rules that the server enforces:
//! numbers end where their type does, and a variant with a value has no other key. Without it a
//! client would accept a request as valid that the server refuses.

use std::collections::BTreeMap;

use utoipa::Number;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    AdditionalProperties, AllOf, AnyOf, KnownFormat, Object, OneOf, Schema, SchemaFormat,
};

/// Requests have these, as one word or as an object with one key.
const VARIANTS: [&str; 3] = ["Harness", "NetworkPolicy", "RootFs"];

/// Completes all schemas.
pub(crate) fn complete(schemas: &mut BTreeMap<String, RefOr<Schema>>) {
    for (name, schema) in schemas {
        bound(schema);
        if VARIANTS.contains(&name.as_str()) {
            close(schema);
        }
    }
}

fn bound(schema: &mut RefOr<Schema>) {
    let RefOr::T(schema) = schema else { return };
    match schema {
        Schema::Object(object) => {
            bound_number(object);
            object.properties.values_mut().for_each(bound);
        }
        Schema::OneOf(OneOf { items, .. })
        | Schema::AllOf(AllOf { items, .. })
        | Schema::AnyOf(AnyOf { items, .. }) => items.iter_mut().for_each(bound),
        Schema::Array(_) | _ => {}
    }
}

fn bound_number(object: &mut Object) {
    if object.maximum.is_some() {
        return;
    }
    object.maximum = match object.format {
        Some(SchemaFormat::KnownFormat(KnownFormat::UInt16)) => Some(u16::MAX.into()),
        Some(SchemaFormat::KnownFormat(KnownFormat::UInt32)) => Some(u32::MAX.into()),
        Some(SchemaFormat::KnownFormat(KnownFormat::UInt64)) => Some(Number::UInt(usize::MAX)),
        Some(_) | None => None,
    };
}

fn close(schema: &mut RefOr<Schema>) {
    let RefOr::T(Schema::OneOf(variants)) = schema else { return };
    for variant in &mut variants.items {
        if let RefOr::T(Schema::Object(object)) = variant
            && !object.properties.is_empty()
        {
            object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn schemas() -> Value {
        let document: Value = serde_json::from_str(&crate::made_document()).unwrap();
        document["components"]["schemas"].clone()
    }

    #[test]
    fn schema_numbers_have_the_range_of_their_type() {
        let schemas = schemas();
        let pool = &schemas["PoolSettings"]["properties"];
        assert_eq!(pool["pool_size"]["maximum"], u32::MAX);
        assert_eq!(pool["idle_ttl_ms"]["maximum"], u64::MAX);
        assert_eq!(pool["acquire_min_remaining_ttl_ms"]["maximum"], u64::MAX);
        assert_eq!(schemas["CheckoutRequest"]["properties"]["wait_ms"]["maximum"], 600_000);
    }

    #[test]
    fn schema_variants_allow_no_other_keys() {
        let schemas = schemas();
        let mut closed = 0;
        for name in VARIANTS {
            for variant in schemas[name]["oneOf"].as_array().unwrap() {
                if variant["type"] == "object" {
                    assert_eq!(variant["additionalProperties"], false, "{name}");
                    closed += 1;
                }
            }
        }
        assert_eq!(closed, 5);
    }
}
