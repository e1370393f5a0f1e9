//! Agents: deployed, shown, changed, removed. A session that runs keeps the files it began with;
//! the next one gets those of the latest deploy.

use std::collections::BTreeMap;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::MethodFilter;
use engine::Caller;
use model::{ErrorCode, Refusal, Role, SeedId};
use serde_json::{Map, Value, json};

use super::deploy::{self, Files, PROMPT};
use super::errors::AshError;
use super::fields::{At, Fields};
use super::registry::{self, Agent};
use super::{Routes, answer, prewarm, request_body};
use crate::app::App;
use web::front::{By, Needs};

const NAME_CHARS_MAX: usize = 255;
const PATH_CHARS_MAX: usize = 4096;
pub(super) const PROMPT_CHARS_MAX: usize = 1_000_000;
/// Files come as base64.
pub(super) const FILES_BODY_MAX: u64 = 88 << 20;
const CONFIG_BYTES_MAX: usize = 256 << 10;

pub(super) fn routes(routes: &mut Routes) {
    let all = "/api/agents";
    let one = "/api/agents/{name}";
    let config = "/api/agents/{name}/config";
    routes.add(MethodFilter::POST, all, "/compat/ash/api/agents", Needs::Use, deploy);
    routes.add(MethodFilter::GET, all, "/compat/ash/api/agents", Needs::Read, list);
    routes.add(MethodFilter::GET, one, "/compat/ash/api/agents/{name}", Needs::Read, get);
    routes.add(MethodFilter::PATCH, one, "/compat/ash/api/agents/{name}", Needs::Use, patch);
    routes.add(MethodFilter::DELETE, one, "/compat/ash/api/agents/{name}", Needs::Use, remove);
    let name = "/compat/ash/api/agents/{name}/config";
    routes.add(MethodFilter::GET, config, name, Needs::Read, get_config);
    routes.add(MethodFilter::PATCH, config, name, Needs::Use, patch_config);
}

/// Finds an agent of the caller.
pub(super) async fn find_agent(app: &App, caller: Caller, name: &str) -> Result<Agent, AshError> {
    let found = registry::find(app, caller.key, name).await?;
    found.ok_or_else(AshError::no_agent)
}

/// Writes files as a seed, if they can be files of an agent.
pub(super) async fn keep(app: &App, caller: Caller, files: Files) -> Result<SeedId, AshError> {
    let files = deploy::bounded(files)?;
    Ok(app.engine.put_seed(caller, files.into_values().collect()).await?)
}

/// A request to deploy an agent.
struct AgentRequest {
    name: String,
    env: Option<BTreeMap<String, String>>,
    from: Origin,
}

/// Where the files of an agent come from.
enum Origin {
    /// A directory of this machine.
    Directory(String),
    Request(Files),
}

impl AgentRequest {
    fn of(mut body: Fields) -> Result<Self, AshError> {
        let name = body.required_text("name", NAME_CHARS_MAX)?;
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name.is_empty() || !name.bytes().all(fits) {
            let cause = "body/name must match pattern \"^[A-Za-z0-9_-]{1,255}$\"";
            return Err(AshError::invalid(cause));
        }
        let given = body.text("path", PATH_CHARS_MAX)?;
        let prompt = body.text("systemPrompt", PROMPT_CHARS_MAX)?;
        let env = body.map_of_texts("env")?;
        let listed = body.list("files")?;
        body.refuse_rest()?;
        if let Some(given) = given {
            if prompt.is_some() || listed.is_some() {
                let cause = "body/path must NOT be given with systemPrompt or files: \
                             the directory has the files of the agent";
                return Err(AshError::invalid(cause));
            }
            return Ok(Self { name, env, from: Origin::Directory(given) });
        }
        let mut files = deploy::from_request(listed.unwrap_or_default())?;
        if !files.contains_key(PROMPT) {
            let text = prompt.unwrap_or_else(|| format!("# {name}\n"));
            deploy::put_text(&mut files, PROMPT, &text);
        }
        Ok(Self { name, env, from: Origin::Request(files) })
    }
}

/// Directories of this machine belong to no key, and a deploy reads them: only administrators may.
fn refuse_strangers(caller: Caller) -> Result<(), AshError> {
    match caller.role {
        Role::Admin => Ok(()),
        Role::Use | Role::Read => {
            let cause = "path: only a key of role admin may deploy a directory of the server; \
                         send the files instead";
            Err(Refusal::new(ErrorCode::Forbidden, cause).into())
        }
    }
}

async fn deploy(
    State(app): State<App>,
    By(caller): By,
    request: Request,
) -> Result<Response, AshError> {
    let read = request_body::read(request, &app, FILES_BODY_MAX, AgentRequest::of).await?;
    let AgentRequest { name, env, from } = read.taken;
    if let Some(env) = &env {
        app.engine.check_env(env)?;
    }
    let (path, files) = match from {
        Origin::Directory(given) => {
            refuse_strangers(caller)?;
            let roots = app.options.agent_roots.clone();
            let (path, files) = deploy::from_directory_elsewhere(roots, given).await?;
            (path.to_string_lossy().into_owned(), files)
        }
        Origin::Request(files) => (format!("agents/{name}"), files),
    };
    // Files may take their time; others who change agents do not wait for them.
    let seed = keep(&app, caller, files).await?;
    drop(read.share);
    let change = registry::change(&app, caller).await?;
    let before = registry::find(&app, caller.key, &name).await?;
    let now = app.engine.now().wall;
    let agent = match before {
        Some(before) => Agent {
            version: before.version + 1,
            path,
            env: env.unwrap_or(before.env),
            seed,
            updated_at: now,
            ..before
        },
        None => Agent {
            id: fresh_id()?,
            name,
            version: 1,
            path,
            env: env.unwrap_or_default(),
            config: Map::new(),
            seed,
            created_at: now,
            updated_at: now,
        },
    };
    registry::put(&app, change, &agent).await?;
    Ok(answer::created(&json!({"agent": agent.shown(caller.key)})))
}

pub(super) fn fresh_id() -> Result<String, AshError> {
    let mut bits = [0; 16];
    let failed = |error: getrandom::Error| AshError::new(500, error.to_string());
    getrandom::fill(&mut bits).map_err(failed)?;
    Ok(uuid::Builder::from_random_bytes(bits).into_uuid().to_string())
}

async fn list(State(app): State<App>, By(caller): By) -> Result<Response, AshError> {
    let agents = registry::all(&app, caller.key).await?;
    let shown: Vec<_> = agents.iter().map(|agent| agent.shown(caller.key)).collect();
    Ok(answer::ok(&json!({"agents": shown})))
}

async fn get(
    State(app): State<App>,
    By(caller): By,
    At(name): At<String>,
) -> Result<Response, AshError> {
    let agent = find_agent(&app, caller, &name).await?;
    Ok(answer::ok(&json!({"agent": agent.shown(caller.key)})))
}

async fn patch(
    State(app): State<App>,
    By(caller): By,
    At(name): At<String>,
    request: Request,
) -> Result<Response, AshError> {
    find_agent(&app, caller, &name).await?;
    let mut body = request_body::fields(request, &app, app.settings.json_bytes_max).await?;
    let env = body.map_of_texts("env")?;
    let config = body.object("config")?;
    body.refuse_rest()?;
    let change = registry::change(&app, caller).await?;
    let mut agent = find_agent(&app, caller, &name).await?;
    let before = prewarm::count(&agent.config);
    agent.env = env.unwrap_or(agent.env);
    merge(&mut agent, config.unwrap_or_default())?;
    agent.updated_at = app.engine.now().wall;
    registry::put(&app, change, &agent).await?;
    keep_warm(&app, before, &agent.config).await?;
    Ok(answer::ok(&json!({"agent": agent.shown(caller.key)})))
}

/// Sizes the pool if an agent asks for warm sandboxes, or did before. A request that failed here is
/// stored, and works when it is sent again.
async fn keep_warm(app: &App, before: u64, config: &Map<String, Value>) -> Result<(), AshError> {
    if prewarm::count(config) + before > 0 {
        prewarm::size_pool(app).await?;
    }
    Ok(())
}

fn merge(agent: &mut Agent, config: Map<String, Value>) -> Result<(), AshError> {
    prewarm::check(&config)?;
    agent.config.extend(config);
    let bytes = serde_json::to_string(&agent.config).map_or(0, |text| text.len());
    if bytes > CONFIG_BYTES_MAX {
        return Err(AshError::new(400, format!("config has more than {CONFIG_BYTES_MAX} bytes")));
    }
    Ok(())
}

async fn remove(
    State(app): State<App>,
    By(caller): By,
    At(name): At<String>,
) -> Result<Response, AshError> {
    let change = registry::change(&app, caller).await?;
    let known = registry::find(&app, caller.key, &name).await?;
    if !change.remove(&name).await? {
        return Err(AshError::no_agent());
    }
    let before = known.map_or(0, |agent| prewarm::count(&agent.config));
    keep_warm(&app, before, &Map::new()).await?;
    Ok(answer::ok(&json!({"ok": true})))
}

async fn get_config(
    State(app): State<App>,
    By(caller): By,
    At(name): At<String>,
) -> Result<Response, AshError> {
    let agent = find_agent(&app, caller, &name).await?;
    Ok(answer::ok(&json!({"config": agent.config})))
}

async fn patch_config(
    State(app): State<App>,
    By(caller): By,
    At(name): At<String>,
    request: Request,
) -> Result<Response, AshError> {
    find_agent(&app, caller, &name).await?;
    let body = request_body::fields(request, &app, app.settings.json_bytes_max).await?;
    let change = registry::change(&app, caller).await?;
    let mut agent = find_agent(&app, caller, &name).await?;
    let before = prewarm::count(&agent.config);
    merge(&mut agent, body.rest())?;
    agent.updated_at = app.engine.now().wall;
    registry::put(&app, change, &agent).await?;
    keep_warm(&app, before, &agent.config).await?;
    Ok(answer::ok(&json!({"config": agent.config})))
}
