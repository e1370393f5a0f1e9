//! What one user leaves for the next in a sandbox that is wiped, and shows to a neighbour.

use anyhow::{Context as _, Result, ensure};
use model::InstanceId;
use model::template::Recycle;

use super::{Kind, over_kinds, place, python, sandbox, start};
use crate::native::BETWEEN_USERS;

/// What all containers of one machine have in common: their user, which the kernel counts for, and
/// with Docker the files of `/usr`, which are one mount for all, so that locks on them are seen.
fn is_common(kind: Kind, channel: &str) -> bool {
    // Of one that is wiped the namespaces stay, and with them what they have counted.
    let counted = matches!(channel, "counters of the network" | "numbers of processes");
    match kind {
        Kind::Docker => {
            counted || matches!(channel, "uses counted by user" | "lock on a common file")
        }
        Kind::Runc | Kind::Runsc => counted || channel == "uses counted by user",
    }
}

/// What is seen and was not there at first.
fn news<'a>(kind: Kind, fresh: &str, seen: &'a str) -> Vec<&'a str> {
    let is_new = |channel: &&str| !fresh.lines().any(|line| line == *channel);
    seen.lines().filter(is_new).filter(|channel| !is_common(kind, channel)).collect()
}

/// What is left after a use, or seen of a neighbour, by name.
async fn between_users(kind: Kind) -> Result<()> {
    let Some(runtime) = start(kind).await? else { return Ok(()) };
    let (mut one, other) = (sandbox(&*runtime, 1).await?, sandbox(&*runtime, 2).await?);
    let fresh = python(&*one, BETWEEN_USERS, "look").await?;
    for round in 0..3 {
        python(&*one, BETWEEN_USERS, "plant").await?;
        let planted = python(&*one, BETWEEN_USERS, "look").await?;
        ensure!(planted.lines().count() > fresh.lines().count() + 5, "planted: {planted}");
        let seen = python(&*other, BETWEEN_USERS, "look").await?;
        let seen = news(kind, &fresh, &seen);
        ensure!(seen.is_empty(), "round {round}: seen of the neighbour: {seen:?}");
        one = match runtime.traits().recycle {
            Recycle::Wipe => {
                one.wipe().await?;
                let next = runtime.sandbox(one.instance()).context("it is there")?;
                next.prove().await?;
                next
            }
            Recycle::Recreate => {
                let instance = u128::from(std::process::id()) << 64 | (10 + round);
                runtime.recreate(one, InstanceId::from_u128(instance)).await?
            }
        };
        let found = python(&*one, BETWEEN_USERS, "look").await?;
        let found = news(kind, &fresh, &found);
        ensure!(found.is_empty(), "round {round}: left behind: {found:?}");
    }
    runtime.shutdown().await?;
    // Who made it may have removed it.
    let _ = std::fs::remove_dir_all(place(kind));
    Ok(())
}

over_kinds! { between_users as one_user_is_nothing_to_another: docker Docker runc Runc runsc Runsc }
