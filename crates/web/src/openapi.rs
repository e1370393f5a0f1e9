//! The OpenAPI document, made from the list of routes and the schemas of their types. Every
//! status that a route can answer with is in it.

use std::collections::BTreeMap;

use model::ErrorCode;
use utoipa::openapi::content::{Content, ContentBuilder};
use utoipa::openapi::header::Header;
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, Parameter, ParameterBuilder, ParameterIn, PathItemBuilder,
};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::schema::{
    ArrayBuilder, KnownFormat, Object, ObjectBuilder, OneOfBuilder, Ref, Schema, SchemaFormat, Type,
};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, Info, OpenApi, PathsBuilder, RefOr, Required, ResponsesBuilder, Server,
};

use crate::front::Needs;
use crate::operation::{Kind, Operation, Param, Route, Takes, Verb};

const JSON: &str = "application/json";
const PROBLEM: &str = wire::Problem::MEDIA_TYPE;
/// A form with files in it.
const FORM: &str = "multipart/form-data";
const KEY: &str = "key";
/// Where answers report files that were lost.
const OF_SESSION: &str = "/v1/sessions/{id}";

/// The schemas of a document by their names.
pub type Schemas = BTreeMap<String, RefOr<Schema>>;

/// The document of these routes, as JSON.
pub fn document(routes: &[Route], schemas: Schemas) -> String {
    let mut text = serde_json::to_string_pretty(&build(routes, schemas)).unwrap_or_default();
    text.push('\n');
    text
}

fn build(routes: &[Route], schemas: Schemas) -> OpenApi {
    let scheme = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A key of this server: `shoal key create` creates one"))
        .build();
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .security_scheme(KEY, SecurityScheme::Http(scheme));
    let mut items: BTreeMap<&str, PathItemBuilder> = BTreeMap::new();
    for route in routes {
        let mut item = items.remove(route.path).unwrap_or_default();
        for (method, id) in methods(route) {
            item = item.operation(method, operation(route, &id));
        }
        items.insert(route.path, item);
    }
    let paths = items.into_iter().fold(PathsBuilder::new(), |paths, (path, item)| {
        // The rest of a path is a variable like any other, as far as a description can say.
        paths.path(path.replace("{*", "{"), item.build())
    });
    let mut info = Info::new("Shoal", env!("CARGO_PKG_VERSION"));
    info.description = Some(
        "A pool of warm sandboxes for AI agents. Refusals are `application/problem+json` with a stable `code`."
            .to_owned(),
    );
    let mut document = OpenApi::new(info, paths);
    document.components = Some(components.build());
    document.servers = Some(vec![Server::new("/")]);
    document
}

/// The methods of a route, each with the name of its operation.
fn methods(route: &Route) -> Vec<(HttpMethod, String)> {
    let id = route.operation.id;
    let one = |method| vec![(method, id.to_owned())];
    match route.method {
        Verb::Get => one(HttpMethod::Get),
        Verb::Post => one(HttpMethod::Post),
        Verb::Put => one(HttpMethod::Put),
        Verb::Patch => one(HttpMethod::Patch),
        Verb::Delete => one(HttpMethod::Delete),
        // Those that a description has a word for and a client of it could use.
        Verb::Any => vec![
            (HttpMethod::Get, format!("{id}_get")),
            (HttpMethod::Post, format!("{id}_post")),
            (HttpMethod::Put, format!("{id}_put")),
            (HttpMethod::Patch, format!("{id}_patch")),
            (HttpMethod::Delete, format!("{id}_delete")),
        ],
    }
}

fn operation(route: &Route, id: &str) -> OperationBuilder {
    let Operation { about, takes, query, headers, answers, .. } = &route.operation;
    let mut built =
        OperationBuilder::new().operation_id(Some(id)).summary(Some(*about)).tag(tag(route.path));
    let needed = match route.needs.role() {
        None => "Needs no key.".to_owned(),
        Some(role) => format!("Needs a key with the role `{role}` or a higher one."),
    };
    built = built.description(Some(needed));
    for name in variables(route.path) {
        built = built.parameter(variable(name));
    }
    for param in query {
        built = built.parameter(parameter(param, ParameterIn::Query));
    }
    for param in headers {
        built = built.parameter(parameter(param, ParameterIn::Header));
    }
    if let Some(body) = body(*takes) {
        built = built.request_body(Some(body));
    }
    if route.needs != Needs::Public {
        built = built.security(SecurityRequirement::new(KEY, Vec::<String>::new()));
    }
    let mut responses = BTreeMap::new();
    let mut refused = refusals(route);
    for answer in answers {
        let mut response = ResponseBuilder::new().description(answer.about);
        for crate::operation::Content(media_type, schema) in &answer.content {
            response = response.content(*media_type, content(media_type, *schema));
        }
        if refused.remove(&answer.status).is_some() {
            response = response.content(PROBLEM, content(PROBLEM, Some("Problem")));
        }
        responses.insert(answer.status, response.build());
    }
    for (status, codes) in refused {
        responses.insert(status, problem(&codes));
    }
    let reports_losses = route.path.starts_with(OF_SESSION);
    let responses =
        responses.into_iter().fold(ResponsesBuilder::new(), |all, (status, mut one)| {
            if reports_losses && status < 400 {
                one.headers.insert(wire::STATE_LOST_HEADER.to_owned(), RefOr::T(state_lost()));
            }
            all.response(status.to_string(), one)
        });
    built.responses(responses)
}

/// The header of an answer that reports lost files.
fn state_lost() -> Header {
    let mut header = Header::new(text());
    header.description = Some(
        "Only if files of the session were lost and no earlier answer reported it: the reason. \
         An answer that is a JSON object then also has `state_lost` and `state_lost_reason`. \
         Refusals report it in the same way."
            .to_owned(),
    );
    header
}

fn tag(path: &str) -> &str {
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
    match parts.as_slice() {
        ["v1", "sandboxes" | "sessions", _, "exec"] => "exec",
        ["v1", "sandboxes" | "sessions", _, "files" | "archive", ..] => "files",
        ["v1", "sandboxes" | "sessions", _, "ports" | "forward", ..] => "ports",
        ["v1", "sandboxes", _, "processes" | "terminal", ..] => "processes",
        ["v1", "sessions", _, "turns", ..] => "turns",
        ["v1", "stats" | "openapi.json"] | ["health" | "metrics" | "docs", ..] => "server",
        ["v1", thing, ..] => thing,
        _ => "server",
    }
}

fn variables(path: &str) -> impl Iterator<Item = &str> {
    let variables = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    variables.map(|name| name.trim_start_matches('*'))
}

fn variable(name: &str) -> Parameter {
    let schema: RefOr<Schema> = match name {
        "id" | "turn" => formatted("uuid").into(),
        "template" | "name" => Ref::from_schema_name("TemplateName").into(),
        "secret" => Ref::from_schema_name("SecretName").into(),
        "image" => matching("^[a-z0-9._:-]{1,128}$").into(),
        "port" => ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(1))
            .maximum(Some(u16::MAX))
            .build()
            .into(),
        "process" => matching("^[^/]{1,128}$").into(),
        "code" => one_of(ErrorCode::ALL.iter().map(|code| code.as_str())).into(),
        _ => text().into(),
    };
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .schema(Some(schema))
        .build()
}

fn text() -> Object {
    ObjectBuilder::new().schema_type(Type::String).build()
}

fn formatted(format: &str) -> Object {
    let format = SchemaFormat::Custom(format.to_owned());
    ObjectBuilder::new().schema_type(Type::String).format(Some(format)).build()
}

/// Given without a value it is on.
fn flag() -> Schema {
    let boolean = ObjectBuilder::new().schema_type(Type::Boolean).build();
    OneOfBuilder::new().item(boolean).item(one_of(["", "0", "1"])).build().into()
}

fn matching(pattern: &str) -> Object {
    ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern)).build()
}

fn one_of<'a>(words: impl IntoIterator<Item = &'a str>) -> Object {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).build()
}

#[expect(clippy::cast_precision_loss, reason = "bounds are round, or too large to matter")]
fn bound(number: u64) -> f64 {
    number as f64
}

fn parameter(param: &Param, place: ParameterIn) -> Parameter {
    let schema: RefOr<Schema> = match param.kind {
        Kind::Text => text().into(),
        Kind::Matching(pattern) => matching(pattern).into(),
        Kind::Schema(name) => Ref::from_schema_name(name).into(),
        Kind::Uuid => formatted("uuid").into(),
        Kind::Base64 => formatted("byte").into(),
        Kind::Flag => flag().into(),
        Kind::Number(least, most) => ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
            .minimum(Some(bound(least)))
            .maximum(Some(bound(most)))
            .build()
            .into(),
        Kind::OneOf(words) => one_of(words.iter().copied()).into(),
        Kind::Repeated(pattern) => {
            let values = ArrayBuilder::new().items(matching(pattern)).build();
            Schema::from(values).into()
        }
    };
    let required = if param.required { Required::True } else { Required::False };
    ParameterBuilder::new()
        .name(param.name)
        .parameter_in(place)
        .required(required)
        .description(Some(param.about))
        .schema(Some(schema))
        .build()
}

fn body(takes: Takes) -> Option<RequestBody> {
    let json = |schema| RequestBodyBuilder::new().content(JSON, content(JSON, Some(schema)));
    match takes {
        Takes::Nothing => None,
        Takes::Json(schema) => Some(json(schema).required(Some(Required::True)).build()),
        Takes::OptionalJson(schema) => Some(json(schema).required(Some(Required::False)).build()),
        Takes::Bytes(media_types) => {
            let body = RequestBodyBuilder::new().required(Some(Required::True));
            let add = |body: RequestBodyBuilder, media_type: &&str| {
                body.content(*media_type, content(media_type, None))
            };
            Some(media_types.iter().fold(body, add).build())
        }
    }
}

/// A body of a schema, or of text or bytes that have none.
fn content(media_type: &str, schema: Option<&str>) -> Content {
    let schema: RefOr<Schema> = match schema {
        _ if media_type == crate::stream::SSE => server_sent(schema).into(),
        Some(name) => Ref::from_schema_name(name).into(),
        None if media_type == FORM => {
            ObjectBuilder::new().property("file", formatted("binary")).build().into()
        }
        None if media_type.contains("charset=") => text().into(),
        None => formatted("binary").into(),
    };
    ContentBuilder::new().schema(Some(schema)).build()
}

/// One event of a stream. What the routes tell is the JSON in its `data`.
fn server_sent(schema: Option<&str>) -> Object {
    let data = ObjectBuilder::new()
        .schema_type(Type::String)
        .content_media_type(JSON)
        .content_schema(schema.map(Ref::from_schema_name));
    ObjectBuilder::new()
        .property("id", text())
        .property("event", text())
        .property("data", data)
        .required("data")
        .build()
}

/// The codes of a route by their status.
fn refusals(route: &Route) -> BTreeMap<u16, Vec<ErrorCode>> {
    let always =
        [ErrorCode::BadRequest, ErrorCode::HostRefused, ErrorCode::Overloaded, ErrorCode::Internal];
    let keyed = [ErrorCode::Unauthorized, ErrorCode::Forbidden, ErrorCode::QuotaExceeded];
    let bodied = [ErrorCode::RequestTimeout, ErrorCode::TooLarge, ErrorCode::UnsupportedMediaType];
    let mut all: Vec<_> = always.to_vec();
    if route.needs != Needs::Public {
        all.extend(keyed);
    }
    if route.operation.takes != Takes::Nothing {
        all.extend(bodied);
    }
    if variables(route.path).next().is_some() {
        all.push(ErrorCode::NotFound);
    }
    all.extend(&route.operation.refuses);
    all.sort_unstable();
    all.dedup();
    let mut by_status: BTreeMap<u16, Vec<ErrorCode>> = BTreeMap::new();
    for code in all {
        by_status.entry(code.status()).or_default().push(code);
    }
    by_status
}

fn problem(codes: &[ErrorCode]) -> Response {
    let words: Vec<_> = codes.iter().map(|code| format!("`{code}`")).collect();
    ResponseBuilder::new()
        .description(words.join(", "))
        .content(PROBLEM, content(PROBLEM, Some("Problem")))
        .build()
}
