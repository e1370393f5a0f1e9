//! The arguments of `shoal session`, and the request to create a session made of them.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use client::{SessionId, SessionRequest, TurnId};
use model::record::OnDisconnect;
use model::{SessionStatus, TemplateName};
use serde_json::{Map, Value};
use wire::SessionFile;

use super::deadline::{self, DeadlineArgs};
use crate::failure::Failure;
use crate::network_request::NetworkRequest;
use crate::sandbox_request::{DEFAULT_TEMPLATE, environment, pair};
use crate::server::Server;
use crate::{duration, events, exec};

/// Arguments of `shoal session`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    id=$(shoal session create)                  begin a conversation\n  \
    shoal session send $id 'echo hi > f; ls'    send a message; for the shell harness, a command line\n  \
    shoal session pause $id                     pause the session; the next message resumes it\n  \
    shoal session history $id                   the turns so far, and their outcome\n  \
    shoal session fork $id                      a new session with a copy of the files and the history\n  \
    shoal session exec $id -- cat f             run a program without a turn\n  \
    shoal session end $id\n\n\
    A session has at most one sandbox at a time and outlives the sandbox: the session keeps the files\n\
    in /workspace across a pause, a crash or a restart of the server.\n\n\
    Exit codes: 0; 1 if the server refused, or the turn failed; 3 if no server answers. `send` and\n\
    `follow` exit like the command of a shell turn, `exec` like its program.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(super) act: Act,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(super) enum Act {
    /// Create a session
    Create(Box<CreateArgs>),
    /// List sessions, newest first
    Ls(ListArgs),
    /// Show one session
    Show(SessionArgs),
    /// Send a message, and print the answer as it comes
    Send(SendArgs),
    /// Print the output of a turn, from its beginning
    Follow(FollowArgs),
    /// List the turns of a session, and their outcome
    History(HistoryArgs),
    /// Print what the harness wrote outside of turns
    Logs(LogsArgs),
    /// Print the events of a session
    Events(EventsArgs),
    /// Abort the turn in progress
    Abort(AbortArgs),
    /// Pause a session; the next message or command resumes it
    Pause(SessionArgs),
    /// Resume a paused or stopped session
    Resume(SessionArgs),
    /// End the sandbox of a session, and keep the files until the session is resumed
    Stop(SessionArgs),
    /// Set the time at which a session ends or pauses by itself
    Deadline(DeadlineArgs),
    /// Create a new session with a copy of the files and the history of a session
    Fork(SessionArgs),
    /// End sessions
    End(EndArgs),
    /// Run a program in the sandbox of a session
    Exec(Box<ExecArgs>),
    /// Copy files into the sandbox of a session or out of it
    Cp(CpArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal session create -T python -e TOKEN -m user=ada\n  \
    shoal session create --deadline-idle 30m --deadline-action end\n  \
    shoal session create --file ./notes.md:docs/notes.md --config '{\"model\":\"small\"}'")]
pub(super) struct CreateArgs {
    /// Template of the session [default: default]
    #[arg(long, short = 'T', value_name = "NAME", value_parser = TemplateName::new)]
    template: Option<TemplateName>,
    /// Set a variable for every program of the session; KEY alone copies the value from your
    /// environment
    #[arg(long = "env", short = 'e', value_name = "KEY[=VALUE]")]
    env: Vec<String>,
    /// Metadata of the session, for `shoal session ls --metadata`
    #[arg(long, short = 'm', value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
    /// Configuration for the harness of the session: a JSON object
    #[arg(long, value_name = "JSON")]
    config: Option<String>,
    /// Copy FILE of this machine to PATH in the workspace of the session
    #[arg(long = "file", value_name = "FILE:PATH")]
    files: Vec<String>,
    /// How long the session may be idle before its sandbox becomes cold, like 30m
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    idle_timeout: Option<Duration>,
    #[command(flatten)]
    network: NetworkRequest,
    #[command(flatten)]
    deadline: deadline::CreateFlags,
    /// How long to wait for a place if the server is full, like 5s [default: as the server says]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Abort a turn if its client disconnects; without this flag the turn goes on, and `follow`
    /// shows it
    #[arg(long)]
    abort_on_disconnect: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) server: Server,
}

impl CreateArgs {
    /// The request to the server.
    pub(super) fn request(
        &self,
        inherited: impl Fn(&str) -> Option<String>,
    ) -> Result<SessionRequest, Failure> {
        let default = || TemplateName::new(DEFAULT_TEMPLATE);
        let template = self.template.clone().map_or_else(default, Ok);
        let template = template.map_err(|error| Failure::new("cannot name a template", error))?;
        Ok(SessionRequest {
            env: environment(&self.env, inherited)?.into_iter().collect(),
            metadata: self.metadata.iter().cloned().collect(),
            config: self.config.as_deref().map(config).transpose()?,
            files: self.files.iter().map(|file| read(file)).collect::<Result<_, _>>()?,
            // Rounded up, so that no sandbox becomes cold sooner than the user wanted.
            idle_timeout_s: self.idle_timeout.map(|time| time.as_millis().div_ceil(1000) as u64),
            deadline: self.deadline.request()?,
            on_disconnect: self.abort_on_disconnect.then_some(OnDisconnect::Abort),
            wait_ms: self.wait.map(|time| time.as_millis() as u64),
            network: self.network.network(),
            secrets: self.network.secrets(),
            ..SessionRequest::of(template)
        })
    }
}

fn config(text: &str) -> Result<Map<String, Value>, Failure> {
    serde_json::from_str(text).map_err(|error| {
        Failure::new("cannot use --config", error).remedy("give a JSON object").usage()
    })
}

/// Reads a local file and its path in the workspace, from `FILE:PATH`.
fn read(text: &str) -> Result<SessionFile, Failure> {
    let Some((from, path)) =
        text.rsplit_once(':').filter(|(from, path)| !from.is_empty() && !path.is_empty())
    else {
        return Err(Failure::new(
            format!("cannot use --file {text}"),
            "a file looks like FILE:PATH",
        )
        .remedy("--file ./notes.md:notes.md")
        .usage());
    };
    let from = PathBuf::from(from);
    let failed = |error| Failure::new(format!("cannot read {}", from.display()), error);
    let bytes = std::fs::read(&from).map_err(failed)?;
    let (content, content_base64) = match String::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(error) => (None, Some(wire::to_base64(error.as_bytes()))),
    };
    Ok(SessionFile { path: path.to_owned(), content, content_base64, mode: None })
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal session ls --status active\n  \
    shoal session ls -m user=ada -q      only the ids, for other commands")]
pub(super) struct ListArgs {
    /// Only sessions of this template
    #[arg(long, short = 'T', value_name = "NAME", value_parser = TemplateName::new)]
    pub(super) template: Option<TemplateName>,
    /// Only sessions in this status: starting, active, paused or stopped
    #[arg(long, value_name = "STATUS", value_parser = status)]
    pub(super) status: Option<SessionStatus>,
    /// Only sessions with this metadata
    #[arg(long, short = 'm', value_name = "KEY=VALUE", value_parser = pair)]
    pub(super) metadata: Vec<(String, String)>,
    /// Print ids only
    #[arg(long, short = 'q', conflicts_with = "json")]
    pub(super) quiet: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) server: Server,
}

fn status(text: &str) -> Result<SessionStatus, String> {
    let known = SessionStatus::ALL.into_iter().find(|status| status.as_str() == text);
    let known = known.filter(|status| *status != SessionStatus::Ended);
    known.ok_or_else(|| "one of starting, active, paused, stopped".to_owned())
}

#[derive(Debug, clap::Args)]
pub(super) struct SessionArgs {
    /// The session
    #[arg(value_name = "SESSION")]
    pub(super) session: SessionId,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) server: Server,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal session send SESSION 'make test'\n  \
    shoal session send SESSION --queue 'echo next'     after the turn in progress\n  \
    shoal session send SESSION --object '{\"command\":\"ls\",\"cwd\":\"/tmp\"}'\n  \
    shoal session send SESSION - < question.txt\n\n\
    The output of a shell command goes to stdout and stderr, and `send` exits with its exit code. Messages\n\
    of other harnesses are printed as JSON, one per line. Ctrl-C aborts the turn, keeps the sandbox,\n\
    and exits with 130. After a broken connection the command reconnects; the turn goes on.")]
pub(super) struct SendArgs {
    /// The session
    #[arg(value_name = "SESSION")]
    pub(super) session: SessionId,
    /// The message; - reads it from standard input
    #[arg(value_name = "MESSAGE", allow_hyphen_values = true)]
    pub(super) message: String,
    /// The message is a JSON object, not a text
    #[arg(long)]
    pub(super) object: bool,
    /// If a turn is in progress, wait until it has ended; without this flag the server refuses
    #[arg(long)]
    pub(super) queue: bool,
    /// How long to wait for a place if the server is full, like 5s [default: as the server says]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(super) wait: Option<Duration>,
    /// Print all events as JSON, one object a line
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) server: Server,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal session follow SESSION            the turn in progress, or the last one\n  \
    shoal session follow SESSION TURN --after 10\n\n\
    Ctrl-C ends this command, not the turn.")]
pub(super) struct FollowArgs {
    /// The session
    #[arg(value_name = "SESSION")]
    pub(super) session: SessionId,
    /// The turn [default: the turn in progress, or the last one]
    #[arg(value_name = "TURN")]
    pub(super) turn: Option<TurnId>,
    /// Only events after this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) after: u64,
    /// Print all events as JSON, one object a line
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) server: Server,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal session history SESSION\n  \
    shoal session history SESSION --events --json    with the output of each turn")]
pub(super) struct HistoryArgs {
    /// The session
    #[arg(value_name = "SESSION")]
    pub(super) session: SessionId,
    /// Only turns after this number
    #[arg(long, value_name = "N")]
    pub(super) after: Option<u64>,
    /// Include the output of each turn
    #[arg(long, requires = "json")]
    pub(super) events: bool,
    /// Print JSON, one turn a line
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) server: Server,
}

#[derive(Debug, clap::Args)]
pub(super) struct LogsArgs {
    /// The session
    #[arg(value_name = "SESSION")]
    pub(super) session: SessionId,
    /// Follow new lines as they come
    #[arg(long, short = 'f')]
    pub(super) follow: bool,
    /// Only lines after this one
    #[arg(long, value_name = "N")]
    pub(super) after: Option<u64>,
    /// Print JSON, one object a line
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) server: Server,
}

#[derive(Debug, clap::Args)]
pub(super) struct EventsArgs {
    /// The session
    #[arg(value_name = "SESSION")]
    pub(super) session: SessionId,
    #[command(flatten)]
    pub(super) page: events::Page,
    #[command(flatten)]
    pub(super) server: Server,
}

#[derive(Debug, clap::Args)]
pub(super) struct AbortArgs {
    /// The session
    #[arg(value_name = "SESSION")]
    pub(super) session: SessionId,
    /// Keep the sandbox; without this flag the next message gets another sandbox with the same files
    #[arg(long)]
    pub(super) keep_sandbox: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) server: Server,
}

#[derive(Debug, clap::Args)]
pub(super) struct EndArgs {
    /// The sessions
    #[arg(value_name = "SESSION", required = true)]
    pub(super) sessions: Vec<SessionId>,
    #[command(flatten)]
    pub(super) server: Server,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal session exec SESSION -- cat notes.md\n  \
    shoal session exec --shell 'ls | wc -l' SESSION\n\n\
    A paused session is resumed. Flags must come before SESSION.")]
pub(super) struct ExecArgs {
    #[command(flatten)]
    pub(super) program: exec::Program,
    #[command(flatten)]
    pub(super) server: Server,
    /// The session
    #[arg(value_name = "SESSION")]
    pub(super) session: SessionId,
    /// The program and its arguments
    #[arg(value_name = "ARGV", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(super) words: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal session cp ./project SESSION:          a directory in, as /workspace/project\n  \
    shoal session cp SESSION:out.csv .           a file out")]
pub(super) struct CpArgs {
    /// What to copy: a path, SESSION:PATH, or - for standard input
    #[arg(value_name = "FROM")]
    pub(super) from: String,
    /// Where to: a path, SESSION:PATH, or - for standard output
    #[arg(value_name = "TO", allow_hyphen_values = true)]
    pub(super) to: String,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) server: Server,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Verb};

    const ID: &str = "0192f3a0-0000-7000-8000-000000000001";

    fn typed(line: &str) -> Result<Act, String> {
        let words = ["shoal", "session"].into_iter().chain(line.split(' '));
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let Verb::Session(arguments) = cli.verb else { panic!("{line}") };
        Ok(arguments.act)
    }

    fn create_request(line: &str) -> Result<SessionRequest, String> {
        let Act::Create(created) = typed(line)? else { panic!("{line}") };
        created.request(|key| (key == "KEY").then(|| "ours".to_owned())).map_err(|f| f.to_string())
    }

    #[test]
    fn session_create_flags_are_passed_on() {
        let plain = create_request("create").unwrap();
        assert_eq!((plain.template.as_str(), plain.on_disconnect), ("default", None));
        let full = "create -T py -e A=b -e KEY -m user=ada --config {\"a\":1} --idle-timeout 1500ms \
                    --abort-on-disconnect";
        let full = create_request(full).unwrap();
        assert_eq!((full.template.as_str(), full.idle_timeout_s), ("py", Some(2)));
        assert_eq!((&*full.env["A"], &*full.env["KEY"]), ("b", "ours"));
        assert_eq!(full.metadata["user"], "ada");
        assert_eq!(full.config.unwrap()["a"], 1);
        assert_eq!(full.on_disconnect, Some(OnDisconnect::Abort));
    }

    #[test]
    fn session_refuses_invalid_arguments() {
        for line in ["create --config [1]", "create --file x", "create --file :x", "create -m x"] {
            assert!(create_request(line).is_err(), "{line}");
        }
        for line in ["send", "show no-id", "ls --status sleepy", "end", "history X --events"] {
            assert!(typed(line).is_err(), "{line}");
        }
        assert!(typed(&format!("history {ID} --events")).is_err(), "events are JSON");
    }

    #[test]
    fn session_exec_leaves_flags_after_the_program_alone() {
        let Ok(Act::Exec(ran)) = typed(&format!("exec --cwd /tmp {ID} -- ls -l --json")) else {
            panic!()
        };
        assert_eq!(ran.words, ["ls", "-l", "--json"]);
        let Ok(Act::Exec(ran)) = typed(&format!("exec {ID} ls -l")) else { panic!() };
        assert_eq!(ran.words, ["ls", "-l"]);
    }
}
