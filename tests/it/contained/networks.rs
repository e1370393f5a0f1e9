//! What programs in containers can do with their own network, and what it costs the machine.

use anyhow::{Result, ensure};

use super::{Kind, over_kinds, place, python, sandbox, start};
use crate::native::{BUFFER_FLOOD, INTERFACES};

/// Programs list the interfaces of their sandbox; that they change none is tried by the probe.
async fn interfaces(kind: Kind) -> Result<()> {
    let Some(runtime) = start(kind).await? else { return Ok(()) };
    let sandbox = sandbox(&*runtime, 1).await?;
    let found = python(&*sandbox, INTERFACES, "").await?;
    ensure!(found.contains("lo"), "{found}");
    runtime.shutdown().await?;
    let _ = std::fs::remove_dir_all(place(kind));
    Ok(())
}

/// A sandbox of 512 MiB may hold a quarter of that, and one packet for each end of a connection.
async fn buffers(kind: Kind) -> Result<()> {
    let Some(runtime) = start(kind).await? else { return Ok(()) };
    let sandbox = sandbox(&*runtime, 1).await?;
    let held_mb: u32 = python(&*sandbox, BUFFER_FLOOD, "").await?.trim().parse()?;
    ensure!(held_mb < 256, "{held_mb} MB in buffers");
    runtime.shutdown().await?;
    let _ = std::fs::remove_dir_all(place(kind));
    Ok(())
}

over_kinds! { interfaces as network_interfaces_can_be_listed: docker Docker runc Runc runsc Runsc }
over_kinds! { buffers as socket_buffers_count_as_memory: docker Docker runc Runc }
