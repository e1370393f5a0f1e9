//! The few routes of Blaxel's control plane that its clients need to create, find, change and end a
//! sandbox. The answer repeats the request, with the memory that the sandbox really has.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use engine::{Caller, DeadlineChange, NamedSession, SessionRequest, SessionUpdate};
use http::header::HOST;
use http::{HeaderMap, Uri};
use model::{ErrorCode, Refusal, SandboxId};
use serde_json::{Map, Value, json};

use super::creation_timeout::CreationTimeout;
use super::errors::BlaxelError;
use super::registry::{KIND, refused};
use super::sandbox_list::{ListQuery, TERMINATED, external_id};
use super::sandbox_spec::{self, default_template, template};
use super::target::OF_ITS_OWN;
use super::{COLLECTIONS, OF_LISTENER, PREFIX, answer, deadline, request_body};
use crate::app::App;
use web::front::Needs;

const NAME_CHARS_MAX: usize = 128;
const BODY_BYTES_MAX: u64 = 256 << 10;
/// The label of a session that has the name of its sandbox.
const LABEL: &str = "blaxel.sandbox";
const WORKSPACE_NAME: &str = "shoal";

/// Where the server was called.
pub(super) struct Here(String);

impl Here {
    pub(super) fn of(headers: &HeaderMap, uri: &Uri) -> Self {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let host = uri.authority().map(http::uri::Authority::as_str).or(host);
        // A proxy that has TLS says so.
        let proto = headers.get("x-forwarded-proto").and_then(|proto| proto.to_str().ok());
        let scheme = if proto == Some("https") { "https" } else { "http" };
        Self(format!("{scheme}://{}{PREFIX}", host.unwrap_or("localhost")))
    }

    fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }
}

/// A sandbox as clients see it.
fn view(app: &App, caller: Caller, named: &NamedSession, status: &str, here: &Here) -> Value {
    let session = app.engine.session(caller, named.session).ok();
    let template = session.as_ref().and_then(|session| app.engine.template(&session.template));
    let mut object = shown(named, status, here, template.map(|known| known.limits.memory_mb));
    if let Some(at) = session.and_then(|session| session.deadline_at) {
        object["expiresIn"] = at.since(app.engine.now().wall).div_ceil(1000).into();
    }
    object
}

fn shown(named: &NamedSession, status: &str, here: &Here, memory_mb: Option<u32>) -> Value {
    let mut object = named.object.clone();
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    if !object["spec"].is_object() {
        object["spec"] = json!({});
    }
    if let Some(memory_mb) = memory_mb
        && let Ok(runtime) = sandbox_spec::runtime_of(&mut object)
    {
        runtime["memory"] = memory_mb.into();
    }
    // Without a region: clients that get one send their requests and keys to Blaxel's own server.
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("region");
    }
    // A client that sends back what it got repeats this.
    if let Some(all) = object.as_object_mut() {
        all.remove("expiresIn");
    }
    let metadata = &mut object["metadata"];
    metadata["name"] = named.name.clone().into();
    metadata["url"] = here.url(&named.name).into();
    metadata["workspace"] = WORKSPACE_NAME.into();
    metadata["createdAt"] = answer::moment(named.created_at).into();
    metadata["updatedAt"] = answer::moment(named.updated_at).into();
    object["status"] = status.into();
    object["events"] = json!([]);
    object
}

fn status(app: &App, caller: Caller, named: &NamedSession) -> &'static str {
    if app.engine.is_session_alive(caller, named.session) { "DEPLOYED" } else { TERMINATED }
}

/// Checks the name of a sandbox.
fn check_name(name: &str) -> Result<(), BlaxelError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&c);
    let begins = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    let taken =
        name == "sandboxes" || COLLECTIONS.contains(&name) || name.parse::<SandboxId>().is_ok();
    if begins && name.len() <= NAME_CHARS_MAX && name.chars().all(fits) && !taken {
        return Ok(());
    }
    let cause = format!(
        "metadata.name: {name:?} is not a valid name: at most {NAME_CHARS_MAX} letters, digits, dots, \
         dashes and underscores, and neither the id of a sandbox nor a word of the API"
    );
    Err(BlaxelError::bad(cause))
}

fn fresh_name() -> Result<String, BlaxelError> {
    let number = getrandom::u32().map_err(|error| BlaxelError::new(500, error.to_string()))?;
    Ok(format!("sandbox-{number:08x}"))
}

/// Creates the session of a sandbox, or returns the one that another request created first.
async fn make(
    app: &App,
    caller: Caller,
    name: String,
    object: Value,
    mut asked: SessionRequest,
) -> Result<(Arc<NamedSession>, bool), Refusal> {
    asked.metadata = BTreeMap::from([(LABEL.to_owned(), name.clone())]);
    let made = app.engine.create_named_session(KIND, caller, &name, object, asked).await;
    made.map_err(refused)
}

/// The sandbox of the listener.
pub(super) async fn make_own(app: &App, caller: Caller) -> Result<Arc<NamedSession>, BlaxelError> {
    if !Needs::Use.allow(caller.role) {
        let cause = format!(
            "the sandbox does not exist yet, and a key with the role {} cannot create it",
            caller.role
        );
        return Err(Refusal::new(ErrorCode::Forbidden, cause).into());
    }
    let (name, template) = (OF_ITS_OWN.to_owned(), default_template(app)?);
    debug_assert_eq!(caller.key, OF_LISTENER);
    let asked = SessionRequest::of(template.name.clone());
    let made = make(app, caller, name, json!({}), asked).await;
    let (named, _) = made?;
    Ok(named)
}

pub(super) async fn create(
    app: &App,
    caller: Caller,
    request: Request,
) -> Result<Response, BlaxelError> {
    let here = Here::of(request.headers(), request.uri());
    let timeout = CreationTimeout::of(request.headers())?;
    let (mut query, request) = request_body::query(request).await?;
    let may_exist = request_body::flag(&mut query, "createIfNotExist", false)?;
    let mut object = object(request, app).await?;
    sandbox_spec::check(&object)?;
    let template = template(app, &object)?;
    sandbox_spec::check_memory(&object, &template)?;
    let mut asked = SessionRequest::of(template.name.clone());
    asked.env = sandbox_spec::env(&object)?;
    asked.wait_ms = timeout.wait_ms();
    let now = app.engine.now().wall;
    let expiry = deadline::of(&object, now)?;
    asked.deadline = expiry.as_ref().map(|expiry| expiry.deadline);
    sandbox_spec::runtime_of(&mut object)?["memory"] = template.limits.memory_mb.into();
    let name = match object["metadata"]["name"].as_str().filter(|name| !name.is_empty()) {
        Some(name) => name.to_owned(),
        None => fresh_name()?,
    };
    check_name(&name)?;
    let there = app.engine.named_session(KIND, caller.key, &name).await?;
    let there = there.filter(|named| app.engine.is_session_alive(caller, named.session));
    let (named, is_new) = if let Some(named) = there {
        (named, false)
    } else {
        expiry.map_or(Ok(()), |expiry| expiry.refuse_wrong_time(now))?;
        let made = make(app, caller, name, object, asked).await;
        made.map_err(|refusal| timeout.refused(refusal))?
    };
    if !is_new && !may_exist {
        let cause = format!("sandbox {:?} already exists", named.name);
        return Err(BlaxelError::new(409, cause));
    }
    answer::ok(&view(app, caller, &named, "DEPLOYED", &here))
}

async fn object(request: Request, app: &App) -> Result<Value, BlaxelError> {
    let (bytes, _share) = request_body::bytes(request, app, BODY_BYTES_MAX).await?;
    let map: Map<String, Value> = request_body::parse(&bytes)?;
    Ok(Value::Object(map))
}

pub(super) fn unknown(name: &str) -> BlaxelError {
    let text = format!("sandbox {name:?} not found");
    BlaxelError::new(404, text).with_code(ErrorCode::SandboxUnknown)
}

pub(super) async fn get(
    app: &App,
    caller: Caller,
    name: &str,
    here: &Here,
) -> Result<Response, BlaxelError> {
    let found = app.engine.named_session(KIND, caller.key, name).await?;
    let named = found.ok_or_else(|| unknown(name))?;
    answer::ok(&view(app, caller, &named, status(app, caller, &named), here))
}

/// The latest sandbox that has an id of its user's own, one that lives first.
pub(super) async fn get_by_external_id(
    app: &App,
    caller: Caller,
    id: &str,
    here: &Here,
) -> Result<Response, BlaxelError> {
    let all = app.engine.named_sessions(KIND, caller.key).await?;
    let of_id = all.iter().filter(|named| external_id(named) == Some(id));
    let found = of_id.max_by_key(|named| {
        (app.engine.is_session_alive(caller, named.session), named.created_at.0)
    });
    let named = found.ok_or_else(|| {
        let text = format!("sandbox with external id {id:?} not found");
        BlaxelError::new(404, text).with_code(ErrorCode::SandboxUnknown)
    })?;
    answer::ok(&view(app, caller, named, status(app, caller, named), here))
}

pub(super) async fn list(
    app: &App,
    caller: Caller,
    request: Request,
) -> Result<Response, BlaxelError> {
    let here = Here::of(request.headers(), request.uri());
    let (mut query, _) = request_body::query(request).await?;
    let asked = ListQuery::read(&mut query)?;
    let all = app.engine.named_sessions(KIND, caller.key).await?;
    let page = asked.page(&all, |named| status(app, caller, named));
    let data = page.sandboxes.iter().map(|(named, status)| view(app, caller, named, status, &here));
    let data: Vec<_> = data.collect();
    let has_more = page.next.is_some();
    answer::ok(&json!({
        "data": data,
        "meta": {
            "hasMore": has_more,
            "nextCursor": page.next.unwrap_or_default(),
            "total": page.total,
        },
    }))
}

pub(super) async fn update(
    app: &App,
    caller: Caller,
    name: &str,
    request: Request,
) -> Result<Response, BlaxelError> {
    let here = Here::of(request.headers(), request.uri());
    let object = object(request, app).await?;
    if object["metadata"]["name"].as_str().is_some_and(|given| !given.is_empty() && given != name) {
        return Err(BlaxelError::bad("metadata.name: a sandbox cannot get another name"));
    }
    let before = app.engine.named_session(KIND, caller.key, name).await?;
    let before = before.ok_or_else(|| unknown(name))?;
    let object = sandbox_spec::changed(app, &before.object, object)?;
    set_deadline(app, caller, &before, &object).await?;
    let changed = app.engine.update_named_session(KIND, caller, name, object).await;
    let named = changed.map_err(refused)?.ok_or_else(|| unknown(name))?;
    answer::ok(&view(app, caller, &named, status(app, caller, &named), &here))
}

/// Sets the deadline that a changed description asks for.
async fn set_deadline(
    app: &App,
    caller: Caller,
    named: &NamedSession,
    object: &Value,
) -> Result<(), BlaxelError> {
    let Ok(session) = app.engine.session(caller, named.session) else { return Ok(()) };
    let asked = deadline::of(object, named.created_at)?;
    let wanted = asked.as_ref().map(|asked| asked.deadline);
    // Idle time counts from a change, so the same deadline must not be set again.
    if wanted == session.deadline {
        return Ok(());
    }
    asked.map_or(Ok(()), |asked| asked.refuse_wrong_time(app.engine.now().wall))?;
    let deadline = wanted.map_or(DeadlineChange::Remove, DeadlineChange::Set);
    let update = SessionUpdate { deadline, ..SessionUpdate::default() };
    let changed = app.engine.update_session(caller, named.session, update).await;
    changed.map_err(|refusal| BlaxelError::from(refusal).with_status(400))?;
    Ok(())
}

pub(super) async fn remove(
    app: &App,
    caller: Caller,
    name: &str,
    here: &Here,
) -> Result<Response, BlaxelError> {
    let ended = app.engine.end_named_session(KIND, caller, name).await;
    let named = ended.map_err(refused)?.ok_or_else(|| unknown(name))?;
    answer::ok(&view(app, caller, &named, TERMINATED, here))
}

#[cfg(test)]
mod tests {
    use model::{SessionId, Wall};

    use super::*;

    #[test]
    fn sandbox_names_are_valid_in_a_path() {
        for (name, fits) in [
            ("my-app", true),
            ("a.b_C9", true),
            ("", false),
            ("-a", false),
            ("a/b", false),
            ("a b", false),
            ("sandboxes", false),
            ("volumes", false),
            ("00000000-0000-0000-0000-000000000007", false),
            (&"x".repeat(NAME_CHARS_MAX + 1), false),
        ] {
            assert_eq!(check_name(name).is_ok(), fits, "{name}");
        }
        check_name(&fresh_name().unwrap()).unwrap();
    }

    #[test]
    fn sandbox_view_repeats_the_request_with_its_url() {
        let named = NamedSession {
            name: "my-app".to_owned(),
            session: SessionId::from_u128(1),
            object: json!({
                "metadata": {"labels": {"a": "b"}, "url": "http://elsewhere"},
                "spec": {"region": "us-pdx-1"},
            }),
            created_at: Wall(0),
            updated_at: Wall(1),
            sandboxes: Vec::new(),
        };
        let mut headers = HeaderMap::new();
        headers.insert(HOST, "localhost:7600".parse().unwrap());
        let sandbox_view = shown(&named, "DEPLOYED", &Here::of(&headers, &Uri::default()), None);
        assert_eq!(sandbox_view["metadata"]["url"], "http://localhost:7600/compat/blaxel/my-app");
        assert_eq!(sandbox_view["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(
            (&sandbox_view["status"], &sandbox_view["spec"]),
            (&json!("DEPLOYED"), &json!({}))
        );
        headers.insert("x-forwarded-proto", "https".parse().unwrap());
        let sandbox_view = shown(&named, "DEPLOYED", &Here::of(&headers, &Uri::default()), None);
        assert_eq!(sandbox_view["metadata"]["url"], "https://localhost:7600/compat/blaxel/my-app");
    }
}
