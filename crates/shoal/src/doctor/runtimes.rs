//! Which runtimes templates can choose on this machine, and why not the others. The doctor runs one
//! container with each installed OCI program. It only asks a Docker engine for its version, because
//! the engine may belong to other people.

use std::sync::Arc;
use std::time::Duration;

use model::template::{Recycle, RuntimeKind};
use runtime::docker::{self, Endpoint};
use runtime::oci::{self, OciConfig, Program};
use runtime::{NetworkAbility, Runtime, RuntimeError, RuntimeErrorCode};
use serde::Serialize;
use tokio::time::timeout;

use super::host_checks::{Finding, State};
use super::{TRIAL_TIMEOUT, try_one};
use crate::config::{Config, Enabled};
use crate::duration;
use crate::failure::Failure;
use crate::native;

const AS_ROOT: &str =
    "run the doctor as root (sudo shoal doctor); the server must run as root, too";
const SEE_CAUSE: &str = "run the program by itself to see its messages, or choose another runtime";

/// What the doctor found about one runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// Its name in a template.
    pub(crate) runtime: &'static str,
    pub(crate) state: State,
    pub(crate) why: String,
    pub(crate) remedy: Option<String>,
    /// What happens to used sandboxes, if that is known.
    pub(crate) recycle: Option<Recycle>,
}

impl Report {
    fn yes(kind: RuntimeKind, why: impl Into<String>, recycle: Option<Recycle>) -> Self {
        let (runtime, why) = (kind.as_str(), why.into());
        Self { runtime, state: State::Yes, why, remedy: None, recycle }
    }

    fn no(kind: RuntimeKind, why: impl Into<String>, remedy: &str) -> Self {
        let (runtime, why) = (kind.as_str(), why.into());
        let remedy = Some(remedy.to_owned());
        Self { runtime, state: State::No, why, remedy, recycle: None }
    }
}

/// A report on each runtime, the native one first: its findings are given.
pub(super) async fn reports(config: &Config, findings: &[Finding], trial: bool) -> Vec<Report> {
    let mut all = vec![native(findings, trial), docker(config).await];
    for program in Program::ALL {
        all.push(oci(config, program, trial).await);
    }
    all
}

fn native(findings: &[Finding], trial: bool) -> Report {
    let kind = RuntimeKind::Native;
    if let Some(found) = findings.iter().find(|found| found.is_fatal()) {
        let why = format!("{}: {}", found.name, found.why);
        return Report::no(kind, why, found.remedy.as_deref().unwrap_or("see the findings above"));
    }
    let why = if trial {
        "a trial sandbox worked"
    } else {
        "the checks above passed; no trial sandbox was started because of --no-trial"
    };
    Report::yes(kind, why, Some(Recycle::Recreate))
}

async fn docker(config: &Config) -> Report {
    let kind = RuntimeKind::Docker;
    let settings = &config.docker;
    if settings.enabled == Enabled::No {
        return Report::no(kind, "docker.enabled is no", "set docker.enabled to auto or yes");
    }
    let endpoint = match &settings.host {
        Some(host) => Endpoint::parse(host),
        None => Endpoint::usual(),
    };
    let endpoint = match endpoint {
        Ok(endpoint) => endpoint,
        Err(error) => {
            let remedy = "set docker.host or DOCKER_HOST to unix:///PATH or tcp://HOST:PORT";
            return Report::no(kind, error.cause, remedy);
        }
    };
    match docker::probe(&endpoint, settings.link.into()).await {
        Ok(found) => {
            let (recycle, uses) = if found.wipes {
                (Recycle::Wipe, "wiped from outside")
            } else {
                (Recycle::Recreate, "replaced by new ones")
            };
            let why = format!(
                "Docker {} at {endpoint}, interface {}, control groups by {}; used sandboxes are \
                 {uses}; {}",
                found.version,
                found.api,
                found.control_groups,
                network_words(config.egress.enabled, found.network)
            );
            if found.lacks.is_empty() {
                return Report::yes(kind, why, Some(recycle));
            }
            let why = format!("{why}; the engine cannot limit {}", found.lacks.join(", "));
            let remedy = "give the engine the control groups for these limits; see `docker info`";
            Report { state: State::Partly, ..Report::no(kind, why, remedy) }
        }
        Err(none) => Report::no(kind, none.why, none.remedy),
    }
}

async fn oci(config: &Config, program: Program, trial: bool) -> Report {
    let kind = program.kind();
    let settings = &config.oci;
    if !settings.programs.iter().any(|name| name == program.as_str()) {
        return Report::no(
            kind,
            "oci.programs does not name this program",
            "add the program to oci.programs",
        );
    }
    let run_directory = match native::run_directory() {
        Ok(directory) => directory,
        Err(failure) => return Report::no(kind, Failure::to_string(&failure), SEE_CAUSE),
    };
    let mut wanted = OciConfig::new(program, run_directory);
    wanted.path = settings.path_of(program);
    match program {
        Program::Runsc => wanted.arguments.clone_from(&settings.runsc_arguments),
        Program::Runc | Program::Crun | Program::Youki => {}
    }
    if wanted.found().is_none() {
        let why = match &wanted.path {
            Some(path) => format!("{} is not a program", path.display()),
            None => "the program is not installed".to_owned(),
        };
        return Report::no(kind, why, program.remedy());
    }
    if !rustix::process::geteuid().is_root() {
        return Report::no(kind, "only root can use this program", AS_ROOT);
    }
    let version = match oci::probe(&wanted).await {
        Ok(found) => format!("{} at {}", found.version, found.path.display()),
        Err(error) => return Report::no(kind, error.cause, SEE_CAUSE),
    };
    if !trial {
        return Report::yes(
            kind,
            format!("{version}; no trial container was started because of --no-trial"),
            None,
        );
    }
    match timeout(TRIAL_TIMEOUT, try_container(wanted)).await {
        Ok(Ok((took, recycle, network))) => {
            let uses = match recycle {
                Recycle::Wipe => "wiped from outside",
                Recycle::Recreate => "replaced by new ones",
            };
            let took = duration::words(took);
            let network = network_words(config.egress.enabled, network);
            let why = format!("{version}; ready in {took}; used sandboxes are {uses}; {network}");
            Report::yes(kind, why, Some(recycle))
        }
        Ok(Err(error)) => Report::no(kind, format!("{version}: {error}"), SEE_CAUSE),
        Err(_) => {
            let patience = duration::words(TRIAL_TIMEOUT);
            Report::no(
                kind,
                format!("{version}: the trial did not end within {patience}"),
                SEE_CAUSE,
            )
        }
    }
}

/// How containers reach the network, if a policy lets them.
const fn network_words(enabled: bool, ability: NetworkAbility) -> &'static str {
    if !enabled {
        return "networks by policy are switched off by egress.enabled = false";
    }
    match ability {
        NetworkAbility::Transparent => "networks by policy work",
        NetworkAbility::ProxyOnly => {
            "networks by policy only for programs that use the proxy inside (the kernel has no \
             nf_tables with tproxy)"
        }
        NetworkAbility::None => "no networks by policy",
    }
}

/// Makes one container and runs a program in it.
async fn try_container(
    config: OciConfig,
) -> Result<(Duration, Recycle, NetworkAbility), RuntimeError> {
    let runtime: Arc<dyn Runtime> = oci::start(config).await?;
    let (recycle, network) = (runtime.traits().recycle, runtime.capabilities().network);
    let tried = try_one(&*runtime).await;
    let closed = runtime.shutdown().await;
    let (ran, took) = tried?;
    closed?;
    if ran.stdout != b"fine\n" {
        let cause = format!("a shell in the container ended with {:?}", ran.exit.status);
        return Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, "try a sandbox", cause));
    }
    Ok((took, recycle, network))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(all: &[Report], kind: RuntimeKind) -> Report {
        all.iter().find(|one| one.runtime == kind.as_str()).expect("a report").clone()
    }

    #[tokio::test]
    async fn doctor_reports_every_runtime_with_a_remedy_for_a_missing_one() {
        let mut config = Config::default();
        config.docker.host = Some("unix:///nowhere/docker.sock".to_owned());
        config.oci.programs = vec!["runc".to_owned(), "crun".to_owned()];
        config.oci.paths = vec!["runc=/etc/passwd".to_owned()];
        let fatal = Finding::no("kernel", "too old", "use a newer kernel").needed();
        let all = reports(&config, &[fatal], false).await;
        let words = ["native", "docker", "runc", "crun", "youki", "runsc"];
        assert_eq!(all.iter().map(|one| one.runtime).collect::<Vec<_>>(), words);
        for one in &all {
            assert_eq!(one.state == State::No, one.remedy.is_some(), "{one:?}");
        }
        for (kind, word) in [
            (RuntimeKind::Native, "kernel: too old"),
            (RuntimeKind::Docker, "unix:///nowhere/docker.sock"),
            (RuntimeKind::Runc, "/etc/passwd"),
            (RuntimeKind::Youki, "oci.programs"),
            (RuntimeKind::Runsc, "oci.programs"),
        ] {
            let one = report(&all, kind);
            assert!(one.state == State::No && one.why.contains(word), "{one:?}");
        }
        config.docker.host = Some("ssh://somewhere".to_owned());
        let remedy = report(&reports(&config, &[], false).await, RuntimeKind::Docker).remedy;
        assert!(remedy.is_some_and(|remedy| remedy.contains("unix:///PATH")));
        config.docker.enabled = Enabled::No;
        let all = reports(&config, &[], false).await;
        assert_eq!(report(&all, RuntimeKind::Native).state, State::Yes);
        assert!(report(&all, RuntimeKind::Docker).why.contains("docker.enabled"));
    }
}
