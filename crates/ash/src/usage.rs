//! Usage, from the metering of the node. It is per key: there is one event for each key, with the
//! seconds of its sandboxes. Tokens, tool calls and messages are not metered.

use axum::extract::State;
use axum::response::Response;
use axum::routing::MethodFilter;
use engine::KeyUsage;
use model::Wall;
use serde_json::{Value, json};
use wire::Time;

use super::errors::AshError;
use super::{Routes, answer};
use crate::app::App;
use web::front::{By, Needs};
use web::query::Query;

const EVENTS: u64 = 100;
const EVENTS_MAX: u64 = 1000;
const COMPUTE: &str = "compute_seconds";

pub(super) fn routes(routes: &mut Routes) {
    let get = MethodFilter::GET;
    routes.add(get, "/api/usage", "/compat/ash/api/usage", Needs::Read, events);
    routes.add(get, "/api/usage/stats", "/compat/ash/api/usage/stats", Needs::Read, stats);
}

/// Which usage a request asks for.
struct Wanted {
    after: Option<Time>,
    before: Option<Time>,
}

impl Wanted {
    /// Ash meters per session; a filter that cannot be applied is refused rather than ignored.
    fn from(query: &mut Query) -> Result<Self, AshError> {
        for name in ["sessionId", "agentName"] {
            if query.text(name)?.is_some() {
                let cause =
                    format!("querystring/{name} is not supported: usage is metered per key");
                return Err(AshError::invalid(cause));
            }
        }
        Ok(Self { after: query.parsed("after")?, before: query.parsed("before")? })
    }

    fn takes(&self, usage: &KeyUsage) -> bool {
        let at = Time::from(usage.total.measured_at);
        usage.total.measured_at > Wall(0)
            && self.after.is_none_or(|after| at > after)
            && self.before.is_none_or(|before| at < before)
    }
}

fn event(usage: &KeyUsage) -> Value {
    json!({
        "id": usage.total.key,
        "tenantId": usage.total.key,
        "sessionId": null,
        "agentName": null,
        "eventType": COMPUTE,
        "value": usage.total.sandbox_seconds(),
        "createdAt": answer::time(usage.total.measured_at),
    })
}

async fn events(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
) -> Result<Response, AshError> {
    let wanted = Wanted::from(&mut query)?;
    let limit = query.number("limit", 1..=EVENTS_MAX)?.unwrap_or(EVENTS) as usize;
    let usage = app.engine.usage(caller).await?;
    let found = usage.iter().filter(|one| wanted.takes(one)).take(limit).map(event);
    Ok(answer::ok(&json!({"events": found.collect::<Vec<_>>()})))
}

async fn stats(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
) -> Result<Response, AshError> {
    let wanted = Wanted::from(&mut query)?;
    let usage = app.engine.usage(caller).await?;
    let taken = usage.iter().filter(|one| wanted.takes(one));
    let seconds: f64 = taken.map(|one| one.total.sandbox_seconds()).sum();
    Ok(answer::ok(&json!({"stats": {
        "totalInputTokens": null,
        "totalOutputTokens": null,
        "totalCacheCreationTokens": null,
        "totalCacheReadTokens": null,
        "totalToolCalls": null,
        "totalMessages": null,
        "totalComputeSeconds": seconds,
    }})))
}
