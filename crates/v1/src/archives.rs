//! Whole directories, as tar archives.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use engine::UseKind;
use engine::archive::{Bounds, Packing, Unpacking, Unusual};
use futures_util::stream;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use model::ErrorCode;

use crate::accepts;
use crate::exec::USING;
use crate::files::path_of;
use crate::use_routes::{TARGETS, TargetSpec};
use web::answer;
use web::app::App;
use web::archive::pack::Sending;
use web::archive::source::Source;
use web::body::media_type;
use web::front::{By, Needs};
use web::operation::{Content, Kind, Operation, Param, Route, Takes, Verb, json};
use web::query::Query;
use web::refused::Refused;
use web::use_target::UseTarget;

const TAR: &str = "application/x-tar";
const GZIP: &str = "application/gzip";

const PATH: Param = Param::new("path", Kind::Text, "A directory in the sandbox").required();

pub(super) fn routes() -> Vec<Route> {
    TARGETS.iter().flat_map(routes_of).collect()
}

fn routes_of(target: &TargetSpec) -> Vec<Route> {
    let at = target.routes;
    let get = Operation::new(
        at.download.id,
        "Download a directory as a tar archive, compressed if `application/gzip` is accepted",
    )
    .answers(
        200,
        "The archive; a note inside names files that could not be added. One with too many bytes is cut off: its connection breaks",
        [Content(TAR, None), Content(GZIP, None)],
    );
    let put = Operation::new(at.upload.id, "Unpack a tar archive, plain or gzip, into a directory")
        .answers(200, "What was unpacked", [json("Unpacked")]);
    vec![
        Route::new(
            Verb::Get,
            at.download.path,
            Needs::Read,
            download,
            get.query([PATH]).refuses(USING).refuses(target.refuses),
        ),
        Route::new(
            Verb::Put,
            at.upload.path,
            Needs::Use,
            upload,
            put.query([PATH])
                .takes(Takes::Bytes(&[TAR, GZIP]))
                .refuses(USING)
                .refuses(target.refuses),
        ),
    ]
}

async fn download(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    id: UseTarget,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let path = path_of(&mut query)?;
    query.done()?;
    let is_compressed = accepts(&headers, GZIP);
    let slot = app.long_lived.begin(caller.key)?;
    let used = id.begin(&app, caller, UseKind::Read).await?;
    let packing = Packing::start(used, &path, app.settings.archive_entries_max).await?;
    let sending = Sending::new(packing, is_compressed).at_most(app.settings.archive_bytes_max);
    let pieces = stream::try_unfold((sending, slot), |(mut sending, slot)| async move {
        let piece = sending.next().await.inspect_err(|error| {
            tracing::info!(%error, "an archive broke off while it was sent");
        })?;
        Ok::<_, std::io::Error>(piece.map(|piece| (piece, (sending, slot))))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    let kind = HeaderValue::from_static(if is_compressed { GZIP } else { TAR });
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

async fn upload(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    id: UseTarget,
    request: Request,
) -> Result<Response, Refused> {
    let path = path_of(&mut query)?;
    query.done()?;
    let is_compressed = is_compressed(request.headers())?;
    let used = id.begin(&app, caller, UseKind::Files).await?;
    let source = Source::new(request.into_body(), is_compressed, app.settings.body_stall);
    let entries = app.settings.archive_entries_max;
    let (bytes, unusual) = (app.settings.archive_bytes_max, Unusual::Refuse);
    let bounds = Bounds { entries, bytes, unusual };
    let done = Unpacking::new(&used, source, &path, bounds).run().await.map_err(Refused::from)?;
    let engine::archive::Unpacked { files, directories, links, bytes } = done;
    answer::ok(&wire::Unpacked { files, directories, links, bytes })
}

/// By its type or its encoding; without either it is plain.
fn is_compressed(headers: &HeaderMap) -> Result<bool, Refused> {
    let unknown = |field: &'static str, given: &[u8]| {
        let cause =
            format!("archives of type {} are not supported", String::from_utf8_lossy(given));
        let mut refused = Refused::new(ErrorCode::UnsupportedMediaType, cause);
        refused.field = Some(field.into());
        refused
    };
    let coding = headers.get(CONTENT_ENCODING).map(|value| value.as_bytes().trim_ascii());
    let encoded = match coding {
        None => false,
        Some(coding) if coding.eq_ignore_ascii_case(b"identity") => false,
        Some(coding) if coding.eq_ignore_ascii_case(b"gzip") => true,
        Some(coding) => return Err(unknown("Content-Encoding", coding)),
    };
    let Some(kind) = headers.get(CONTENT_TYPE) else { return Ok(encoded) };
    let kind = media_type(kind.as_bytes()).to_ascii_lowercase();
    match kind.as_slice() {
        b"application/gzip" | b"application/x-gzip" | b"application/x-gtar-compressed" => Ok(true),
        b"application/x-tar" | b"application/tar" | b"application/octet-stream" => Ok(encoded),
        other => Err(unknown("Content-Type", other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_compression_follows_type_or_encoding() {
        for (kind, coding, expected) in [
            (None, None, Some(false)),
            (Some("application/x-tar"), None, Some(false)),
            (Some("application/x-tar"), Some("gzip"), Some(true)),
            (Some("application/gzip"), None, Some(true)),
            (None, Some("identity"), Some(false)),
            (Some("application/x-tar"), Some("zstd"), None),
            (Some("application/zip"), None, None),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(kind) = kind {
                headers.insert(CONTENT_TYPE, kind.parse().unwrap());
            }
            if let Some(coding) = coding {
                headers.insert(CONTENT_ENCODING, coding.parse().unwrap());
            }
            assert_eq!(is_compressed(&headers).ok(), expected, "{kind:?} {coding:?}");
        }
    }
}
