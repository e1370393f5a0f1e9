//! Files of an agent. A change makes another seed; sessions that run keep the old one.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::MethodFilter;
use engine::Caller;
use model::SeedId;
use serde_json::json;

use super::agents::{FILES_BODY_MAX, find_agent, keep};
use super::deploy::{self, Files, inner_path};
use super::errors::AshError;
use super::fields::{At, Fields};
use super::files::{JSON_FILE_MAX, as_download, format_of};
use super::registry::{self, Loaded};
use super::{Routes, answer, request_body};
use crate::app::App;
use web::front::{By, Needs};
use web::query::Query;

pub(super) fn routes(routes: &mut Routes) {
    let all = "/api/agents/{name}/files";
    let one = "/api/agents/{name}/files/{*path}";
    let (all_name, one_name) =
        ("/compat/ash/api/agents/{name}/files", "/compat/ash/api/agents/{name}/files/{path}");
    routes.add(MethodFilter::GET, all, all_name, Needs::Read, list);
    routes.add(MethodFilter::POST, all, all_name, Needs::Use, write);
    routes.add(MethodFilter::GET, one, one_name, Needs::Read, read);
    routes.add(MethodFilter::DELETE, one, one_name, Needs::Use, remove);
}

/// The files of a seed.
pub(super) async fn of_seed(app: &App, seed: SeedId) -> Result<Loaded, AshError> {
    Ok(app.agents.load(&app.engine, seed).await?)
}

async fn list(
    State(app): State<App>,
    By(caller): By,
    At(name): At<String>,
) -> Result<Response, AshError> {
    let agent = find_agent(&app, caller, &name).await?;
    let loaded = of_seed(&app, agent.seed).await?;
    let modified = answer::time(agent.updated_at);
    let shown = loaded.files.iter().map(
        |(path, file)| json!({"path": path, "size": file.bytes.len(), "modifiedAt": modified}),
    );
    Ok(answer::ok(&json!({"files": shown.collect::<Vec<_>>()})))
}

fn checked(path: &str) -> Result<String, AshError> {
    inner_path(path).ok_or_else(|| AshError::new(400, "Invalid file path"))
}

async fn read(
    State(app): State<App>,
    By(caller): By,
    At((name, path)): At<(String, String)>,
    mut query: Query,
) -> Result<Response, AshError> {
    let is_json = format_of(&mut query)?.unwrap_or(true);
    let agent = find_agent(&app, caller, &name).await?;
    let path = checked(&path)?;
    let mut loaded = of_seed(&app, agent.seed).await?;
    let Some(file) = loaded.files.remove(&path) else {
        return Err(AshError::new(404, "File not found"));
    };
    let size = file.bytes.len() as u64;
    if !is_json {
        return Ok(as_download(&path, Body::from(file.bytes), Some(size)));
    }
    if size > JSON_FILE_MAX {
        let cause = format!("File too large: more than {JSON_FILE_MAX} bytes; use format=raw");
        return Err(AshError::new(400, cause));
    }
    let content = String::from_utf8_lossy(&file.bytes);
    Ok(answer::ok(&json!({"path": path, "content": content, "size": size})))
}

async fn write(
    State(app): State<App>,
    By(caller): By,
    At(name): At<String>,
    request: Request,
) -> Result<Response, AshError> {
    find_agent(&app, caller, &name).await?;
    let files = |mut body: Fields| match body.list("files")? {
        Some(list) => deploy::from_request(list),
        None => Err(AshError::invalid("body must have required property 'files'")),
    };
    let read = request_body::read(request, &app, FILES_BODY_MAX, files).await?;
    let new = read.taken;
    let written = new.len();
    change(&app, caller, &name, |files| {
        files.extend(new);
        Ok(())
    })
    .await?;
    drop(read.share);
    Ok(answer::ok(&json!({"written": written})))
}

async fn remove(
    State(app): State<App>,
    By(caller): By,
    At((name, path)): At<(String, String)>,
) -> Result<Response, AshError> {
    let path = checked(&path)?;
    change(&app, caller, &name, |files| {
        let removed = files.remove(&path);
        removed.map(|_| ()).ok_or_else(|| AshError::new(404, "File not found"))
    })
    .await?;
    Ok(answer::ok(&json!({"deleted": true})))
}

async fn change(
    app: &App,
    caller: Caller,
    name: &str,
    edit: impl FnOnce(&mut Files) -> Result<(), AshError>,
) -> Result<(), AshError> {
    let change = registry::change(app, caller).await?;
    let mut agent = find_agent(app, caller, name).await?;
    let mut loaded = of_seed(app, agent.seed).await?;
    edit(&mut loaded.files)?;
    agent.seed = keep(app, caller, std::mem::take(&mut loaded.files)).await?;
    agent.updated_at = app.engine.now().wall;
    registry::put(app, change, &agent).await?;
    Ok(())
}
