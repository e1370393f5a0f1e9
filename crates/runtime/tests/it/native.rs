//! Native sandboxes keep every promise. Needs root on Linux: elsewhere the cases say that they were
//! skipped.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use model::template::WorkspaceLimit;
use model::{Template, TemplateName, WorkspaceId};
use runtime::conformance::Subject;
use runtime::native::{Native, NativeConfig};
use runtime::{Command, Runtime};
use workspaces::{Size, Workspaces};

static PLACES: AtomicU64 = AtomicU64::new(0);

struct NativeSubject {
    place: PathBuf,
}

fn template() -> TemplateName {
    TemplateName::new("default").expect("a name")
}

fn subject() -> Arc<dyn Subject> {
    let n = PLACES.fetch_add(1, Ordering::Relaxed);
    let place = std::env::temp_dir().join(format!("native-{}-{n}", std::process::id()));
    Arc::new(NativeSubject { place })
}

impl Drop for NativeSubject {
    fn drop(&mut self) {
        // After a failed test the directory stays, for inspection.
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.place);
        }
    }
}

/// A program of the host's that listens on a port and gives back what it is sent.
pub(crate) fn echo_server(port: u16) -> Command {
    let server = "import socketserver, sys\n\
        class Echo(socketserver.BaseRequestHandler):\n\
        \x20   def handle(self):\n\
        \x20       while data := self.request.recv(65536): self.request.sendall(data)\n\
        socketserver.ThreadingTCPServer.allow_reuse_address = True\n\
        socketserver.ThreadingTCPServer(('127.0.0.1', int(sys.argv[1])), Echo).serve_forever()";
    let argv = ["python3", "-c", server, &port.to_string()];
    Command::Argv(argv.map(str::to_owned).to_vec())
}

/// The same on a Unix socket, for its own user only.
pub(crate) fn echo_socket(path: &str) -> Command {
    let server = "import os, socketserver, sys\n\
        class Echo(socketserver.BaseRequestHandler):\n\
        \x20   def handle(self):\n\
        \x20       while data := self.request.recv(65536): self.request.sendall(data)\n\
        server = socketserver.ThreadingUnixStreamServer(sys.argv[1], Echo)\n\
        os.chmod(sys.argv[1], 0o600)\n\
        server.serve_forever()";
    Command::Argv(["python3", "-c", server, path].map(str::to_owned).to_vec())
}

#[async_trait]
impl Subject for NativeSubject {
    async fn start(&self) -> Result<Arc<dyn Runtime>, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root can make native sandboxes".to_owned());
        }
        let mut config = NativeConfig::new(self.place.join("run"));
        config.workspaces = Some(self.place.join("workspaces"));
        config.slots = 64;
        config.spares = 2;
        // As a server has it: no end that is asked for may look like a loss.
        config.restart = true;
        // Where it could work it must: a launcher that does not start is no reason to skip.
        let native = Native::start(config).await.expect("the launcher starts");
        Ok(Arc::new(native))
    }

    fn template(&self) -> Template {
        Template::named(template())
    }

    fn echo_server(&self, port: u16) -> Command {
        echo_server(port)
    }

    fn echo_socket(&self, path: &str) -> Command {
        echo_socket(path)
    }

    fn echo_channel(&self) -> Command {
        Command::Shell("exec cat <&3 >&3".to_owned())
    }

    async fn make_workspace(&self) -> Option<WorkspaceId> {
        let workspaces = Workspaces::open(self.place.join("workspaces")).expect("opened");
        let workspace = WorkspaceId::from_u128(7);
        let limit = match workspaces.hard().by {
            Some(_) => WorkspaceLimit::Hard,
            None => WorkspaceLimit::Soft,
        };
        workspaces.create(workspace, Size::SMALLEST, limit, 0).expect("made");
        Some(workspace)
    }

    fn remains(&self) -> Vec<String> {
        // The lock file goes last, when all else has gone.
        let files = std::fs::read_dir(self.place.join("run")).expect("the run directory");
        files.map(|file| file.expect("a file").path().display().to_string()).collect()
    }
}

runtime::conformance_tests! { #[tokio::test(flavor = "multi_thread", worker_threads = 2)] subject() }
