//! Our own sandboxes, as they take part: a launch, a program in a warm one, a whole run, freezing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use model::Limits;
use runtime::{ExecSpec, Root, Runtime, Sandbox, Sink};
use tokio::time::Instant;

use super::contender::{Contender, Times};
use super::failed;
use super::scratch::PROGRAM_INSIDE;
use command::failure::Failure;
use command::native;

/// Where the binary is in a sandbox that shows the host's programs.
const PROGRAM_IN_WORKSPACE: &str = "/workspace/noop";

/// A program of which only the end counts.
fn silent(argv: &[&str]) -> ExecSpec {
    let spec = ExecSpec::argv(argv.iter().copied());
    ExecSpec { stdout: Sink::Null, stderr: Sink::Null, ..spec }
}

async fn run_to_end(sandbox: &dyn Sandbox, argv: &[&str]) -> Result<(), Failure> {
    let mut process = sandbox.inside().exec(silent(argv)).await.map_err(failed)?;
    let exit = process.wait().await.map_err(failed)?;
    if exit.success() {
        Ok(())
    } else {
        Err(Failure::new("the program to measure failed", format!("{:?}", exit.status)))
    }
}

/// Launches a sandbox; ready is when its guest says so. Removing it is not counted.
pub(crate) struct Launch {
    pub(crate) name: &'static str,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) root: Root,
}

#[async_trait]
impl Contender for Launch {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        // An ordinary user has no groups here.
        let limits = Limits { best_effort: true, ..Limits::default() };
        let spec = runtime::LaunchSpec { root: self.root.clone(), ..native::spec(limits)? };
        let started_at = Instant::now();
        let sandbox = self.runtime.launch(spec).await.map_err(failed)?;
        let took = started_at.elapsed();
        sandbox.kill().await.map_err(failed)?;
        Ok(vec![(self.name, took)])
    }
}

/// Launches a sandbox, runs a program in it, and is done when that has ended.
pub(crate) struct Run {
    pub(crate) name: &'static str,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) root: Root,
    pub(crate) argv: &'static [&'static str],
}

impl Run {
    /// The pinned binary in a root filesystem that has nothing else.
    pub(crate) const PINNED: &'static [&'static str] = &[PROGRAM_INSIDE, "noop"];
}

#[async_trait]
impl Contender for Run {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let spec = native::spec(Limits::default())?;
        let spec = runtime::LaunchSpec { root: self.root.clone(), ..spec };
        let started_at = Instant::now();
        let sandbox = self.runtime.launch(spec).await.map_err(failed)?;
        run_to_end(sandbox.as_ref(), self.argv).await?;
        let took = started_at.elapsed();
        sandbox.kill().await.map_err(failed)?;
        Ok(vec![(self.name, took)])
    }
}

/// A warm sandbox: programs in it, freezing and thawing.
pub(crate) struct Warm {
    sandbox: Arc<dyn Sandbox>,
    freezes: bool,
}

impl Warm {
    pub(crate) async fn launch(runtime: &dyn Runtime) -> Result<Self, Failure> {
        let sandbox = runtime.launch(native::spec(Limits::default())?).await.map_err(failed)?;
        let bytes = guest_image::bytes()
            .map_err(|error| Failure::new("cannot unpack the program to measure", error))?;
        sandbox
            .inside()
            .write_all(PROGRAM_IN_WORKSPACE, &bytes, Some(0o755))
            .await
            .map_err(failed)?;
        Ok(Self { sandbox, freezes: runtime.capabilities().freeze })
    }
}

#[async_trait]
impl Contender for Warm {
    fn name(&self) -> &'static str {
        "exec"
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let sandbox = self.sandbox.as_ref();
        let argv = [PROGRAM_IN_WORKSPACE, "noop"];
        let started_at = Instant::now();
        run_to_end(sandbox, &argv).await?;
        Ok(vec![("exec", started_at.elapsed())])
    }
}

/// The same with its output taken, as most callers want it.
pub(crate) struct Captured(pub(crate) Warm);

#[async_trait]
impl Contender for Captured {
    fn name(&self) -> &'static str {
        "exec, output taken"
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let spec = ExecSpec::argv([PROGRAM_IN_WORKSPACE, "noop"]);
        let limits = runtime::RunLimits { output_bytes: 4096, timeout: Duration::from_secs(10) };
        let started_at = Instant::now();
        self.0.sandbox.inside().run(spec, limits).await.map_err(failed)?;
        Ok(vec![(self.name(), started_at.elapsed())])
    }
}

/// Asking its guest whether it is there: what the way to the guest and back costs, which is in
/// everything else.
pub(crate) struct Ping(pub(crate) Warm);

#[async_trait]
impl Contender for Ping {
    fn name(&self) -> &'static str {
        "ping"
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let started_at = Instant::now();
        self.0.sandbox.inside().ping().await.map_err(failed)?;
        Ok(vec![(self.name(), started_at.elapsed())])
    }
}

/// Freezing and thawing.
pub(crate) struct FreezeThaw(pub(crate) Warm);

#[async_trait]
impl Contender for FreezeThaw {
    fn name(&self) -> &'static str {
        "freeze"
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        if !self.0.freezes {
            return Err(Failure::new("cannot freeze", "this machine cannot; see `shoal doctor`"));
        }
        let sandbox = self.0.sandbox.as_ref();
        let started_at = Instant::now();
        sandbox.freeze().await.map_err(failed)?;
        let frozen_at = Instant::now();
        sandbox.thaw().await.map_err(failed)?;
        let thawed_at = Instant::now();
        Ok(vec![("freeze", frozen_at - started_at), ("thaw", thawed_at - frozen_at)])
    }
}
