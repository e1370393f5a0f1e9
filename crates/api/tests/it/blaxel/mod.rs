//! The dialect of Blaxel as its clients meet it: through sockets, on sandboxes in memory.

mod control;
mod files;
mod inside;
mod listener;
mod processes;

use serde_json::{Value, json};

use crate::raw_client::Answer;
use crate::stage::{Stage, request};

/// Makes a sandbox of a name.
pub(super) async fn make(stage: &Stage, name: &str) -> Value {
    let body = json!({"metadata": {"name": name}, "spec": {"runtime": {"image": "default"}}});
    stage.call("POST", "/compat/blaxel/sandboxes", body).await.expect(200)
}

/// A sandbox and its server.
pub(super) struct Sandbox {
    pub(super) stage: Stage,
}

impl Sandbox {
    pub(super) async fn new() -> Self {
        Self::with(crate::stage::Plan::default()).await
    }

    pub(super) async fn with(plan: crate::stage::Plan) -> Self {
        let stage = Stage::with(plan).await;
        make(&stage, "box").await;
        Self { stage }
    }

    pub(super) async fn call(&self, method: &str, path: &str, body: Value) -> Answer {
        self.stage.call(method, &format!("/compat/blaxel/box{path}"), body).await
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, Value::Null).await
    }

    /// Exactly this body, with these headers.
    pub(super) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> Answer {
        let path = format!("/compat/blaxel/box{path}");
        self.stage.raw(&request(&self.stage.admin, method, &path, headers, body)).await
    }

    /// A text that is said when something is refused.
    #[track_caller]
    pub(super) fn refused(answer: &Answer, status: u16) -> String {
        let told = answer.expect(status);
        assert_eq!(told.as_object().unwrap().len(), 1, "{told}");
        told["error"].as_str().unwrap().to_owned()
    }
}
