//! A route as a tool: its parameters and the fields of its body are the arguments, its answer is
//! the result. It is the same handler that answers the route, so that a tool can do, refuse and
//! bound exactly what the route does.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use http::header::ACCEPT;
use http::{HeaderValue, Method, StatusCode};
use http_body_util::BodyExt as _;
use model::ErrorCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rmcp::model::JsonObject;
use serde_json::{Value, json};
use tower_service::Service as _;

use super::node::Node;
use super::schemas::ApiDocument;
use super::tool::{About, Call, Effect, Tool};
use web::front::Admitted;
use web::operation::{Route, Verb};
use web::refused::Refused;

/// What a route creates, which is taken back if its client disconnects before the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Makes {
    Nothing,
    Checkout,
    Sandbox,
    Session,
}

/// Where the arguments of a tool go.
struct Plan {
    method: Method,
    path: &'static str,
    /// Placeholders in the path, and how the arguments for them are called.
    places: Vec<(String, String)>,
    query: Vec<String>,
    body: Option<Vec<String>>,
    makes: Makes,
}

/// The tool of a route; none if that passes on whatever method it gets.
pub(super) fn tool(
    words: &ApiDocument,
    route: &Route,
    name: &'static str,
    effect: Effect,
    text: &str,
) -> Option<Tool<Node>> {
    let method = method(route.method)?;
    let operation_doc = words.operation(route.path, &method.as_str().to_ascii_lowercase());
    let mut plan = Plan {
        method,
        path: route.path,
        places: Vec::new(),
        query: Vec::new(),
        body: None,
        makes: match route.operation.id {
            "create_checkout" => Makes::Checkout,
            "create_sandbox" => Makes::Sandbox,
            "create_session" => Makes::Session,
            _ => Makes::Nothing,
        },
    };
    let input = plan.arguments(words, operation_doc);
    let output = result(words, operation_doc);
    let about = About { name, text: text.to_owned(), needs: route.needs, effect };
    let plan = Arc::new(plan);
    Some(Tool::described(about, input, Some(output), move |call, arguments| {
        let plan = Arc::clone(&plan);
        Box::pin(async move { plan.run(call, arguments).await })
    }))
}

const fn method(verb: Verb) -> Option<Method> {
    Some(match verb {
        Verb::Get => Method::GET,
        Verb::Post => Method::POST,
        Verb::Put => Method::PUT,
        Verb::Patch => Method::PATCH,
        Verb::Delete => Method::DELETE,
        Verb::Any => return None,
    })
}

/// The schema of its successful answer.
fn result(words: &ApiDocument, operation_doc: &Value) -> JsonObject {
    let answers = [&operation_doc["responses"]["200"], &operation_doc["responses"]["201"]];
    let schema = answers.iter().find_map(|answer| {
        let schema = &answer["content"]["application/json"]["schema"];
        (!schema.is_null()).then(|| words.whole(schema)).flatten()
    });
    schema.unwrap_or_else(|| JsonObject::from_iter([("type".to_owned(), json!("object"))]))
}

impl Plan {
    /// The schema of the arguments.
    fn arguments(&mut self, words: &ApiDocument, operation_doc: &Value) -> JsonObject {
        let (mut properties, mut required) = (JsonObject::new(), Vec::new());
        for parameter in operation_doc["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap_or_default();
            let mut schema = parameter["schema"].clone();
            let (argument, text) = match parameter["in"].as_str() {
                Some("path") => {
                    let (argument, text) = argument_for(self.path, name);
                    self.places.push((format!("{{{name}}}"), argument.to_owned()));
                    (argument.to_owned(), Some(text))
                }
                Some("query") => {
                    self.query.push(name.to_owned());
                    (name.to_owned(), parameter["description"].as_str())
                }
                Some(_) | None => continue,
            };
            if let (Some(fields), Some(text)) = (schema.as_object_mut(), text) {
                fields.insert("description".to_owned(), json!(text));
            }
            if parameter["required"] == true {
                required.push(json!(argument));
            }
            properties.insert(argument, schema);
        }
        let body = &operation_doc["requestBody"]["content"]["application/json"]["schema"];
        if !body.is_null() {
            let body = words.followed(body);
            let fields = body["properties"].as_object();
            self.body = Some(fields.into_iter().flatten().map(|(name, _)| name.clone()).collect());
            properties.extend(fields.cloned().unwrap_or_default());
            required.extend(body["required"].as_array().cloned().unwrap_or_default());
        }
        let mut input = JsonObject::from_iter([
            ("type".to_owned(), json!("object")),
            ("properties".to_owned(), Value::Object(properties)),
            ("required".to_owned(), Value::Array(required)),
            ("additionalProperties".to_owned(), json!(false)),
        ]);
        words.define(&mut input);
        input
    }

    async fn run(&self, call: Call<Node>, arguments: JsonObject) -> Result<Value, Refused> {
        let Call { app, caller, request_id, made, of: node } = call;
        let mut request = self.request(arguments)?;
        request.extensions_mut().insert(Admitted { caller, request_id });
        let response = match node.routes().call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let (mut parts, body) = response.into_parts();
        if let Some(refused) = parts.extensions.remove::<Refused>() {
            return Err(refused);
        }
        let bytes = body.collect().await.map_err(|error| internal(&error))?.to_bytes();
        if parts.status == StatusCode::NO_CONTENT {
            return Ok(json!({ "done": true }));
        }
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| internal(&error))?;
        let id = |value: &Value| value.as_str().map(str::to_owned).unwrap_or_default();
        match self.makes {
            Makes::Nothing => {}
            Makes::Checkout | Makes::Sandbox => {
                let field = if self.makes == Makes::Checkout { "id" } else { "lease" };
                if let Ok(lease) = id(&value[field]).parse() {
                    made.lease(&app, caller, lease);
                }
            }
            Makes::Session => {
                if let Ok(session) = id(&value["id"]).parse() {
                    made.session(&app, caller, session);
                }
            }
        }
        Ok(value)
    }

    fn request(&self, mut arguments: JsonObject) -> Result<Request, Refused> {
        let mut uri = self.path.to_owned();
        for (place, name) in &self.places {
            let given = arguments.remove(name).as_ref().and_then(plain);
            let given = given.filter(|text| !text.is_empty());
            let Some(given) = given else {
                return Err(Refused::bad(name.clone(), format!("{name}: must be a text")));
            };
            uri = uri.replace(place, &utf8_percent_encode(&given, NON_ALPHANUMERIC).to_string());
        }
        let mut mark = '?';
        for name in &self.query {
            let values = match arguments.remove(name) {
                None | Some(Value::Null) => Vec::new(),
                Some(Value::Array(values)) => values,
                Some(value) => vec![value],
            };
            for value in values {
                let Some(text) = plain(&value) else {
                    let cause = format!("{name}: must be a text, a number or a boolean");
                    return Err(Refused::bad(name.clone(), cause));
                };
                // Writing to a string cannot fail.
                let _ =
                    write!(uri, "{mark}{name}={}", utf8_percent_encode(&text, NON_ALPHANUMERIC));
                mark = '&';
            }
        }
        let known = self.body.as_deref().unwrap_or_default();
        if let Some(name) = arguments.keys().find(|name| !known.contains(name)) {
            let cause = format!("{name}: is not an argument of this tool");
            return Err(Refused::bad(name.clone(), cause));
        }
        let body = match self.body {
            Some(_) => Body::from(Value::Object(arguments).to_string()),
            None => Body::empty(),
        };
        let accept = HeaderValue::from_static("application/json");
        let request = Request::builder().method(&self.method).uri(uri).header(ACCEPT, accept);
        request.body(body).map_err(|error| internal(&error))
    }
}

/// The name and description of the argument for a placeholder in a path. `id` alone would be
/// ambiguous.
fn argument_for<'a>(path: &str, place: &'a str) -> (&'a str, &'static str) {
    let of = path.strip_prefix("/v1/").and_then(|rest| rest.split('/').next()).unwrap_or_default();
    match (of, place) {
        ("sandboxes", "id") => ("sandbox_id", "The id of the sandbox"),
        ("sessions", "id") => ("session_id", "The id of the session"),
        (_, "turn") => ("turn_id", "The id of the turn"),
        (_, "process") => (place, "The process: its id, its process id or its name"),
        (_, "template") => (place, "The name of the template"),
        (_, _) => (place, "Its name"),
    }
}

/// A value as it is written in an address.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn internal(error: &impl std::fmt::Display) -> Refused {
    Refused::new(ErrorCode::Internal, error.to_string())
}
