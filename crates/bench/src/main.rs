//! `cargo run --release -p bench`: how fast sandboxes are, beside a bare spawn and beside others.
//! Gates are ratios inside one run, because absolute times vary with the load of the machine and
//! ratios hardly do.

mod bare_spawn;
mod contender;
mod other_runtimes;
mod rates;
mod report;
mod samples;
mod sandboxes;
mod scratch;
mod server;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser as _;
use command::failure::Failure;
use command::native::{self, Settings};
use command::output::{Color, Output};
use jail::groups::Version;
use jail::machine::Machine;
use runtime::native::NetworkMode;
use runtime::{Root, Runtime, RuntimeError};
use serde_json::json;

use self::bare_spawn::BareSpawn;
use self::contender::{Contender, Skipped, compete};
use self::report::{BARE, BARE_TRUE, Report};
use self::samples::Pace;
use self::sandboxes::{Captured, FreezeThaw, Launch, Ping, Run, Warm};
use self::scratch::Scratch;

/// The usual launch.
const HOST_ROOT: &str = "launch, spare network";
/// A user id that no machine has.
const ORDINARY_USER: u32 = 64_999;
/// A program of the host, as users run it.
const HOST_PROGRAM: &str = "/usr/bin/true";
const CONCURRENCIES: [u32; 3] = [1, 2, 8];
/// Slots besides those of the counted sandboxes.
const SLOTS_EXTRA: u32 = 64;

/// Arguments of the benchmark.
#[derive(Debug, clap::Parser)]
#[command(
    name = "bench",
    about,
    after_help = "Examples:\n  \
    sudo target/release/bench                       everything, a few minutes\n  \
    sudo target/release/bench --quick               a first impression\n  \
    sudo target/release/bench --only exec           one thing and what it is compared with\n  \
    sudo target/release/bench --only memory --sandboxes 200\n  \
    sudo target/release/bench --server              a server of its own: acquire, exec, rates, memory\n  \
    sudo target/release/bench --processes           commands, logs, lists and waking, in the dialect of Blaxel\n  \
    sudo target/release/bench --containers          a Docker pool beside a native one and beside the engine\n  \
    sudo target/release/bench --network             the way out: connections, bytes, policies, memory\n  \
    sudo target/release/bench --json > bench.json   for scripts\n\n\
    Names for --only: times, rates, memory, stdout, or part of a name in the table of times.\n\
    The exit code is 0 whatever the numbers are; `gates` in the JSON says which promises are kept."
)]
struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Fewer rounds
    #[arg(long)]
    quick: bool,
    /// Measure a server instead: what it adds, and what it does per second
    #[arg(long, conflicts_with = "only")]
    server: bool,
    /// Measure sessions instead: turns, pause and resume, beside what Ash publishes
    #[arg(long, conflicts_with_all = ["only", "server"])]
    sessions: bool,
    /// Measure processes instead: commands, logs, lists and waking, beside Blaxel's own server
    #[arg(long, conflicts_with_all = ["only", "server", "sessions"])]
    processes: bool,
    /// Measure containers instead: checkout, exec, wipe and refill of a Docker pool, beside the
    /// engine
    #[arg(long, conflicts_with_all = ["only", "server", "sessions", "processes"])]
    containers: bool,
    /// Measure the way out instead: connections, requests and bytes beside direct ones, policies
    #[arg(long, conflicts_with_all = ["server", "sessions", "processes", "containers"])]
    network: bool,
    /// Measure only this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Rounds with pauses; back to back there are four times as many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: Option<u32>,
    /// The program whose servers are measured; the one beside this program if not given
    #[arg(long, value_name = "PATH")]
    shoal: Option<PathBuf>,
    /// Another program, measured in turn with it: what a change costs, as a ratio
    #[arg(long, value_name = "PATH", requires = "server")]
    against: Option<PathBuf>,
    /// How many idle sandboxes to launch to measure their memory
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=8000))]
    sandboxes: u32,
}

/// What to measure.
struct BenchPlan {
    quick: bool,
    only: Option<String>,
    rounds: u32,
    launches: u32,
    sandboxes: u32,
    megabytes: u32,
    /// The program whose servers are measured.
    shoal: PathBuf,
    against: Option<PathBuf>,
}

impl BenchPlan {
    fn of(typed: &Arguments) -> Self {
        let (rounds, launches, megabytes) =
            if typed.quick { (12, 60, 1000) } else { (60, 300, 4000) };
        Self {
            quick: typed.quick,
            only: typed.only.clone(),
            rounds: typed.rounds.unwrap_or(rounds),
            launches,
            sandboxes: typed.sandboxes,
            megabytes,
            shoal: typed.shoal.clone().unwrap_or_else(beside_us),
            against: typed.against.clone(),
        }
    }

    /// Whether a section with these names is selected.
    fn wants(&self, section: &str) -> bool {
        const SECTIONS: [&str; 4] = ["times", "rates", "memory", "stdout"];
        match self.only.as_deref() {
            None => true,
            Some(only) if SECTIONS.contains(&only) => only == section,
            Some(_) => section == "times",
        }
    }

    /// Whether a contender is selected.
    fn wants_contender(&self, name: &str) -> bool {
        let chosen = |only: &str| only == "times" || name.contains(only) || name == BARE;
        self.only.as_deref().is_none_or(chosen)
    }
}

/// The path of the built program.
fn beside_us() -> PathBuf {
    let us = std::env::current_exe().unwrap_or_default();
    us.with_file_name("shoal")
}

fn main() -> ExitCode {
    if let Some(code) = server::network::client::main_of_client() {
        return code;
    }
    let (typed, output) = (Arguments::parse(), Output::new(Color::Auto));
    match measure(&typed, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(&output),
    }
}

fn measure(typed: &Arguments, output: &Output) -> Result<(), Failure> {
    let plan = BenchPlan::of(typed);
    let scratch = Scratch::make()?;
    let found = Machine::probe();
    let v1_limits = found.cgroups.hierarchies().iter().any(|one| one.version == Version::V1);
    let machine = json!({
        "kernel": found.release,
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "memory_mb": found.memory_bytes >> 20,
    });
    let mut report = Report { machine, v1_limits, ..Report::default() };
    if typed.server {
        let tokio = native::tokio_of_one_thread()?;
        native::block_on(&tokio, server::measure(&plan, &scratch, &mut report, output))?;
    } else if typed.sessions {
        let tokio = native::tokio_of_one_thread()?;
        native::block_on(&tokio, server::measure_sessions(&plan, &scratch, &mut report, output))?;
    } else if typed.processes {
        let tokio = native::tokio_of_one_thread()?;
        native::block_on(&tokio, server::measure_processes(&plan, &scratch, &mut report, output))?;
    } else if typed.containers {
        let tokio = native::tokio_of_one_thread()?;
        native::block_on(&tokio, server::measure_containers(&plan, &scratch, &mut report, output))?;
    } else if typed.network {
        let tokio = native::tokio_of_one_thread()?;
        let measured = server::network::measure(&plan, &scratch, &mut report, output);
        native::block_on(&tokio, measured)?;
    } else {
        sandboxes_alone(&plan, &scratch, &mut report, output)?;
    }
    if typed.json {
        output.say_json(&report.json());
    } else {
        report.print(output);
    }
    Ok(())
}

/// Measures everything that needs no server.
fn sandboxes_alone(
    plan: &BenchPlan,
    scratch: &Scratch,
    report: &mut Report,
    output: &Output,
) -> Result<(), Failure> {
    if plan.wants("times") {
        output.note("measuring times");
        let tokio = native::tokio_of_one_thread()?;
        native::block_on(&tokio, times(plan, scratch, report))?;
    }
    let tokio = native::tokio()?;
    native::block_on(&tokio, counts(plan, report, output))
}

/// Measures rates, memory and throughput.
async fn counts(plan: &BenchPlan, report: &mut Report, output: &Output) -> Result<(), Failure> {
    if plan.wants("rates") {
        for (name, network) in [
            ("shared", NetworkMode::Shared),
            ("fresh", NetworkMode::Fresh),
            ("spare", NetworkMode::Spare),
        ] {
            output.note(&format!("measuring launches with a {name} network"));
            let opened = open(network, plan.launches + SLOTS_EXTRA, true, None).await?;
            for concurrency in CONCURRENCIES {
                let rate = rates::launches(&opened, name, concurrency, plan.launches).await?;
                report.rates.push(rate);
            }
            close(&opened).await?;
        }
    }
    if plan.wants("memory") {
        for limits in [true, false] {
            output.note(&format!("measuring the memory of {} sandboxes", plan.sandboxes));
            let opened =
                open(NetworkMode::Spare, plan.sandboxes + SLOTS_EXTRA, limits, None).await?;
            report.footprints.push(rates::footprint(&opened, limits, plan.sandboxes).await?);
            close(&opened).await?;
        }
    }
    if plan.wants("stdout") {
        output.note("measuring output");
        let opened = open(NetworkMode::Shared, SLOTS_EXTRA, true, None).await?;
        report.throughput = Some(rates::throughput(&opened, plan.megabytes, 3).await?);
        close(&opened).await?;
    }
    Ok(())
}

/// Measures times; all contenders take turns.
async fn times(plan: &BenchPlan, scratch: &Scratch, report: &mut Report) -> Result<(), Failure> {
    let pinned = Root::Directory(scratch::ROOT.to_owned());
    let directory = Some(scratch.directory().to_owned());
    let spare = open(NetworkMode::Spare, SLOTS_EXTRA, true, directory).await?;
    let fresh = open(NetworkMode::Fresh, SLOTS_EXTRA, true, None).await?;
    let shared = open(NetworkMode::Shared, SLOTS_EXTRA, true, None).await?;
    let user = open_as_user(scratch).await?;
    let program = scratch.program();
    let mut all: Vec<Box<dyn Contender>> = vec![
        Box::new(BareSpawn::start(BARE, &program, &program)?),
        Box::new(BareSpawn::start(BARE_TRUE, &program, Path::new(HOST_PROGRAM))?),
        Box::new(Warm::launch(spare.as_ref()).await?),
        Box::new(Captured(Warm::launch(spare.as_ref()).await?)),
        Box::new(Ping(Warm::launch(spare.as_ref()).await?)),
        Box::new(FreezeThaw(Warm::launch(spare.as_ref()).await?)),
    ];
    for (name, runtime, root) in [
        (HOST_ROOT, &spare, &Root::Host),
        ("launch, fresh network", &fresh, &Root::Host),
        ("launch, shared network", &shared, &Root::Host),
        ("launch, brought root", &spare, &pinned),
        ("launch, ordinary user", &user, &Root::Host),
    ] {
        let (runtime, root) = (Arc::clone(runtime), root.clone());
        all.push(Box::new(Launch { name, runtime, root }));
    }
    for (name, root, argv) in
        [("run", pinned, Run::PINNED), ("run true", Root::Host, &[HOST_PROGRAM][..])]
    {
        all.push(Box::new(Run { name, runtime: Arc::clone(&spare), root, argv }));
    }
    all.extend(other_runtimes::found(scratch, &mut report.skipped).await);
    all.retain(|contender| plan.wants_contender(contender.name()));
    if all.len() <= 1 {
        let only = plan.only.clone().unwrap_or_default();
        report.skipped.push(Skipped { name: only, why: "nothing has this name".to_owned() });
    }
    for (pace, rounds) in [(Pace::Spaced, plan.rounds), (Pace::BackToBack, plan.rounds * 4)] {
        compete(&mut all, pace, rounds, 1, &mut report.samples, &mut report.skipped).await;
    }
    for contender in &mut all {
        contender.close().await;
    }
    drop(all);
    for opened in [spare, fresh, shared, user] {
        close(&opened).await?;
    }
    Ok(())
}

async fn open(
    network: NetworkMode,
    slots: u32,
    limits: bool,
    directory: Option<PathBuf>,
) -> Result<Arc<dyn Runtime>, Failure> {
    let settings = Settings {
        slots,
        spares: 8,
        network,
        limits,
        workspace: None,
        directory,
        images: None,
        user: None,
    };
    native::open(settings).await
}

/// The same as an ordinary user, if we are root.
async fn open_as_user(scratch: &Scratch) -> Result<Arc<dyn Runtime>, Failure> {
    let user = rustix::process::geteuid().is_root().then_some(ORDINARY_USER);
    let directory = scratch
        .open_to(ORDINARY_USER)
        .map_err(|error| Failure::new("cannot make a directory for another user", error))?;
    native::open(Settings {
        slots: SLOTS_EXTRA,
        spares: 8,
        network: NetworkMode::Spare,
        limits: true,
        workspace: None,
        directory: None,
        images: None,
        user: user.map(|user| (user, directory)),
    })
    .await
}

async fn close(opened: &Arc<dyn Runtime>) -> Result<(), Failure> {
    opened.shutdown().await.map_err(|error| Failure::of_runtime("cannot clean up", &error))
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` wants")]
fn failed(error: RuntimeError) -> Failure {
    Failure::of_runtime("cannot measure", &error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_chooses_a_section_or_a_contender() {
        let plan = |only: &str| BenchPlan {
            quick: true,
            only: Some(only.to_owned()),
            rounds: 1,
            launches: 1,
            sandboxes: 1,
            megabytes: 1,
            shoal: PathBuf::new(),
            against: None,
        };
        assert!(plan("rates").wants("rates") && !plan("rates").wants("times"));
        assert!(plan("exec").wants("times") && !plan("exec").wants("memory"));
        let exec = plan("exec");
        let chosen =
            ["bare", "exec", "docker exec", "launch"].map(|name| exec.wants_contender(name));
        assert_eq!(chosen, [true, true, true, false]);
    }
}
