//! The runtime in memory keeps every promise, under paused time.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use model::template::Recycle;
use model::{Template, TemplateName, WorkspaceId};
use runtime::conformance::Subject;
use runtime::fake::{Alive, FakeRuntime, FakeSettings};
use runtime::{Command, Runtime};

#[derive(Default)]
struct Fake {
    runtime: Mutex<Option<Arc<FakeRuntime>>>,
}

fn subject() -> Arc<dyn Subject> {
    Arc::new(Fake::default())
}

impl Fake {
    fn runtime(&self) -> Arc<FakeRuntime> {
        self.runtime.lock().expect("no panic").clone().expect("it was started")
    }
}

#[async_trait]
impl Subject for Fake {
    async fn start(&self) -> Result<Arc<dyn Runtime>, String> {
        let settings = FakeSettings { recycle: Recycle::Wipe, ..FakeSettings::default() };
        let runtime = Arc::new(FakeRuntime::new(settings));
        *self.runtime.lock().expect("no panic") = Some(Arc::clone(&runtime));
        Ok(runtime)
    }

    fn template(&self) -> Template {
        Template::named(TemplateName::new("default").expect("a name"))
    }

    fn echo_server(&self, port: u16) -> Command {
        Command::Argv(vec!["listen".to_owned(), port.to_string()])
    }

    fn echo_socket(&self, path: &str) -> Command {
        Command::Argv(vec!["listen".to_owned(), path.to_owned()])
    }

    fn echo_channel(&self) -> Command {
        Command::Argv(vec!["channel".to_owned()])
    }

    async fn make_workspace(&self) -> Option<WorkspaceId> {
        let id = WorkspaceId::from_u128(7);
        self.runtime().create_workspace(id, 1 << 20);
        Some(id)
    }

    fn remains(&self) -> Vec<String> {
        let alive = self.runtime().alive();
        if alive == Alive::default() { Vec::new() } else { vec![format!("{alive:?}")] }
    }
}

runtime::conformance_tests! { #[tokio::test(start_paused = true)] subject() }
