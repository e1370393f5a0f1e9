//! Uploads of several files as a multipart form. Each file appears under its name once it has
//! arrived completely; files before a failure stay.

use axum::extract::{Request, State};
use axum::response::Response;
use engine::{Use, UseKind};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use model::ErrorCode;
use multer::{Field, Multipart};
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;
use wire::{FoundFile, Time, Uploaded};

use crate::exec::USING;
use crate::files::{PATH, path_of, permissions};
use crate::use_routes::{TARGETS, TargetSpec};
use crate::view;
use web::answer;
use web::app::App;
use web::front::{By, Needs};
use web::input_checks::checked_path;
use web::operation::{Kind, Operation, Param, Route, Takes, Verb, json};
use web::query::Query;
use web::refused::Refused;
use web::use_target::UseTarget;

const FORM: &str = "multipart/form-data";
/// Parts of one form.
const FILES_MAX: usize = 1000;

pub(super) fn routes() -> Vec<Route> {
    TARGETS.iter().map(route).collect()
}

fn route(target: &TargetSpec) -> Route {
    let upload = Operation::new(
        target.routes.multipart.id,
        "Write several files beneath a directory: each part of the form with a file name is one",
    )
    .answers(201, "The files that were written", [json("Uploaded")])
    .query([
        PATH,
        Param::new(
            "mode",
            Kind::Matching("^0*[0-7]{1,4}$"),
            "Permissions of all of them in octal, such as 0644",
        ),
    ])
    .takes(Takes::Bytes(&[FORM]))
    .refuses(USING)
    .refuses(target.refuses);
    Route::new(Verb::Post, target.routes.multipart.path, Needs::Use, self::upload, upload)
}

async fn upload(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    id: UseTarget,
    request: Request,
) -> Result<Response, Refused> {
    let directory = path_of(&mut query)?;
    let mode = query.text("mode")?.map(|text| permissions(&text)).transpose()?;
    query.done()?;
    let given = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let Ok(boundary) = multer::parse_boundary(given.unwrap_or_default()) else {
        let cause = format!("the body must be {FORM} with a boundary");
        let mut refused = Refused::new(ErrorCode::UnsupportedMediaType, cause);
        refused.field = Some("Content-Type".into());
        return Err(refused);
    };
    let used = id.begin(&app, caller, UseKind::Files).await?;
    let mut form = Multipart::new(request.into_body().into_data_stream(), boundary);
    let stall = app.settings.body_stall;
    let mut files = Vec::new();
    loop {
        let next = timeout(stall, form.next_field()).await.map_err(|_| paused())?;
        let Some(field) = next.map_err(|error| unreadable(&error))? else { break };
        // A part without a file name is another field of the form.
        let Some(name) = field.file_name().map(str::to_owned) else { continue };
        if files.len() == FILES_MAX {
            let cause = format!("the form has more than {FILES_MAX} files");
            return Err(Refused::new(ErrorCode::TooLarge, cause));
        }
        let name = checked_name(&name)?;
        files.push(write(&used, &directory, name, mode, field, stall).await?);
    }
    answer::json(StatusCode::CREATED, &Uploaded { files })
}

async fn write(
    used: &Use,
    directory: &str,
    name: &str,
    mode: Option<u32>,
    mut field: Field<'_>,
    stall: std::time::Duration,
) -> Result<FoundFile, Refused> {
    let directory = if directory.ends_with('/') { directory } else { &format!("{directory}/") };
    let path = checked_path("filename", format!("{directory}{name}"))?;
    let above = path.rsplit_once('/').map_or("/", |(above, _)| above);
    used.make_directory(if above.is_empty() { "/" } else { above }, true).await?;
    let mut writer = used.write_file(&path, mode).await?;
    loop {
        let next = timeout(stall, field.chunk()).await.map_err(|_| paused())?;
        let Some(chunk) = next.map_err(|error| unreadable(&error))? else { break };
        if let Err(error) = writer.write_all(&chunk).await {
            return Err(used.explain(error).await.into());
        }
    }
    let entry = used.finish_file(writer).await?;
    let kind = view::file_kind(entry.kind);
    Ok(FoundFile::new(name.as_bytes(), kind, entry.size, entry.mode, Time(entry.modified_ms)))
}

/// A name that leads nowhere but beneath the directory that was named.
fn checked_name(name: &str) -> Result<&str, Refused> {
    let fits = |part: &str| !part.is_empty() && part != "." && part != "..";
    if !name.contains('\0') && name.split('/').all(fits) {
        return Ok(name);
    }
    let cause = format!("filename: {name:?} is not a relative path without `.` and `..`");
    Err(Refused::invalid("filename", cause))
}

fn unreadable(error: &multer::Error) -> Refused {
    Refused::bad("body", format!("the form cannot be read: {error}"))
}

fn paused() -> Refused {
    Refused::new(ErrorCode::RequestTimeout, "no bytes of the form arrived for too long")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploaded_file_names_stay_beneath_the_directory() {
        for (name, fits) in [
            ("a.txt", true),
            ("dir/a.txt", true),
            ("..a", true),
            ("a..", true),
            ("", false),
            ("/etc/passwd", false),
            ("..", false),
            ("a/../../b", false),
            ("./a", false),
            ("a//b", false),
            ("a/", false),
            ("a\0b", false),
        ] {
            assert_eq!(checked_name(name).is_ok(), fits, "{name:?}");
        }
    }
}
