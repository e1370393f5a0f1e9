//! A harness that somebody speaks with directly, line by line and both ways at once. Nothing is
//! understood here: lines are passed on as they are. Nobody else could go on from where whoever held
//! it stopped, so the program is killed when it is let go.

use std::sync::Arc;
use std::time::Duration;

use runtime::Duplex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::{HarnessError, HarnessErrorCode};
use crate::lines::{Lines, TooLong};
use crate::program::{End, Ended};
use crate::program_turn::{Conversation, ProgramHarness};

/// The longest line that is passed on, whatever the harness may say in turns.
pub const HELD_LINE_BYTES_MAX: usize = 4 << 20;

const READ_BYTES: usize = 32 * 1024;

/// How long a program whose connection has ended may take to be over, and one that is over may take
/// to be read to its end.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// A harness that is held. Dropped, its program is killed with everything that descends from it.
pub struct Held {
    /// What it says.
    pub says: HeldOutput,
    /// What it is told.
    pub hears: HeldInput,
}

/// What a harness that is held says.
pub struct HeldOutput {
    reader: ReadHalf<Box<dyn Duplex>>,
    lines: Lines,
    scratch: Vec<u8>,
    end: End,
    /// How the program ended, and how long it is still listened to.
    died: Option<(Ended, Instant)>,
    _kill_on_drop: KillOnDrop,
}

/// What a harness that is held is told.
pub struct HeldInput {
    writer: WriteHalf<Box<dyn Duplex>>,
    /// What it was to be told before and has not taken yet.
    unsaid: Vec<u8>,
    _kill_on_drop: KillOnDrop,
}

/// Kills the program.
struct KillOnDrop(Arc<ProgramHarness>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl Held {
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
    /// The next line, or why there will be none. Dropping the wait loses nothing.
    pub async fn next(&mut self) -> Result<String, HarnessError> {
        loop {
            match self.lines.next() {
                Ok(Some(line)) => {
                    return String::from_utf8(line).map_err(|_| {
                        let cause = "a line of the harness is no text";
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
                // What it had said before is still heard.
                ended = self.end.wait(), if died.is_none() => {
                    self.died = Some((ended, Instant::now() + EXIT_TIMEOUT));
                }
                () = late => return Err(self.closed().await),
            }
        }
    }

    /// Why nothing more will be said.
    async fn closed(&mut self) -> HarnessError {
        if let Some((ended, _)) = &self.died {
            return ended.clone().into_error();
        }
        let goes_on = |_| {
            let cause = "the harness closed its connection and goes on";
            HarnessError::new(HarnessErrorCode::Died, cause)
        };
        timeout(EXIT_TIMEOUT, self.end.wait()).await.map_or_else(goes_on, Ended::into_error)
    }
}

impl HeldInput {
    /// Tells it a line; done when it has taken it. One that listens no more is told nothing: its
    /// end is told by what it says.
    pub async fn line(&mut self, line: &str) {
        self.unsaid.extend_from_slice(line.as_bytes());
        self.unsaid.push(b'\n');
        // Of a wait that was dropped only the rest is said again.
        while !self.unsaid.is_empty() {
            match self.writer.write(&self.unsaid).await {
                Ok(count @ 1..) => drop(self.unsaid.drain(..count)),
                Ok(0) | Err(_) => self.unsaid.clear(),
            }
        }
        self.unsaid.shrink_to(READ_BYTES);
    }
}
