//! What keys have used. An administrator sees all keys, others their own.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use model::{ErrorCode, KeyId, Refusal};
use wire::{Usage, UsageList};

use web::answer;
use web::app::App;
use web::front::{By, Needs};
use web::operation::{Kind, Operation, Param, Route, Verb, json};
use web::query::Query;
use web::refused::Refused;

const KEY: Param = Param::new("key", Kind::Uuid, "Only this key");

pub(super) fn routes() -> Vec<Route> {
    let usage = Operation::new(
        "get_usage",
        "Get what keys have used since they exist: all keys for an administrator, else the caller's own",
    );
    let usage = usage
        .query([KEY])
        .answers(200, "The totals, by key. They survive restarts", [json("UsageList")])
        .refuses(&[ErrorCode::NotFound, ErrorCode::StoreUnavailable]);
    vec![Route::new(Verb::Get, "/v1/usage", Needs::Read, list, usage)]
}

async fn list(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
) -> Result<Response, Refused> {
    let wanted: Option<KeyId> = query.parsed("key")?;
    query.done()?;
    let mut all = app.engine.usage(caller).await?;
    if let Some(wanted) = wanted {
        all.retain(|one| one.total.key == wanted);
        if all.is_empty() {
            // The same answer for a key that belongs to another caller.
            return Err(
                Refusal::new(ErrorCode::NotFound, format!("no key {wanted} is known")).into()
            );
        }
    }
    let names = app.engine.keys().into_iter().map(|key| (key.id, key.name));
    let mut names: BTreeMap<_, _> = names.collect();
    let shown = all
        .iter()
        .map(|one| Usage::new(&one.total, names.remove(&one.total.key), one.stored_bytes));
    answer::ok(&UsageList { usage: shown.collect() })
}
