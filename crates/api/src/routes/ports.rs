//! Ports inside a sandbox: who listens, waiting for somebody to, and reaching him, by HTTP and
//! whatever that goes over to, or by a connection of one's own. Whoever is connected uses the sandbox;
//! one that is frozen or cold wakes for it.

use std::future::ready;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::response::Response;
use engine::{Caller, Duplex, Use, UseKind};
use http::header::{CONNECTION, UPGRADE};
use http::request::Parts;
use http::{Extensions, HeaderValue, StatusCode, Version};
use model::{ErrorCode, SandboxId, SessionId};
use tokio::time::timeout;
use wire::{PortEntry, PortList, ProcessRequest};

use crate::answer;
use crate::app::App;
use crate::front::{By, Needs};
use crate::operation::{Content, Kind, Operation, Param, Route, Verb, json};
use crate::passed_on::{exchange, until_open};
use crate::path::{Name as _, Named, NamedOf, PortNumber};
use crate::proxy::{self, Place};
use crate::query::{NoQuery, Query};
use crate::refused::Refused;
use crate::routes::exec::USING;
use crate::routes::used::Used;
use crate::subprotocol;
use crate::tunnel::{Tunnel, client_of};

/// What a plain connection is called.
const TCP: &str = "shoal-tcp";
const WAIT_MS: u64 = 60_000;

pub(super) fn routes() -> Vec<Route> {
    [routes_of::<SandboxId>(), routes_of::<SessionId>()].into_iter().flatten().collect()
}

fn routes_of<T: Used>() -> Vec<Route> {
    let at = T::AT;
    let list = Operation::new(at.ports.id, "The ports on which something listens inside").answers(
        200,
        "The ports, in their order",
        [json("PortList")],
    );
    let proxied = Operation::new(
        at.proxy.id,
        "Speak with the server that listens on a port inside: HTTP with any method, or what it goes over to, \
         such as a WebSocket",
    )
    .answers(101, "Both went over to something else", [])
    .answers(200, "What that server answers, with any status", [Content("*/*", None)]);
    let forward = Operation::new(
        at.forward.id,
        "A connection to a port inside, after `Upgrade: shoal-tcp`: bytes both ways as they are",
    )
    .answers(101, "It is connected", []);
    let using = |operation: Operation| {
        operation.refuses(USING).refuses(T::REFUSES).refuses(&[ErrorCode::PortClosed])
    };
    vec![
        Route::new(
            Verb::Get,
            at.ports.path,
            Needs::Read,
            self::list::<T>,
            list.query([
                Param::new(
                    "wait_for",
                    Kind::Repeated("^[1-9][0-9]{0,3}$|^[1-5][0-9]{4}$|^6[0-4][0-9]{3}$"),
                    "The answer comes when somebody listens on this one too",
                ),
                Param::new(
                    "timeout_ms",
                    Kind::Number(1, ProcessRequest::WAIT_MS_MAX),
                    "How long that is waited for; a minute if not given",
                ),
            ])
            .refuses(USING)
            .refuses(T::REFUSES),
        ),
        Route::new(Verb::Any, at.proxy.path, Needs::Use, pass_on::<T>, using(proxied))
            .also(at.proxy_root),
        Route::new(
            Verb::Get,
            at.forward.path,
            Needs::Use,
            self::forward::<T>,
            using(forward).refuses(&[ErrorCode::UpgradeRequired]),
        ),
    ]
}

async fn list<T: Used>(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    Named(id): Named<T>,
) -> Result<Response, Refused> {
    let mut wanted = Vec::new();
    for text in query.all("wait_for") {
        let port = PortNumber::read(&text);
        let PortNumber(port) =
            port.map_err(|refused| Refused::bad("wait_for", refused.refusal.cause))?;
        wanted.push(port);
    }
    let timeout_ms =
        query.number("timeout_ms", 1..=ProcessRequest::WAIT_MS_MAX)?.unwrap_or(WAIT_MS);
    query.done()?;
    if wanted.len() > ProcessRequest::PORTS_MAX {
        let cause = format!("at most {} ports are waited for", ProcessRequest::PORTS_MAX);
        return Err(Refused::bad("wait_for", cause));
    }
    let used = id.begin(&app, caller, UseKind::Port).await?;
    let mut stops = app.stopping.clone();
    let open = tokio::select! {
        open = timeout(Duration::from_millis(timeout_ms), until_open(&used, &wanted)) => open,
        // That nobody will say so any more is a stop too.
        _ = stops.wait_for(|stops| *stops) => {
            return Err(Refused::new(ErrorCode::ShuttingDown, "the server stops while a port is waited for"));
        }
    };
    let Ok(listening) = open else {
        let cause = format!("nothing listens on all of {wanted:?} after {timeout_ms} ms");
        return Err(Refused::new(ErrorCode::DeadlineExceeded, cause));
    };
    let entry =
        |port: engine::Port| PortEntry { port: port.port, loopback_only: port.loopback_only };
    let mut ports: Vec<_> = listening?.into_iter().map(entry).collect();
    ports.sort_by_key(|entry| entry.port);
    answer::ok(&PortList { ports })
}

/// Connects to a port inside.
async fn dial(used: &Use, port: u16) -> Result<Box<dyn Duplex>, Refused> {
    used.dial(port).await.map_err(|refusal| {
        if refusal.code == ErrorCode::PathNotFound {
            let cause = format!("nothing listens on port {port} inside");
            return Refused::new(ErrorCode::PortClosed, cause);
        }
        refusal.into()
    })
}

/// The thing and its port that a path names, whatever comes after them.
struct At<T>(T, u16);

impl<T: Used> FromRequestParts<App> for At<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refused> {
        let not_text = |_| Refused::new(ErrorCode::NotFound, "a part of the path is not UTF-8");
        let params = RawPathParams::from_request_parts(parts, app).await.map_err(not_text)?;
        let named = |name: &str| {
            let found = params.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.to_owned()).unwrap_or_default()
        };
        let PortNumber(port) = PortNumber::read(&named("port"))?;
        Ok(Self(T::read(&named("id"))?, port))
    }
}

async fn pass_on<T: Used>(
    State(app): State<App>,
    By(caller): By,
    At(id, port): At<T>,
    request: Request,
) -> Result<Response, Refused> {
    let Some(place) = proxy::place(request.uri()) else {
        return Err(Refused::bad("path", "this is no path that could be passed on"));
    };
    let used = id.begin(&app, caller, UseKind::Port).await?;
    pass_to(app, caller, used, port, place, request).await
}

/// Passes a request on to the server that listens on a port inside.
pub(crate) async fn pass_to(
    app: App,
    caller: Caller,
    used: Use,
    port: u16,
    place: Place,
    mut request: Request,
) -> Result<Response, Refused> {
    let client = client_of(&mut request);
    let (mut head, body) = request.into_parts();
    let had_key = proxy::inward(&mut head.headers, &place.prefix, port);
    head.uri = place.inside.into();
    head.version = Version::HTTP_11;
    // Nothing that this server noted about the request is for the inside.
    head.extensions = Extensions::new();
    let connection = dial(&used, port).await?;
    let asked = Request::from_parts(head, body);
    let mut response = exchange(app, caller, used, connection, asked, client).await?;
    proxy::outward(response.headers_mut(), &place.prefix, port);
    if had_key && response.status() == StatusCode::SWITCHING_PROTOCOLS {
        subprotocol::choose(response.headers_mut());
    }
    Ok(response)
}

async fn forward<T: Used>(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    NamedOf(id, PortNumber(port)): NamedOf<T, PortNumber>,
    mut request: Request,
) -> Result<Response, Refused> {
    let wants = proxy::upgrade(request.headers()).is_some_and(|to| to == TCP);
    let Some(client) = client_of(&mut request).filter(|_| wants) else {
        let cause = format!("this needs `Connection: Upgrade` and `Upgrade: {TCP}`");
        return Err(Refused::upgrade(cause));
    };
    let used = id.begin(&app, caller, UseKind::Port).await?;
    let inside = dial(&used, port).await?;
    let place = app.lasting.begin(caller.key)?;
    Tunnel { app, caller, used, place }.open(client, ready(Some(inside)));
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(TCP));
    Ok(response)
}
