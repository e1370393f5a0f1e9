//! The arguments of `shoal run`, and the plan made of them, which is checked and complete. No other
//! file reads the arguments.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use model::Limits;
use runtime::Command;

use crate::duration;
use crate::failure::Failure;
use crate::sandbox_request::environment;

/// Arguments of `shoal run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
        shoal run -- python3 -c 'print(1)'\n  \
        shoal run --shell 'for i in 1 2 3; do echo $i; done'\n  \
        echo hello | shoal run -- tr a-z A-Z\n  \
        shoal run -t -- bash                        a shell at your terminal\n  \
        shoal run --memory 128 --timeout 10s --env KEY=value -- node app.js\n  \
        shoal run --workspace ./project -- make     /workspace is your own directory\n  \
        shoal run --image debian -- apt list        the programs of an image: see `shoal image`\n  \
        shoal run --json -- true                    the result and the output as JSON, for scripts\n\n\
        `shoal run` needs no server and leaves nothing behind. `shoal exec` instead runs a program in a\n\
        sandbox of a running server: a warm sandbox, or one that already has your files.\n\n\
        Exit codes: that of the program; 128 + the number of the signal that ended the program; 125 if\n\
        shoal itself failed; 126 if the program cannot be executed; 127 if the program does not exist.")]
pub(crate) struct Arguments {
    /// Image to use as root, by name or id [default: this machine's own programs]
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Memory that the sandbox may use, in megabytes
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u32).range(4..))]
    memory: Option<u32>,
    /// Processor time that the sandbox may use, in thousandths of a processor
    #[arg(long, value_name = "MILLI", value_parser = clap::value_parser!(u32).range(10..))]
    cpu: Option<u32>,
    /// How many processes and threads the sandbox may have
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pids: Option<u32>,
    /// Size of a /workspace in memory, in megabytes; not with --workspace
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    workspace_mb: Option<u32>,
    /// Directory of this machine to use as /workspace [default: in memory, and deleted afterwards]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Set a variable for the program; KEY alone copies the value from your environment
    #[arg(long = "env", short = 'e', value_name = "KEY[=VALUE]")]
    env: Vec<String>,
    /// Directory in the sandbox to start the program in [default: /workspace]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Kill the program after this time, like 30s or 2m
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// Pass your standard input to the program [default: auto, which means yes if it is open]
    #[arg(
        long,
        short = 'i',
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "yes",
        default_value = "auto",
        hide_default_value = true
    )]
    stdin: When,
    /// Give the program a terminal [default: auto, which means yes if shoal runs in a terminal]
    #[arg(
        long,
        short = 't',
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "yes",
        default_value = "auto",
        hide_default_value = true
    )]
    tty: When,
    /// Run a shell command line instead of a program
    #[arg(long, value_name = "LINE", conflicts_with = "argv")]
    shell: Option<String>,
    /// Collect the output and print one JSON object at the end
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(
        value_name = "ARGV",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "shell"
    )]
    argv: Vec<String>,
}

/// Whether to do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// If it makes sense.
    Auto,
    /// In any case.
    Yes,
    /// Not at all.
    No,
}

/// Our standard input and output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StdioContext {
    /// Standard input is open.
    pub(crate) stdin_open: bool,
    /// Standard input is a terminal.
    pub(crate) stdin_terminal: bool,
    /// Standard output is a terminal.
    pub(crate) stdout_terminal: bool,
}

/// What to run, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunPlan {
    pub(crate) command: Command,
    /// How it is called in messages.
    pub(crate) name: String,
    /// The name or id of the image that is the root.
    pub(crate) image: Option<String>,
    pub(crate) limits: Limits,
    /// The limits that were given: names and flags.
    pub(crate) asked: Vec<(&'static str, &'static str)>,
    pub(crate) workspace: Option<PathBuf>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: Option<String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) stdin: bool,
    pub(crate) terminal: bool,
    pub(crate) json: bool,
}

impl RunPlan {
    pub(crate) fn of(
        typed: Arguments,
        stdio: StdioContext,
        inherited: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Failure> {
        let mut limits = Limits::default();
        limits.memory_mb = typed.memory.unwrap_or(limits.memory_mb);
        limits.cpu_milli = typed.cpu.unwrap_or(limits.cpu_milli);
        limits.pids = typed.pids.unwrap_or(limits.pids);
        // A default limit may be missing. A limit that was given is checked before the launch.
        limits.best_effort = true;
        let asked = [
            ("memory_mb", "--memory", typed.memory),
            ("cpu_milli", "--cpu", typed.cpu),
            ("pids", "--pids", typed.pids),
        ];
        let asked = asked
            .into_iter()
            .filter(|(_, _, value)| value.is_some())
            .map(|(name, flag, _)| (name, flag))
            .collect();
        limits.workspace_mb = typed.workspace_mb.unwrap_or(limits.workspace_mb);
        let at_terminal = stdio.stdin_terminal && stdio.stdout_terminal;
        let terminal = !typed.json && typed.tty.holds(at_terminal);
        if typed.json && typed.tty == When::Yes {
            return Err(Failure::new(
                "cannot combine --json and --tty",
                "a terminal has one stream",
            )
            .remedy("leave one of them out"));
        }
        let stdin = typed
            .stdin
            .holds(stdio.stdin_open && (terminal || !typed.json || !stdio.stdin_terminal));
        let (command, name) = if let Some(line) = typed.shell {
            (Command::Shell(line), "sh".to_owned())
        } else {
            let name = typed.argv.first().cloned().unwrap_or_default();
            (Command::Argv(typed.argv), name)
        };
        if name.is_empty() {
            return Err(Failure::new("nothing to run", "the name of the program is empty"));
        }
        if let Some(cwd) = typed.cwd.as_deref().filter(|cwd| !cwd.starts_with('/')) {
            return Err(Failure::new(format!("cannot start in {cwd}"), "the path is not absolute")
                .remedy("give a path in the sandbox, like /workspace"));
        }
        let mut env = environment(&typed.env, &inherited)?;
        // A program in our terminal must know its type.
        if terminal && !env.iter().any(|(key, _)| key == "TERM") {
            env.extend(inherited("TERM").map(|kind| ("TERM".to_owned(), kind)));
        }
        Ok(Self {
            command,
            name,
            image: typed.image,
            limits,
            asked,
            workspace: typed.workspace,
            env,
            cwd: typed.cwd,
            timeout: typed.timeout,
            stdin,
            terminal,
            json: typed.json,
        })
    }
}

impl When {
    pub(crate) const fn holds(self, sensible: bool) -> bool {
        match self {
            Self::Auto => sensible,
            Self::Yes => true,
            Self::No => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        arguments: Arguments,
    }

    const SCRIPT: StdioContext =
        StdioContext { stdin_open: true, stdin_terminal: false, stdout_terminal: false };
    const PERSON: StdioContext =
        StdioContext { stdin_open: true, stdin_terminal: true, stdout_terminal: true };

    fn plan(line: &str, stdio: StdioContext) -> Result<RunPlan, String> {
        let words = ["run"].into_iter().chain(line.split(' '));
        let typed = Typed::try_parse_from(words).map_err(|error| error.to_string())?;
        let inherited = |key: &str| match key {
            "HOME" => Some("/root".to_owned()),
            "TERM" => Some("vt100".to_owned()),
            _ => None,
        };
        RunPlan::of(typed.arguments, stdio, inherited).map_err(|failure| failure.to_string())
    }

    fn argv(words: &[&str]) -> Command {
        Command::Argv(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn run_leaves_flags_after_the_program_alone() {
        for line in ["ls -l --json", "-- ls -l --json"] {
            let plan = plan(line, SCRIPT).unwrap();
            assert_eq!(plan.command, argv(&["ls", "-l", "--json"]), "{line}");
            assert!(!plan.json);
        }
        assert_eq!(plan("--shell ls", SCRIPT).unwrap().command, Command::Shell("ls".into()));
        assert!(plan("--shell ls -- ls", SCRIPT).is_err());
        assert!(plan("--memory 64", SCRIPT).is_err(), "nothing to run");
    }

    #[test]
    fn run_gives_a_terminal_in_a_terminal_and_on_request() {
        let cases = [
            ("x", PERSON, true, true),
            ("x", SCRIPT, false, true),
            ("-t x", SCRIPT, true, true),
            ("-it x", SCRIPT, true, true),
            ("--tty=no x", PERSON, false, true),
            ("--tty=no --stdin=no x", PERSON, false, false),
            ("--json x", PERSON, false, false),
            ("--json x", SCRIPT, false, true),
            ("x", StdioContext { stdin_open: false, ..SCRIPT }, false, false),
        ];
        for (line, stdio, terminal, stdin) in cases {
            let plan = plan(line, stdio).unwrap();
            assert_eq!((plan.terminal, plan.stdin), (terminal, stdin), "{line} {stdio:?}");
        }
        assert!(plan("--json -t x", PERSON).is_err());
        let term = |line| plan(line, PERSON).unwrap().env.iter().any(|(key, _)| key == "TERM");
        assert!(term("x") && !term("--tty=no x"));
    }

    #[test]
    fn run_parses_environment_and_limits() {
        let plan = plan("-e A=b=c -e HOME -e NONE -e E= --memory 64 --cpu 500 --pids 9 x", SCRIPT);
        let plan = plan.unwrap();
        let expected = [("A", "b=c"), ("HOME", "/root"), ("E", "")];
        assert_eq!(plan.env, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        let limits = (plan.limits.memory_mb, plan.limits.cpu_milli, plan.limits.pids);
        assert_eq!(limits, (64, 500, 9));
    }

    #[test]
    fn run_refuses_invalid_arguments() {
        for line in
            ["--memory 0 x", "--cpu 1 x", "--pids 0 x", "-e =v x", "--cwd a x", "--timeout 0 x"]
        {
            assert!(plan(line, SCRIPT).is_err(), "{line}");
        }
    }
}
