//! Other isolation tools, if installed: bubblewrap, runc, docker. Each runs the same static binary,
//! with the isolation that it offers by default.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::contender::{Contender, Skipped, Times};
use super::scratch::{PROGRAM_INSIDE, Scratch};
use command::failure::Failure;

/// How long one start with another tool may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the Docker engine may take to answer.
const ENGINE_PATIENCE: Duration = Duration::from_secs(3);
const IMAGE: &str = "shoal-bench";

/// A command whose whole run is measured.
pub(crate) struct Spawned {
    name: &'static str,
    every: u32,
    argv: Vec<String>,
    /// A command that cleans up.
    afterwards: Option<Vec<String>>,
}

#[async_trait]
impl Contender for Spawned {
    fn name(&self) -> &'static str {
        self.name
    }

    fn every(&self) -> u32 {
        self.every
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let started_at = Instant::now();
        run(&self.argv).await?;
        Ok(vec![(self.name, started_at.elapsed())])
    }

    async fn close(&mut self) {
        if let Some(argv) = self.afterwards.take() {
            let _ = run(&argv).await;
        }
    }
}

/// All installed tools. Those that are missing are added to `skipped`.
pub(crate) async fn found(
    scratch: &Scratch,
    skipped: &mut Vec<Skipped>,
) -> Vec<Box<dyn Contender>> {
    let mut all: Vec<Box<dyn Contender>> = Vec::new();
    let mut add = |name: &str, made: Result<Vec<Spawned>, Failure>| match made {
        Ok(made) => all.extend(made.into_iter().map(|one| Box::new(one) as Box<dyn Contender>)),
        Err(failure) => {
            skipped.push(Skipped { name: name.to_owned(), why: failure.to_string() });
        }
    };
    add("bwrap", bubblewrap(scratch));
    add("runc", runc(scratch).await);
    add("docker", docker(scratch).await);
    all
}

fn bubblewrap(scratch: &Scratch) -> Result<Vec<Spawned>, Failure> {
    let program = installed("bwrap")?;
    let mut argv = words(&program, &["--unshare-all", "--die-with-parent"]);
    argv.extend(words(Path::new("--ro-bind"), &["/usr", "/usr"]));
    for (link, target) in [("/bin", "usr/bin"), ("/lib", "usr/lib"), ("/lib64", "usr/lib64")] {
        argv.extend(words(Path::new("--symlink"), &[target, link]));
    }
    argv.extend(words(Path::new("--proc"), &["/proc", "--dev", "/dev", "--tmpfs", "/tmp"]));
    let ours = scratch.program().display().to_string();
    argv.extend(words(Path::new("--ro-bind"), &[&ours, "/noop", "/noop", "noop"]));
    Ok(vec![Spawned { name: "bwrap", every: 1, argv, afterwards: None }])
}

async fn runc(scratch: &Scratch) -> Result<Vec<Spawned>, Failure> {
    let failed = |error: std::io::Error| Failure::new("cannot prepare runc", error);
    let program = installed("runc")?;
    let bundle = scratch.subdirectory("bundle").map_err(failed)?;
    let state = scratch.subdirectory("runc").map_err(failed)?;
    let bundle_text = bundle.display().to_string();
    run(&words(&program, &["spec", "--bundle", &bundle_text])).await?;
    let path = bundle.join("config.json");
    let text = std::fs::read_to_string(&path).map_err(failed)?;
    let mut spec: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::new("cannot read the specification of runc", error))?;
    spec["process"]["terminal"] = json!(false);
    spec["process"]["args"] = json!([PROGRAM_INSIDE, "noop"]);
    spec["root"]["path"] = json!(scratch.root());
    std::fs::write(&path, spec.to_string()).map_err(failed)?;
    let name = format!("{IMAGE}-{}", std::process::id());
    let state = state.display().to_string();
    let argv = words(&program, &["--root", &state, "run", "--bundle", &bundle_text, &name]);
    Ok(vec![Spawned { name: "runc run", every: 4, argv, afterwards: None }])
}

async fn docker(scratch: &Scratch) -> Result<Vec<Spawned>, Failure> {
    let stay = docker_stay(scratch).await?;
    let name = format!("{IMAGE}-{}", std::process::id());
    run(&stay_as(&stay, &name)).await?;
    let once = ["run", "--rm", "--network", "none", IMAGE, PROGRAM_INSIDE, "noop"];
    Ok(vec![
        Spawned {
            name: "docker run",
            every: 10,
            argv: words(&stay.docker, &once),
            afterwards: None,
        },
        Spawned {
            name: "docker exec",
            every: 10,
            argv: words(&stay.docker, &["exec", &name, PROGRAM_INSIDE, "noop"]),
            afterwards: Some(words(&stay.docker, &["rm", "-f", &name])),
        },
    ])
}

/// Docker containers that stay until they are removed.
pub(crate) struct PlainContainers {
    docker: PathBuf,
}

/// Makes their image, if there is an engine.
pub(crate) async fn docker_stay(scratch: &Scratch) -> Result<PlainContainers, Failure> {
    let docker = installed("docker")?;
    let ask = words(&docker, &["version", "--format", "{{.Server.Version}}"]);
    if !timeout(ENGINE_PATIENCE, run(&ask)).await.is_ok_and(|answer| answer.is_ok()) {
        return Err(Failure::new("cannot use docker", "no engine answers"));
    }
    let root = scratch.root().display().to_string();
    let import = format!("tar -C '{root}' -c . | '{}' import - {IMAGE}", docker.display());
    run(&words(Path::new("sh"), &["-c", &import])).await?;
    Ok(PlainContainers { docker })
}

fn stay_as(stay: &PlainContainers, name: &str) -> Vec<String> {
    // Waits for input that never comes.
    let argv = ["run", "-d", "-i", "--rm", "--network", "none", "--name", name, IMAGE];
    let mut argv = words(&stay.docker, &argv);
    argv.extend(words(Path::new(PROGRAM_INSIDE), &["bare-spawner", PROGRAM_INSIDE]));
    argv
}

/// Starts `count` containers at once, and gives their names when all run.
pub(crate) async fn stay_at_once(
    stay: &PlainContainers,
    count: u32,
) -> Result<Vec<String>, Failure> {
    let names: Vec<_> = (0..count).map(|n| format!("{IMAGE}-{}-{n}", std::process::id())).collect();
    let mut all = JoinSet::new();
    for name in &names {
        let argv = stay_as(stay, name);
        all.spawn(async move { run(&argv).await });
    }
    while let Some(started) = all.join_next().await {
        started.map_err(|error| Failure::new("cannot start a container", error))??;
    }
    Ok(names)
}

pub(crate) async fn remove(stay: &PlainContainers, names: &[String]) -> Result<(), Failure> {
    let mut argv = words(&stay.docker, &["rm", "-f"]);
    argv.extend(names.iter().cloned());
    run(&argv).await
}

/// Runs a command that must succeed.
async fn run(argv: &[String]) -> Result<(), Failure> {
    let what = || format!("cannot run {}", argv.join(" "));
    let [program, arguments @ ..] = argv else {
        return Err(Failure::new(what(), "the command is empty"));
    };
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| Failure::new(what(), error))?;
    let ended = timeout(PATIENCE, child.wait_with_output()).await;
    let ended = ended.map_err(|_| Failure::new(what(), "the command does not end"))?;
    let ended = ended.map_err(|error| Failure::new(what(), error))?;
    if ended.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&ended.stderr);
    Err(Failure::new(what(), complaint.lines().last().unwrap_or("the command failed")))
}

/// Where a program is.
fn installed(name: &str) -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
        .ok_or_else(|| Failure::new(format!("cannot use {name}"), "the program is not installed"))
}

fn words(first: &Path, rest: &[&str]) -> Vec<String> {
    let rest = rest.iter().map(|word| (*word).to_owned());
    std::iter::once(first.display().to_string()).chain(rest).collect()
}
