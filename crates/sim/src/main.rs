//! The command line of the simulator. Standard output depends on the arguments alone; progress and
//! timing go to standard error.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a command line program")]

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Parser;
use sim::Flaw;
use sim::choices::Choices;
use sim::run::{Plan, Run, Total, run, run_many};
use sim::shrink::{MOST_RUNS, replay_plan, shrink};

const EXAMPLES: &str = "\
Examples:
  sim --seeds 1000               a thousand worlds, with counts of what happened
  sim --seeds 50000 --quiet      more of them, with one line at the end
  sim --seed 42                  the whole trace of one world
  sim --start 1000 --seeds 10 --steps 10000
                                 ten others, and longer
  sim --flaw lifo-waiters        a kernel broken on purpose (build with --features flaws)";

/// Runs the kernel in simulated worlds and checks every promise on every step.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Arguments {
    /// How many worlds to run.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first random seed.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Run this world alone and print its trace.
    #[arg(long)]
    seed: Option<u64>,
    /// Steps of each world.
    #[arg(long, default_value_t = 2_000)]
    steps: u32,
    /// Break the kernel on purpose, to see whether it is noticed.
    #[arg(long)]
    flaw: Option<String>,
    /// How many worlds to run at once.
    #[arg(long)]
    jobs: Option<usize>,
    /// Print only the summary line.
    #[arg(long)]
    quiet: bool,
    /// Show a failing run as it is, without shortening it.
    #[arg(long)]
    no_shrink: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let flaw = arguments.flaw.as_deref().map(flaw_named).transpose()?;
    let plan = Plan { steps: arguments.steps, flaw, rest: true, trace: false };
    if let Some(seed) = arguments.seed {
        let run = run(Choices::seeded(seed), Plan { trace: true, ..plan });
        for line in &run.lines {
            println!("{line}");
        }
        println!("seed {seed}: {} steps, digest {:016x}", run.steps, run.digest);
        return Ok(report_violation(&arguments, seed, &run, plan, false));
    }
    #[expect(clippy::disallowed_methods, reason = "the duration is shown to people only")]
    let began = Instant::now();
    let total = with_progress(&arguments, plan);
    let took = began.elapsed();
    println!("{} seeds, {} steps, digest {:016x}", total.seeds, total.steps, total.digest);
    if !arguments.quiet {
        total.coverage.lines().iter().for_each(|line| println!("{line}"));
    }
    let per_s = u128::from(total.steps) * 1_000_000 / took.as_micros().max(1);
    eprintln!("{:.1} s, {per_s} steps/s", took.as_secs_f64());
    Ok(match &total.first {
        Some((seed, run)) => report_violation(&arguments, *seed, run, plan, !arguments.no_shrink),
        None => ExitCode::SUCCESS,
    })
}

fn flaw_named(name: &str) -> Result<Flaw> {
    anyhow::ensure!(cfg!(feature = "flaws"), "--flaw needs a build with --features flaws");
    Flaw::ALL
        .iter()
        .copied()
        .find(|flaw| flaw.as_str() == name)
        .with_context(|| format!("no flaw is called {name}"))
}

fn with_progress(arguments: &Arguments, plan: Plan) -> Total {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let jobs = arguments.jobs.unwrap_or(cores);
    let done = AtomicU64::new(0);
    let finished = AtomicU64::new(0);
    let shown = !arguments.quiet && std::io::stderr().is_terminal();
    thread::scope(|scope| {
        if shown {
            scope.spawn(|| {
                while finished.load(Ordering::Relaxed) == 0 {
                    eprint!("\r{} of {} worlds", done.load(Ordering::Relaxed), arguments.seeds);
                    thread::sleep(Duration::from_millis(200));
                }
                eprintln!();
            });
        }
        let total = run_many(arguments.start, arguments.seeds, jobs, plan, &done);
        finished.store(1, Ordering::Relaxed);
        total
    })
}

/// Prints a broken promise, if there is one.
fn report_violation(
    arguments: &Arguments,
    seed: u64,
    found: &Run,
    plan: Plan,
    short: bool,
) -> ExitCode {
    let Some((step, violation)) = &found.violation else { return ExitCode::SUCCESS };
    println!("\nBROKEN in seed {seed} at step {step}: {violation}");
    if short {
        let best = shrink(found, violation.promise, plan, MOST_RUNS);
        let rest = *step > plan.steps;
        let again = Plan { trace: true, ..replay_plan(&best, rest, plan) };
        let run = run(Choices::listed(best), again);
        println!("shortened to {} steps:", run.steps);
        run.lines.iter().for_each(|line| println!("{line}"));
        if let Some((step, violation)) = &run.violation {
            println!("{step:>5} BROKEN: {violation}");
        }
    }
    let flaw = match &arguments.flaw {
        Some(name) => format!(" --flaw {name}"),
        None => String::new(),
    };
    let features = if arguments.flaw.is_some() { " --features flaws" } else { "" };
    println!(
        "replay: cargo run --release -p sim{features} -- --seed {seed} --steps {}{flaw}",
        arguments.steps
    );
    ExitCode::FAILURE
}
