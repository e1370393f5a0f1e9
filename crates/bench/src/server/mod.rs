//! `bench --server`: what a server adds, beside a bare spawn, in the same rounds.

pub(super) mod containers;
mod engine;
mod http;
mod load;
pub(super) mod network;
pub(crate) mod other_binary;
pub(super) mod processes;
pub(super) mod sessions;
mod test_server;
mod times;

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use self::engine::Engine;
use self::load::Work;
use self::test_server::{Journal, TestServer};
use self::times::{Acquire, AcquireAndExec, Exec, FreezeThaw};
use super::bare_spawn::BareSpawn;
use super::contender::{Contender, compete};
use super::other_runtimes;
use super::report::{BARE, BARE_TRUE, Report};
use super::samples::Pace;
use super::scratch::Scratch;
use super::{BenchPlan, HOST_PROGRAM};
use command::failure::Failure;
use command::output::Output;

/// Promises about times: what, compared with what, and the highest ratio.
pub(super) const RATIOS: [(&str, &str, f64); 5] = [
    (times::ACQUIRE, BARE, 0.30),
    (times::ACQUIRE_MEMORY, BARE, 0.10),
    (times::ACQUIRE_AND_EXEC, BARE_TRUE, 1.4),
    (times::EXEC, BARE, 1.2),
    (times::EXEC_TRUE, BARE_TRUE, 1.2),
];

/// What a server does under load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Load {
    pub(super) untouched_per_s: f64,
    pub(super) one_command_per_s: f64,
    pub(super) exec_per_s: f64,
    /// At half of the untouched rate.
    pub(super) open_loop_per_s: f64,
    pub(super) open_loop_p50_us: f64,
    pub(super) open_loop_p99_us: f64,
    pub(super) rounds: u32,
    pub(super) growth_mb: f64,
}

/// Samples in a row, back to back.
const BURST: u32 = 16;

/// The size of the pool: enough for every client, and for sandboxes that are being replaced.
const POOL: &str = r#"{"name":"default","pool":{"pool_size":48,"max_overflow":16}}"#;

pub(super) async fn measure(
    plan: &BenchPlan,
    scratch: &Scratch,
    report: &mut Report,
    output: &Output,
) -> Result<(), Failure> {
    let durable = start(&plan.shoal, Journal::Durable, &scratch.root()).await?;
    let memory = start(&plan.shoal, Journal::Memory, &scratch.root()).await?;
    output.note("measuring times over HTTP");
    let program = scratch.program();
    let bytes = std::fs::read(&program).map_err(|error| Failure::new("cannot read", error))?;
    let mut all: Vec<Box<dyn Contender>> = vec![
        Box::new(BareSpawn::start(BARE, &program, &program)?),
        Box::new(BareSpawn::start(BARE_TRUE, &program, Path::new(HOST_PROGRAM))?),
        Box::new(Acquire::of(times::ACQUIRE, "default", &durable).await?),
        Box::new(Acquire::of(times::ACQUIRE_MEMORY, "default", &memory).await?),
        Box::new(AcquireAndExec::of(&durable).await?),
        Box::new(Exec::of(&durable, &bytes).await?),
        Box::new(FreezeThaw::of(&durable).await?),
    ];
    let mut other = None;
    if let Some(program) = &plan.against {
        let (served, contenders) = other_binary::start(program, &scratch.root(), &bytes).await?;
        other = Some(served);
        all.extend(contenders);
    }
    // Back to back measures a server whose caches are warm.
    for (pace, burst) in [(Pace::Spaced, 1), (Pace::BackToBack, BURST)] {
        let (samples, skipped) = (&mut report.samples, &mut report.skipped);
        compete(&mut all, pace, plan.rounds, burst, samples, skipped).await;
    }
    drop(all);
    memory.stop().await;
    if let Some(other) = other {
        other.stop().await;
    }
    let load = load(plan, &durable, output).await?;
    durable.stop().await;
    report.load = Some(load);
    Ok(())
}

/// Measures sessions.
pub(super) async fn measure_sessions(
    plan: &BenchPlan,
    scratch: &Scratch,
    report: &mut Report,
    output: &Output,
) -> Result<(), Failure> {
    let served = TestServer::start(&plan.shoal, Journal::Durable, &scratch.root()).await?;
    sessions::prepare(&served).await?;
    output.note("measuring sessions over HTTP");
    let program = scratch.program();
    let mut all: Vec<Box<dyn Contender>> = vec![
        Box::new(BareSpawn::start(BARE, &program, &program)?),
        Box::new(sessions::Create::of(&served).await?),
        Box::new(sessions::Turn::of(&served).await?),
        Box::new(sessions::PauseResume::of(&served).await?),
    ];
    for pace in Pace::ALL {
        let (samples, skipped) = (&mut report.samples, &mut report.skipped);
        compete(&mut all, pace, plan.rounds, 1, samples, skipped).await;
    }
    drop(all);
    served.stop().await;
    Ok(())
}

/// Measures processes, in the dialect of Blaxel.
pub(super) async fn measure_processes(
    plan: &BenchPlan,
    scratch: &Scratch,
    report: &mut Report,
    output: &Output,
) -> Result<(), Failure> {
    let served = start(&plan.shoal, Journal::Durable, &scratch.root()).await?;
    output.note("measuring processes over HTTP");
    let program = scratch.program();
    let mut all: Vec<Box<dyn Contender>> = vec![
        Box::new(BareSpawn::start(BARE, &program, &program)?),
        Box::new(BareSpawn::start(BARE_TRUE, &program, Path::new(HOST_PROGRAM))?),
        Box::new(processes::Exec::of(&served).await?),
        Box::new(processes::Much::of(&served).await?),
        Box::new(processes::Lists::of(&served).await?),
        Box::new(processes::StatFrozen::of(&served).await?),
    ];
    for pace in Pace::ALL {
        let (samples, skipped) = (&mut report.samples, &mut report.skipped);
        compete(&mut all, pace, plan.rounds, 1, samples, skipped).await;
    }
    drop(all);
    output.note("measuring what is done per second");
    let lasting = Duration::from_secs(if plan.quick { 2 } else { 10 });
    report.processes = Some(processes::rates(&served, lasting, plan.quick).await?);
    served.stop().await;
    Ok(())
}

/// Measures containers, compared with native sandboxes and with the engine.
pub(super) async fn measure_containers(
    plan: &BenchPlan,
    scratch: &Scratch,
    report: &mut Report,
    output: &Output,
) -> Result<(), Failure> {
    let engine = Engine::found()?;
    let stay = other_runtimes::docker_stay(scratch).await?;
    let served = TestServer::start(&plan.shoal, Journal::Durable, &scratch.root()).await?;
    output.note("filling pools of containers");
    containers::prepare(&served).await?;
    output.note("measuring containers over HTTP");
    let program = scratch.program();
    let mut all: Vec<Box<dyn Contender>> = vec![
        Box::new(BareSpawn::start(BARE, &program, &program)?),
        Box::new(Acquire::of(containers::NATIVE, "plain", &served).await?),
        Box::new(Acquire::of(containers::DOCKER, "boxed", &served).await?),
        Box::new(containers::Execs::of(&served, engine).await?),
        Box::new(containers::Renewal::of(&served, false).await?),
        Box::new(containers::Renewal::of(&served, true).await?),
        Box::new(containers::Refill::of(&served, stay).await?),
    ];
    for pace in Pace::ALL {
        let (samples, skipped) = (&mut report.samples, &mut report.skipped);
        compete(&mut all, pace, plan.rounds, 1, samples, skipped).await;
    }
    drop(all);
    served.stop().await;
    Ok(())
}

async fn start(program: &Path, kept: Journal, above: &Path) -> Result<TestServer, Failure> {
    let served = TestServer::start(program, kept, above).await?;
    served.connect().await?.json("PUT", "/v1/templates/default", POOL).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(served)
}

async fn load(plan: &BenchPlan, served: &TestServer, output: &Output) -> Result<Load, Failure> {
    let lasting = Duration::from_secs(if plan.quick { 2 } else { 10 });
    output.note("measuring what a server does per second");
    let untouched_per_s = load::rate(served, Work::Untouched, lasting).await?;
    let exec_per_s = load::rate(served, Work::Exec, lasting).await?;
    let one_command_per_s = load::rate(served, Work::OneCommand, lasting).await?;
    let open_loop_per_s = untouched_per_s / 2.0;
    let open = load::open_loop(served, open_loop_per_s, lasting).await?;
    let us = |percent| open.percentile(percent).map_or(0.0, |time| time.as_secs_f64() * 1e6);
    output.note("measuring whether its memory stays where it is");
    let rounds = if plan.quick { 50_000 } else { 1_000_000 };
    let growth_mb = load::growth_mb(served, rounds).await?;
    Ok(Load {
        untouched_per_s,
        one_command_per_s,
        exec_per_s,
        open_loop_per_s,
        open_loop_p50_us: us(50),
        open_loop_p99_us: us(99),
        rounds,
        growth_mb,
    })
}
