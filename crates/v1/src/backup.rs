//! A backup of everything but the keys, for administrators. The keys of the node are
//! files that the command line adds: they must never be sent over HTTP.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use futures_util::stream;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use model::ErrorCode;

use web::app::App;
use web::front::Needs;
use web::operation::{Content, Operation, Route, Verb};
use web::query::NoQuery;
use web::refused::Refused;

const TAR: &str = "application/x-tar";

pub(super) fn routes() -> Vec<Route> {
    let make = Operation::new(
        "make_backup",
        "Back up the database and the files of all sessions while the server runs, for `shoal backup`. Secrets in the database stay encrypted, and the key of the node is not included",
    )
    .answers(
        200,
        "A tar archive. Its last member is `complete.json`, or `failed.json` with the reason",
        [Content(TAR, None)],
    )
    .refuses(&[ErrorCode::Unsupported, ErrorCode::Overloaded, ErrorCode::StoreUnavailable]);
    vec![Route::new(Verb::Post, "/v1/backup", Needs::Admin, self::make, make)]
}

async fn make(State(app): State<App>, NoQuery: NoQuery) -> Result<Response, Refused> {
    let backup = app.engine.backup().await?;
    let pieces = stream::unfold(backup, |mut backup| async move {
        let piece = backup.next().await?;
        Some((Ok::<_, std::io::Error>(piece), backup))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TAR));
    Ok(response)
}
