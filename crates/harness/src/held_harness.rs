//! A harness that a caller uses directly, line by line and both ways at once. Nothing is
//! interpreted: lines are passed on as they are. No other caller could continue from where this one
//! stopped, so the program is killed when the hold ends.

use std::sync::Arc;
use std::time::Duration;

use runtime::Duplex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::{HarnessError, HarnessErrorCode};
use crate::lines::{Lines, TooLong};
use crate::program::{End, Ended};
use crate::program_turn::{Conversation, ProgramHarness};

/// The longest line that is passed on, whatever the limit in turns.
pub const HELD_LINE_BYTES_MAX: usize = 4 << 20;

const READ_BYTES: usize = 32 * 1024;

/// How long a program may take to end after its connection has ended, and how long a program that
/// has ended is still read.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// A held harness. When it is dropped, its program is killed with all its descendants.
pub struct HeldHarness {
    /// What it sends.
    pub says: HeldOutput,
    /// What it receives.
    pub hears: HeldInput,
}

/// The output of a held harness.
pub struct HeldOutput {
    reader: ReadHalf<Box<dyn Duplex>>,
    lines: Lines,
    scratch: Vec<u8>,
    end: End,
    /// How the program ended, and until when it is still read.
    died: Option<(Ended, Instant)>,
    _kill_on_drop: KillOnDrop,
}

/// The input of a held harness.
pub struct HeldInput {
    writer: WriteHalf<Box<dyn Duplex>>,
    /// Bytes of earlier lines that it has not taken yet.
    unsaid: Vec<u8>,
    _kill_on_drop: KillOnDrop,
}

/// Kills the program when it is dropped.
struct KillOnDrop(Arc<ProgramHarness>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl HeldHarness {
    pub(crate) fn new(harness: &Arc<ProgramHarness>, conversation: Conversation) -> Self {
        let (stream, lines, unsaid) = conversation.connection.into_parts();
        let (reader, writer) = split(stream);
        let kill_on_drop = || KillOnDrop(Arc::clone(harness));
        let says = HeldOutput {
            reader,
            lines: lines.at_most(HELD_LINE_BYTES_MAX),
            scratch: Vec::new(),
            end: harness.end(),
            died: None,
            _kill_on_drop: kill_on_drop(),
        };
        Self { says, hears: HeldInput { writer, unsaid, _kill_on_drop: kill_on_drop() } }
    }
}

impl HeldOutput {
    /// The next line, or why there is none. Dropping the wait loses nothing.
    pub async fn next(&mut self) -> Result<String, HarnessError> {
        loop {
            match self.lines.next() {
                Ok(Some(line)) => {
                    return String::from_utf8(line).map_err(|_| {
                        let cause = "a line of the harness is not UTF-8";
                        HarnessError::new(HarnessErrorCode::Protocol, cause)
                    });
                }
                Ok(None) => {}
                Err(TooLong) => {
                    let cause =
                        format!("a line of the harness is longer than {HELD_LINE_BYTES_MAX} bytes");
                    return Err(HarnessError::new(HarnessErrorCode::TooLarge, cause));
                }
            }
            self.scratch.resize(READ_BYTES, 0);
            let died = self.died.as_ref();
            let late = async {
                match died {
                    Some((_, until)) => sleep_until(*until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                read = self.reader.read(&mut self.scratch) => match read {
                    Ok(count @ 1..) => self.lines.push(&self.scratch[..count]),
                    Ok(0) | Err(_) => return Err(self.closed().await),
                },
                // What it sent before its end is still read.
                ended = self.end.wait(), if died.is_none() => {
                    self.died = Some((ended, Instant::now() + EXIT_TIMEOUT));
                }
                () = late => return Err(self.closed().await),
            }
        }
    }

    /// Why nothing more will come.
    async fn closed(&mut self) -> HarnessError {
        if let Some((ended, _)) = &self.died {
            return ended.clone().into_error();
        }
        let goes_on = |_| {
            let cause = "the harness closed its connection but still runs";
            HarnessError::new(HarnessErrorCode::Died, cause)
        };
        timeout(EXIT_TIMEOUT, self.end.wait()).await.map_or_else(goes_on, Ended::into_error)
    }
}

impl HeldInput {
    /// Sends it a line; returns when it has taken it. If it does not read any more, nothing is
    /// sent: its output reports its end.
    pub async fn line(&mut self, line: &str) {
        self.unsaid.extend_from_slice(line.as_bytes());
        self.unsaid.push(b'\n');
        // After a dropped wait, only the rest is sent again.
        while !self.unsaid.is_empty() {
            match self.writer.write(&self.unsaid).await {
                Ok(count @ 1..) => drop(self.unsaid.drain(..count)),
                Ok(0) | Err(_) => self.unsaid.clear(),
            }
        }
        self.unsaid.shrink_to(READ_BYTES);
    }
}
