//! The tools of one sandbox: no tool takes its id. Their names are those that clients of Blaxel's
//! sandboxes know; where those would lie, cut short or kill too early, these do not.

mod code;
mod files;
mod lifecycle;
mod processes;

use std::sync::OnceLock;

use engine::{Caller, Use, UseKind};
use model::{ErrorCode, SandboxId, SessionId};
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;

use super::server::Of;
use super::tool::{Call, Tool};
use crate::app::App;
use crate::refused::Refused;
use crate::routes::Used as _;

/// Where programs and relative paths begin.
const WORKSPACE: &str = "/workspace";

/// A sandbox by its id, or whatever sandbox a session has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Inside {
    Sandbox(SandboxId),
    Session(SessionId),
}

impl Of for Inside {
    const NAME: &'static str = "shoal-sandbox";
    const INSTRUCTIONS: &'static str = "One sandbox, with its programs and files. Programs start, and relative \
        paths begin, in /workspace. A process with keepAlive keeps the sandbox awake until it ends, \
        its timeout is over, or `stop` is called; otherwise the sandbox may be frozen between calls, and wakes by itself.";

    fn tools() -> &'static [Tool<Self>] {
        static TOOLS: OnceLock<Vec<Tool<Inside>>> = OnceLock::new();
        TOOLS.get_or_init(|| {
            let all = [processes::tools(), files::tools(), code::tools(), lifecycle::tools()];
            all.into_iter().flatten().collect()
        })
    }
}

impl Inside {
    /// What belongs to another key does not exist. What is gone is still known: its processes and
    /// their logs can be read.
    pub(crate) async fn check(self, app: &App, caller: Caller) -> Result<(), Refused> {
        match self {
            Self::Sandbox(id) => match app.engine.check_sandbox(caller, id) {
                Ok(()) => Ok(()),
                Err(_) => Ok(app.engine.why(caller, id).await.map(drop)?),
            },
            Self::Session(id) => Ok(app.engine.check_session(caller, id)?),
        }
    }

    async fn begin(self, app: &App, caller: Caller, kind: UseKind) -> Result<Use, Refused> {
        match self {
            Self::Sandbox(id) => id.begin(app, caller, kind).await,
            Self::Session(id) => id.begin(app, caller, kind).await,
        }
    }

    /// Which sandbox it is now, without waking anything: a session may have none.
    fn now(self, app: &App, caller: Caller) -> Result<Option<SandboxId>, Refused> {
        match self {
            Self::Sandbox(id) => Ok(Some(id)),
            Self::Session(id) => Ok(app.engine.session(caller, id)?.sandbox_id),
        }
    }
}

impl Call<Inside> {
    async fn begin(&self, kind: UseKind) -> Result<Use, Refused> {
        self.of.begin(&self.app, self.caller, kind).await
    }

    /// The sandbox whose processes are meant.
    fn sandbox(&self) -> Result<SandboxId, Refused> {
        self.of.now(&self.app, self.caller)?.ok_or_else(|| {
            Refused::new(ErrorCode::ProcessUnknown, "the session has no sandbox, and no processes")
        })
    }
}

/// No arguments.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}
