//! File metadata: permissions, times and symbolic links.

use axum::extract::State;
use axum::response::Response;
use engine::UseKind;
use wire::{AboutRequest, LinkRequest};

use crate::exec::USING;
use crate::files::{PATH, path_of};
use crate::use_routes::{TARGETS, TargetSpec};
use crate::view;
use web::answer;
use web::app::App;
use web::body::Json;
use web::front::{By, Needs, no_content};
use web::input_checks::checked_path;
use web::octal::octal;
use web::operation::{Operation, Route, Takes, Verb, json};
use web::query::{NoQuery, Query};
use web::refused::Refused;
use web::use_target::UseTarget;

pub(super) fn routes() -> Vec<Route> {
    TARGETS.iter().flat_map(routes_of).collect()
}

fn routes_of(target: &TargetSpec) -> Vec<Route> {
    let at = target.routes;
    let change =
        Operation::new(at.change.id, "Change the permissions or the modification time of a file")
            .answers(200, "The file", [json("FileEntry")]);
    let link = Operation::new(at.link.id, "Create a symbolic link").answers(
        204,
        "The link was created",
        [],
    );
    vec![
        Route::new(
            Verb::Patch,
            at.change.path,
            Needs::Use,
            self::change,
            change
                .query([PATH])
                .takes(Takes::Json("AboutRequest"))
                .refuses(USING)
                .refuses(target.refuses),
        ),
        Route::new(
            Verb::Post,
            at.link.path,
            Needs::Use,
            self::link,
            link.takes(Takes::Json("LinkRequest")).refuses(USING).refuses(target.refuses),
        ),
    ]
}

async fn change(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    id: UseTarget,
    request: Json<AboutRequest>,
) -> Result<Response, Refused> {
    let path = path_of(&mut query)?;
    query.done()?;
    let AboutRequest { mode, modified_at } = request.value;
    let wrong = |text: &str| {
        Refused::invalid("mode", format!("mode: {text:?} is not an octal number up to 7777"))
    };
    let mode = mode.map(|text| octal(&text).ok_or_else(|| wrong(&text))).transpose()?;
    if mode.is_none() && modified_at.is_none() {
        return Err(Refused::invalid("mode", "one of mode and modified_at must be given"));
    }
    let used = id.begin(&app, caller, UseKind::Files).await?;
    used.set_metadata(&path, mode, modified_at.map(|at| at.0)).await?;
    answer::ok(&view::file(&used.stat(&path).await?))
}

async fn link(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    id: UseTarget,
    request: Json<LinkRequest>,
) -> Result<Response, Refused> {
    let LinkRequest { path, target } = request.value;
    let (path, target) = (checked_path("path", path)?, checked_path("target", target)?);
    let used = id.begin(&app, caller, UseKind::Files).await?;
    used.make_link(&path, &target).await?;
    Ok(no_content())
}
