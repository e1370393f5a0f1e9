//! Sandboxes in containers against the attacks of the native tests: the probe of everything
//! outside, and what one user leaves for the next or shows to a neighbour. Weaknesses that
//! containers have and native sandboxes do not are listed here.

mod between_users;
mod escape_attempts;
mod networks;
mod policies;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use model::{InstanceId, Template, TemplateName};
use runtime::docker::{self as engine, DockerConfig, Endpoint};
use runtime::oci::{self, OciConfig, Program};
use runtime::{ExecSpec, LaunchSpec, RunLimits, Runtime, Sandbox};

use crate::native::skip;

const LIMITS: RunLimits = RunLimits { output_bytes: 1 << 20, timeout: Duration::from_secs(50) };

/// What isolates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Docker,
    Runc,
    Runsc,
}

/// Where a runtime of this test has what it needs.
fn place(kind: Kind) -> PathBuf {
    let name = format!("probe-{}-{kind:?}", std::process::id()).to_lowercase();
    std::env::temp_dir().join(name)
}

/// A runtime of its own, or why there is none.
async fn start(kind: Kind) -> Result<Option<Arc<dyn Runtime>>> {
    let place = place(kind);
    let name = place.file_name().and_then(|name| name.to_str()).context("text")?.to_owned();
    let program = match kind {
        Kind::Docker => {
            let Some(host) = std::env::var_os("DOCKER_HOST") else {
                return skip("no Docker engine (DOCKER_HOST)").map(|()| None);
            };
            let endpoint = Endpoint::parse(host.to_str().context("text")?)?;
            return Ok(Some(engine::start(DockerConfig::new(endpoint, name, "1", place)).await?));
        }
        Kind::Runc => Program::Runc,
        Kind::Runsc => Program::Runsc,
    };
    let config = OciConfig::new(program, place);
    if config.found().is_none() || !rustix::process::geteuid().is_root() {
        return skip(&format!("no {}", program.as_str())).map(|()| None);
    }
    Ok(Some(oci::start(config).await?))
}

async fn sandbox(runtime: &dyn Runtime, number: u128) -> Result<Arc<dyn Sandbox>> {
    let template = Template::named(TemplateName::new("probe")?);
    let instance = u128::from(std::process::id()) << 64 | number;
    Ok(runtime.launch(LaunchSpec::of(&template, InstanceId::from_u128(instance))).await?)
}

async fn python(sandbox: &dyn Sandbox, program: &str, given: &str) -> Result<String> {
    let ran =
        sandbox.inside().run(ExecSpec::argv(["python3", "-c", program, given]), LIMITS).await?;
    let (said, wrong) = (String::from_utf8(ran.stdout)?, String::from_utf8_lossy(&ran.stderr));
    ensure!(ran.exit.success(), "{said}\n{wrong}");
    Ok(said)
}

macro_rules! over_kinds {
    ($case:ident as $name:ident: $($module:ident $kind:ident)+) => {
        mod $name {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $module() -> anyhow::Result<()> {
                super::$case(crate::contained::Kind::$kind).await
            })+
        }
    };
}
use over_kinds;
