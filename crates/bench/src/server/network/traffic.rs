//! What connections cost: the same client does the same in a sandbox, through the way out, and on
//! the host, directly. Both take turns within each sample, and neither is always the first.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use command::failure::Failure;
use serde_json::json;
use tokio::process::Command;

use super::super::super::contender::{Contender, Times};
use super::super::http::Connection;
use super::super::test_server::TestServer;
use super::super::times::{Leased, checkout};
use super::client::{Kind, ROLE};
use super::hosts;

/// Where the client is in the sandbox.
const CLIENT: &str = "/workspace/client";
/// The certificate that a sandbox with a boundary secret trusts.
const TRUSTED: &str = "/run/shoal/boundary.pem";

/// How a kind of connection leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    /// By name, without TLS, at this address.
    Plain(SocketAddr),
    /// With TLS that ends at the boundary; outside, certificates of this authority hold.
    Boundary(PathBuf),
}

/// A client in a sandbox, and the same on the host.
pub(super) struct Traffic {
    names: (&'static str, &'static str),
    connection: Connection,
    leased: Leased,
    kind: Kind,
    host: Host,
    count: u32,
    bytes: u32,
    round: u32,
}

impl Traffic {
    pub(super) async fn of(
        served: &TestServer,
        template: &str,
        names: (&'static str, &'static str),
        (kind, count, bytes): (Kind, u32, u32),
        host: Host,
    ) -> Result<Self, Failure> {
        let mut connection = served.connect().await?;
        let leased = checkout(&mut connection, template).await?;
        let program = std::env::current_exe().and_then(std::fs::read);
        let program = program.map_err(|error| Failure::new("cannot read the client", error))?;
        let path = format!("/v1/sandboxes/{}/files?path={CLIENT}&mode=0755", leased.sandbox);
        let (status, said) =
            connection.call("PUT", &path, "application/octet-stream", &program).await?;
        if !(200..300).contains(&status) {
            let said = String::from_utf8_lossy(said);
            return Err(Failure::new("cannot put the client into a sandbox", said));
        }
        Ok(Self { names, connection, leased, kind, host, count, bytes, round: 0 })
    }

    fn words(&self, program: &str, host: &str, port: u16, trusted: &Path) -> Vec<String> {
        let (count, bytes) = (self.count.to_string(), self.bytes.to_string());
        let words = [program, ROLE, self.kind.word(), host, &port.to_string(), &count, &bytes];
        let mut words: Vec<String> = words.map(str::to_owned).into();
        if matches!(self.host, Host::Boundary(_)) {
            words.push(trusted.display().to_string());
        }
        words
    }

    async fn inside(&mut self) -> Result<Vec<Duration>, Failure> {
        let (host, port) = match &self.host {
            Host::Plain(address) => (hosts::NAME, address.port()),
            Host::Boundary(_) => (hosts::TLS_NAME, 443),
        };
        let words = self.words(CLIENT, host, port, Path::new(TRUSTED));
        let body = json!({ "argv": words, "timeout_ms": 120_000 }).to_string();
        let path = format!("/v1/sandboxes/{}/exec", self.leased.sandbox);
        let answer = self.connection.json("POST", &path, &body).await?;
        if answer["exit_code"] != 0 {
            return Err(Failure::new("the client in the sandbox failed", &answer["stderr"]));
        }
        Ok(read(answer["stdout"].as_str().unwrap_or_default()))
    }

    async fn outside(&self) -> Result<Vec<Duration>, Failure> {
        let failed = |error: std::io::Error| Failure::new("cannot run the client", error);
        let program = std::env::current_exe().map_err(failed)?.display().to_string();
        let words = match &self.host {
            Host::Plain(address) => {
                self.words(&program, &address.ip().to_string(), address.port(), Path::new(""))
            }
            // The host has a name for its certificate, which the machine does not know.
            Host::Boundary(authority) => self.words(&program, hosts::TLS_NAME, 443, authority),
        };
        let mut client = Command::new(&words[0]);
        client.args(&words[1..]).stdin(Stdio::null());
        if matches!(self.host, Host::Boundary(_)) {
            client.env(super::client::ADDRESS, hosts::TLS);
        }
        let done = client.output().await.map_err(failed)?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            return Err(Failure::new("the client on the host failed", said));
        }
        Ok(read(&String::from_utf8_lossy(&done.stdout)))
    }
}

fn read(text: &str) -> Vec<Duration> {
    text.lines().filter_map(|line| line.parse().ok()).map(Duration::from_nanos).collect()
}

#[async_trait]
impl Contender for Traffic {
    fn name(&self) -> &'static str {
        self.names.0
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        self.round += 1;
        let (inside, outside) = if self.round.is_multiple_of(2) {
            let inside = self.inside().await?;
            (inside, self.outside().await?)
        } else {
            let outside = self.outside().await?;
            (self.inside().await?, outside)
        };
        let (through, direct) = self.names;
        let through = inside.into_iter().map(|time| (through, time));
        Ok(through.chain(outside.into_iter().map(|time| (direct, time))).collect())
    }
}
