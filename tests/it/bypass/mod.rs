//! Ways around a policy, tried by a program inside of a sandbox, whatever isolates it. The program is in
//! `attempts`, by the numbers of `docs/bypasses.md`. It must never need more of a sandbox than that it
//! can be armed and has Python.

mod listed;
mod world;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as LocalAddr, UnixListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use egress::{
    Attachment, Egress, EgressConfig, EgressEvent, EgressLimits, EventKind, Reported, Sockets,
    UpstreamProxy, Verdict,
};
use model::NetworkPolicy;
use runtime::{ExecSpec, RunLimits, Sandbox};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use self::world::World;

/// What the attempts count on.
const POLICY: &[&str] = &["api.shoal.test:443", "*.wild.test:443", "http.shoal.test:80"];
const NARROWER: &[&str] = &["*.wild.test:443", "http.shoal.test:80"];
/// What another sandbox may reach.
const THEIRS: &[&str] = &["api.shoal.test:443", "other.shoal.test:443"];

/// The case in which the policy becomes narrower, and the one in which another sandbox is tried, too.
const NARROWED: u64 = 33;
const CROWDED: u64 = 62;

/// The program inside, in its parts.
pub(crate) const ATTEMPTS: &[&str] = &[
    include_str!("attempts/common.py"),
    include_str!("attempts/tls.py"),
    include_str!("attempts/addresses.py"),
    include_str!("attempts/names.py"),
    include_str!("attempts/web.py"),
    include_str!("attempts/ours.py"),
    include_str!("attempts/run.py"),
];

/// How long a run may take on a busy machine.
const LIMITS: RunLimits = RunLimits { output_bytes: 1 << 20, timeout: Duration::from_secs(100) };
/// How long what happened takes to be reported.
const PATIENCE: Duration = Duration::from_secs(20);

/// Not a test: the process of the way out, which the tests start as this program.
#[test]
#[ignore = "it is the process that other tests start"]
fn the_process_of_the_way_out() -> Result<()> {
    let code = egress::process::main(jail::sys::descriptors::take(3)?);
    ensure!(code == std::process::ExitCode::SUCCESS);
    Ok(())
}

/// The way out, and what lies beyond.
pub(crate) struct Outside {
    egress: Egress,
    events: mpsc::Receiver<Reported>,
    world: World,
    /// What a server would be: it must not be reached.
    server: TcpListener,
    abstract_name: String,
    _bait: UnixListener,
}

/// What an attempt said.
struct Attempt {
    case: u64,
    what: String,
    got: String,
    fine: bool,
    log: Option<String>,
}

impl Outside {
    /// Starts all of it. In a runtime of tokio.
    pub(crate) async fn start() -> Result<Self> {
        let world = World::start().await?;
        let entry = concat!(module_path!(), "::the_process_of_the_way_out");
        let entry = entry.split_once("::").context("a path")?.1;
        let arguments = ["--exact", entry, "--include-ignored", "--nocapture", "--test-threads=1"];
        let mut config = EgressConfig::new("/proc/self/exe", &arguments);
        config.resolver = Some(world.resolver);
        config.upstream_proxy =
            Some(UpstreamProxy { address: world.proxy, authorization: None, resolves: false });
        config.node_addresses = vec![world::NODE.into()];
        config.limits = EgressLimits {
            new_connections_per_second: 1000,
            questions_per_second: 1000,
            questions_burst: 2000,
            ..EgressLimits::default()
        };
        let egress = Egress::start(config)?;
        let events = egress.events();
        let server = TcpListener::bind("0.0.0.0:0")?;
        server.set_nonblocking(true)?;
        let abstract_name = format!("shoal-test-bait-{}", server.local_addr()?.port());
        let address = LocalAddr::from_abstract_name(&abstract_name)?;
        let bait = UnixListener::bind_addr(&address)?;
        Ok(Self { egress, events, world, server, abstract_name, _bait: bait })
    }

    /// Tries these cases, in rising order, in a sandbox beside another one.
    pub(crate) async fn try_all(
        &mut self,
        sandbox: &Arc<dyn Sandbox>,
        other: &Arc<dyn Sandbox>,
        cases: &[u64],
    ) -> Result<()> {
        self.attach(sandbox, POLICY).await?;
        self.attach(other, THEIRS).await?;
        let names = json!({"names": ["api.shoal.test", "other.shoal.test"]});
        let theirs = attempts(other, &[0], &names).await?;
        let [allowed, own] = &theirs[..] else { bail!("two names have two addresses") };
        let mut given = self.given()?;
        given["theirs"] = json!({"allowed": allowed.got, "own": own.got});
        // One program for all that need nothing from outside meanwhile.
        let alone: Vec<u64> =
            cases.iter().copied().filter(|case| ![NARROWED, CROWDED].contains(case)).collect();
        let mut all = attempts(sandbox, &alone, &given).await?;
        if cases.contains(&NARROWED) {
            all.extend(self.narrowed(sandbox, &given).await?);
        }
        if cases.contains(&CROWDED) {
            all.extend(Self::crowded(sandbox, other, &given).await?);
        }
        let tried: BTreeSet<u64> = all.iter().map(|one| one.case).collect();
        ensure!(tried.iter().eq(cases.iter()), "tried {tried:?} of {cases:?}");
        let wrong: Vec<String> = all
            .iter()
            .filter(|one| !one.fine)
            .map(|one| format!("case {}, {}: {}", one.case, one.what, one.got))
            .collect();
        ensure!(wrong.is_empty(), "{} attempts:\n{}", wrong.len(), wrong.join("\n"));
        self.are_in_the_log(sandbox, &all).await?;
        self.world.is_untouched()?;
        ensure!(self.server.accept().is_err(), "a program reached the server");
        for sandbox in [sandbox, other] {
            self.egress.forget(sandbox.instance()).await;
            sandbox.disarm_network().await?;
        }
        Ok(())
    }

    async fn attach(&self, sandbox: &Arc<dyn Sandbox>, rules: &[&str]) -> Result<()> {
        let policy = allow(rules)?;
        let sockets = sandbox.arm_network(&policy).await?;
        let sockets = Sockets { connections: sockets.connections, names: sockets.names };
        let attachment = Attachment {
            sandbox: sandbox.instance(),
            key: None,
            policy: policy.into(),
            sockets: Some(sockets),
            secrets: Vec::new(),
            authority: None,
        };
        Ok(self.egress.attach(attachment).await?)
    }

    /// What the program inside cannot know by itself.
    fn given(&self) -> Result<Value> {
        let mut node = vec![IpAddr::from(world::NODE)];
        // An address by which this machine would send. Nothing is sent.
        let probe = UdpSocket::bind("0.0.0.0:0")?;
        if probe.connect("192.0.2.1:9").is_ok() {
            node.push(probe.local_addr()?.ip());
        }
        let port = self.server.local_addr()?.port();
        Ok(json!({"port": port, "node": node, "abstract": [self.abstract_name]}))
    }

    /// A name is known, and then the policy leaves it out.
    async fn narrowed(&self, sandbox: &Arc<dyn Sandbox>, given: &Value) -> Result<Vec<Attempt>> {
        let mut all = attempts(sandbox, &[NARROWED], given).await?;
        let kept = all.first().and_then(|one| one.got.strip_prefix("reached "));
        let mut given = given.clone();
        given["kept"] = json!(kept.context("an address")?);
        self.change(sandbox, NARROWER).await?;
        all.extend(attempts(sandbox, &[NARROWED], &given).await?);
        self.change(sandbox, POLICY).await?;
        Ok(all)
    }

    async fn change(&self, sandbox: &Arc<dyn Sandbox>, rules: &[&str]) -> Result<()> {
        let policy = allow(rules)?;
        sandbox.change_network(&policy).await?;
        Ok(self.egress.change(sandbox.instance(), None, policy).await?)
    }

    /// While one sandbox holds all connections that it may have, another reaches its host.
    async fn crowded(
        sandbox: &Arc<dyn Sandbox>,
        other: &Arc<dyn Sandbox>,
        given: &Value,
    ) -> Result<Vec<Attempt>> {
        let mut holding = given.clone();
        holding["hold_s"] = json!(3);
        let crowd = attempts(sandbox, &[CROWDED], &holding);
        let beside = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            attempts(other, &[20], given).await
        };
        let (mut all, beside) = tokio::try_join!(crowd, beside)?;
        let reached = beside.iter().filter(|one| one.got == "reached 45.0.0.1:443").count();
        ensure!(reached == 2, "a full sandbox hurts another");
        all.retain(|one| one.case == CROWDED);
        Ok(all)
    }

    /// Whether the log, or the kernel, has what each attempt should have left there.
    async fn are_in_the_log(&mut self, sandbox: &Arc<dyn Sandbox>, all: &[Attempt]) -> Result<()> {
        let of_kernel = sandbox.refused_addresses().await?;
        let mut wanted = Vec::new();
        for one in all {
            let Some(log) = &one.log else { continue };
            let Some(address) = log.strip_prefix("kernel:") else {
                wanted.push((log.as_str(), one));
                continue;
            };
            let SocketAddr::V4(address) = address.parse()? else { bail!("{address}") };
            let known = of_kernel.contains(&(*address.ip(), address.port()));
            ensure!(known, "case {}, {}: the kernel has no {address}", one.case, one.what);
        }
        // What says more is looked for first, so that it is not taken for something else.
        wanted.sort_by_key(|(log, _)| std::cmp::Reverse(log.len()));
        let mut events = Vec::new();
        loop {
            let missing = missing(&wanted, &events);
            if missing.is_empty() {
                break;
            }
            match timeout(PATIENCE, self.events.recv()).await {
                Ok(Some(Reported { event, .. })) if event.sandbox == sandbox.instance() => {
                    events.push(event);
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => bail!("the log lacks: {missing:#?}"),
            }
        }
        for event in &events {
            let name = event.name.as_ref().map_or("", |name| name.as_str());
            let is_allowed = match event.port {
                443 => name == "api.shoal.test" || name.ends_with(".wild.test"),
                80 => name == "http.shoal.test",
                _ => false,
            };
            let is_connection = event.kind == EventKind::Connection;
            let wrong = is_connection && event.verdict == Verdict::Allowed && !is_allowed;
            ensure!(!wrong, "allowed: {event:?}");
        }
        Ok(())
    }
}

/// What is wanted and not there. Each entry counts once.
fn missing(wanted: &[(&str, &Attempt)], events: &[EgressEvent]) -> Vec<String> {
    let mut left: Vec<(EventKind, String)> = events
        .iter()
        .filter(|event| event.verdict != Verdict::Allowed && event.kind != EventKind::Closed)
        .map(|event| {
            let name = event.name.as_ref().map(ToString::to_string);
            let address = event.address.as_ref().map(ToString::to_string);
            let parts = [name, address, Some(event.port.to_string()), event.reason.clone()];
            (event.kind, parts.into_iter().flatten().collect::<Vec<_>>().join(" "))
        })
        .collect();
    let mut lacking = Vec::new();
    for (log, one) in wanted {
        let (kind, part) = match log.strip_prefix("name:") {
            Some(part) => (EventKind::Name, part),
            None => (EventKind::Connection, *log),
        };
        // What says no more than this, so that the others are left for those who want them.
        let fits =
            |(_, (of, text)): &(usize, &(EventKind, String))| *of == kind && text.contains(part);
        let found = left.iter().enumerate().filter(fits).min_by_key(|(_, (_, text))| text.len());
        match found.map(|(at, _)| at) {
            Some(at) => drop(left.swap_remove(at)),
            None => lacking.push(format!("case {}, {}: {log:?}", one.case, one.what)),
        }
    }
    lacking
}

fn allow(rules: &[&str]) -> Result<NetworkPolicy> {
    let rules: Result<Vec<_>, _> = rules.iter().map(|rule| rule.parse()).collect();
    Ok(NetworkPolicy::Allow(rules?))
}

/// Runs cases inside.
async fn attempts(
    sandbox: &Arc<dyn Sandbox>,
    cases: &[u64],
    given: &Value,
) -> Result<Vec<Attempt>> {
    let numbers = cases.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let spec = ExecSpec::argv([
        "/usr/bin/python3",
        "-c",
        &ATTEMPTS.concat(),
        &numbers,
        &given.to_string(),
    ]);
    let ran = sandbox.inside().run(spec, LIMITS).await?;
    let (said, wrong) = (String::from_utf8(ran.stdout)?, String::from_utf8_lossy(&ran.stderr));
    ensure!(ran.exit.success(), "cases {numbers}: {:?}\n{said}\n{wrong}", ran.exit);
    let read = |line: &str| {
        let line: Value = serde_json::from_str(line)?;
        let text = |key: &str| line[key].as_str().map(str::to_owned);
        Ok(Attempt {
            case: line["case"].as_u64().context("a case")?,
            what: text("what").context("what was tried")?,
            got: text("got").context("what came of it")?,
            fine: line["fine"].as_bool().context("whether it is fine")?,
            log: text("log"),
        })
    };
    let all: Result<Vec<Attempt>> = said.lines().map(read).collect();
    let all = all?;
    ensure!(!all.is_empty(), "cases {numbers} tried nothing");
    Ok(all)
}
