//! Objects of Ash, and answers made of them. Times are text with milliseconds; ids of things that
//! have none of their own are made of what they belong to, so that they are the same every time.

use axum::body::Body;
use axum::response::Response;
use engine::SessionView;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use model::{SessionStatus, TurnId, Wall};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use wire::Time;

use super::AGENT;
use super::errors::JSON;

pub(super) fn ok(value: &Value) -> Response {
    with(StatusCode::OK, value)
}

pub(super) fn created(value: &Value) -> Response {
    with(StatusCode::CREATED, value)
}

fn with(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

pub(super) fn time(at: Wall) -> String {
    Time::from(at).to_string()
}

/// The agent of a session, if it is one of Ash's.
pub(super) fn agent_of(view: &SessionView) -> Option<&str> {
    view.claim.as_ref()?.labels.get(AGENT).map(String::as_str)
}

/// One of the six words of Ash. What it calls `error` cannot happen: a session that lost its sandbox
/// gets another one.
pub(super) const fn status(status: SessionStatus) -> &'static str {
    match status {
        SessionStatus::Starting => "starting",
        SessionStatus::Active => "active",
        SessionStatus::Paused => "paused",
        SessionStatus::Stopped => "stopped",
        SessionStatus::Ended => "ended",
    }
}

pub(super) fn session(view: &SessionView) -> Value {
    let config = view.claim.as_ref().and_then(|claim| claim.config.as_deref());
    let config: Value = config.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    json!({
        "id": view.id,
        "tenantId": view.tenant,
        "agentName": agent_of(view).unwrap_or_default(),
        "sandboxId": view.sandbox_id.map(|id| id.to_string()).unwrap_or_default(),
        "status": status(view.status),
        "createdAt": time(view.created_at),
        "lastActiveAt": time(view.last_active_at),
        "runnerId": null,
        "parentSessionId": view.parent,
        "model": config["model"],
    })
}

/// The id of something that a turn gave.
pub(super) fn derived_id(turn: TurnId, what: &str, seq: u64) -> String {
    let mut digest = Sha256::new();
    digest.update(turn.as_u128().to_be_bytes());
    digest.update(what.as_bytes());
    digest.update(seq.to_be_bytes());
    uuid_of(&digest.finalize())
}

/// A UUID of the kind whose bits are the maker's own affair.
pub(super) fn uuid_of(bytes: &[u8]) -> String {
    let mut bits = [0; 16];
    for (to, from) in bits.iter_mut().zip(bytes) {
        *to = *from;
    }
    uuid::Builder::from_custom_bytes(bits).into_uuid().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_ids_are_of_the_form_that_clients_parse() {
        assert_eq!(time(Wall(1_794_701_461_622)), "2026-11-15T00:11:01.622Z");
        assert_eq!(time(Wall(0)), "1970-01-01T00:00:00.000Z");
        let id = derived_id(TurnId::from_u128(1), "message", 2);
        assert_eq!(id, derived_id(TurnId::from_u128(1), "message", 2));
        assert_ne!(id, derived_id(TurnId::from_u128(1), "message", 3));
        assert_ne!(id, derived_id(TurnId::from_u128(1), "event", 2));
        let parsed = uuid::Uuid::parse_str(&id).unwrap();
        assert_eq!(parsed.get_version_num(), 8);
    }

    #[test]
    fn every_status_is_one_of_the_six_of_ash() {
        for known in SessionStatus::ALL {
            let six = ["starting", "active", "paused", "stopped", "ended", "error"];
            assert!(six.contains(&status(known)));
        }
    }
}
