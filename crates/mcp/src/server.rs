//! The MCP server: its name, its tools, and calls of them. A failed tool reports code, cause and
//! remedy in its result, like every other refusal: a model reads results, not protocol errors.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use engine::collect_losses;
use futures_util::FutureExt as _;
use model::ErrorCode;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
    JsonObject, ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig,
    Tool as Shown,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::Value;

use super::created::Created;
use super::tool::{Call, Running, Tool};
use web::account::Account;
use web::app::App;
use web::front::{Admitted, Needs};
use web::refused::Refused;
use web::request_log::LoggedRefusal;
use web::state_loss::LossFields;

/// What a set of tools works on: the node, or one sandbox.
pub(super) trait ToolScope: Clone + Send + Sync + 'static {
    /// The name of the MCP server.
    const NAME: &'static str;
    /// Instructions for the model, sent before the tools.
    const INSTRUCTIONS: &'static str;

    fn tools(&self) -> &[Tool<Self>];
}

/// The tools of something, without its type: the protocol's library is generic over its server, and
/// is compiled for one.
pub(super) trait Toolbox: Send + Sync {
    fn name(&self) -> &'static str;

    fn instructions(&self) -> &'static str;

    /// The description of each tool, and the role it requires.
    fn shown(&self) -> Vec<(&Shown, Needs)>;

    /// Calls a tool, if there is one of this name.
    fn run(&self, tool: &str, call: Call<()>, arguments: JsonObject) -> Option<Running>;
}

impl<W: ToolScope> Toolbox for W {
    fn name(&self) -> &'static str {
        W::NAME
    }

    fn instructions(&self) -> &'static str {
        W::INSTRUCTIONS
    }

    fn shown(&self) -> Vec<(&Shown, Needs)> {
        self.tools().iter().map(|tool| (&tool.shown, tool.needs)).collect()
    }

    fn run(&self, tool: &str, call: Call<()>, arguments: JsonObject) -> Option<Running> {
        let tool = self.tools().iter().find(|known| known.shown.name == tool)?;
        Some(tool.run(call.of(self.clone()), arguments))
    }
}

/// How often a result is in an answer: as a value, as text in which it is JSON within JSON, and
/// once more while the answer is written.
const COPIES: u64 = 4;

/// The tools of something for one caller, for the length of one message.
#[derive(Clone)]
pub(super) struct Server {
    app: App,
    by: Admitted,
    made: Created,
    of: Arc<dyn Toolbox>,
    /// The refusal of the called tool, for the request log: the answer itself has status 200.
    refusal: Arc<Mutex<Option<LoggedRefusal>>>,
    /// The library runs tools in tasks of its own: what they hold counts for the request.
    account: Option<Account>,
}

impl Server {
    pub(super) fn new(app: App, by: Admitted, made: Created, of: Arc<dyn Toolbox>) -> Self {
        let account = Account::current();
        if let Some(account) = &account {
            account.answers_times(COPIES);
        }
        Self { app, by, made, of, refusal: Arc::default(), account }
    }

    /// The refusal of the called tool, if it refused.
    pub(super) fn refusal(&self) -> Option<LoggedRefusal> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn log(&self, refusal: LoggedRefusal) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
    }

    /// Tools that the key may not call are not listed.
    fn shown(&self) -> impl Iterator<Item = &Shown> {
        let role = self.by.caller.role;
        let allowed = self.of.shown().into_iter().filter(move |(_, needs)| needs.allow(role));
        allowed.map(|(shown, _)| shown)
    }

    async fn called(
        &self,
        tool: &Shown,
        needs: Needs,
        asked: CallToolRequestParams,
    ) -> Result<Value, Refused> {
        let caller = self.by.caller;
        if !needs.allow(caller.role) {
            let cause = format!("a key with the role {} may not do this", caller.role);
            return Err(Refused::new(ErrorCode::Forbidden, cause));
        }
        let call = Call {
            app: self.app.clone(),
            caller,
            request_id: self.by.request_id.clone(),
            made: self.made.clone(),
            of: (),
        };
        let running = self.of.run(&tool.name, call, asked.arguments.unwrap_or_default());
        let Some(running) = running else {
            return Err(Refused::new(ErrorCode::Internal, "the tool does not exist"));
        };
        let running = async {
            match self.account.clone() {
                Some(account) => account.scope(running).await,
                None => running.await,
            }
        };
        match AssertUnwindSafe(collect_losses(running)).catch_unwind().await {
            Ok((Ok(mut value), losses)) => {
                // A model reads results, so the loss is reported in the result.
                if let (Value::Object(object), Some(loss)) = (&mut value, losses.last()) {
                    LossFields::SNAKE.add(object, *loss);
                    self.app.engine.losses_reported(&losses);
                }
                Ok(value)
            }
            Ok((refused, _)) => refused,
            Err(panic) => Err(panicked(&tool.name, panic.as_ref())),
        }
    }

    fn result(&self, tool: &Shown, done: Result<Value, Refused>) -> CallToolResult {
        match done {
            Ok(value) => CallToolResult::structured(value),
            Err(refused) => {
                self.log(LoggedRefusal::from(&refused.refusal).of_tool(&tool.name));
                let problem = refused.problem(self.by.request_id.to_str().unwrap_or_default());
                let again = if problem.retryable {
                    "The same call may work later."
                } else {
                    "The same call will fail again."
                };
                let (code, detail, remedy) = (&problem.code, &problem.detail, &problem.remedy);
                let text = format!("{code}: {detail}\nWhat to do: {remedy}. {again}");
                let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
                result.structured_content = serde_json::to_value(&problem).ok();
                result
            }
        }
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new(self.of.name(), env!("CARGO_PKG_VERSION")))
            .with_instructions(self.of.instructions())
    }

    fn get_tool(&self, name: &str) -> Option<Shown> {
        self.shown().find(|tool| tool.name == name).cloned()
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self.shown().cloned().collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        asked: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let all = self.of.shown();
        let Some(&(tool, needs)) = all.iter().find(|(tool, _)| tool.name == asked.name) else {
            // Without the name: a client may have sent anything.
            self.log(LoggedRefusal::new(ErrorCode::InvalidArgument, "the tool does not exist"));
            let cause = format!("the tool {:?} does not exist", asked.name);
            return Err(ErrorData::invalid_params(cause, None));
        };
        // The library lets a tool continue after its client disconnected; ours end with their
        // client.
        tokio::select! {
            biased;
            done = self.called(tool, needs, asked) => Ok(self.result(tool, done).into()),
            () = context.ct.cancelled() => {
                Err(ErrorData::internal_error("the client disconnected", None))
            }
        }
    }
}

/// Without this the client would wait for an answer that never comes.
fn panicked(tool: &str, panic: &(dyn Any + Send)) -> Refused {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let said = text.unwrap_or("a panic without a message");
    tracing::error!(tool, said, "a tool panicked");
    Refused::new(ErrorCode::Internal, "the tool failed unexpectedly")
}
