//! The baseline: starting a program without a sandbox. A small static process starts and times it,
//! so that the size of the benchmark itself has no influence.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::contender::{Contender, Times};
use command::failure::Failure;

/// A process that starts a program on demand and reports how long that took.
pub(crate) struct BareSpawn {
    name: &'static str,
    _child: Child,
    ask: ChildStdin,
    answer: ChildStdout,
}

impl BareSpawn {
    /// `image` is the binary that does the starting, `program` what it starts.
    pub(crate) fn start(name: &'static str, image: &Path, program: &Path) -> Result<Self, Failure> {
        let failed = |error| Failure::new("cannot start the process to compare with", error);
        let mut child = Command::new(image)
            .arg("bare-spawner")
            .arg(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let missing = || failed(std::io::ErrorKind::BrokenPipe.into());
        let ask = child.stdin.take().ok_or_else(missing)?;
        let answer = child.stdout.take().ok_or_else(missing)?;
        Ok(Self { name, _child: child, ask, answer })
    }
}

#[async_trait]
impl Contender for BareSpawn {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let failed = |error| Failure::new("the process to compare with has ended", error);
        self.ask.write_all(b".").await.map_err(failed)?;
        self.ask.flush().await.map_err(failed)?;
        let nanoseconds = self.answer.read_u64_le().await.map_err(failed)?;
        Ok(vec![(self.name, Duration::from_nanos(nanoseconds))])
    }
}
