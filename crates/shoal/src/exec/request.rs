//! The arguments of `shoal exec`, and the plan made of them: what to run where.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::time::Duration;

use client::ExecRequest;
use model::{SandboxId, SessionId};
use rustix::io::fcntl_getfd;
use wire::CheckoutRequest;

use crate::duration;
use crate::failure::Failure;
use crate::run::When;
use crate::sandbox_request::{SandboxRequest, environment};
use crate::server::Server;

/// Arguments of `shoal exec`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal exec -- python3 -c 'print(1)'          in a warm sandbox, which is returned afterwards\n  \
    shoal exec -T python -- python3 -V           in a warm sandbox of the template python\n  \
    shoal exec SANDBOX -- make test              in a sandbox that you made with `shoal create`\n  \
    shoal exec SANDBOX --shell 'ls | wc -l'\n  \
    echo hello | shoal exec -- tr a-z A-Z\n  \
    shoal exec --json -- true                    the result and the output as JSON, for scripts\n\n\
    `shoal run` needs no server: it makes a sandbox for one program and then removes the sandbox.\n\n\
    Exit codes: that of the program; 128 + the number of the signal that ended the program; 125 if the\n\
    server refused or no server answers; 126 if the program cannot be executed; 127 if the program\n\
    does not exist.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    checkout: SandboxRequest,
    #[command(flatten)]
    program: Program,
    #[command(flatten)]
    pub(super) server: Server,
    /// Sandbox to run the program in; the same as SANDBOX before the program
    #[arg(long = "in", value_name = "SANDBOX", conflicts_with = "template")]
    sandbox: Option<SandboxId>,
    /// The id of a sandbox, if you have one; then the program and its arguments
    #[arg(
        value_name = "[SANDBOX] ARGV",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "shell"
    )]
    words: Vec<String>,
}

impl Arguments {
    /// The command line with `--in SANDBOX`, if our flags follow the sandbox: flags after a program
    /// belong to the program, but flags after a sandbox are ours.
    pub(crate) fn with_flags_after(&self, typed: &[OsString]) -> Option<Vec<OsString>> {
        let id = self.words.first().filter(|word| word.parse::<SandboxId>().is_ok())?;
        self.words.get(1).filter(|word| word.starts_with('-') && *word != "--")?;
        let at = typed.len().checked_sub(self.words.len())?;
        let ended = at.checked_sub(1).and_then(|before| typed.get(before));
        if typed.get(at)? != id.as_str() || ended.is_some_and(|word| word == "--") {
            return None;
        }
        let mut again = typed.to_vec();
        again.insert(at, "--in".into());
        Some(again)
    }
}

/// Flags that describe a program, in a sandbox or a session.
#[derive(Debug, clap::Args)]
pub(crate) struct Program {
    /// Set a variable for the program; KEY alone copies the value from your environment
    #[arg(long = "env", short = 'e', value_name = "KEY[=VALUE]")]
    env: Vec<String>,
    /// Directory in the sandbox to start the program in [default: /workspace]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Kill the program after this time, like 30s or 2m [default: as the template says]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// Read all of your standard input, then start the program with it [default: auto, which means
    /// yes unless standard input is a terminal]
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
    /// Run a shell command line instead of a program
    #[arg(long, value_name = "LINE")]
    shell: Option<String>,
    /// Collect the output and print one JSON object at the end
    #[arg(long)]
    json: bool,
}

impl Program {
    /// The plan to run the program in `target`.
    pub(super) fn plan(
        self,
        target: ExecTarget,
        words: Vec<String>,
        inherited: impl Fn(&str) -> Option<String>,
    ) -> Result<ExecPlan, Failure> {
        let request = match self.shell {
            Some(line) if words.is_empty() => ExecRequest::shell(line),
            Some(_) => {
                return Err(Failure::new("cannot run both", "a program and --shell were given")
                    .remedy("leave one of them out"));
            }
            None if words.is_empty() => {
                return Err(Failure::new("nothing to run", "no program was given")
                    .remedy("shoal exec SANDBOX -- PROGRAM"));
            }
            None => ExecRequest::argv(words),
        };
        let stdin = std::io::stdin();
        let sensible = fcntl_getfd(&stdin).is_ok() && !stdin.is_terminal();
        Ok(ExecPlan {
            target,
            request: ExecRequest {
                cwd: self.cwd,
                env: environment(&self.env, inherited)?.into_iter().collect(),
                timeout_ms: self.timeout.map(|time| time.as_millis() as u64),
                ..request
            },
            stdin: self.stdin.holds(sensible),
            json: self.json,
        })
    }
}

/// Where the command runs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ExecTarget {
    Sandbox(SandboxId),
    Session(SessionId),
    /// A sandbox that is checked out for the program.
    Checkout(CheckoutRequest),
}

/// What to run, and where.
#[derive(Debug)]
pub(super) struct ExecPlan {
    pub(super) target: ExecTarget,
    pub(super) request: ExecRequest,
    /// Whether our standard input is sent.
    pub(super) stdin: bool,
    pub(super) json: bool,
}

impl ExecPlan {
    pub(super) fn of(
        typed: Arguments,
        inherited: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Failure> {
        let mut words = typed.words;
        let first = words.first().and_then(|word| word.parse::<SandboxId>().ok());
        let target = match (typed.sandbox, first, &typed.checkout.template) {
            (Some(id), _, _) => ExecTarget::Sandbox(id),
            (None, Some(id), None) => {
                words.remove(0);
                if words.first().is_some_and(|word| word == "--") {
                    words.remove(0);
                }
                ExecTarget::Sandbox(id)
            }
            (None, _, Some(_)) | (None, None, None) => {
                ExecTarget::Checkout(typed.checkout.request(Vec::new())?)
            }
        };
        if let ExecTarget::Sandbox(id) = &target
            && let Some(flag) = typed.checkout.flag_of_a_new_one()
        {
            return Err(Failure::new(
                format!("cannot use {flag}"),
                format!("it is for a new sandbox, and {id} exists already"),
            )
            .remedy(remedy_for(flag, *id)));
        }
        typed.program.plan(target, words, inherited)
    }
}

/// How to get with a sandbox that exists what a flag is for.
fn remedy_for(flag: &str, id: SandboxId) -> String {
    match flag {
        "--allow" => format!("shoal network allow {id} RULE..."),
        "--no-network" => format!("shoal network block {id}"),
        _ => format!("make one with `shoal create {flag}`"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    const ID: &str = "0192f3a0-0000-7000-8000-000000000001";

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn plan(line: &str) -> Result<ExecPlan, String> {
        let words: Vec<OsString> =
            ["exec"].into_iter().chain(line.split(' ')).map(OsString::from).collect();
        let parse =
            |words: &[OsString]| Typed::try_parse_from(words).map_err(|error| error.to_string());
        let mut typed = parse(&words)?;
        if let Some(again) = typed.arguments.with_flags_after(&words) {
            typed = parse(&again)?;
        }
        ExecPlan::of(typed.arguments, |_| None).map_err(|failure| failure.to_string())
    }

    #[test]
    fn exec_tells_a_sandbox_from_a_program() {
        let sandbox = ExecTarget::Sandbox(ID.parse().unwrap());
        let cases = [
            (format!("{ID} ls -l"), true, vec!["ls", "-l"]),
            (format!("{ID} -- ls -l"), true, vec!["ls", "-l"]),
            ("ls -l --json".to_owned(), false, vec!["ls", "-l", "--json"]),
            ("-- ls -l".to_owned(), false, vec!["ls", "-l"]),
            (format!("-T t {ID} x"), false, vec![ID, "x"]),
            (format!("{ID} --cwd /tmp ls -l"), true, vec!["ls", "-l"]),
            (format!("--cwd /tmp {ID} -e A=b -- ls -l"), true, vec!["ls", "-l"]),
            (format!("--in {ID} ls"), true, vec!["ls"]),
            (format!("echo {ID} -l"), false, vec!["echo", ID, "-l"]),
        ];
        for (line, in_sandbox, argv) in cases {
            let plan = plan(&line).unwrap();
            assert_eq!(plan.target == sandbox, in_sandbox, "{line}");
            let expected: Vec<String> = argv.into_iter().map(str::to_owned).collect();
            assert_eq!(plan.request.argv, Some(expected), "{line}");
            assert!(!plan.json, "{line}");
        }
        for line in [format!("--shell ls {ID}"), format!("{ID} --shell ls --json")] {
            let shell = plan(&line).unwrap();
            assert_eq!(shell.target, sandbox, "{line}");
            assert_eq!(shell.request.command.as_deref(), Some("ls"), "{line}");
        }
    }

    #[test]
    fn exec_flags_of_a_checkout_are_passed_on() {
        let line = "-T py -l a=b --ttl 1500ms --wait 2s -e K=v --timeout 3s --cwd /tmp x";
        let plan = plan(line).unwrap();
        let ExecTarget::Checkout(request) = plan.target else { panic!("{line}") };
        assert_eq!((request.template.as_str(), request.ttl_s), ("py", Some(2)));
        assert_eq!(request.wait_ms, Some(2000));
        assert_eq!(request.labels["a"], "b");
        assert_eq!((plan.request.timeout_ms, &*plan.request.env["K"]), (Some(3000), "v"));
    }

    #[test]
    fn exec_in_a_sandbox_that_exists_refuses_flags_for_a_new_one() {
        for flag in
            ["-l a=b", "--ttl 1h", "--wait 2s", "--allow a.test", "--no-network", "--secret S"]
        {
            for line in [format!("--in {ID} {flag} -- x"), format!("{ID} {flag} -- x")] {
                let said = plan(&line).expect_err(&line);
                let (named, _) = flag.split_once(' ').unwrap_or((flag, ""));
                let named = if named == "-l" { "--label" } else { named };
                assert!(said.contains(named), "{line}: {said}");
            }
        }
    }

    #[test]
    fn exec_refuses_invalid_arguments() {
        for line in [ID, "--shell ls -- ls", "-T Bad x", "-l =b x", "-e =v x", "--timeout 0 x"] {
            assert!(plan(line).is_err(), "{line}");
        }
    }
}
