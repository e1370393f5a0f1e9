//! Sandboxes by their id.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use engine::{NetworkLogQuery, SandboxView, Wanted};
use http::HeaderMap;
use model::record::Owner;
use model::{ErrorCode, LeaseId, SandboxId, SandboxState, TemplateName};
use wire::{RenewRequest, SandboxList, Why};

use crate::checkouts::{CheckoutCall, hand_out_operation, ttl_ms};
use crate::{network, view};
use web::answer;
use web::app::App;
use web::body::{Json, OptionalJson};
use web::front::{By, Needs, no_content};
use web::operation::{Kind, Operation, Param, Route, Takes, Verb, json};
use web::path::Named;
use web::query::{NoQuery, Query};
use web::refused::Refused;
use web::use_target::with_replacement;

const PAGE: u64 = 100;
const PAGE_MAX: u64 = 1000;
/// How many refusals an explanation names.
const REFUSALS: usize = 10;

const ONE: &[ErrorCode] = &[ErrorCode::SandboxUnknown, ErrorCode::SandboxGone];

const CHANGING: &[ErrorCode] = &[
    ErrorCode::SandboxUnknown,
    ErrorCode::SandboxGone,
    ErrorCode::LeaseUnknown,
    ErrorCode::LeaseLost,
    ErrorCode::NotLeased,
    ErrorCode::SandboxBusy,
    ErrorCode::InvalidArgument,
    ErrorCode::Unsupported,
    ErrorCode::SandboxCrashed,
    ErrorCode::Oom,
    ErrorCode::DiskLimit,
    ErrorCode::PersistFailed,
    ErrorCode::DeadlineExceeded,
    ErrorCode::StoreUnavailable,
    ErrorCode::ShuttingDown,
];

const FILTERS: [Param; 6] = [
    Param::new("template", Kind::Schema("TemplateName"), "Only sandboxes of this template"),
    Param::new(
        "state",
        Kind::OneOf(&["cold", "warming", "warm", "waiting", "running"]),
        "Only sandboxes in this state",
    ),
    Param::new("label", Kind::Repeated("="), "Only sandboxes with this label, as `name=value`"),
    Param::new("lease", Kind::Uuid, "Only the sandbox under this lease"),
    Param::new(
        "limit",
        Kind::Number(1, PAGE_MAX),
        "The most sandboxes in a page; 100 if not given",
    ),
    Param::new("after", Kind::Uuid, "Only sandboxes after this one: `next` of the previous page"),
];

pub(super) fn routes() -> Vec<Route> {
    let the_sandbox =
        |id, about| Operation::new(id, about).answers(200, "The sandbox", [json("Sandbox")]);
    let new = Operation::new(
        "create_sandbox",
        "Check out a sandbox until it is deleted or its lease ends",
    )
    .answers(201, "The sandbox", [json("Sandbox")]);
    let list = Operation::new(
        "list_sandboxes",
        "List your sandboxes; for admins all, including those in pools",
    )
    .answers(200, "A page of sandboxes, in the order of their ids", [json("SandboxList")]);
    let get = the_sandbox("get_sandbox", "Get a sandbox");
    let delete = Operation::new("delete_sandbox", "End a sandbox at once, even if it is in use")
        .answers(204, "The sandbox has ended", []);
    let renew = the_sandbox("renew_sandbox", "Renew the lease of a sandbox");
    let freeze =
        the_sandbox("freeze_sandbox", "Freeze all processes of a sandbox until it is used again");
    let thaw = the_sandbox("thaw_sandbox", "Thaw a frozen sandbox");
    let why =
        Operation::new("why_sandbox", "Explain why a sandbox is in its state, or how it ended")
            .answers(200, "The facts, and a summary in a sentence", [json("Why")]);
    let (all, one) = ("/v1/sandboxes", "/v1/sandboxes/{id}");
    vec![
        Route::new(Verb::Post, all, Needs::Use, create, hand_out_operation(new)),
        Route::new(Verb::Get, all, Needs::Read, self::list, list.query(FILTERS)),
        Route::new(Verb::Get, one, Needs::Read, read, get.refuses(ONE)),
        Route::new(Verb::Delete, one, Needs::Use, end, delete.refuses(CHANGING)),
        Route::new(
            Verb::Post,
            "/v1/sandboxes/{id}/renew",
            Needs::Use,
            extend,
            renew.takes(Takes::OptionalJson("RenewRequest")).refuses(CHANGING),
        ),
        Route::new(
            Verb::Post,
            "/v1/sandboxes/{id}/freeze",
            Needs::Use,
            self::freeze,
            freeze.refuses(CHANGING),
        ),
        Route::new(
            Verb::Post,
            "/v1/sandboxes/{id}/thaw",
            Needs::Use,
            self::thaw,
            thaw.refuses(CHANGING),
        ),
        Route::new(
            Verb::Get,
            "/v1/sandboxes/{id}/why",
            Needs::Read,
            self::why,
            why.refuses(&[ErrorCode::SandboxUnknown, ErrorCode::StoreUnavailable]),
        ),
    ]
}

async fn create(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    headers: HeaderMap,
    request: Json<wire::CheckoutRequest>,
) -> Result<Response, Refused> {
    let asked = CheckoutCall { caller, route: "/v1/sandboxes", headers: &headers };
    asked.hand_out(&app, request, |_, sandbox, _| sandbox).await
}

/// The filters of a listing.
struct Filter {
    template: Option<TemplateName>,
    state: Option<SandboxState>,
    labels: BTreeMap<String, String>,
    lease: Option<LeaseId>,
}

impl Filter {
    fn take(query: &mut Query) -> Result<Self, Refused> {
        let template = query.text("template")?.map(|text| TemplateName::new(&text)).transpose();
        let template = template.map_err(|error| Refused::bad("template", error.to_string()))?;
        let state = query.text("state")?.map(|text| {
            let known = SandboxState::ALL.into_iter().find(|state| state.as_str() == text);
            known.ok_or_else(|| Refused::bad("state", format!("`state`: {text:?} is not a state")))
        });
        let mut labels = BTreeMap::new();
        for label in query.all("label") {
            let Some((name, value)) = label.split_once('=') else {
                return Err(Refused::bad("label", format!("{label:?} is not `name=value`")));
            };
            labels.insert(name.to_owned(), value.to_owned());
        }
        Ok(Self { template, state: state.transpose()?, labels, lease: query.parsed("lease")? })
    }

    fn takes(&self, view: &SandboxView) -> bool {
        let label = |(name, value): (&String, &String)| {
            let labels = view.claim.as_ref().map(|claim| &claim.labels);
            labels.and_then(|labels| labels.get(name)) == Some(value)
        };
        self.template.as_ref().is_none_or(|template| view.template == *template)
            && self.state.is_none_or(|state| view.state == state)
            && self.lease.is_none_or(|lease| view.owner == Owner::Lease(lease))
            && self.labels.iter().all(label)
    }
}

async fn list(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
) -> Result<Response, Refused> {
    let filter = Filter::take(&mut query)?;
    let limit = query.number("limit", 1..=PAGE_MAX)?.unwrap_or(PAGE) as usize;
    let after: Option<SandboxId> = query.parsed("after")?;
    query.done()?;
    let all = app.engine.sandboxes(caller);
    let from = after.map_or(0, |after| all.partition_point(|view| view.id <= after));
    let mut fitting = all.iter().skip(from).filter(|view| filter.takes(view));
    let page: Vec<_> = fitting.by_ref().take(limit).collect();
    let more = fitting.next().is_some();
    let next = page.last().filter(|_| more).map(|view| view.id.to_string());
    let sandboxes = page.into_iter().map(|view| view::sandbox(&app.engine, view, caller)).collect();
    answer::ok(&SandboxList { sandboxes, next })
}

async fn read(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SandboxId>,
) -> Result<Response, Refused> {
    match app.engine.sandbox(caller, id) {
        Ok(view) => answer::ok(&view::sandbox(&app.engine, &view, caller)),
        Err(refusal) => Err(with_replacement(&app, caller, id, refusal.into()).await),
    }
}

async fn end(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SandboxId>,
) -> Result<Response, Refused> {
    app.engine.delete_sandbox(caller, id).await?;
    Ok(no_content())
}

async fn extend(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SandboxId>,
    OptionalJson(request): OptionalJson<RenewRequest>,
) -> Result<Response, Refused> {
    let view = app.engine.renew_sandbox(caller, id, ttl_ms(request.ttl_s)?).await?;
    answer::ok(&view::sandbox(&app.engine, &view, caller))
}

async fn freeze(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SandboxId>,
) -> Result<Response, Refused> {
    let view = app.engine.freeze(caller, id).await?;
    answer::ok(&view::sandbox(&app.engine, &view, caller))
}

async fn thaw(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SandboxId>,
) -> Result<Response, Refused> {
    let view = app.engine.thaw(caller, id).await?;
    answer::ok(&view::sandbox(&app.engine, &view, caller))
}

async fn why(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SandboxId>,
) -> Result<Response, Refused> {
    let why = app.engine.why(caller, id).await?;
    let mut why = Why::new(why, app.engine.now().wall);
    if let (Why::Alive(alive), Ok(view)) = (&mut why, app.engine.sandbox(caller, id)) {
        alive.container_id = app.engine.container_id(&view);
        alive.network_detached = app.engine.is_network_detached(id);
    }
    let ended = match &mut why {
        Why::Alive(alive) => alive.last_end.as_mut(),
        Why::Ended(ended) => Some(&mut **ended),
    };
    if let Some(eviction) = ended.and_then(|ended| ended.eviction.as_mut()) {
        // Only the number of the other candidates is shown: their ids belong to other keys.
        eviction.candidates.retain(|other| {
            other.sandbox == id || app.engine.check_sandbox(caller, other.sandbox).is_ok()
        });
    }
    let query = NetworkLogQuery {
        sandbox: Some(id),
        wanted: Wanted::Notable,
        limit: REFUSALS * 10,
        ..NetworkLogQuery::default()
    };
    let page = app.engine.network_log(caller, &query).await;
    *why.network_refused() = network::distinct(&page.entries, REFUSALS);
    answer::ok(&why)
}
