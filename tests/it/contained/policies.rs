//! The network of a policy in containers, with the same attempts as in native sandboxes; and what
//! one user of a container leaves of it for the next.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use anyhow::{Context as _, Result, ensure};
use model::NetworkPolicy;
use runtime::{ExecSpec, NetworkAbility, Runtime, RuntimeErrorCode, Sandbox};

use super::{Kind, LIMITS, over_kinds, place, sandbox, start};
use crate::native::{INSIDE, Served, allow, skip};

/// A container on a runtime of its own.
struct Stage {
    kind: Kind,
    runtime: Arc<dyn Runtime>,
    sandbox: Arc<dyn Sandbox>,
}

impl Stage {
    /// None where containers can have no policy.
    async fn start(kind: Kind) -> Result<Option<Self>> {
        let Some(runtime) = start(kind).await? else { return Ok(None) };
        match runtime.capabilities().network {
            NetworkAbility::Transparent => {
                let sandbox = sandbox(&*runtime, 1).await?;
                Ok(Some(Self { kind, runtime, sandbox }))
            }
            NetworkAbility::ProxyOnly | NetworkAbility::None => {
                runtime.shutdown().await?;
                skip("no tables of nf_tables with tproxy").map(|()| None)
            }
        }
    }

    async fn armed(&self, policy: &NetworkPolicy) -> Result<Served> {
        Served::new(self.sandbox.arm_network(policy).await?)
    }

    /// Tries things inside; each has a line of what happened.
    async fn tried(&self, what: &[(&str, &str)]) -> Result<()> {
        let words = what.iter().map(|(word, _)| *word);
        let program = ExecSpec::argv(["python3", "-c", INSIDE].into_iter().chain(words));
        let ran = self.sandbox.inside().run(program, LIMITS).await?;
        let said = String::from_utf8(ran.stdout)?;
        let expected: Vec<String> =
            what.iter().map(|(word, outcome)| format!("{word} {outcome}")).collect();
        let wrong = String::from_utf8_lossy(&ran.stderr);
        ensure!(
            said.lines().eq(expected.iter()),
            "{said}{wrong}\ninstead of\n{}",
            expected.join("\n")
        );
        Ok(())
    }

    async fn said(&self, line: &str) -> Result<String> {
        let ran = self.sandbox.inside().run(ExecSpec::shell(line), LIMITS).await?;
        Ok(String::from_utf8(ran.stdout)?)
    }

    /// Wipes the container; gives the handle of the use that has ended.
    async fn wipe(&mut self) -> Result<Arc<dyn Sandbox>> {
        self.sandbox.wipe().await?;
        let next = self.runtime.sandbox(self.sandbox.instance()).context("it lives")?;
        Ok(std::mem::replace(&mut self.sandbox, next))
    }

    async fn end(self) -> Result<()> {
        self.runtime.shutdown().await?;
        let _ = std::fs::remove_dir_all(place(self.kind));
        Ok(())
    }
}

async fn reached(kind: Kind) -> Result<()> {
    let Some(stage) = Stage::start(kind).await? else { return Ok(()) };
    let policy = allow(&["a.test", "10.1.0.0/16:8000-8100", "10.2.3.4"])?;
    let _served = stage.armed(&policy).await?;
    stage
        .tried(&[
            ("dial,198.18.5.6,443", "to 198.18.5.6:443"),
            ("dial6,::ffff:198.18.5.6,443", "to 198.18.5.6:443"),
            ("dial,10.1.2.3,8005", "to 10.1.2.3:8005"),
            ("dial,10.2.3.4,65535", "to 10.2.3.4:65535"),
            ("ask,udp", "heard"),
            ("ask,tcp", "to 127.0.0.1:53"),
            ("dial,127.0.0.1,3128", "to 127.0.0.1:3128"),
            ("dial,10.1.2.3,9000", "EHOSTUNREACH"),
            ("dial,1.2.3.4,443", "EHOSTUNREACH"),
            ("dial,169.254.169.254,80", "EHOSTUNREACH"),
            ("dial6,2001:db8::1,443", "EHOSTUNREACH"),
            ("dial6,::1,443", "ECONNREFUSED"),
            ("send,8.8.8.8,53", "EPERM"),
            ("send,198.18.5.6,443", "EPERM"),
            ("served,0.0.0.0,8080,127.0.0.1", "inside"),
            ("served,198.18.5.6,8083,198.18.5.6", "to 198.18.5.6:8083"),
        ])
        .await?;
    let mut refused = stage.sandbox.refused_addresses().await?;
    refused.sort_unstable();
    let refused: Vec<_> = refused.iter().map(|(to, port)| format!("{to}:{port}")).collect();
    ensure!(refused == ["1.2.3.4:443", "10.1.2.3:9000", "169.254.169.254:80"], "{refused:?}");
    stage.sandbox.change_network(&allow(&["1.2.3.4:443"])?).await?;
    stage
        .tried(&[("dial,1.2.3.4,443", "to 1.2.3.4:443"), ("dial,10.1.2.3,8005", "EHOSTUNREACH")])
        .await?;
    stage.end().await
}

/// In Docker programs may take low ports and make ping sockets, unlike in native sandboxes.
async fn attacked(kind: Kind) -> Result<()> {
    let Some(stage) = Stage::start(kind).await? else { return Ok(()) };
    let (low, ping, ping_inside) = match kind {
        Kind::Docker => ("listens", "EPERM", "answered"),
        Kind::Runc | Kind::Runsc => ("EACCES", "EACCES", "EACCES"),
    };
    let policy = allow(&["a.test", "10.0.0.0/8"])?;
    let served = stage.armed(&policy).await?;
    stage
        .tried(&[
            ("route", "EPERM"),
            ("listen,127.0.0.1,80", low),
            ("listen,0.0.0.0,443", low),
            ("listen,127.0.0.1,1", "EACCES"),
            ("listen,0.0.0.0,1", "EACCES"),
            ("listen,127.0.0.1,53", "EACCES"),
            ("ping,127.0.0.1", ping_inside),
            ("ping,8.8.8.8", ping),
            ("ping,10.0.0.1", ping),
            ("ping,198.18.5.6", ping),
            ("option,0,19", "EPERM"),
            ("family,16,3,12", "EAFNOSUPPORT"),
            ("family,16,3,4", "EAFNOSUPPORT"),
            ("family,17,3,768", "EAFNOSUPPORT"),
            ("family,2,3,6", "EPERM"),
            ("dial,198.18.5.6,443", "to 198.18.5.6:443"),
        ])
        .await?;
    served.close().await;
    // Without the sockets no program takes their place.
    let closed = [
        ("dial,198.18.5.6,443", "ECONNREFUSED"),
        ("ask,udp", "ECONNREFUSED"),
        ("ask,tcp", "ECONNREFUSED"),
        ("listen,127.0.0.1,1", "EACCES"),
        ("listen,0.0.0.0,53", "EACCES"),
        ("served,127.0.0.1,3128,127.0.0.1", "ECONNREFUSED"),
        ("served,0.0.0.0,8080,10.0.0.1", "ECONNREFUSED"),
    ];
    stage.tried(&closed).await?;
    let _served = stage.armed(&policy).await?;
    stage.tried(&[("dial,198.18.5.6,443", "to 198.18.5.6:443"), ("ask,udp", "heard")]).await?;
    stage.end().await
}

/// What tells of addresses, routes and sockets.
const LOOK: &str = "cat /proc/net/route /proc/net/if_inet6 /proc/net/tcp /proc/net/udp; \
                    grep -v +-- /proc/net/fib_trie; cut -c 1-76 /proc/net/ipv6_route";

async fn left(kind: Kind) -> Result<()> {
    let Some(mut stage) = Stage::start(kind).await? else { return Ok(()) };
    let policy = allow(&["a.test", "10.0.0.0/8:80"])?;
    let before = stage.said(LOOK).await?;
    for _ in 0..3 {
        let served = stage.armed(&policy).await?;
        stage
            .tried(&[
                ("dial,198.18.5.6,443", "to 198.18.5.6:443"),
                ("dial,9.9.9.9,80", "EHOSTUNREACH"),
                ("ask,udp", "heard"),
            ])
            .await?;
        ensure!(stage.sandbox.refused_addresses().await?.len() == 1);
        ensure!(stage.said(LOOK).await? != before);
        ensure!(stage.sandbox.prove().await.is_err(), "it is armed");
        served.close().await;
        let last = stage.wipe().await?;
        stage.sandbox.prove().await?;
        let now = stage.said(LOOK).await?;
        ensure!(now == before, "{now}\ninstead of\n{before}");
        stage.tried(&[("dial,198.18.5.6,443", "ENETUNREACH")]).await?;
        for refused in [last.arm_network(&policy).await.err(), last.disarm_network().await.err()] {
            let error = refused.context("that use has ended")?;
            ensure!(error.code == RuntimeErrorCode::SandboxGone, "{error}");
        }
        drop(stage.sandbox.arm_network(&policy).await?);
        ensure!(stage.sandbox.refused_addresses().await?.is_empty());
        stage.sandbox.disarm_network().await?;
    }
    let mut kept = stage.sandbox.arm_network(&policy).await?;
    stage.wipe().await?;
    ensure!(stage.sandbox.prove().await.is_err(), "its sockets are open");
    // One alone is found, too.
    kept.names = None;
    drop(kept);
    stage.wipe().await?;
    stage.sandbox.prove().await?;
    stage.end().await
}

async fn frozen_or_dropped(kind: Kind) -> Result<()> {
    let Some(stage) = Stage::start(kind).await? else { return Ok(()) };
    let policy = allow(&["a.test"])?;
    for polls in 0..12 {
        let mut arming = Box::pin(stage.sandbox.arm_network(&policy));
        for _ in 0..polls {
            let polled = poll_fn(|cx| Poll::Ready(arming.as_mut().poll(cx))).await;
            if polled.is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(arming);
        drop(stage.sandbox.arm_network(&policy).await?);
    }
    stage.sandbox.freeze().await?;
    let _served = stage.armed(&policy).await?;
    stage.sandbox.change_network(&policy).await?;
    stage.sandbox.thaw().await?;
    stage.tried(&[("dial,198.18.5.6,443", "to 198.18.5.6:443")]).await?;
    stage.end().await
}

/// Names are looked up inside, whatever the resolvers of the machine or of the image are.
async fn resolvers(kind: Kind) -> Result<()> {
    let Some(stage) = Stage::start(kind).await? else { return Ok(()) };
    let said = stage.said("cat /etc/resolv.conf").await?;
    ensure!(said == jail::etc::RESOLVER, "{said}");
    stage.end().await
}

over_kinds! { reached as containers_reach_what_the_rules_name: docker Docker runc Runc }
over_kinds! { attacked as containers_cannot_change_their_network: docker Docker runc Runc }
over_kinds! { left as policies_leave_nothing_for_the_next_user: docker Docker runc Runc }
over_kinds! { frozen_or_dropped as container_networks_are_armed_in_turn: docker Docker runc Runc }
over_kinds! { resolvers as containers_name_the_resolver_inside: docker Docker runc Runc }
