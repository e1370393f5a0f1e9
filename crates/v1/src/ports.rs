//! Ports inside a sandbox: listing and waiting for open ports, proxying HTTP with upgrades, and raw
//! connections. A connection is a use: a frozen sandbox is thawed and a cold one restored for it.

use std::future::ready;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use engine::UseKind;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderValue, StatusCode};
use model::ErrorCode;
use tokio::time::timeout;
use wire::{PortEntry, PortList, ProcessRequest};

use crate::exec::USING;
use crate::half_open::HalfOpen;
use crate::use_routes::{TARGETS, TargetSpec};
use web::answer;
use web::app::App;
use web::front::{By, Needs};
use web::operation::{Content, Kind, Operation, Param, Route, Verb, json};
use web::path::{Name as _, PortNumber};
use web::port::{dial, pass_to};
use web::proxy::{self};
use web::proxy_exchange::until_open;
use web::query::{NoQuery, Query};
use web::refused::Refused;
use web::tunnel::{Tunnel, client_of};
use web::use_target::PortTarget;
use web::use_target::UseTarget;

/// The protocol name of a raw connection.
const TCP: &str = "shoal-tcp";
const WAIT_MS: u64 = 60_000;

pub(super) fn routes() -> Vec<Route> {
    TARGETS.iter().flat_map(routes_of).collect()
}

fn routes_of(target: &TargetSpec) -> Vec<Route> {
    let at = target.routes;
    let list =
        Operation::new(at.ports.id, "List the open ports of a sandbox, and wait for some if asked")
            .answers(200, "The open ports, in ascending order", [json("PortList")]);
    let proxied = Operation::new(
        at.proxy.id,
        "Proxy a request to the server on a port in the sandbox: HTTP with any method, or a protocol upgrade \
         such as a WebSocket",
    )
    .answers(101, "The server in the sandbox switched protocols", [])
    .answers(200, "The answer of the server inside, with any status", [Content("*/*", None)]);
    let forward = Operation::new(
        at.forward.id,
        "Open a raw connection to a port in the sandbox, after `Upgrade: shoal-tcp`",
    )
    .answers(101, "The connection is open", []);
    let using = |operation: Operation| {
        operation.refuses(USING).refuses(target.refuses).refuses(&[ErrorCode::PortClosed])
    };
    vec![
        Route::new(
            Verb::Get,
            at.ports.path,
            Needs::Read,
            self::list,
            list.query([
                Param::new(
                    "wait_for",
                    Kind::Repeated("^[1-9][0-9]{0,3}$|^[1-5][0-9]{4}$|^6[0-4][0-9]{3}$"),
                    "Answer only when this port is open, too",
                ),
                Param::new(
                    "timeout_ms",
                    Kind::Number(1, ProcessRequest::WAIT_MS_MAX),
                    "How long to wait for the ports; a minute if not given",
                ),
            ])
            .refuses(USING)
            .refuses(target.refuses),
        ),
        Route::new(Verb::Any, at.proxy.path, Needs::Use, pass_on, using(proxied))
            .also(at.proxy_root),
        Route::new(
            Verb::Get,
            at.forward.path,
            Needs::Use,
            self::forward,
            using(forward).refuses(&[ErrorCode::UpgradeRequired]),
        ),
    ]
}

async fn list(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    id: UseTarget,
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
        let cause = format!("at most {} ports may be waited for", ProcessRequest::PORTS_MAX);
        return Err(Refused::bad("wait_for", cause));
    }
    let used = id.begin(&app, caller, UseKind::Port).await?;
    let mut stops = app.stopping.clone();
    let open = tokio::select! {
        open = timeout(Duration::from_millis(timeout_ms), until_open(&used, &wanted)) => open,
        // A dropped sender means a stop, too.
        _ = stops.wait_for(|stops| *stops) => {
            let cause = "the server stopped during the wait for a port";
            return Err(Refused::new(ErrorCode::ShuttingDown, cause));
        }
    };
    let Ok(listening) = open else {
        let cause = format!("not all of the ports {wanted:?} are open after {timeout_ms} ms");
        return Err(Refused::new(ErrorCode::DeadlineExceeded, cause));
    };
    let entry =
        |port: engine::Port| PortEntry { port: port.port, loopback_only: port.loopback_only };
    let mut ports: Vec<_> = listening?.into_iter().map(entry).collect();
    ports.sort_by_key(|entry| entry.port);
    answer::ok(&PortList { ports })
}

async fn pass_on(
    State(app): State<App>,
    By(caller): By,
    PortTarget(id, port): PortTarget,
    request: Request,
) -> Result<Response, Refused> {
    let Some(path) = proxy::proxy_path(request.uri()) else {
        return Err(Refused::bad("path", "the path cannot be forwarded"));
    };
    let used = id.begin(&app, caller, UseKind::Port).await?;
    pass_to(app, caller, used, port, path, request).await
}

async fn forward(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    PortTarget(id, port): PortTarget,
    mut request: Request,
) -> Result<Response, Refused> {
    let wants = proxy::upgrade(request.headers()).is_some_and(|to| to == TCP);
    let Some(client) = client_of(&mut request).filter(|_| wants) else {
        let cause = format!("the request needs `Connection: Upgrade` and `Upgrade: {TCP}`");
        return Err(Refused::upgrade(cause));
    };
    let used = id.begin(&app, caller, UseKind::Port).await?;
    let inside = dial(&used, port).await?;
    let slot = app.long_lived.begin(caller.key)?;
    let inside = HalfOpen::new(inside);
    Tunnel { app, caller, used, slot }.open(client, ready(Some(inside)));
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(TCP));
    Ok(response)
}
