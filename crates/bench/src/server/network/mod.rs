//! `bench --network`: what the way out costs. Connections, requests and bytes through it beside the
//! same client and server over loopback; checkouts with a policy and a boundary secret beside those
//! without; changes of a policy; memory.

pub(in super::super) mod client;
mod hosts;
pub(in super::super) mod memory;
mod policies;
mod traffic;

use std::path::Path;

use command::failure::Failure;
use command::output::Output;
use serde_json::{Value, json};

use self::client::Kind;
use self::hosts::Hosts;
use self::policies::{Changes, Checkouts, until_full};
use self::traffic::{Host, Traffic};
use super::super::BenchPlan;
use super::super::contender::{Contender, compete};
use super::super::report::{Gate, Report};
use super::super::samples::{Pace, Samples};
use super::super::scratch::Scratch;
use super::test_server::{Journal, TestServer};

const CONNECT: (&str, &str) = ("connect, through egress", "connect, direct");
const CONNECT_CHECKED: (&str, &str) = ("connect, checked HTTP", "connect, direct (2)");
const REQUEST: (&str, &str) = ("request kept alive, through egress", "request kept alive, direct");
const REQUEST_CHECKED: (&str, &str) = ("request, checked HTTP", "request, direct (2)");
const REQUEST_TLS: (&str, &str) = ("request, boundary secret", "request, direct TLS");
const DOWNLOAD: (&str, &str) = ("256 MB down, through egress", "256 MB down, direct");
const DOWNLOAD_CHECKED: (&str, &str) = ("256 MB down, checked HTTP", "256 MB down, direct (2)");
const UPLOAD: (&str, &str) = ("256 MB up, through egress", "256 MB up, direct");
const DOWNLOAD_TLS: (&str, &str) = ("64 MB down, boundary secret", "64 MB down, direct TLS");
const UPLOAD_TLS: (&str, &str) = ("64 MB up, boundary secret", "64 MB up, direct TLS");

const CHECKOUT: &str = "checkout, no policy";
const CHECKOUT_ENV: &str = "checkout, no policy, a variable";
const CHECKOUT_POLICY: &str = "checkout, policy of the template";
const CHECKOUT_LESS: &str = "checkout, narrower policy";
const CHECKOUT_BOUNDARY: &str = "checkout, boundary secret";
const CHANGES: [&str; 3] =
    ["change of names", "change of addresses", "change of the template's addresses"];

/// What connecting may add, in milliseconds.
const CONNECT_LIMIT_MS: f64 = 0.2;
/// The least ratio of what is direct.
const PLAIN_LEAST: f64 = 0.5;
const TLS_LEAST: f64 = 0.3;
/// What a policy may add to a checkout, in milliseconds.
const CHECKOUT_LIMIT_MS: f64 = 0.3;
/// What a change may take, in milliseconds.
const CHANGE_LIMIT_MS: f64 = 5.0;
/// What a policy may add to an idle sandbox, in megabytes.
pub(in super::super) const MEMORY_LIMIT_MB: f64 = 0.02;

/// Connections, requests and transfers of one client that is started.
const CONNECTS: u32 = 50;
const REQUESTS: u32 = 200;
const TRANSFERS: u32 = 2;
const BYTES: u32 = 256 << 20;
const TLS_BYTES: u32 = 64 << 20;

pub(in super::super) async fn measure(
    plan: &BenchPlan,
    scratch: &Scratch,
    report: &mut Report,
    output: &Output,
) -> Result<(), Failure> {
    let authority = scratch.root().join("authority.pem");
    let outside = Hosts::start(&authority)?;
    let config = scratch.root().join("network.toml");
    std::fs::write(&config, configuration(&authority, plan.sandboxes))
        .map_err(|error| Failure::new("cannot write a configuration", error))?;
    let served =
        TestServer::start_with(&plan.shoal, Journal::Durable, &scratch.root(), Some(&config))
            .await?;
    output.note("filling pools");
    prepare(&served, &outside).await?;
    if plan.wants("times") {
        let mut all: Vec<Box<dyn Contender>> = Vec::new();
        all.push(Box::new(checkouts(&served).await?));
        let changing = template(
            "changing",
            &json!({ "allow": ["a.test:443", "b.test:443", "10.0.0.0/8"] }),
            0,
        );
        all.push(Box::new(Changes::of(&served, CHANGES, changing).await?));
        let plain = [
            (CONNECT, (Kind::Connect, CONNECTS, 0), outside.copied),
            (CONNECT_CHECKED, (Kind::Connect, CONNECTS, 0), outside.checked),
            (REQUEST, (Kind::Request, REQUESTS, 0), outside.copied),
            (REQUEST_CHECKED, (Kind::Request, REQUESTS, 0), outside.checked),
            (DOWNLOAD, (Kind::Download, TRANSFERS, BYTES), outside.copied),
            (DOWNLOAD_CHECKED, (Kind::Download, TRANSFERS, BYTES), outside.checked),
            (UPLOAD, (Kind::Upload, TRANSFERS, BYTES), outside.copied),
        ];
        for (names, what, address) in plain {
            let host = Host::Plain(address);
            all.push(Box::new(Traffic::of(&served, "traffic", names, what, host).await?));
        }
        let tls = [
            (REQUEST_TLS, (Kind::Request, REQUESTS, 0)),
            (DOWNLOAD_TLS, (Kind::Download, TRANSFERS, TLS_BYTES)),
            (UPLOAD_TLS, (Kind::Upload, TRANSFERS, TLS_BYTES)),
        ];
        for (names, what) in tls {
            let host = Host::Boundary(authority.clone());
            all.push(Box::new(Traffic::of(&served, "boundary", names, what, host).await?));
        }
        output.note("measuring the way out");
        for pace in Pace::ALL {
            let (samples, skipped) = (&mut report.samples, &mut report.skipped);
            compete(&mut all, pace, plan.rounds, 1, samples, skipped).await;
        }
    }
    if plan.wants("memory") {
        output.note(&format!("measuring the memory of {} sandboxes", plan.sandboxes));
        report.policy_memory = Some(memory::measure(&served, plan.sandboxes).await?);
    }
    served.stop().await;
    Ok(())
}

/// Names for the servers, and limits that are not in the way of what is measured.
fn configuration(authority: &Path, sandboxes: u32) -> String {
    let (name, tls) = (hosts::NAME, hosts::TLS_NAME);
    let address = hosts::TLS.split(':').next().unwrap_or_default();
    format!(
        "[egress]\nhosts = [\"{name}=127.0.0.1\", \"{tls}={address}\"]\n\
         upstream_ca = \"{}\"\nconnections_per_s = 1000000\nconnections_per_s_per_key = 0\n\
         [node]\nmax_live = {live}\nmax_sandboxes = {live}\n",
        authority.display(),
        live = sandboxes + 64,
    )
}

fn template(name: &str, network: &Value, size: u32) -> Value {
    let pool = json!({ "pool_size": size, "max_overflow": 16 });
    json!({ "name": name, "network": network, "pool": pool })
}

async fn prepare(served: &TestServer, outside: &Hosts) -> Result<(), Failure> {
    let mut connection = served.connect().await?;
    let value = json!({ "value": "sk-bench-0123456789" }).to_string();
    connection.json("PUT", "/v1/secrets/bench", &value).await?;
    let (copied, checked) = (outside.copied.port(), outside.checked.port());
    let (name, tls_name, tls) = (hosts::NAME, hosts::TLS_NAME, hosts::TLS);
    let allowed = json!({ "allow": [
        format!("{name}:{copied}"),
        format!("{name}:{checked}/http"),
        format!("{tls_name}:443"),
        format!("127.0.0.1:{copied}"),
        format!("127.0.0.1:{checked}"),
        tls,
    ] });
    let secret = json!([{
        "secret": "bench",
        "env": "TOKEN",
        "boundary": { "hosts": [tls_name], "header": "authorization" },
    }]);
    let mut with_secret = template("secret", &allowed, 2);
    with_secret["secrets"] = secret.clone();
    let mut boundary = template("boundary", &allowed, 0);
    boundary["secrets"] = secret;
    let all = [
        template("plain", &json!("none"), 2),
        template("variable", &json!("none"), 2),
        template("policy", &allowed, 2),
        template("less", &allowed, 2),
        with_secret,
        template("traffic", &allowed, 0),
        boundary,
    ];
    for one in all {
        let name = one["name"].as_str().unwrap_or_default();
        connection.json("PUT", &format!("/v1/templates/{name}"), &one.to_string()).await?;
        until_full(&mut connection, name).await?;
    }
    Ok(())
}

async fn checkouts(served: &TestServer) -> Result<Checkouts, Failure> {
    let less =
        json!({ "template": "less", "network": { "allow": [format!("{}:443", hosts::TLS_NAME)] } });
    let asked = vec![
        (CHECKOUT, json!({ "template": "plain" })),
        (CHECKOUT_ENV, json!({ "template": "variable", "env": { "A": "b" } })),
        (CHECKOUT_POLICY, json!({ "template": "policy" })),
        (CHECKOUT_LESS, less),
        (CHECKOUT_BOUNDARY, json!({ "template": "secret" })),
    ];
    Checkouts::of(served, asked).await
}

/// Promises about the way out.
pub(in super::super) fn gates(samples: &Samples, pace: Pace) -> Vec<Gate> {
    let word = pace.word();
    let ms = |name| {
        let middle = samples.get(name, pace).and_then(|found| found.percentile(50));
        middle.map(|middle| middle.as_secs_f64() * 1e3)
    };
    let mut gates = Vec::new();
    for (through, direct) in [CONNECT, CONNECT_CHECKED] {
        if let (Some(through_ms), Some(direct_ms)) = (ms(through), ms(direct)) {
            let name = format!("{through}: adds, ms ({word})");
            gates.push(Gate::at_most(name, through_ms - direct_ms, CONNECT_LIMIT_MS));
        }
    }
    let least = [REQUEST, REQUEST_CHECKED, DOWNLOAD, DOWNLOAD_CHECKED, UPLOAD]
        .map(|names| (names, PLAIN_LEAST))
        .into_iter()
        .chain([REQUEST_TLS, DOWNLOAD_TLS, UPLOAD_TLS].map(|names| (names, TLS_LEAST)));
    for ((through, direct), limit) in least {
        let ratio = samples.ratio(direct, through, pace);
        gates.extend(
            ratio.map(|ratio| {
                Gate::at_least(format!("{through}, of direct ({word})"), ratio, limit)
            }),
        );
    }
    // A claim that binds anything takes longer than one that binds nothing, and uses up its sandbox: the
    // narrower policy is compared with another that binds.
    for (name, without) in [(CHECKOUT_POLICY, CHECKOUT), (CHECKOUT_LESS, CHECKOUT_ENV)] {
        if let (Some(with), Some(without)) = (ms(name), ms(without)) {
            let name = format!("{name}: adds, ms ({word})");
            gates.push(Gate::at_most(name, with - without, CHECKOUT_LIMIT_MS));
        }
    }
    for name in CHANGES {
        let name_ms = format!("{name}, ms ({word})");
        gates.extend(ms(name).map(|took| Gate::at_most(name_ms, took, CHANGE_LIMIT_MS)));
    }
    gates
}
