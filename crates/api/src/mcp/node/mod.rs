//! The tools of the server. Most are routes; a few do what no single route does: they read and write
//! files as texts, and give a sandbox back by its own id.

mod files;
mod held;
mod table;

use std::sync::{Arc, OnceLock};

use axum::Router;

use super::server::Of;
use super::tool::Tool;
use crate::app::App;
use crate::operation::Verb;
use crate::routes;

/// The server.
#[derive(Clone)]
pub(super) struct Node(Arc<Router>);

impl Node {
    /// Handlers without the front, which every message has passed already.
    pub(super) fn new(app: &App) -> Self {
        let routes = routes::all().into_iter();
        let routes =
            routes.filter(|route| route.path.starts_with("/v1/") && route.method != Verb::Any);
        let router =
            routes.fold(Router::new(), |router, route| router.route(route.path, route.handler));
        Self(Arc::new(router.with_state(app.clone())))
    }

    pub(super) fn routes(&self) -> Router {
        (*self.0).clone()
    }
}

impl Of for Node {
    const NAME: &'static str = "shoal";
    const INSTRUCTIONS: &'static str = "Sandboxes to run programs in. `checkout` gives you one \
        of your own within milliseconds; `exec`, `write_file`, `read_file` and the others take its \
        `sandbox_id`; `return_sandbox` gives it back. Relative paths are those of /workspace. \
        Programs that are to run on are processes: `start_process`. A session is a conversation \
        whose files survive its sandbox. `why_sandbox` says why a sandbox is as it is, or how it ended.";

    fn tools() -> &'static [Tool<Self>] {
        static TOOLS: OnceLock<Vec<Tool<Node>>> = OnceLock::new();
        TOOLS.get_or_init(|| {
            let all = [table::tools(), held::tools(), files::tools()];
            all.into_iter().flatten().collect()
        })
    }
}
