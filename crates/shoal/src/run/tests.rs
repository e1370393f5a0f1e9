//! `shoal run` on the fake runtime: exit codes, failures and deadlines. Tests with real sandboxes
//! cover streams and terminals.

use std::time::Duration;

use model::Limits;
use runtime::fake::{FakeRuntime, FakeSettings};
use runtime::{Command, Root, WorkspaceSource};

use super::arguments::RunPlan;
use super::outcome::ProgramOutcome;
use super::run_in_sandbox;
use super::signals::Signals;
use crate::failure::Failure;
use crate::output::{Color, Output};

fn plan(words: &[&str]) -> RunPlan {
    RunPlan {
        image: None,
        command: Command::Argv(words.iter().map(|word| (*word).to_owned()).collect()),
        name: words[0].to_owned(),
        limits: Limits::default(),
        asked: Vec::new(),
        workspace: None,
        env: vec![],
        cwd: None,
        timeout: None,
        stdin: false,
        terminal: false,
        json: false,
    }
}

fn ran(plan: RunPlan) -> Result<ProgramOutcome, Failure> {
    let tokio = crate::native::tokio().unwrap();
    crate::native::block_on(&tokio, async {
        let runtime = FakeRuntime::new(FakeSettings::default());
        let mut signals = Signals::listen().unwrap();
        let output = Output::new(Color::Never);
        run_in_sandbox(&runtime, plan, (Root::Host, WorkspaceSource::Memory), &mut signals, &output)
            .await
    })
}

#[test]
fn run_passes_exit_codes_through() {
    for (words, code) in [(&["true"][..], 0), (&["false"], 1), (&["sh", "-c", "exit 42"], 42)] {
        assert_eq!(ran(plan(words)).unwrap().code(), code, "{words:?}");
    }
}

#[test]
fn run_of_a_missing_program_exits_with_127() {
    assert_eq!(ran(plan(&["no-such-program"])).unwrap_err().exit(), 127);
}

#[test]
fn run_kills_at_its_deadline() {
    let slow = RunPlan { timeout: Some(Duration::from_millis(50)), ..plan(&["sleep", "60"]) };
    let outcome = ran(slow).unwrap();
    assert_eq!(outcome.code(), 137);
    assert!(outcome.words().unwrap().starts_with("timed out"));
}

#[test]
fn run_out_of_memory_exits_with_137_and_a_note() {
    let outcome = ran(plan(&["oom"]));
    let (code, words) = match outcome {
        Ok(outcome) => (outcome.code(), outcome.words().unwrap_or_default()),
        Err(failure) => (failure.exit(), failure.to_string()),
    };
    assert_eq!(code, 137);
    assert!(words.contains("memory"), "{words}");
}
