//! What is said about files: permissions and times, and where links point.

use axum::extract::State;
use axum::response::Response;
use engine::UseKind;
use model::{SandboxId, SessionId};
use wire::{AboutRequest, LinkRequest};

use crate::answer;
use crate::app::App;
use crate::body::Json;
use crate::front::{By, Needs, no_content};
use crate::octal::octal;
use crate::operation::{Operation, Route, Takes, Verb, json};
use crate::path::Named;
use crate::query::{NoQuery, Query};
use crate::refused::Refused;
use crate::routes::exec::USING;
use crate::routes::files::{PATH, checked_path, path_of};
use crate::routes::used::Used;
use crate::view;

pub(super) fn routes() -> Vec<Route> {
    [routes_of::<SandboxId>(), routes_of::<SessionId>()].into_iter().flatten().collect()
}

fn routes_of<T: Used>() -> Vec<Route> {
    let at = T::AT;
    let change = Operation::new(
        at.change.id,
        "Change the permissions of a file, or when it was last written",
    )
    .answers(200, "The file", [json("FileEntry")]);
    let link = Operation::new(at.link.id, "Make a symbolic link").answers(204, "It is there", []);
    vec![
        Route::new(
            Verb::Patch,
            at.change.path,
            Needs::Use,
            self::change::<T>,
            change
                .query([PATH])
                .takes(Takes::Json("AboutRequest"))
                .refuses(USING)
                .refuses(T::REFUSES),
        ),
        Route::new(
            Verb::Post,
            at.link.path,
            Needs::Use,
            self::link::<T>,
            link.takes(Takes::Json("LinkRequest")).refuses(USING).refuses(T::REFUSES),
        ),
    ]
}

async fn change<T: Used>(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    Named(id): Named<T>,
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
    used.set_about(&path, mode, modified_at.map(|at| at.0)).await?;
    answer::ok(&view::file(&used.stat(&path).await?))
}

async fn link<T: Used>(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<T>,
    request: Json<LinkRequest>,
) -> Result<Response, Refused> {
    let LinkRequest { path, target } = request.value;
    let (path, target) = (checked_path("path", path)?, checked_path("target", target)?);
    let used = id.begin(&app, caller, UseKind::Files).await?;
    used.make_link(&path, &target).await?;
    Ok(no_content())
}
