//! The types of requests and answers, as schemas of the OpenAPI document.

use model::Template;
use utoipa::OpenApi as _;
use web::openapi::Schemas;

use crate::schemas::complete;

/// The schemas of all types.
pub(crate) fn schemas() -> Schemas {
    let mut schemas = ApiTypes::openapi().components.map(|words| words.schemas).unwrap_or_default();
    complete(&mut schemas);
    schemas
}

/// The types of the API.
#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(
    Template,
    wire::Checkout,
    wire::CheckoutRequest,
    wire::RenewRequest,
    wire::Sandbox,
    wire::SandboxList,
    wire::ExecRequest,
    wire::ExecResult,
    wire::ExecEvent,
    wire::Process,
    wire::ProcessList,
    wire::ProcessRequest,
    wire::ProcessLog,
    wire::ProcessEvent,
    wire::SignalRequest,
    wire::TerminalSize,
    wire::StatusReport,
    wire::StopRequest,
    wire::Network,
    wire::NetworkChange,
    wire::NetworkEntry,
    wire::NetworkLog,
    wire::NetworkEntryKind,
    wire::NetworkVerdict,
    wire::PortList,
    wire::TerminalWord,
    wire::FileEntry,
    wire::FileList,
    wire::MoveRequest,
    wire::DirectoryRequest,
    wire::AboutRequest,
    wire::LinkRequest,
    wire::Uploaded,
    wire::FileTree,
    wire::FoundList,
    wire::SearchResult,
    wire::FileEvent,
    wire::Unpacked,
    wire::Session,
    wire::SessionList,
    wire::DeadlineRequest,
    wire::SessionDeadline,
    model::DeadlineAction,
    wire::SessionRequest,
    wire::SessionUpdate,
    wire::AbortRequest,
    wire::Aborted,
    wire::LogLine,
    wire::LogList,
    wire::Turn,
    wire::TurnList,
    wire::TurnRequest,
    wire::TurnAnswer,
    wire::TurnEvent,
    wire::TurnEventList,
    wire::TurnOutput,
    wire::TurnEnded,
    model::ImageName,
    wire::Image,
    wire::ImageList,
    wire::ImageRemoved,
    wire::Why,
    wire::Event,
    wire::EventList,
    wire::EventsReset,
    wire::TemplateList,
    wire::PoolList,
    wire::PoolResize,
    wire::PoolStats,
    wire::KeyRequest,
    wire::Key,
    wire::KeyList,
    wire::NewKey,
    wire::KeyChange,
    wire::KeyLimitsChange,
    wire::KeyUsed,
    model::KeyLimits,
    model::SecretName,
    wire::SecretRequest,
    wire::SecretScope,
    wire::Secret,
    wire::SecretList,
    wire::UsageList,
    wire::Usage,
    wire::Health,
    wire::MemoryLimits,
    wire::Stats,
    wire::Problem,
)))]
struct ApiTypes;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    #[test]
    fn every_referenced_schema_exists() {
        let document: Value = serde_json::from_str(&crate::document()).unwrap();
        let known = document["components"]["schemas"].as_object().unwrap();
        let mut named = BTreeSet::new();
        references(&document, &mut named);
        assert!(named.len() > 30, "{named:?}");
        for name in named {
            let name = name.strip_prefix("#/components/schemas/").unwrap();
            assert!(known.contains_key(name), "{name}");
        }
    }

    fn references(value: &Value, found: &mut BTreeSet<String>) {
        if let Value::Object(fields) = value {
            if let Some(Value::String(name)) = fields.get("$ref") {
                found.insert(name.clone());
            }
            for value in fields.values() {
                references(value, found);
            }
        } else if let Value::Array(values) = value {
            for value in values {
                references(value, found);
            }
        }
    }

    #[test]
    fn bodies_without_a_schema_are_bytes_or_text() {
        let document: Value = serde_json::from_str(&crate::document()).unwrap();
        let paths = &document["paths"];
        let file = &paths["/v1/sandboxes/{id}/files"];
        let bytes = serde_json::json!({"type": "string", "format": "binary"});
        let octets = "application/octet-stream";
        assert_eq!(file["put"]["requestBody"]["content"][octets]["schema"], bytes);
        assert_eq!(file["get"]["responses"]["200"]["content"][octets]["schema"], bytes);
        let page = &paths["/docs/errors/{code}"]["get"]["responses"]["200"]["content"];
        let page = page.as_object().unwrap().values().next().unwrap();
        assert_eq!(page["schema"], serde_json::json!({"type": "string"}));
    }

    #[test]
    fn operation_ids_are_unique() {
        let mut names = BTreeSet::new();
        for route in crate::routes() {
            assert!(names.insert(route.operation.id), "{}", route.operation.id);
        }
    }
}
