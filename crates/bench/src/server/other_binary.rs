//! A second program, measured in the same rounds: what a change costs, as a ratio.

use std::path::Path;

use async_trait::async_trait;
use command::failure::Failure;

use super::test_server::{Journal, TestServer};
use super::times::{self, Acquire, AcquireAndExec, Exec, FreezeThaw};
use crate::contender::{Contender, Times};

/// Starts a server of the other program, with what is timed of it.
pub(super) async fn start(
    program: &Path,
    above: &Path,
    pinned: &[u8],
) -> Result<(TestServer, Vec<Box<dyn Contender>>), Failure> {
    let above = above.join("against");
    let served = super::start(program, Journal::Durable, &above).await?;
    let all: Vec<Box<dyn Contender>> = vec![
        Box::new(Acquire::of(times::ACQUIRE, "default", &served).await?),
        Box::new(AcquireAndExec::of(&served).await?),
        Box::new(Exec::of(&served, pinned).await?),
        Box::new(FreezeThaw::of(&served).await?),
    ];
    let renamed = all.into_iter().map(|one| Box::new(Renamed(one)) as Box<dyn Contender>);
    Ok((served, renamed.collect()))
}

/// A contender whose times have the names of the other program.
struct Renamed(Box<dyn Contender>);

#[async_trait]
impl Contender for Renamed {
    fn name(&self) -> &'static str {
        name_of_other(self.0.name())
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let times = self.0.sample().await?;
        Ok(times.into_iter().map(|(name, time)| (name_of_other(name), time)).collect())
    }

    async fn close(&mut self) {
        self.0.close().await;
    }
}

/// What a change may cost.
pub(crate) const LIMIT: f64 = 1.10;

/// Pairs of what is timed, and the name of the same at the other program.
pub(crate) const PAIRS: [(&str, &str); 6] = [
    (times::ACQUIRE, "against: acquire over HTTP"),
    (times::ACQUIRE_AND_EXEC, "against: acquire and first exec over HTTP"),
    (times::EXEC, "against: exec over HTTP"),
    (times::EXEC_TRUE, "against: exec true over HTTP"),
    (times::FREEZE, "against: freeze over HTTP"),
    (times::THAW, "against: thaw over HTTP"),
];

fn name_of_other(name: &'static str) -> &'static str {
    PAIRS.iter().find(|(ours, _)| *ours == name).map_or(name, |(_, theirs)| theirs)
}
