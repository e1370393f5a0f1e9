//! The dialect of Blaxel: the API of a sandbox as its own clients and `curl` know it, and the few
//! routes that make one. A sandbox of Blaxel is a session of ours that has a name; one of our
//! sandboxes is reached by its id, too. Features of Blaxel that are missing here are refused in its
//! form.
//!
//! Mounted beneath [`PREFIX`], and for one sandbox at the root of a listener of its own. It is no
//! part of the OpenAPI document, which is about our own API. Paths are taken apart by hand: Blaxel
//! looks at how they are encoded, which a router hides.

mod access;
mod answer;
mod app;
mod creation_timeout;
mod deadline;
mod dialect;
mod errors;
mod exec_stream;
mod file_changes;
mod file_search;
mod file_watch;
mod files;
mod form;
mod health;
mod keep_alive;
mod keep_alive_log;
mod log_stream;
mod lossy_text;
mod network;
mod paths;
mod port;
mod port_wait;
mod process_view;
mod processes;
mod registry;
mod request_body;
mod routes;
mod sandbox_list;
mod sandbox_spec;
mod sandboxes;
mod settings;
mod target;
mod terminal;
mod tools;
mod uploads;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::handler::Handler as _;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodFilter, on};
use engine::Caller;
use http::{Method, StatusCode};
use model::ErrorCode;

pub use self::access::OF_LISTENER;
use self::app::App;
use self::dialect::BlaxelDialect;
use self::errors::BlaxelError;
use self::paths::RequestPath;
use self::routes::{OfProcess, OfUpload, Route};
use self::sandboxes::Here;
pub use self::settings::BlaxelSettings;
use self::target::Target;
pub use self::tools::SandboxTools;
use web::front::{Admitted, By, Front, Needs, RouteName};
use web::refused::Refused;

/// Where the dialect is on the main listener.
pub const PREFIX: &str = "/compat/blaxel";

/// Where a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mounted {
    /// On the main listener, for all sandboxes.
    Prefix,
    /// There, for the control plane.
    Control,
    /// On a listener of its own, for one sandbox.
    Listener,
}

/// The dialect over one engine.
pub struct Blaxel(App);

impl Blaxel {
    /// The dialect; `tools` speaks the Model Context Protocol for its sandboxes.
    pub fn new(
        web: &web::app::App,
        settings: &BlaxelSettings,
        tools: Arc<dyn SandboxTools>,
    ) -> Self {
        web.engine.observe(keep_alive_log::write);
        Self(App::new(web.clone(), settings.clone(), tools))
    }

    /// All its sandboxes, beneath [`PREFIX`] on the main listener.
    pub fn router(&self) -> Router {
        router(&self.0, Mounted::Prefix)
    }

    /// One sandbox at the root of a listener of its own.
    pub fn listener(&self) -> Router {
        router(&self.0, Mounted::Listener)
    }
}

/// The routes of the dialect, without a prefix.
fn router(app: &App, mounted: Mounted) -> Router {
    let words = Arc::new(BlaxelDialect { app: app.clone(), mounted });
    let front = |needs| Front {
        app: app.web.clone(),
        route: "/compat/blaxel/other",
        needs,
        takes_body: true,
        dialect: words.clone(),
    };
    let call = move |state: State<App>, by: By, request: Request| async move {
        let mounted = mounted.at(request.uri().path());
        let done = call(mounted, &state.0, by.0, request).await;
        done.unwrap_or_else(|error| mounted.shaped(error).into_response())
    };
    // The answer to a CORS preflight is public.
    let asked_before = async || answer::empty(StatusCode::NO_CONTENT);
    let all = on(MethodFilter::OPTIONS, asked_before.layer(front(Needs::Public)))
        .fallback(call.layer(front(Needs::Read)));
    Router::new().fallback(all).with_state(app.clone())
}

const CONTROL: &str = "/sandboxes";
const BY_EXTERNAL_ID: &str = "by-external-id/";
/// What else Blaxel's control plane manages.
const COLLECTIONS: [&str; 31] = [
    "agents",
    "applications",
    "changelog",
    "configuration",
    "customdomains",
    "drives",
    "egressgateways",
    "egressips",
    "features",
    "functions",
    "images",
    "integrations",
    "jobs",
    "locations",
    "mcp",
    "models",
    "pending-image-shares",
    "policies",
    "publicIps",
    "sandbox",
    "schedule-executions",
    "schedules",
    "secrets",
    "service_accounts",
    "snapshots",
    "templates",
    "users",
    "volume_templates",
    "volumes",
    "vpcs",
    "workspaces",
];

impl Mounted {
    /// Where a request with this path came in.
    fn at(self, raw: &str) -> Self {
        let is_control =
            raw.strip_prefix(CONTROL).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        match self {
            Self::Prefix if is_control => Self::Control,
            Self::Prefix | Self::Control | Self::Listener => self,
        }
    }

    fn shaped(self, error: BlaxelError) -> BlaxelError {
        match self {
            Self::Control => error.of_control(),
            Self::Prefix | Self::Listener => error,
        }
    }

    /// A refusal as clients read it there.
    fn refused(self, refused: Refused) -> BlaxelError {
        self.shaped(refused.into())
    }
}

async fn call(
    mounted: Mounted,
    app: &App,
    caller: Caller,
    request: Request,
) -> Result<Response, BlaxelError> {
    let raw = request.uri().path().to_owned();
    match mounted {
        Mounted::Listener => return sandbox(app, caller, None, &raw, request).await,
        Mounted::Control => return control(app, caller, &raw, request).await,
        Mounted::Prefix => {}
    }
    let path = raw.strip_prefix('/').unwrap_or(&raw);
    let (word, rest) = match path.find('/') {
        Some(at) => path.split_at(at),
        None => (path, ""),
    };
    let word = RequestPath::new(word)?.decoded;
    if word.is_empty() {
        return health::root();
    }
    // A sandbox may have had such a name before the name was taken.
    if COLLECTIONS.contains(&word.as_str())
        && app.engine.named_session(registry::KIND, caller.key, &word).await?.is_none()
    {
        let cause = format!("{word} are not offered here: only sandboxes are");
        return Err(BlaxelError::not_here(cause).of_control());
    }
    sandbox(app, caller, Some(&word), rest, request).await
}

fn allow(needs: Needs, caller: Caller) -> Result<(), BlaxelError> {
    if needs.allow(caller.role) {
        return Ok(());
    }
    let cause = format!("a key with the role {} may not do this", caller.role);
    Err(model::Refusal::new(ErrorCode::Forbidden, cause).into())
}

async fn control(
    app: &App,
    caller: Caller,
    raw: &str,
    request: Request,
) -> Result<Response, BlaxelError> {
    let looks = [Method::GET, Method::HEAD].contains(request.method());
    allow(if looks { Needs::Read } else { Needs::Use }, caller)?;
    let here = Here::of(request.headers(), request.uri());
    let name = raw.strip_prefix(CONTROL).unwrap_or_default().trim_matches('/');
    let name = RequestPath::new(name)?.decoded;
    let mut response = match (request.method().as_str(), name.as_str()) {
        ("POST", "") => sandboxes::create(app, caller, request).await?,
        ("GET", "") => sandboxes::list(app, caller, request).await?,
        ("GET" | "HEAD", name) if name.starts_with(BY_EXTERNAL_ID) => {
            let id = name.strip_prefix(BY_EXTERNAL_ID).unwrap_or_default();
            sandboxes::get_by_external_id(app, caller, id, &here).await?
        }
        (_, name) if name.contains('/') => {
            let cause = "previews, schedules, snapshots, forks and archives are not offered here";
            return Err(BlaxelError::not_here(cause));
        }
        ("GET" | "HEAD", name) => sandboxes::get(app, caller, name, &here).await?,
        ("PUT" | "PATCH", name) => sandboxes::update(app, caller, name, request).await?,
        ("DELETE", name) => sandboxes::remove(app, caller, name, &here).await?,
        _ => return Err(BlaxelError::no_route()),
    };
    let sandbox = (!name.is_empty()).then_some(name);
    response.extensions_mut().insert(RouteName { route: "/compat/blaxel/sandboxes", sandbox });
    Ok(response)
}

async fn sandbox(
    app: &App,
    caller: Caller,
    word: Option<&str>,
    raw: &str,
    request: Request,
) -> Result<Response, BlaxelError> {
    let route = Route::of(&RequestPath::new(raw)?);
    let name = RouteName { route: route.name(), sandbox: word.map(str::to_owned) };
    let done = match allow(route.needs(request.method()), caller) {
        Ok(()) => at(app, caller, word, route, request).await,
        Err(error) => Err(error),
    };
    let mut response = done.unwrap_or_else(BlaxelError::into_response);
    response.extensions_mut().insert(name);
    Ok(response)
}

async fn at(
    app: &App,
    caller: Caller,
    word: Option<&str>,
    route: Route,
    request: Request,
) -> Result<Response, BlaxelError> {
    // Neither needs a sandbox to be there where there is only one.
    match (&route, word) {
        (Route::Root, None) => return health::root(),
        (Route::Health, None) => return health::health(app),
        (Route::NotHere(why), _) => return Err(BlaxelError::not_here(*why)),
        (Route::Unknown, _) => return Err(BlaxelError::no_route()),
        _ => {}
    }
    let target = match word {
        Some(word) => Target::find(app, caller, word).await?,
        None => Target::of_listener(app, caller, route.is_use(request.method())).await?,
    };
    let method = request.method().clone();
    let wrong = || Err(BlaxelError::no_route());
    match (route, method.as_str()) {
        (Route::Root, _) => health::root(),
        (Route::Health, "GET" | "HEAD") => {
            target.refuse_if_over().await?;
            health::health(app)
        }
        (Route::Status, "GET" | "HEAD") => keep_alive::status(&target).await,
        (Route::Stop, "POST") => keep_alive::stop(&target, request).await,
        (Route::Processes, "POST") => processes::start(&target, request).await,
        (Route::Processes, "GET" | "HEAD") => processes::list(&target).await,
        (Route::Process(id, of), method) => match (of, method) {
            (OfProcess::Itself, "GET" | "HEAD") => processes::get(&target, &id).await,
            (OfProcess::Itself, "DELETE") => processes::stop(&target, &id).await,
            (OfProcess::Kill, "DELETE") => processes::kill(&target, &id).await,
            (OfProcess::Logs, "GET" | "HEAD") => processes::logs(&target, &id).await,
            (OfProcess::LogStream, "GET") => log_stream::response(&target, &id).await,
            (OfProcess::Stdin, "POST") => processes::write_stdin(&target, &id, request).await,
            (OfProcess::Stdin, "DELETE") => processes::close_stdin(&target, &id).await,
            _ => wrong(),
        },
        (Route::File(path), "GET") => files::get(&target, &path, request).await,
        (Route::File(path), "HEAD") => files::head(&target, &path).await,
        (Route::File(path), "PUT") => file_changes::put(&target, &path, request).await,
        (Route::File(path) | Route::Tree(path), "DELETE") => {
            file_changes::remove(&target, &path, request).await
        }
        (Route::Tree(path), "GET" | "HEAD") => file_changes::list_tree(&target, &path).await,
        (Route::Tree(path), "PUT") => file_changes::put_tree(&target, &path, request).await,
        (Route::Watch(path), "GET") => file_watch::response(&target, &path, request).await,
        (Route::Find(path), "GET") => file_search::find(&target, &path, request).await,
        (Route::Fuzzy(path), "GET") => file_search::fuzzy(&target, &path, request).await,
        (Route::Content(path), "GET") => file_search::content(&target, &path, request).await,
        (Route::Uploads, "GET") => uploads::list(&target),
        (Route::Initiate(path), "POST") => uploads::initiate(&target, &path, request).await,
        (Route::Upload(id, of), method) => match (of, method) {
            (OfUpload::Part, "PUT") => uploads::part(&target, &id, request).await,
            (OfUpload::Parts, "GET") => uploads::parts(&target, &id),
            (OfUpload::Complete, "POST") => uploads::complete(&target, &id, request).await,
            (OfUpload::Abort, "DELETE") => uploads::abort(&target, &id).await,
            _ => wrong(),
        },
        (Route::Port(port, behind), _) => {
            port::pass_on(&target, word, port, &behind, request).await
        }
        (Route::TerminalSocket, "GET") => terminal::open(&target, request).await,
        (Route::Mcp, "POST") => tools(&target, request).await,
        (Route::Mcp, _) => Err(BlaxelError::new(405, "the route accepts only POST")),
        (Route::Sockets(pid), "GET") => network::sockets(&target, &pid).await,
        _ => wrong(),
    }
}

/// The sandbox as tools for models.
async fn tools(target: &Target, request: Request) -> Result<Response, BlaxelError> {
    let admitted = request.extensions().get::<Admitted>();
    let request_id = admitted.map(|admitted| admitted.request_id.clone());
    let Some(request_id) = request_id else { return Err(BlaxelError::no_route()) };
    let by = Admitted { caller: target.caller, request_id };
    Ok(target.app.tools.answer(&target.app.web, by, target.used()?, request).await?)
}
