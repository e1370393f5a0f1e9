//! A tool: its description, the role it requires, and its function. Invalid arguments are refused
//! by field, with a cause that a model can act on.

use std::pin::Pin;
use std::sync::Arc;

use engine::Caller;
use http::HeaderValue;
use model::ErrorCode;
use rmcp::model::{JsonObject, Tool as Shown, ToolAnnotations};
use rmcp::schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::created::Created;
use super::schemas;
use web::app::App;
use web::front::Needs;
use web::refused::Refused;

/// One call of a tool.
pub(super) struct Call<W> {
    pub(super) app: App,
    pub(super) caller: Caller,
    pub(super) request_id: HeaderValue,
    pub(super) made: Created,
    /// What the tools work on.
    pub(super) of: W,
}

impl Call<()> {
    /// The same call, of a tool of something.
    pub(super) fn of<W>(self, of: W) -> Call<W> {
        let Self { app, caller, request_id, made, of: () } = self;
        Call { app, caller, request_id, made, of }
    }
}

/// The side effects of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing.
    Reads,
    /// It adds something.
    Adds,
    /// It may change or end what was there.
    Changes,
}

impl Effect {
    fn annotations(self) -> ToolAnnotations {
        let hints = ToolAnnotations::new().open_world(false);
        match self {
            Self::Reads => hints.read_only(true),
            Self::Adds => hints.read_only(false).destructive(false),
            Self::Changes => hints.read_only(false).destructive(true),
        }
    }
}

pub(super) type Running = Pin<Box<dyn Future<Output = Result<Value, Refused>> + Send>>;

/// A tool of something.
pub(super) struct Tool<W> {
    pub(super) shown: Shown,
    pub(super) needs: Needs,
    run: Box<dyn Fn(Call<W>, JsonObject) -> Running + Send + Sync>,
}

/// The description of a tool.
pub(super) struct About {
    pub(super) name: &'static str,
    pub(super) text: String,
    pub(super) needs: Needs,
    pub(super) effect: Effect,
}

impl About {
    pub(super) fn new(name: &'static str, text: &str, needs: Needs, effect: Effect) -> Self {
        Self { name, text: text.to_owned(), needs, effect }
    }
}

impl<W: 'static> Tool<W> {
    /// A tool with arguments and a result of our own making.
    pub(super) fn new<A, T, F, Fut>(about: About, run: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        T: Serialize + JsonSchema,
        F: Fn(Call<W>, A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, Refused>> + Send + 'static,
    {
        let (input, output) = (schemas::of::<A>(), schemas::of::<T>());
        Self::described(about, input, Some(output), move |call, arguments| {
            let running = read(arguments).map(|arguments| run(call, arguments));
            Box::pin(async move { written(&running?.await?) })
        })
    }

    /// A tool that is described elsewhere.
    pub(super) fn described(
        about: About,
        input: JsonObject,
        output: Option<JsonObject>,
        run: impl Fn(Call<W>, JsonObject) -> Running + Send + Sync + 'static,
    ) -> Self {
        let mut shown = Shown::new(about.name, about.text, Arc::new(input));
        shown = shown.with_annotations(about.effect.annotations());
        if let Some(output) = output {
            shown = shown.with_raw_output_schema(Arc::new(output));
        }
        Self { shown, needs: about.needs, run: Box::new(run) }
    }

    pub(super) fn run(&self, call: Call<W>, arguments: JsonObject) -> Running {
        (self.run)(call, arguments)
    }
}

fn read<A: DeserializeOwned>(arguments: JsonObject) -> Result<A, Refused> {
    serde_path_to_error::deserialize(Value::Object(arguments)).map_err(|error| {
        let field = error.path().to_string();
        let cause = error.into_inner().to_string();
        match field.as_str() {
            "" | "." => Refused::bad("arguments", cause),
            _ => Refused::bad(field.clone(), format!("{field}: {cause}")),
        }
    })
}

fn written(value: &impl Serialize) -> Result<Value, Refused> {
    serde_json::to_value(value)
        .map_err(|error| Refused::new(ErrorCode::Internal, error.to_string()))
}
