//! The arguments of `shoal process`, and the request to start a process made of them.

use std::time::Duration;

use clap::Subcommand;
use client::ProcessRequest;
use model::SandboxId;

use crate::duration;
use crate::failure::Failure;
use crate::sandbox_request::environment;
use crate::server::Server;

/// Arguments of `shoal process`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal process start SANDBOX -- npm run dev                     the process outlives this command\n  \
    shoal process start SANDBOX --name web --keep-alive --wait-for-port 3000 -- npm run dev\n  \
    shoal process ls SANDBOX\n  \
    shoal process logs SANDBOX web --follow\n  \
    echo input | shoal process stdin SANDBOX web\n  \
    shoal process stop SANDBOX web\n\n\
    PROCESS is the id of a process, its process id inside the sandbox, or its name. With --keep-alive a\n\
    process keeps its sandbox awake until the process ends; see `shoal status` and `shoal stop`.\n\n\
    Exit codes: 0; 1 if the server refused; 3 if no server answers. `start --wait`, `wait` and\n\
    `logs --follow` exit like the process.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(super) act: Act,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(super) enum Act {
    /// Start a process
    Start(Box<StartArgs>),
    /// List the processes of a sandbox, the newest first
    Ls(ListArgs),
    /// Show one process
    Show(ProcessArgs),
    /// Print the output of a process
    Logs(LogsArgs),
    /// Ask a process to end, and kill the process if it does not
    Stop(StopArgs),
    /// Kill a process
    Kill(ProcessArgs),
    /// Send a signal to a process
    Signal(SignalArgs),
    /// Send your standard input to a process
    Stdin(StdinArgs),
    /// Wait until a process ends
    Wait(WaitArgs),
}

/// One process.
#[derive(Debug, clap::Args)]
pub(super) struct ProcessArgs {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    pub(super) sandbox: SandboxId,
    /// The process: its id, its process id inside the sandbox, or its name
    #[arg(value_name = "PROCESS")]
    pub(super) process: String,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) server: Server,
}

/// A process to start.
#[derive(Debug, clap::Args)]
pub(super) struct StartArgs {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    pub(super) sandbox: SandboxId,
    /// Name of the process [default: a generated name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Run this line in a shell
    #[arg(long, value_name = "LINE", conflicts_with = "argv")]
    shell: Option<String>,
    /// Set a variable for the process; KEY alone copies the value from your environment
    #[arg(long = "env", short = 'e', value_name = "KEY[=VALUE]")]
    env: Vec<String>,
    /// Directory in the sandbox to start the process in [default: /workspace]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Keep the sandbox awake until the process ends
    #[arg(long)]
    keep_alive: bool,
    /// Kill the process after this time, like 30s or 2m; time in which the sandbox is frozen does not count
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// Keep the input of the process open for `shoal process stdin`
    #[arg(long)]
    open_stdin: bool,
    /// Restart the process when it fails; TIMES says how often at most
    #[arg(long, value_name = "TIMES", num_args = 0..=1, default_missing_value = "4294967295")]
    restart: Option<u32>,
    /// Wait until the process ends, print its output and exit like the process
    #[arg(long)]
    pub(super) wait: bool,
    /// Wait until the process listens on this port
    #[arg(long = "wait-for-port", value_name = "PORT", conflicts_with = "wait")]
    ports: Vec<u16>,
    /// How long to wait [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    wait_timeout: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) server: Server,
    /// The program and its arguments
    #[arg(value_name = "ARGV", last = true, required_unless_present = "shell")]
    argv: Vec<String>,
}

impl StartArgs {
    pub(super) fn request(
        &self,
        inherited: impl Fn(&str) -> Option<String>,
    ) -> Result<ProcessRequest, Failure> {
        Ok(ProcessRequest {
            command: self.shell.clone(),
            argv: self.shell.is_none().then(|| self.argv.clone()),
            name: self.name.clone(),
            cwd: self.cwd.clone(),
            env: environment(&self.env, inherited)?.into_iter().collect(),
            stdin_open: self.open_stdin,
            keep_alive: self.keep_alive,
            // Rounded up, so that nothing ends sooner than the user wanted.
            timeout_s: self.timeout.map(|time| time.as_millis().div_ceil(1000) as u64),
            wait: self.wait,
            wait_timeout_ms: self.wait_timeout.map(|time| time.as_millis().max(1) as u64),
            wait_for_ports: self.ports.clone(),
            restart_on_failure: self.restart.is_some(),
            max_restarts: self.restart.filter(|times| *times < u32::MAX),
            ..ProcessRequest::default()
        })
    }
}

/// Which processes to list.
#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    pub(super) sandbox: SandboxId,
    /// Only running processes
    #[arg(long)]
    pub(super) running: bool,
    /// Only look: otherwise the list counts as a use of the sandbox while a process runs in it
    #[arg(long)]
    pub(super) observe: bool,
    /// List at most this many processes
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(super) limit: usize,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) server: Server,
}

/// What to print of a log.
#[derive(Debug, clap::Args)]
pub(super) struct LogsArgs {
    #[command(flatten)]
    pub(super) of: ProcessArgs,
    /// Follow the log until the process ends
    #[arg(long, short = 'f')]
    pub(super) follow: bool,
    /// Only the standard output
    #[arg(long, conflicts_with = "stderr")]
    pub(super) stdout: bool,
    /// Only the standard error output
    #[arg(long)]
    pub(super) stderr: bool,
    /// Only the output from this byte on
    #[arg(long, value_name = "OFFSET")]
    pub(super) offset: Option<u64>,
}

/// A process to end.
#[derive(Debug, clap::Args)]
pub(super) struct StopArgs {
    #[command(flatten)]
    pub(super) of: ProcessArgs,
    /// How long the process may take to end before it is killed [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(super) grace: Option<Duration>,
}

/// A signal to send.
#[derive(Debug, clap::Args)]
pub(super) struct SignalArgs {
    #[command(flatten)]
    pub(super) of: ProcessArgs,
    /// Name of the signal, like HUP or SIGHUP
    #[arg(value_name = "SIGNAL")]
    pub(super) signal: String,
    /// Also to all its descendants
    #[arg(long)]
    pub(super) tree: bool,
}

/// Input for a process.
#[derive(Debug, clap::Args)]
pub(super) struct StdinArgs {
    #[command(flatten)]
    pub(super) of: ProcessArgs,
    /// Leave its input open afterwards
    #[arg(long)]
    pub(super) keep_open: bool,
}

/// A process to wait for.
#[derive(Debug, clap::Args)]
pub(super) struct WaitArgs {
    #[command(flatten)]
    pub(super) of: ProcessArgs,
    /// How long to wait [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(super) timeout: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        started: StartArgs,
    }

    fn request(words: &[&str]) -> ProcessRequest {
        let id = "0192f3a0-0000-7000-8000-000000000001";
        let typed = [&["start", id], words].concat();
        Typed::try_parse_from(typed).unwrap().started.request(|_| None).unwrap()
    }

    #[test]
    fn process_arguments_become_the_request() {
        let plain = request(&["--", "npm", "run"]);
        assert_eq!(plain, ProcessRequest::argv(["npm", "run"]));
        let full = request(&[
            "--name",
            "web",
            "--keep-alive",
            "--timeout",
            "1500ms",
            "--restart",
            "3",
            "--wait-for-port",
            "80",
            "-e",
            "A=b",
            "--shell",
            "x",
        ]);
        assert_eq!((full.command.as_deref(), full.argv), (Some("x"), None));
        assert_eq!((full.timeout_s, full.max_restarts), (Some(2), Some(3)));
        assert!(full.keep_alive && full.restart_on_failure && full.wait_for_ports == [80]);
        let always = request(&["--restart", "--", "a"]);
        assert_eq!((always.restart_on_failure, always.max_restarts), (true, None));
    }
}
