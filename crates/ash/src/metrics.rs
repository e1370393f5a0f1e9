//! The metrics of Ash, under their names. Ours are on our own page, and there are more of them.

use std::fmt::Write as _;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::MethodFilter;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use model::SessionStatus;
use model::stats::NodeStats;

use super::Routes;
use crate::app::App;
use web::front::Needs;

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) fn routes(routes: &mut Routes) {
    let is_public = routes.app.options.public_metrics;
    let needs = if is_public { Needs::Public } else { Needs::Read };
    routes.add(MethodFilter::GET, "/metrics", "/compat/ash/metrics", needs, metrics);
}

/// What both the metrics and the health have.
pub(super) struct Numbers {
    pub(super) stats: NodeStats,
    pub(super) active_sessions: u32,
    pub(super) active_sandboxes: u32,
    pub(super) pre_warm_hits: u64,
    pub(super) uptime_s: u64,
}

impl Numbers {
    pub(super) fn of(app: &App) -> Self {
        let stats = app.engine.stats();
        let by_status = app.engine.sessions_by_status();
        let active = by_status.iter().find(|(status, _)| *status == SessionStatus::Active);
        Self {
            stats,
            active_sessions: active.map_or(0, |(_, count)| *count),
            active_sandboxes: stats.total - stats.cold,
            pre_warm_hits: app.engine.pools().iter().map(|pool| pool.counters.fast).sum(),
            uptime_s: app.engine.health().uptime.as_secs(),
        }
    }

    fn page(&self, coordinator: &str) -> String {
        let stats = &self.stats;
        let mut page = Page::default();
        let up = [(format!("{{coordinator=\"{coordinator}\"}}"), 1)];
        page.family("ash_up", "gauge", "Whether the server is up", up);
        let one = |value: u64| [(String::new(), value)];
        page.family("ash_uptime_seconds", "gauge", "Seconds since the start", one(self.uptime_s));
        let sessions = one(self.active_sessions.into());
        page.family("ash_active_sessions", "gauge", "Sessions that are active", sessions);
        let sandboxes = one(self.active_sandboxes.into());
        page.family("ash_active_sandboxes", "gauge", "Sandboxes with a process", sandboxes);
        let by = |label: &str, value: &str, count: u64| (format!("{{{label}=\"{value}\"}}"), count);
        let states = [
            by("state", "cold", stats.cold.into()),
            by("state", "warming", stats.warming.into()),
            by("state", "warm", stats.warm.into()),
            by("state", "waiting", stats.waiting.into()),
            by("state", "running", stats.running.into()),
        ];
        page.family("ash_pool_sandboxes", "gauge", "Sandboxes by state", states);
        let most = one(stats.max_capacity.into());
        page.family("ash_pool_max_capacity", "gauge", "Most sandboxes that may exist", most);
        let paths = [
            by("path", "warm", stats.resume_warm_hits),
            by("path", "cold", stats.resume_cold_hits),
            by("path", "prewarm", self.pre_warm_hits),
        ];
        page.family("ash_resume_total", "counter", "Resumes by their path", paths);
        // Files are on this machine, or their loss was reported: there is no other source.
        let sources = [
            by("source", "local", stats.resume_cold_hits),
            by("source", "cloud", 0),
            by("source", "fresh", 0),
        ];
        page.family("ash_resume_cold_total", "counter", "Cold resumes by their source", sources);
        page.0
    }
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn family(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = (String, u64)>,
    ) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
    }
}

/// The name of this node, as far as it can be part of a label. A process id would say more about
/// the machine than others need.
pub(super) fn coordinator() -> String {
    let fits = |character: &char| character.is_ascii_alphanumeric() || ".-".contains(*character);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("shoal-{}", host.chars().filter(fits).collect::<String>())
}

async fn metrics(State(app): State<App>) -> Response {
    let page = Numbers::of(&app).page(&coordinator());
    let mut response = Response::new(Body::from(page));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROMETHEUS));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_every_name_and_label_of_ash() {
        let stats =
            NodeStats { total: 9, cold: 2, warm: 3, resume_cold_hits: 4, ..Default::default() };
        let numbers = Numbers {
            stats,
            active_sessions: 5,
            active_sandboxes: 7,
            pre_warm_hits: 6,
            uptime_s: 8,
        };
        let page = numbers.page("c-1");
        for line in [
            "ash_up{coordinator=\"c-1\"} 1",
            "ash_uptime_seconds 8",
            "ash_active_sessions 5",
            "ash_active_sandboxes 7",
            "ash_pool_sandboxes{state=\"cold\"} 2",
            "ash_pool_sandboxes{state=\"warming\"} 0",
            "ash_pool_sandboxes{state=\"warm\"} 3",
            "ash_pool_sandboxes{state=\"waiting\"} 0",
            "ash_pool_sandboxes{state=\"running\"} 0",
            "ash_pool_max_capacity 0",
            "ash_resume_total{path=\"warm\"} 0",
            "ash_resume_total{path=\"cold\"} 4",
            "ash_resume_total{path=\"prewarm\"} 6",
            "ash_resume_cold_total{source=\"local\"} 4",
            "ash_resume_cold_total{source=\"cloud\"} 0",
            "ash_resume_cold_total{source=\"fresh\"} 0",
        ] {
            assert!(page.lines().any(|known| known == line), "{line}:\n{page}");
        }
    }
}
