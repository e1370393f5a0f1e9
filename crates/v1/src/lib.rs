//! The routes of `/v1`, one module for each kind of thing, and the OpenAPI document. A handler
//! reads a request, calls the engine and writes the answer. It must decide nothing.

#[cfg(feature = "schema")]
mod api_types;
mod archives;
mod backup;
mod checkouts;
mod cursor;
mod deadline;
mod docs;
pub mod errors;
mod events;
mod exec;
mod exec_stream;
mod file_metadata;
mod file_search;
mod file_watch;
mod files;
mod half_open;
mod harness;
mod harness_lines;
mod images;
mod keep_alive;
mod keys;
mod log_stream;
mod log_text;
mod network;
mod no_fields;
mod node;
mod pools;
mod ports;
mod processes;
mod sandboxes;
#[cfg(feature = "schema")]
mod schemas;
mod secrets;
mod seed;
mod session_logs;
mod sessions;
mod templates;
mod terminal;
mod terminals;
mod turn_stream;
mod turns;
mod uploads;
mod usage;
mod use_routes;
mod view;
mod watches;

use std::io::Read as _;

use axum::Router;
use axum::handler::Handler as _;
use axum::middleware::from_fn_with_state;
use flate2::read::DeflateDecoder;
use http::HeaderMap;
use http::header::ACCEPT;
use web::app::App;
use web::dialect;
use web::front::{Front, Needs, no_method, no_route};
use web::operation::{Route, Takes, Verb};

/// Every route.
pub fn routes() -> Vec<Route> {
    [
        checkouts::routes(),
        sandboxes::routes(),
        sessions::routes(),
        turns::routes(),
        session_logs::routes(),
        exec::routes(),
        files::routes(),
        file_metadata::routes(),
        file_search::routes(),
        watches::routes(),
        uploads::routes(),
        processes::routes(),
        keep_alive::routes(),
        network::routes(),
        ports::routes(),
        terminals::routes(),
        harness::routes(),
        archives::routes(),
        templates::routes(),
        images::routes(),
        pools::routes(),
        events::routes(),
        keys::routes(),
        secrets::routes(),
        usage::routes(),
        node::routes(),
        backup::routes(),
        docs::routes(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

static PACKED_DOCUMENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/openapi.deflate"));

/// The OpenAPI document that describes every route: the one of the repository. A test proves that
/// it is what the code says.
pub fn document() -> String {
    let mut text = String::new();
    let unpacked = DeflateDecoder::new(PACKED_DOCUMENT).read_to_string(&mut text);
    unpacked.expect("the build packed it");
    text
}

/// The same, made from the code.
#[cfg(feature = "schema")]
pub fn made_document() -> String {
    web::openapi::document(&routes(), api_types::schemas())
}

/// The routes; `others` are beside them, and what is neither is answered like a route that does not
/// exist.
pub fn router(app: &App, others: Router) -> Router {
    let front = |route, needs, takes_body| Front {
        app: app.clone(),
        route,
        needs,
        takes_body,
        dialect: dialect::own(),
    };
    let mut router = Router::new();
    for route in routes() {
        // A proxied request may have a body, whatever its method.
        let is_any = route.method == Verb::Any;
        let takes_nothing = route.operation.takes == Takes::Nothing;
        let may_be_empty = route.method == Verb::Post && takes_nothing;
        let front = front(route.path, route.needs, is_any || may_be_empty || !takes_nothing);
        let handler = if may_be_empty {
            route.handler.route_layer(from_fn_with_state(app.clone(), no_fields::accept))
        } else {
            route.handler
        };
        let handler = if is_any { handler.layer(front) } else { handler.route_layer(front) };
        router = route.also.iter().fold(router, |router, also| router.route(also, handler.clone()));
        router = router.route(route.path, handler);
    }
    // The list of routes is public.
    let other = || front("other", Needs::Public, true);
    router
        .merge(others.with_state(()))
        .fallback(no_route.layer(other()))
        .method_not_allowed_fallback(no_method.layer(other()))
        .with_state(app.clone())
}

/// Whether the client names this media type among those that it takes.
fn accepts(headers: &HeaderMap, media_type: &str) -> bool {
    let taken = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    taken.flat_map(|value| value.split(',')).any(|one| {
        let one = one.split(';').next().unwrap_or_default();
        one.trim().eq_ignore_ascii_case(media_type)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_header_names_media_types_exactly() {
        let mut headers = HeaderMap::new();
        assert!(!accepts(&headers, "text/event-stream"));
        for (value, taken) in [
            ("text/event-stream", true),
            ("Text/Event-Stream;q=0.9, */*", true),
            ("application/json,text/event-stream", true),
            ("*/*", false),
            ("text/event-streams", false),
        ] {
            headers.insert(ACCEPT, value.parse().unwrap());
            assert_eq!(accepts(&headers, "text/event-stream"), taken, "{value}");
        }
    }
}
