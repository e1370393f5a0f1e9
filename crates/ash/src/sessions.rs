//! Sessions: made from an agent, listed, shown, configured, ended. What an agent and a request say
//! about the environment, the prompt and the servers is bound to the session itself, so that every
//! sandbox it ever gets has it.

use std::collections::BTreeMap;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::MethodFilter;
use engine::{Caller, SessionQuery, SessionRequest, SessionUpdate, SessionView};
use model::record::OnDisconnect;
use model::{ErrorCode, Refusal, SeedId, SessionStatus, TemplateName};
use serde_json::{Map, Value, json};

use super::agent_files::of_seed;
use super::agents::{PROMPT_CHARS_MAX, keep};
use super::credentials;
use super::deploy::{self, PROMPT};
use super::errors::AshError;
use super::fields::{At, Fields, session_id};
use super::known_sessions::{all_ended, find_session, remember, remember_soon};
use super::registry::{self, Agent};
use super::{AGENT, Routes, answer, request_body};
use crate::app::App;
use web::front::{By, Needs};
use web::query::Query;

const NAME_CHARS_MAX: usize = 255;
const MODEL_CHARS_MAX: usize = 100;
const PERMISSION_MODES: &[&str] = &["bypassPermissions", "permissionsByAgent", "default"];
const PERMISSION_MODE: &str = "ASH_PERMISSION_MODE";
const AGENT_VERSION: &str = "ash.agent_version";
/// A prompt of a million characters, and the rest.
const BODY_MAX: u64 = 8 << 20;
const PAGE: u32 = 1000;
/// The most sessions in one list.
const LIST_MAX: usize = 10_000;

pub(super) fn routes(routes: &mut Routes) {
    let (all, one) = ("/api/sessions", "/api/sessions/{id}");
    let name = "/compat/ash/api/sessions/{id}";
    routes.add(MethodFilter::POST, all, "/compat/ash/api/sessions", Needs::Use, create);
    routes.add(MethodFilter::GET, all, "/compat/ash/api/sessions", Needs::Read, list);
    routes.add(MethodFilter::GET, one, name, Needs::Read, get);
    routes.add(MethodFilter::DELETE, one, name, Needs::Use, end);
    let (config, name) = ("/api/sessions/{id}/config", "/compat/ash/api/sessions/{id}/config");
    routes.add(MethodFilter::PATCH, config, name, Needs::Use, configure);
}

/// A session as clients see it.
pub(super) fn session_view(view: &SessionView) -> Value {
    json!({"session": answer::session(view)})
}

/// Options of a request for the agent; the bridge gets them with each message.
fn config_of(body: &mut Fields) -> Result<Map<String, Value>, AshError> {
    let mut config = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            config.insert(name.to_owned(), value);
        }
    };
    put("model", body.text("model", MODEL_CHARS_MAX)?.map(Value::from));
    put("allowedTools", body.texts("allowedTools")?.map(Value::from));
    put("disallowedTools", body.texts("disallowedTools")?.map(Value::from));
    put("betas", body.texts("betas")?.map(Value::from));
    put("subagents", body.object("subagents")?.map(Value::from));
    put("initialAgent", body.text("initialAgent", NAME_CHARS_MAX)?.map(Value::from));
    Ok(config)
}

/// Servers that the agent may use besides its own.
fn servers_of(body: &mut Fields) -> Result<Option<Map<String, Value>>, AshError> {
    let servers = body.object("mcpServers")?;
    let wrong = servers.iter().flatten().find(|(_, server)| !server.is_object());
    match wrong {
        Some((name, _)) => Err(AshError::invalid(format!("body/mcpServers/{name} must be object"))),
        None => Ok(servers),
    }
}

/// A request to create a session.
struct CreateRequest {
    agent: String,
    credential: Option<String>,
    extra_env: BTreeMap<String, String>,
    servers: Option<Map<String, Value>>,
    prompt: Option<String>,
    mode: Option<&'static str>,
    config: Map<String, Value>,
}

impl CreateRequest {
    fn of(mut body: Fields) -> Result<Self, AshError> {
        let agent = body.required_text("agent", NAME_CHARS_MAX)?;
        if body.has("startupScript") {
            let cause = "Startup scripts are not run here: put what they install into the root of \
                         the template, and run what a session needs with its exec route";
            return Err(AshError::new(400, cause));
        }
        let read = Self {
            agent,
            credential: body.text("credentialId", NAME_CHARS_MAX)?,
            extra_env: body.map_of_texts("extraEnv")?.unwrap_or_default(),
            servers: servers_of(&mut body)?,
            prompt: body.text("systemPrompt", PROMPT_CHARS_MAX)?,
            mode: body.one_of("permissionMode", PERMISSION_MODES)?,
            config: config_of(&mut body)?,
        };
        body.refuse_rest()?;
        Ok(read)
    }
}

async fn create(
    State(app): State<App>,
    By(caller): By,
    request: Request,
) -> Result<Response, AshError> {
    let read = request_body::read(request, &app, BODY_MAX, CreateRequest::of).await?;
    let CreateRequest { agent: name, credential, extra_env, servers, prompt, mode, config } =
        read.taken;
    let Some(agent) = registry::find(&app, caller.key, &name).await? else {
        return Err(AshError::new(404, format!("Agent \"{name}\" not found")));
    };
    // An invalid request is refused before its files are stored.
    let template = template(&app)?;
    app.engine.known_template(&template)?;
    let credential = match credential {
        Some(id) => credentials::variables(&app, caller, &id).await?,
        None => BTreeMap::new(),
    };
    let seed = seed_for(&app, caller, &agent, prompt, servers).await?;
    let mut env = app.options.env.clone();
    env.extend(agent.env);
    env.extend(credential);
    env.extend(extra_env);
    if let Some(mode) = mode {
        env.insert(PERMISSION_MODE.to_owned(), mode.to_owned());
    }
    let metadata = BTreeMap::from([
        (AGENT.to_owned(), agent.name),
        (AGENT_VERSION.to_owned(), agent.version.to_string()),
    ]);
    let asked = SessionRequest {
        env,
        metadata,
        config: (!config.is_empty()).then(|| Value::Object(config).to_string().into()),
        seed: Some(seed),
        on_disconnect: OnDisconnect::Continue,
        // Ash refuses at once when it is full.
        wait_ms: Some(0),
        ..SessionRequest::of(template)
    };
    drop(read.share);
    let made = app.engine.create_session(caller, asked).await;
    let view = made.map_err(|refusal| AshError::from(refusal).during("create session"))?;
    let shown = session_view(&view);
    remember_soon(&app, view);
    Ok(answer::created(&shown))
}

fn template(app: &App) -> Result<TemplateName, AshError> {
    let name = &app.options.template;
    TemplateName::new(name).map_err(|_| {
        let cause = format!("ash.template: {name:?} is not a valid template name");
        AshError::from(Refusal::new(ErrorCode::Internal, cause))
    })
}

/// The files of a session: those of its agent, and what the request says in place of some.
async fn seed_for(
    app: &App,
    caller: Caller,
    agent: &Agent,
    prompt: Option<String>,
    servers: Option<Map<String, Value>>,
) -> Result<SeedId, AshError> {
    if prompt.is_none() && servers.is_none() {
        // Another deploy of the agent may take its name off these files before the session has
        // them.
        if app.engine.keep_seed(agent.seed) {
            return Ok(agent.seed);
        }
        return Err(AshError::new(422, format!("Files of agent \"{}\" are missing", agent.name)));
    }
    let mut loaded = of_seed(app, agent.seed).await?;
    if let Some(prompt) = prompt {
        deploy::put_text(&mut loaded.files, PROMPT, &prompt);
    }
    if let Some(servers) = servers {
        deploy::add_servers(&mut loaded.files, servers);
    }
    keep(app, caller, std::mem::take(&mut loaded.files)).await
}

/// Which sessions a list has.
struct ListQuery {
    agent: Option<String>,
    status: Option<&'static str>,
}

async fn list(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
) -> Result<Response, AshError> {
    let status = query.text("status")?.filter(|word| !word.is_empty());
    let wanted = ListQuery {
        agent: query.text("agent")?.filter(|name| !name.is_empty()),
        status: status.as_deref().map(status_word).transpose()?,
    };
    let offset = query.number("offset", 0..=u64::from(u32::MAX))?.unwrap_or(0) as usize;
    let limit = query.number("limit", 1..=LIST_MAX as u64)?.map_or(LIST_MAX, |n| n as usize);
    let with_total = query.flag("includeTotal")?;
    let mut found = matching(&app, caller, &wanted);
    if wanted.status.is_none_or(|word| word == "ended") {
        let ended = all_ended(&app, caller).await?;
        let of_agent = |shown: &Value| {
            wanted.agent.as_ref().is_none_or(|name| shown["agentName"] == name.as_str())
        };
        found.extend(ended.into_iter().filter(of_agent));
    }
    let age = |shown: &Value| {
        let text = |name: &str| shown[name].as_str().unwrap_or_default().to_owned();
        std::cmp::Reverse((text("createdAt"), text("id")))
    };
    found.sort_by_cached_key(age);
    let total = found.len();
    let page: Vec<_> = found.into_iter().skip(offset).take(limit).collect();
    let mut page_view = json!({"sessions": page});
    if with_total {
        page_view["total"] = total.into();
    }
    Ok(answer::ok(&page_view))
}

fn status_word(given: &str) -> Result<&'static str, AshError> {
    let words = ["starting", "active", "paused", "stopped", "ended", "error"];
    let found = words.into_iter().find(|word| *word == given);
    found.ok_or_else(|| {
        AshError::invalid(format!("querystring/status must be one of {}", words.join(", ")))
    })
}

/// Sessions that the engine knows, newest first.
fn matching(app: &App, caller: Caller, wanted: &ListQuery) -> Vec<Value> {
    let agent = wanted.agent.iter().map(|name| (AGENT.to_owned(), name.clone()));
    let mut query = SessionQuery { metadata: agent.collect(), limit: PAGE, ..Default::default() };
    let mut found = Vec::new();
    loop {
        let page = app.engine.sessions(caller, &query);
        let of_ash = page.sessions.iter().filter(|view| answer::agent_of(view).is_some());
        let fits = |view: &&SessionView| {
            wanted.status.is_none_or(|word| word == answer::status(view.status))
        };
        found.extend(of_ash.filter(fits).map(answer::session));
        query.after = page.next;
        if query.after.is_none() || found.len() >= LIST_MAX {
            return found;
        }
    }
}

async fn get(
    State(app): State<App>,
    By(caller): By,
    At(id): At<String>,
) -> Result<Response, AshError> {
    let known = find_session(&app, caller, session_id(&id)?).await?;
    Ok(answer::ok(&json!({"session": known.shown})))
}

async fn configure(
    State(app): State<App>,
    By(caller): By,
    At(id): At<String>,
    request: Request,
) -> Result<Response, AshError> {
    let id = session_id(&id)?;
    find_session(&app, caller, id).await?;
    let changes = |mut body: Fields| {
        let changes = config_of(&mut body)?;
        body.refuse_rest()?;
        Ok(changes)
    };
    let changes = request_body::read(request, &app, BODY_MAX, changes).await?.taken;
    let Some(view) = find_session(&app, caller, id).await?.view else {
        return Err(AshError::ended());
    };
    let config = view.claim.as_ref().and_then(|claim| claim.config.as_deref());
    let config = config.and_then(|text| serde_json::from_str(text).ok());
    let mut config: Map<String, Value> = config.unwrap_or_default();
    config.extend(changes);
    let config = Value::Object(config).to_string();
    let update = SessionUpdate { config: Some(config.into()), ..SessionUpdate::default() };
    let view = app.engine.update_session(caller, id, update).await?;
    let shown = session_view(&view);
    remember_soon(&app, view);
    Ok(answer::ok(&shown))
}

/// Ends a session. An ended one is shown as it is.
async fn end(
    State(app): State<App>,
    By(caller): By,
    At(id): At<String>,
) -> Result<Response, AshError> {
    let id = session_id(&id)?;
    let known = find_session(&app, caller, id).await?;
    let Some(view) = known.view.filter(|view| view.status != SessionStatus::Ended) else {
        return Ok(answer::ok(&json!({"session": known.shown})));
    };
    remember(&app, &view).await?;
    let ended = app.engine.end_session(caller, id).await?;
    let view = ended.unwrap_or(SessionView { status: SessionStatus::Ended, ..view });
    Ok(answer::ok(&session_view(&view)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(value: Value) -> Fields {
        Fields::inner(value, "body").unwrap_or_else(|error| panic!("{error:?}"))
    }

    #[test]
    fn bridge_options_are_taken_from_the_request() {
        let mut body = fields(json!({
            "agent": "a", "model": "m", "allowedTools": ["Bash"], "betas": null,
            "subagents": {"x": {}}, "initialAgent": "x", "other": 1,
        }));
        let expected = json!({
            "model": "m", "allowedTools": ["Bash"], "subagents": {"x": {}}, "initialAgent": "x",
        });
        assert_eq!(Value::Object(config_of(&mut body).unwrap()), expected);
        for bad in [
            json!({"model": 1}),
            json!({"model": "x".repeat(MODEL_CHARS_MAX + 1)}),
            json!({"allowedTools": "Bash"}),
            json!({"disallowedTools": [1]}),
            json!({"betas": {}}),
            json!({"subagents": []}),
        ] {
            assert!(config_of(&mut fields(bad.clone())).is_err(), "{bad}");
        }
        assert!(CreateRequest::of(fields(json!({"agent": "a", "model": "m"}))).is_ok());
        for ignored in ["startupScript", "maxTurns"] {
            let body = json!({"agent": "a", ignored: "x"});
            assert!(CreateRequest::of(fields(body)).is_err(), "{ignored}");
            let nothing = json!({"agent": "a", ignored: null});
            assert!(CreateRequest::of(fields(nothing)).is_ok(), "{ignored}");
        }
        assert!(servers_of(&mut fields(json!({"mcpServers": {"a": 1}}))).is_err());
        assert!(servers_of(&mut fields(json!({"mcpServers": {"a": {}}}))).is_ok());
    }
}
