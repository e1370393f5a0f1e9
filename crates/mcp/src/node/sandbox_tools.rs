//! Tools that no single route provides: returning a sandbox by its own id, and writing text to a
//! process.

use engine::ProcessRef;
use model::record::Owner;
use model::{ErrorCode, SandboxId};
use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};

use super::Node;
use crate::tool::Effect::Changes;
use crate::tool::{About, Call, Tool};
use web::front::Needs;
use web::input_checks::checked_stdin;
use web::path::Name as _;
use web::refused::Refused;

pub(super) fn tools() -> Vec<Tool<Node>> {
    vec![
        Tool::new(
            About::new(
                "return_sandbox",
                "Return a sandbox that was checked out. Its processes end and its files are deleted.",
                Needs::Use,
                Changes,
            ),
            return_sandbox,
        ),
        Tool::new(
            About::new(
                "write_stdin",
                "Write to the standard input of a process that was started with `stdin_open` or a terminal.",
                Needs::Use,
                Changes,
            ),
            write_stdin,
        ),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReturnSandbox {
    /// The id of the sandbox.
    sandbox_id: String,
}

#[derive(Serialize, JsonSchema)]
struct Done {
    /// It is done.
    done: bool,
}

async fn return_sandbox(call: Call<Node>, asked: ReturnSandbox) -> Result<Done, Refused> {
    let id = SandboxId::read(&asked.sandbox_id)?;
    match call.app.engine.sandbox(call.caller, id)?.owner {
        Owner::Lease(lease) => call.app.engine.return_lease(call.caller, lease).await?,
        Owner::Unowned | Owner::Session(_) => {
            let cause = "the sandbox is not checked out, so it cannot be returned";
            return Err(Refused::new(ErrorCode::NotLeased, cause));
        }
    }
    Ok(Done { done: true })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WriteStdin {
    /// The id of the sandbox.
    sandbox_id: String,
    /// The process: its id, its process id or its name.
    process: String,
    /// The input, as text. Exactly one of `stdin` and `stdin_base64` must be given.
    #[serde(default)]
    stdin: Option<String>,
    /// The input, as base64.
    #[serde(default)]
    stdin_base64: Option<String>,
}

async fn write_stdin(call: Call<Node>, asked: WriteStdin) -> Result<Done, Refused> {
    let id = SandboxId::read(&asked.sandbox_id)?;
    let Some(bytes) = checked_stdin(asked.stdin, asked.stdin_base64)? else {
        let cause = "stdin: one of stdin and stdin_base64 must be given";
        return Err(Refused::invalid("stdin", cause));
    };
    let of = ProcessRef::parse(&asked.process);
    call.app.engine.write_stdin(call.caller, id, &of, bytes.into()).await?;
    Ok(Done { done: true })
}
