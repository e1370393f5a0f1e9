//! A server for one test: on a free port, with a data directory that is removed afterwards.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use crate::shell::{CommandOutput, eventually, finish, shoal};

/// A directory that is removed afterwards.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("shoal-served-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A command without SHOAL_ variables, which could lead it to another server.
pub(crate) fn isolated_command(arguments: &[&str]) -> Command {
    let mut command = shoal(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SHOAL_") {
            command.env_remove(name);
        }
    }
    command
}

pub(crate) struct TestServer {
    child: Option<Child>,
    pub(crate) scratch: Scratch,
}

impl TestServer {
    pub(crate) fn start() -> Self {
        let scratch = Scratch::new();
        Self::start_on(scratch, &[])
    }

    pub(crate) fn start_on(scratch: Scratch, flags: &[&str]) -> Self {
        Self::start_by(scratch, flags, isolated_command)
    }

    /// Starts a server whose flags have its address.
    pub(crate) fn start_plain(scratch: Scratch, flags: &[&str]) -> Self {
        Self::start_without_waiting(scratch, flags).up()
    }

    /// Starts a server with a command that the caller makes.
    pub(crate) fn start_by(
        scratch: Scratch,
        flags: &[&str],
        command: impl FnOnce(&[&str]) -> Command,
    ) -> Self {
        Self::spawn(scratch, flags, command).up()
    }

    /// Starts a server that cannot write its address file.
    pub(crate) fn start_without_waiting(scratch: Scratch, flags: &[&str]) -> Self {
        Self::spawn(scratch, flags, isolated_command)
    }

    fn spawn(scratch: Scratch, flags: &[&str], command: impl FnOnce(&[&str]) -> Command) -> Self {
        let mut served = Self { child: None, scratch };
        let data = served.data();
        let mut fixed = vec!["serve", "--data-dir", data.to_str().unwrap()];
        if !flags.contains(&"--listen") {
            fixed.extend(["--listen", "127.0.0.1:0"]);
        }
        let mut command = command(&[&*fixed, flags].concat());
        let log = std::fs::File::create(served.scratch.0.join("log")).unwrap();
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        served.child = Some(child);
        served
    }

    fn up(mut self) -> Self {
        eventually("the server is up", || {
            self.assert_alive();
            self.data().join("address").exists() && self.run(&["stats"]).code == Some(0)
        });
        self
    }

    /// Asserts that the server still runs.
    #[track_caller]
    pub(crate) fn assert_alive(&mut self) {
        let ended = self.child.as_mut().unwrap().try_wait().unwrap();
        assert!(ended.is_none(), "the server ended: {}", self.log());
    }

    /// Empties the pool of the built-in template, whose sandboxes have workspaces, too.
    pub(crate) fn without_spares(self) -> Self {
        let text = "name = \"default\"\n[limits]\nbest_effort = true\n[pool]\npool_size = 0\n";
        let said = self.run_with_input(&["templates", "put", "-"], Some(text.as_bytes()));
        assert_eq!(said.code, Some(0), "{said:?}");
        self
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.scratch.0.join("data")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.0.join("log")).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().unwrap())
    }

    /// A command for this server.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = isolated_command(arguments);
        command.env("SHOAL_DATA_DIR", self.data());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> CommandOutput {
        self.run_with_input(arguments, None)
    }

    pub(crate) fn run_with_input(&self, arguments: &[&str], input: Option<&[u8]>) -> CommandOutput {
        let mut command = self.command(arguments);
        if input.is_some() {
            command.stdin(Stdio::piped());
        }
        output_of(finish(command.spawn().unwrap(), input.unwrap_or_default()))
    }

    /// The output of a command that must succeed.
    #[track_caller]
    pub(crate) fn text(&self, arguments: &[&str]) -> String {
        let said = self.run(arguments);
        assert_eq!(said.code, Some(0), "{arguments:?}: {said:?}\n{}", self.log());
        said.text().trim_end().to_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.text(arguments)).unwrap()
    }

    /// Sends a signal; gives the exit code and the data directory.
    pub(crate) fn stop(mut self, signal: Signal) -> (Option<i32>, Scratch) {
        kill_process(self.pid(), signal).unwrap();
        let output = finish(self.child.take().unwrap(), &[]);
        let scratch = std::mem::replace(&mut self.scratch, Scratch(PathBuf::new()));
        (output.status.code(), scratch)
    }
}

pub(crate) fn output_of(output: Output) -> CommandOutput {
    CommandOutput {
        code: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            finish(child, &[]);
        }
    }
}

/// The names in a directory, sorted.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
