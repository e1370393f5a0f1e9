//! `shoal attach --harness`: connects our input and output to the harness of a sandbox, line by
//! line.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::os::fd::AsFd as _;

use client::{ClientError, Handle, HarnessOutput, HarnessWriter};
use tokio::sync::mpsc;
use tokio::task::block_in_place;

use crate::failure::Failure;
use crate::run::signals::{SignalAction, Signals, asks_to_end};
use crate::run::streams::write_all;
use crate::server::cannot;

const LINES: usize = 16;
/// Added to the number of the signal that ended us, as shells do.
const SIGNAL_BASE: i32 = 128;

/// Passes lines both ways. Gives the exit code, or none if the user ended the input.
pub(super) async fn relay(sandbox: &Handle, signals: &mut Signals) -> Result<Option<i32>, Failure> {
    let connection = sandbox.connect_harness().await.map_err(cannot("talk to the harness"))?;
    let (mut reader, writer) = (connection.reader, connection.writer);
    let failed = cannot("keep the connection to the harness");
    let is_terminal = io::stdin().is_terminal();
    let mut sending = std::pin::pin!(send_all(typed(), writer));
    // Kept alive: the harness ends when this is dropped.
    let mut sent_all = None;
    loop {
        tokio::select! {
            output = reader.next() => match output.map_err(&failed)? {
                HarnessOutput::Line(line) => {
                    let written = block_in_place(|| write_all(io::stdout().as_fd(), format!("{line}\n").as_bytes()));
                    written.map_err(|error| Failure::new("cannot write a line", error))?;
                }
                HarnessOutput::Closed(closed) => {
                    let cause = format!("{}: {}", closed.code, closed.cause);
                    return Err(Failure::new("the harness has ended", cause));
                }
            },
            writer = &mut sending, if sent_all.is_none() => {
                // The answer to the last line is still to come.
                sent_all = Some(writer.map_err(&failed)?);
                if is_terminal {
                    return Ok(None);
                }
            },
            action = signals.next() => match action {
                SignalAction::Forward(number) if asks_to_end(number) => {
                    return Ok(Some(SIGNAL_BASE + number));
                }
                SignalAction::Forward(_) | SignalAction::Resized => {}
            },
        }
    }
}

/// Sends what is typed until the input ends.
async fn send_all(
    mut typed: mpsc::Receiver<String>,
    mut writer: HarnessWriter,
) -> Result<HarnessWriter, ClientError> {
    while let Some(line) = typed.recv().await {
        writer.send(&line).await?;
    }
    Ok(writer)
}

/// Lines of our input, read in a thread, because a read blocks.
fn typed() -> mpsc::Receiver<String> {
    let (lines, arriving) = mpsc::channel(LINES);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if lines.blocking_send(line).is_err() {
                break;
            }
        }
    });
    arriving
}
