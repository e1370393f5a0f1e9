//! The health of a sandbox's API. It has all keys of Blaxel, since clients fail without them; those
//! without a meaning here say so.

use std::time::Duration;

use axum::response::Response;
use model::Wall;
use serde_json::{Value, json};

use super::answer;
use super::errors::BlaxelError;
use crate::app::App;

pub(super) fn health(app: &App) -> Result<Response, BlaxelError> {
    answer::ok(&health_view(app.blaxel.began, app.engine.now().wall))
}

fn health_view(began: Wall, now: Wall) -> Value {
    let up_ms = now.0.saturating_sub(began.0);
    let seconds = up_ms / 1000;
    let uptime = format!("{}h{}m{}s", seconds / 3600, seconds / 60 % 60, seconds % 60);
    json!({
        "status": "ok",
        "version": concat!("shoal-", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "buildTime": "",
        "goVersion": "",
        "os": std::env::consts::OS,
        "arch": arch(),
        "uptime": uptime,
        "uptimeSeconds": Duration::from_millis(up_ms).as_secs_f64(),
        "upgradeCount": 0,
        "startedAt": answer::moment(began),
        "lastUpgrade": {"status": "idle", "step": "none", "version": ""},
    })
}

/// The words that clients of Blaxel know.
fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

pub(super) fn root() -> Result<Response, BlaxelError> {
    answer::ok(&json!({
        "message": "Sandbox API",
        "documentation": "https://docs.blaxel.ai/Sandboxes",
        "description": "A sandbox of Shoal, as clients of Blaxel know it",
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_has_all_keys_of_blaxel() {
        let health_view = health_view(Wall(0), Wall(3_661_500));
        for key in ["status", "version", "gitCommit", "buildTime", "goVersion", "os", "arch"] {
            assert!(health_view[key].is_string(), "{key}");
        }
        assert_eq!(
            (&health_view["uptime"], &health_view["uptimeSeconds"]),
            (&json!("1h1m1s"), &json!(3661.5))
        );
        assert_eq!(health_view["lastUpgrade"]["status"], "idle");
        assert_eq!(health_view["startedAt"], "1970-01-01T00:00:00.000Z");
    }
}
