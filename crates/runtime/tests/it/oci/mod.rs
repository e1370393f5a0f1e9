//! Runtimes over OCI programs, besides the suite that all runtimes pass: each with a run directory
//! of its own. Needs root and the program: without it the cases say that they were skipped.

mod limits;
mod roots;
mod smoke;
mod unexpected_exits;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use model::{InstanceId, Template, TemplateName, WorkspaceId};
use runtime::conformance::{Subject, skip};
use runtime::oci::{self, OciConfig, Program};
use runtime::{Collected, Command, ExecSpec, LaunchSpec, RunLimits, Runtime, Sandbox};

/// How long anything may take that is not slow by design.
const PATIENCE: Duration = Duration::from_secs(40);

/// Tests over the programs that must work everywhere.
macro_rules! over_programs {
    ($($case:ident)+) => {
        mod runc {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(runtime::oci::Program::Runc).await;
            })+
        }
        mod runsc {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(runtime::oci::Program::Runsc).await;
            })+
        }
    };
}
use over_programs;

/// A program to be tested.
pub(crate) struct OciSubject {
    program: Program,
    place: PathBuf,
    run: String,
}

/// One with a directory of its own.
pub(crate) fn subject(program: Program) -> Arc<dyn Subject> {
    Arc::new(OciSubject::new(program))
}

impl OciSubject {
    fn new(program: Program) -> Self {
        // Each run needs a unique name.
        let run = OciConfig::new(program, "").run;
        Self { program, place: std::env::temp_dir().join(format!("oci-{run}")), run }
    }

    fn config(&self) -> OciConfig {
        let mut config = OciConfig::new(self.program, self.place.join("run"));
        config.run.clone_from(&self.run);
        config
    }

    /// A runtime, if there can be one; else it is said that there is none.
    async fn begin(&self, change: impl FnOnce(&mut OciConfig)) -> Option<Arc<dyn Runtime>> {
        let mut config = self.config();
        change(&mut config);
        if let Err(why) = able(&config) {
            skip(&why);
            return None;
        }
        Some(oci::start(config).await.expect("the runtime starts"))
    }

    /// Nothing may be left.
    async fn end(&self, runtime: &dyn Runtime) {
        runtime.shutdown().await.expect("shut down");
        assert_eq!(self.remains(), Vec::<String>::new());
    }
}

fn able(config: &OciConfig) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root uses OCI runtimes".to_owned());
    }
    config.found().map(drop).ok_or_else(|| format!("no {}", config.program.as_str()))
}

/// What to launch if nothing about it matters.
fn spec() -> LaunchSpec {
    static INSTANCES: AtomicU64 = AtomicU64::new(1);
    let n = INSTANCES.fetch_add(1, Ordering::Relaxed);
    let id = InstanceId::from_u128(u128::from(std::process::id()) << 64 | u128::from(n));
    LaunchSpec::of(&Template::named(TemplateName::new("default").expect("a name")), id)
}

/// Runs a line of shell to its end.
async fn sh(sandbox: &dyn Sandbox, line: &str) -> Collected {
    let limits = RunLimits { output_bytes: 1 << 20, timeout: PATIENCE };
    sandbox.inside().run(ExecSpec::shell(line), limits).await.expect("it runs")
}

/// What a line of shell says.
async fn said(sandbox: &dyn Sandbox, line: &str) -> String {
    let ran = sh(sandbox, line).await;
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.exit.success(), "{line}: {:?} {stderr}", ran.exit);
    String::from_utf8(ran.stdout).expect("text")
}

impl Drop for OciSubject {
    fn drop(&mut self) {
        // After a failed test the directory stays, for inspection.
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.place);
        }
    }
}

#[async_trait]
impl Subject for OciSubject {
    async fn start(&self) -> Result<Arc<dyn Runtime>, String> {
        let config = self.config();
        able(&config)?;
        // Where it could work it must.
        Ok(oci::start(config).await.expect("the runtime starts"))
    }

    fn template(&self) -> Template {
        Template::named(TemplateName::new("default").expect("a name"))
    }

    fn echo_server(&self, port: u16) -> Command {
        let server = "import socketserver, sys\n\
            class Echo(socketserver.BaseRequestHandler):\n\
            \x20   def handle(self):\n\
            \x20       while data := self.request.recv(65536): self.request.sendall(data)\n\
            socketserver.ThreadingTCPServer.allow_reuse_address = True\n\
            socketserver.ThreadingTCPServer(('127.0.0.1', int(sys.argv[1])), Echo).serve_forever()";
        let argv = ["python3", "-c", server, &port.to_string()];
        Command::Argv(argv.map(str::to_owned).to_vec())
    }

    fn echo_socket(&self, path: &str) -> Command {
        let server = "import os, socketserver, sys\n\
            class Echo(socketserver.BaseRequestHandler):\n\
            \x20   def handle(self):\n\
            \x20       while data := self.request.recv(65536): self.request.sendall(data)\n\
            server = socketserver.ThreadingUnixStreamServer(sys.argv[1], Echo)\n\
            os.chmod(sys.argv[1], 0o600)\n\
            server.serve_forever()";
        Command::Argv(["python3", "-c", server, path].map(str::to_owned).to_vec())
    }

    fn echo_channel(&self) -> Command {
        Command::Shell("exec cat <&3 >&3".to_owned())
    }

    async fn make_workspace(&self) -> Option<WorkspaceId> {
        None
    }

    fn remains(&self) -> Vec<String> {
        let mut found = Vec::new();
        // The lock file goes last, when all else has gone.
        for entry in std::fs::read_dir(self.place.join("run")).expect("the run directory") {
            found.push(entry.expect("an entry").path().display().to_string());
        }
        for hierarchy in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            for place in [hierarchy.path(), PathBuf::from("/sys/fs/cgroup")] {
                let group = place.join("shoal").join(&self.run);
                found.extend(group.exists().then(|| group.display().to_string()));
            }
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let ours = self.place.display().to_string();
        found.extend(mounts.lines().filter(|line| line.contains(&ours)).map(str::to_owned));
        found.extend(processes_that_know(&ours));
        for place in ["/run", "/var/run", "/tmp"] {
            let names = std::fs::read_dir(Path::new(place)).into_iter().flatten().flatten();
            let sockets = names.map(|entry| entry.file_name().display().to_string());
            found
                .extend(sockets.filter(|name| name.contains(&format!("runsc-shoal-{}", self.run))));
        }
        found
    }
}

/// Processes with a word in their command line, such as what a program leaves behind.
fn processes_that_know(word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(word) {
            found.push(format!("{}: {line}", entry.file_name().display()));
        }
    }
    found
}
