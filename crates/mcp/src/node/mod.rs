//! The tools of the server. Most are routes; a few do what no single route does: they read and
//! write files as texts, and give a sandbox back by its own id.

mod files;
mod route_tools;
mod sandbox_tools;

use std::sync::Arc;

use axum::Router;

use super::server::ToolScope;
use super::tool::Tool;
use web::app::App;
use web::operation::{Route, Verb};

/// The server.
#[derive(Clone)]
pub(super) struct Node(Arc<Parts>);

struct Parts {
    router: Router,
    tools: Vec<Tool<Node>>,
}

impl Node {
    /// Handlers without the front, which every message has already passed. `document` describes
    /// them.
    pub(super) fn new(app: &App, routes: Vec<Route>, document: &str) -> Self {
        let all = [route_tools::tools(&routes, document), sandbox_tools::tools(), files::tools()];
        let tools = all.into_iter().flatten().collect();
        let routes = routes
            .into_iter()
            .filter(|route| route.path.starts_with("/v1/") && route.method != Verb::Any);
        let router =
            routes.fold(Router::new(), |router, route| router.route(route.path, route.handler));
        Self(Arc::new(Parts { router: router.with_state(app.clone()), tools }))
    }

    pub(super) fn routes(&self) -> Router {
        self.0.router.clone()
    }
}

impl ToolScope for Node {
    const NAME: &'static str = "shoal";
    const INSTRUCTIONS: &'static str = "Sandboxes to run programs in. `checkout` hands out one \
        for your exclusive use within milliseconds; `exec`, `write_file`, `read_file` and the others take its \
        `sandbox_id`; `return_sandbox` returns it. Relative paths begin in /workspace. \
        Use `start_process` for programs that must outlive a call. A session is a conversation \
        whose files survive its sandbox. `why_sandbox` explains why a sandbox is in its state, or how it ended.";

    fn tools(&self) -> &[Tool<Self>] {
        &self.0.tools
    }
}
