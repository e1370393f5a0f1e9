//! The tools of one sandbox: no tool takes its id. They have the names that clients of Blaxel's
//! sandboxes know, but report errors and truncation and never kill a process early.

mod code;
mod files;
mod lifecycle;
mod processes;

use std::sync::OnceLock;

use engine::{Caller, Use, UseKind};
use model::{ErrorCode, SandboxId};
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;

use super::server::ToolScope;
use super::tool::{Call, Tool};
use web::app::App;
use web::refused::Refused;
use web::use_target::UseTarget;

/// Where programs and relative paths begin.
const WORKSPACE: &str = "/workspace";

impl ToolScope for UseTarget {
    const NAME: &'static str = "shoal-sandbox";
    const INSTRUCTIONS: &'static str = "One sandbox, with its programs and files. Programs start, and relative \
        paths begin, in /workspace. A process with keepAlive keeps the sandbox from being frozen until it ends, \
        reaches its timeout, or `stop` is called; otherwise the sandbox may be frozen between calls, and the next call thaws it.";

    fn tools(&self) -> &[Tool<Self>] {
        static TOOLS: OnceLock<Vec<Tool<UseTarget>>> = OnceLock::new();
        TOOLS.get_or_init(|| {
            let all = [processes::tools(), files::tools(), code::tools(), lifecycle::tools()];
            all.into_iter().flatten().collect()
        })
    }
}

/// Refuses a target of another key, as if it did not exist. An ended sandbox is accepted: its
/// processes and their logs can be read.
pub(crate) async fn check(used: UseTarget, app: &App, caller: Caller) -> Result<(), Refused> {
    match used {
        UseTarget::Sandbox(id) => match app.engine.check_sandbox(caller, id) {
            Ok(()) => Ok(()),
            Err(_) => Ok(app.engine.why(caller, id).await.map(drop)?),
        },
        UseTarget::Session(id) => Ok(app.engine.check_session(caller, id)?),
    }
}

/// Which sandbox it is now, without waking anything: a session may have none.
fn now(used: UseTarget, app: &App, caller: Caller) -> Result<Option<SandboxId>, Refused> {
    match used {
        UseTarget::Sandbox(id) => Ok(Some(id)),
        UseTarget::Session(id) => Ok(app.engine.session(caller, id)?.sandbox_id),
    }
}

impl Call<UseTarget> {
    async fn begin(&self, kind: UseKind) -> Result<Use, Refused> {
        self.of.begin(&self.app, self.caller, kind).await
    }

    /// The sandbox whose processes are meant.
    fn sandbox(&self) -> Result<SandboxId, Refused> {
        now(self.of, &self.app, self.caller)?.ok_or_else(|| {
            Refused::new(
                ErrorCode::ProcessUnknown,
                "the session has no sandbox and so no processes",
            )
        })
    }
}

/// No arguments.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}
