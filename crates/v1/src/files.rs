//! Files of a sandbox. Everything goes through the guest: nothing of a workspace is ever opened on
//! the host, and no link in it is followed there.

use axum::extract::{Request, State};
use axum::response::Response;
use engine::{EntryKind, UseKind};
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use model::ErrorCode;
use tokio::io::AsyncWriteExt as _;
use wire::{DirectoryRequest, FileList, MoveRequest};

use crate::exec::USING;
use crate::use_routes::{TARGETS, TargetSpec};
use crate::view;
use web::answer;
use web::app::App;
use web::body::{Json, next_chunk};
use web::contents::contents;
use web::front::{By, Needs, no_content};
use web::input_checks::checked_path;
use web::key_watch::{KeyWatch, revoked};
use web::octal::octal;
use web::operation::{Content, Kind, Operation, Param, Route, Takes, Verb, json};
use web::query::{NoQuery, Query};
use web::range::{Part, part};
use web::refused::Refused;
use web::use_target::UseTarget;

const PAGE: u64 = 1000;
const BYTES: &str = "application/octet-stream";

pub(super) const PATH: Param = Param::new("path", Kind::Text, "Its path in the sandbox").required();

pub(super) fn routes() -> Vec<Route> {
    TARGETS.iter().flat_map(routes_of).collect()
}

fn routes_of(target: &TargetSpec) -> Vec<Route> {
    [file_routes(target), directory_routes(target)].into_iter().flatten().collect()
}

fn file_routes(target: &TargetSpec) -> Vec<Route> {
    let at = target.routes;
    let get = Operation::new(at.read.id, "Read a file, or a part of it with `Range`")
        .answers(200, "The file", [Content(BYTES, None)])
        .answers(206, "A part of the file", [Content(BYTES, None)]);
    let put = Operation::new(
        at.write.id,
        "Write a whole file; it appears under its name once it has arrived completely",
    )
    .answers(200, "The file", [json("FileEntry")]);
    let delete =
        Operation::new(at.remove.id, "Remove a file").answers(204, "The file was removed", []);
    vec![
        Route::new(
            Verb::Get,
            at.read.path,
            Needs::Read,
            read,
            get.query([PATH])
                .headers([Param::new("Range", Kind::Text, "A part, as `bytes=FIRST-LAST`")])
                .refuses(USING)
                .refuses(target.refuses)
                .refuses(&[ErrorCode::RangeNotSatisfiable]),
        ),
        Route::new(
            Verb::Put,
            at.write.path,
            Needs::Use,
            write,
            put.query([
                PATH,
                Param::new(
                    "mode",
                    Kind::Matching("^0*[0-7]{1,4}$"),
                    "Its permissions in octal, such as 0644",
                ),
            ])
            .takes(Takes::Bytes(&[BYTES]))
            .refuses(USING)
            .refuses(target.refuses),
        ),
        Route::new(
            Verb::Delete,
            at.remove.path,
            Needs::Use,
            remove,
            delete
                .query([
                    PATH,
                    Param::new("recursive", Kind::Flag, "Remove a directory with all its contents"),
                ])
                .refuses(USING)
                .refuses(target.refuses),
        ),
    ]
}

fn directory_routes(target: &TargetSpec) -> Vec<Route> {
    let at = target.routes;
    let list = Operation::new(at.list.id, "List the files in a directory").answers(
        200,
        "A page of files, in the order of their names",
        [json("FileList")],
    );
    let stat =
        Operation::new(at.stat.id, "Describe a file; a link itself is described, not its target")
            .answers(200, "The file", [json("FileEntry")]);
    let rename = Operation::new(at.rename.id, "Rename a file or directory").answers(
        204,
        "It was renamed",
        [],
    );
    let mkdir = Operation::new(at.mkdir.id, "Create a directory, with its parents").answers(
        204,
        "The directory was created",
        [],
    );
    vec![
        Route::new(
            Verb::Get,
            at.list.path,
            Needs::Read,
            self::list,
            list.query([
                PATH,
                Param::new(
                    "limit",
                    Kind::Number(1, PAGE),
                    "The most files in a page; 1000 if not given",
                ),
                Param::new(
                    "after",
                    Kind::Base64,
                    "Only files after this one: `next` of the previous page",
                ),
            ])
            .refuses(USING)
            .refuses(target.refuses),
        ),
        Route::new(
            Verb::Get,
            at.stat.path,
            Needs::Read,
            self::stat,
            stat.query([PATH]).refuses(USING).refuses(target.refuses),
        ),
        Route::new(
            Verb::Post,
            at.rename.path,
            Needs::Use,
            self::rename,
            rename.takes(Takes::Json("MoveRequest")).refuses(USING).refuses(target.refuses),
        ),
        Route::new(
            Verb::Post,
            at.mkdir.path,
            Needs::Use,
            make_directory,
            mkdir.takes(Takes::Json("DirectoryRequest")).refuses(USING).refuses(target.refuses),
        ),
    ]
}

pub(super) fn path_of(query: &mut Query) -> Result<String, Refused> {
    checked_path("path", query.required("path")?)
}

async fn read(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    id: UseTarget,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let path = path_of(&mut query)?;
    query.done()?;
    let used = id.begin(&app, caller, UseKind::Read).await?;
    let wanted = headers.get(RANGE).and_then(|value| value.to_str().ok()).and_then(part);
    let (offset, length) = match wanted {
        None => (0, None),
        Some(Part::From { first, last }) => (first, last.map(|last| last - first + 1)),
        Some(Part::Last(count)) => {
            let size = used.stat(&path).await?.size;
            (size.saturating_sub(count), None)
        }
    };
    let reader = used.read_file(&path, offset, length).await?;
    let size = reader.entry.size;
    if wanted.is_some() && (offset >= size || wanted == Some(Part::Last(0))) {
        let cause = format!("the file has {size} bytes");
        return Err(Refused::new(ErrorCode::RangeNotSatisfiable, cause));
    }
    let count = (size - offset.min(size)).min(length.unwrap_or(u64::MAX));
    // Generated files, as in /proc, report no size.
    let exact = (size > 0 && reader.entry.kind == EntryKind::File).then_some(count);
    let mut response = Response::new(contents(used, reader, exact));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(BYTES));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // A browser must never render a file of a sandbox as a page.
    let no_sniffing = HeaderName::from_static("x-content-type-options");
    headers.insert(no_sniffing, HeaderValue::from_static("nosniff"));
    if let Some(count) = exact {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(count));
    }
    if wanted.is_some() {
        let range = format!("bytes {offset}-{}/{size}", offset + count.max(1) - 1);
        if let Ok(range) = HeaderValue::try_from(range) {
            headers.insert(CONTENT_RANGE, range);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

async fn write(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    id: UseTarget,
    request: Request,
) -> Result<Response, Refused> {
    let path = path_of(&mut query)?;
    let mode = query.text("mode")?.map(|text| permissions(&text)).transpose()?;
    query.done()?;
    let used = id.begin(&app, caller, UseKind::Files).await?;
    let mut writer = used.write_file(&path, mode).await?;
    let mut body = request.into_body();
    let mut key = KeyWatch::new(caller.key);
    while let Some(chunk) = next_chunk(&mut body, app.settings.body_stall).await? {
        // A slow one may last for days.
        if !key.works(&app) {
            return Err(revoked());
        }
        if let Err(error) = writer.write_all(&chunk).await {
            return Err(used.explain(error).await.into());
        }
    }
    answer::ok(&view::file(&used.finish_file(writer).await?))
}

pub(super) fn permissions(text: &str) -> Result<u32, Refused> {
    octal(text).ok_or_else(|| {
        Refused::bad("mode", format!("`mode`: {text:?} is not an octal number up to 7777"))
    })
}

async fn remove(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    id: UseTarget,
) -> Result<Response, Refused> {
    let path = path_of(&mut query)?;
    let recursive = query.flag("recursive")?;
    query.done()?;
    let used = id.begin(&app, caller, UseKind::Files).await?;
    used.remove(&path, recursive).await?;
    Ok(no_content())
}

async fn list(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    id: UseTarget,
) -> Result<Response, Refused> {
    let path = path_of(&mut query)?;
    let limit = query.number("limit", 1..=PAGE)?.unwrap_or(PAGE) as u32;
    let after = query.text("after")?.map(|text| wire::from_base64(&text)).transpose();
    let after = after.map_err(|error| Refused::bad("after", format!("`after`: {error}")))?;
    query.done()?;
    let used = id.begin(&app, caller, UseKind::Read).await?;
    let page = used.list_files(&path, after.as_deref(), limit).await?;
    // Names are bytes, so a place in a directory is not always text.
    let last = page.entries.last().filter(|_| page.more);
    let next = last.map(|entry| wire::to_base64(&entry.name));
    answer::ok(&FileList { entries: page.entries.iter().map(view::file).collect(), next })
}

async fn stat(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    id: UseTarget,
) -> Result<Response, Refused> {
    let path = path_of(&mut query)?;
    query.done()?;
    let used = id.begin(&app, caller, UseKind::Read).await?;
    answer::ok(&view::file(&used.stat(&path).await?))
}

async fn rename(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    id: UseTarget,
    request: Json<MoveRequest>,
) -> Result<Response, Refused> {
    let MoveRequest { from, to, overwrite } = request.value;
    let (from, to) = (checked_path("from", from)?, checked_path("to", to)?);
    let used = id.begin(&app, caller, UseKind::Files).await?;
    used.move_file(&from, &to, overwrite).await?;
    Ok(no_content())
}

async fn make_directory(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    id: UseTarget,
    request: Json<DirectoryRequest>,
) -> Result<Response, Refused> {
    let path = checked_path("path", request.value.path)?;
    let used = id.begin(&app, caller, UseKind::Files).await?;
    used.make_directory(&path, true).await?;
    Ok(no_content())
}
