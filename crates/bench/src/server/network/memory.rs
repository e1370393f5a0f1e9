//! What a policy adds to an idle sandbox: the same warm sandboxes before and after their template
//! gets one, so that everything else is the same. Counted in the whole machine, so the kernel's part
//! and that of the egress process are in it.

use command::failure::Failure;
use serde::Serialize;
use serde_json::json;

use super::super::super::rates::Memory;
use super::super::test_server::TestServer;
use super::policies::until_full;

/// Names and addresses, as agents have them.
const RULES: [&str; 4] =
    ["api.example.test:443", "index.example.test", "*.files.example.test:443", "10.1.0.0/16:5432"];

/// Memory of idle sandboxes, in megabytes for each.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(in super::super::super) struct PolicyMemory {
    pub(in super::super::super) sandboxes: u32,
    /// Of one without a policy, by what is available.
    pub(in super::super::super) mb_each: f64,
    /// What a policy adds, by what is available.
    pub(in super::super::super) added_mb_available: f64,
    /// What a policy adds, by memory that is neither free nor cache.
    pub(in super::super::super) added_mb_used: f64,
}

/// Fills a pool, and gives its template a policy.
pub(super) async fn measure(served: &TestServer, sandboxes: u32) -> Result<PolicyMemory, Failure> {
    let mut template = json!({
        "name": "idle",
        "pool": { "pool_size": sandboxes, "max_overflow": 0 },
    });
    let before = Memory::at_rest().await?;
    // The machine may take longer to rest than the server waits for the next request.
    let mut connection = served.connect().await?;
    connection.json("PUT", "/v1/templates/idle", &template.to_string()).await?;
    until_full(&mut connection, "idle").await?;
    let without = Memory::at_rest().await?;
    connection = served.connect().await?;
    template["network"] = json!({ "allow": RULES });
    connection.json("PUT", "/v1/templates/idle", &template.to_string()).await?;
    until_full(&mut connection, "idle").await?;
    let with = Memory::at_rest().await?;
    connection = served.connect().await?;
    connection.json("DELETE", "/v1/pools/idle?force=true", "").await?;
    let ((none, _), (available, used)) =
        (without.more_than(&before, sandboxes), with.more_than(&without, sandboxes));
    Ok(PolicyMemory {
        sandboxes,
        mb_each: none,
        added_mb_available: available,
        added_mb_used: used,
    })
}
