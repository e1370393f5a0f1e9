//! What sandboxes and sessions may reach, changing it, and the log of what they tried. Reading does
//! not count as activity.

use axum::extract::State;
use axum::response::Response;
use engine::{
    NetworkEventKind, NetworkLogEntry, NetworkLogQuery, NetworkReport, NetworkVerdict, Wanted,
};
use model::{ErrorCode, SandboxId, SessionId};
use wire::{Network, NetworkChange, NetworkEntry, NetworkEntryKind, NetworkLog, Time};

use web::answer;
use web::app::App;
use web::body::Json;
use web::front::{By, Needs};
use web::operation::{Kind, Operation, Param, Route, Takes, Verb, json};
use web::path::Named;
use web::query::{NoQuery, Query};
use web::refused::Refused;
use web::use_target::with_replacement;

const PAGE: u64 = 100;
const PAGE_MAX: u64 = 1000;

const READING: &[ErrorCode] = &[
    ErrorCode::SandboxUnknown,
    ErrorCode::SandboxGone,
    ErrorCode::SessionUnknown,
    ErrorCode::SessionEnded,
    ErrorCode::TemplateUnknown,
    ErrorCode::StoreUnavailable,
];

const LOGGING: &[ErrorCode] = &[ErrorCode::SandboxUnknown, ErrorCode::SessionUnknown];

const CHANGING: &[ErrorCode] = &[
    ErrorCode::SandboxUnknown,
    ErrorCode::SandboxGone,
    ErrorCode::SessionUnknown,
    ErrorCode::SessionEnded,
    ErrorCode::TemplateUnknown,
    ErrorCode::NotLeased,
    ErrorCode::NetworkRefused,
    ErrorCode::InvalidArgument,
    ErrorCode::Unsupported,
    ErrorCode::SandboxCrashed,
    ErrorCode::Oom,
    ErrorCode::PoolClosed,
    ErrorCode::DeadlineExceeded,
    ErrorCode::LaunchFailed,
    ErrorCode::EgressUnavailable,
    ErrorCode::StoreUnavailable,
    ErrorCode::ShuttingDown,
];

const FILTERS: [Param; 6] = [
    Param::new("sandbox", Kind::Uuid, "Only entries of this sandbox, also if it has ended"),
    Param::new("session", Kind::Uuid, "Only entries of this session"),
    Param::new("of", Kind::Uuid, "Only entries of the sandbox or the session with this id"),
    Param::new("refused", Kind::Flag, "Only what was refused or failed"),
    Param::new(
        "after",
        Kind::Number(0, u64::MAX),
        "Only entries after this `seq`; 0 begins at the oldest",
    ),
    Param::new(
        "limit",
        Kind::Number(1, PAGE_MAX),
        "The most entries: the latest, or the first after `after`; 100 if not given",
    ),
];

pub(super) fn routes() -> Vec<Route> {
    let network =
        |id, about| Operation::new(id, about).answers(200, "What it may reach", [json("Network")]);
    let change =
        |id, about| network(id, about).takes(Takes::Json("NetworkChange")).refuses(CHANGING);
    let log = Operation::new(
        "network_log",
        "What your sandboxes reached, and what was refused; for admins those of all keys. The log is in \
         memory, and the latest 4096 entries of each key are kept",
    );
    let (sandbox, session) = ("/v1/sandboxes/{id}/network", "/v1/sessions/{id}/network");
    vec![
        Route::new(
            Verb::Get,
            sandbox,
            Needs::Read,
            of_sandbox,
            network("sandbox_network", "Show what a sandbox may reach, and what it tried")
                .refuses(READING),
        ),
        Route::new(
            Verb::Patch,
            sandbox,
            Needs::Use,
            change_sandbox,
            change(
                "change_sandbox_network",
                "Change what a sandbox may reach, within the policy of its template. It has taken effect \
                 when the answer comes",
            ),
        ),
        Route::new(
            Verb::Get,
            session,
            Needs::Read,
            of_session,
            network("session_network", "Show what a session may reach, and what it tried")
                .refuses(READING),
        ),
        Route::new(
            Verb::Patch,
            session,
            Needs::Use,
            change_session,
            change(
                "change_session_network",
                "Change what the sandboxes of a session may reach, within the policy of its template",
            ),
        ),
        Route::new(
            Verb::Get,
            "/v1/network/log",
            Needs::Read,
            self::log,
            log.answers(200, "Entries, oldest first", [json("NetworkLog")])
                .query(FILTERS)
                .refuses(LOGGING),
        ),
    ]
}

pub(crate) fn entry(entry: &NetworkLogEntry) -> NetworkEntry {
    let event = &entry.event;
    NetworkEntry {
        seq: entry.seq,
        at: Time::from(entry.at),
        sandbox_id: entry.sandbox,
        session_id: entry.session,
        kind: match event.kind {
            NetworkEventKind::Name => NetworkEntryKind::Name,
            NetworkEventKind::Connection => NetworkEntryKind::Connection,
            NetworkEventKind::Closed => NetworkEntryKind::Closed,
            NetworkEventKind::Secret => NetworkEntryKind::Secret,
        },
        verdict: match event.verdict {
            NetworkVerdict::Allowed => wire::NetworkVerdict::Allowed,
            NetworkVerdict::Refused => wire::NetworkVerdict::Refused,
            NetworkVerdict::Failed => wire::NetworkVerdict::Failed,
            NetworkVerdict::Noted => wire::NetworkVerdict::Noted,
        },
        name: event.name.as_ref().map(ToString::to_string),
        address: event.address.map(|address| address.to_string()),
        port: (event.port != 0).then_some(event.port),
        rule: event.rule.clone(),
        reason: event.reason.clone(),
        sent_bytes: (event.kind == NetworkEventKind::Closed).then_some(event.sent),
        received_bytes: (event.kind == NetworkEventKind::Closed).then_some(event.received),
    }
}

/// The latest entries, each target and reason once, oldest first.
pub(crate) fn distinct(entries: &[NetworkLogEntry], most: usize) -> Vec<NetworkEntry> {
    let mut found: Vec<NetworkEntry> = Vec::new();
    for one in entries.iter().rev().map(entry) {
        let same =
            |other: &NetworkEntry| other.target() == one.target() && other.reason == one.reason;
        if found.len() < most && !found.iter().any(same) {
            found.push(one);
        }
    }
    found.reverse();
    found
}

fn view(report: &NetworkReport) -> Network {
    Network {
        policy: report.policy.clone(),
        attached: report.attached,
        template_policy: report.template.clone(),
        sandbox_id: report.sandbox,
        log: report.log.entries.iter().map(entry).collect(),
        refused_addresses: report
            .refused_addresses
            .iter()
            .map(|(address, port)| format!("{address}:{port}"))
            .collect(),
    }
}

async fn of_sandbox(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SandboxId>,
) -> Result<Response, Refused> {
    match app.engine.sandbox_network(caller, id).await {
        Ok(report) => answer::ok(&view(&report)),
        Err(refusal) => Err(with_replacement(&app, caller, id, refusal.into()).await),
    }
}

async fn change_sandbox(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SandboxId>,
    request: Json<NetworkChange>,
) -> Result<Response, Refused> {
    match app.engine.change_sandbox_network(caller, id, request.value.network).await {
        Ok(report) => answer::ok(&view(&report)),
        Err(refusal) => Err(with_replacement(&app, caller, id, refusal.into()).await),
    }
}

async fn of_session(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SessionId>,
) -> Result<Response, Refused> {
    answer::ok(&view(&app.engine.session_network(caller, id).await?))
}

async fn change_session(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SessionId>,
    request: Json<NetworkChange>,
) -> Result<Response, Refused> {
    let changed = app.engine.change_session_network(caller, id, request.value.network).await;
    answer::ok(&view(&changed?))
}

async fn log(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
) -> Result<Response, Refused> {
    let wanted = NetworkLogQuery {
        sandbox: query.parsed("sandbox")?,
        session: query.parsed("session")?,
        wanted: if query.flag("refused")? { Wanted::Refused } else { Wanted::All },
        // An id of either looks the same.
        of: query.parsed::<SandboxId>("of")?.map(SandboxId::as_u128),
        after: query.parsed("after")?,
        limit: query.number("limit", 1..=PAGE_MAX)?.unwrap_or(PAGE) as usize,
    };
    query.done()?;
    let page = app.engine.network_log(caller, &wanted).await;
    if page.entries.is_empty() {
        // An empty list would say that nothing was tried.
        app.engine.check_network_log(caller, &wanted).await?;
    }
    answer::ok(&NetworkLog {
        entries: page.entries.iter().map(entry).collect(),
        dropped: page.dropped,
    })
}
