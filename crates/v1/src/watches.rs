//! Watching a directory: as events, as JSON lines or on a WebSocket. A watch is a use, so the
//! sandbox is not frozen meanwhile.

use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::response::Response;
use engine::{UseKind, WatchQuery};
use http::HeaderMap;
use http::header::SEC_WEBSOCKET_KEY;
use model::ErrorCode;

use crate::accepts;
use crate::exec::USING;
use crate::file_watch::WatchedFiles;
use crate::files::{PATH, path_of};
use crate::use_routes::{TARGETS, TargetSpec};
use web::app::App;
use web::front::{Admitted, Needs};
use web::operation::{Content, Kind, Operation, Param, Route, Verb};
use web::query::Query;
use web::refused::Refused;
use web::stream::{self, Format, NDJSON, SSE};
use web::subprotocol;
use web::use_target::UseTarget;

pub(super) fn routes() -> Vec<Route> {
    TARGETS.iter().map(route).collect()
}

fn route(target: &TargetSpec) -> Route {
    let watch = Operation::new(
        target.routes.watch.id,
        "Watch the changes in a directory, as a stream or on a WebSocket",
    )
    .answers(101, "A WebSocket of `FileEvent`s", [])
    .answers(
        200,
        "A stream of `FileEvent`s; the first is `armed`",
        [Content(SSE, Some("FileEvent")), Content(NDJSON, Some("FileEvent"))],
    )
    .query([
        PATH,
        Param::new(
            "recursive",
            Kind::Flag,
            "Also watch everything beneath it, including directories created later",
        ),
    ])
    .refuses(USING)
    .refuses(target.refuses)
    .refuses(&[ErrorCode::UpgradeRequired]);
    Route::new(Verb::Get, target.routes.watch.path, Needs::Read, self::watch, watch)
}

async fn watch(
    State(app): State<App>,
    Admitted { caller, request_id }: Admitted,
    mut query: Query,
    id: UseTarget,
    headers: HeaderMap,
    asked: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refused> {
    let path = path_of(&mut query)?;
    let recursive = query.flag("recursive")?;
    query.done()?;
    let used = id.begin(&app, caller, UseKind::Stream).await?;
    let watch = used.watch(&WatchQuery { path, recursive }).await?;
    let request_id = request_id.to_str().unwrap_or_default().to_owned();
    let format = if accepts(&headers, NDJSON) { Format::Lines } else { Format::Sse };
    let watched = WatchedFiles::new(app, caller, used, watch, format, request_id)?;
    match asked {
        Ok(upgrade) => {
            let upgrade = upgrade.protocols([subprotocol::NAME]);
            Ok(upgrade.on_upgrade(|socket| watched.send_to(socket)))
        }
        Err(rejection) if headers.contains_key(SEC_WEBSOCKET_KEY) => {
            Err(Refused::upgrade(rejection.body_text()))
        }
        Err(_) => Ok(stream::response(format, watched)),
    }
}
