//! The health of the server, in the form of Ash. Reading it never counts as activity. Without a key
//! it says that the server is up, and nothing about what runs on it.

use axum::extract::State;
use axum::response::Response;
use axum::routing::MethodFilter;
use http::HeaderMap;
use serde_json::json;

use super::access::authenticate;
use super::metrics::{Numbers, coordinator};
use super::{Routes, VERSION, answer};
use crate::app::App;
use web::front::Needs;

pub(super) fn routes(routes: &mut Routes) {
    routes.add(MethodFilter::GET, "/health", "/compat/ash/health", Needs::Public, health);
}

async fn health(State(app): State<App>, headers: HeaderMap) -> Response {
    if !app.options.public_metrics && authenticate(&app, &headers).is_err() {
        return answer::ok(&json!({"status": "ok", "version": VERSION}));
    }
    let Numbers { stats, active_sessions, active_sandboxes, pre_warm_hits, uptime_s } =
        Numbers::of(&app);
    answer::ok(&json!({
        "status": "ok",
        "activeSessions": active_sessions,
        "activeSandboxes": active_sandboxes,
        "uptime": uptime_s,
        "pool": {
            "total": stats.total,
            "cold": stats.cold,
            "warming": stats.warming,
            "warm": stats.warm,
            "waiting": stats.waiting,
            "running": stats.running,
            "maxCapacity": stats.max_capacity,
            "resumeWarmHits": stats.resume_warm_hits,
            "resumeColdHits": stats.resume_cold_hits,
            "preWarmHits": pre_warm_hits,
        },
        "version": VERSION,
        "coordinatorId": coordinator(),
        "remoteRunners": 0,
    }))
}
