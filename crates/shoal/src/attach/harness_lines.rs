//! `shoal attach --harness`: the harness of a sandbox, line by line, at our own input and output.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::os::fd::AsFd as _;

use client::{ClientError, Handle, HarnessHears, Said};
use tokio::sync::mpsc;
use tokio::task::block_in_place;

use crate::failure::Failure;
use crate::run::signals::{SignalAction, Signals, asks_to_end};
use crate::run::streams::write_all;
use crate::server::cannot;

const LINES: usize = 16;
/// Added to the number of the signal that ended us, as shells do.
const SIGNAL_BASE: i32 = 128;

/// Passes lines both ways; none if it was left, else what to exit with.
pub(super) async fn speak(sandbox: &Handle, signals: &mut Signals) -> Result<Option<i32>, Failure> {
    let held = sandbox.hold_harness().await.map_err(cannot("speak with the harness"))?;
    let (mut says, hears) = (held.says, held.hears);
    let failed = cannot("go on speaking with the harness");
    let is_terminal = io::stdin().is_terminal();
    let mut saying = std::pin::pin!(say_all(typed(), hears));
    // Kept, because the program ends when it is dropped.
    let mut said_all = None;
    loop {
        tokio::select! {
            said = says.next() => match said.map_err(&failed)? {
                Said::Line(line) => {
                    let written = block_in_place(|| write_all(io::stdout().as_fd(), format!("{line}\n").as_bytes()));
                    written.map_err(|error| Failure::new("cannot pass on a line", error))?;
                }
                Said::Closed(closed) => {
                    let cause = format!("{}: {}", closed.code, closed.cause);
                    return Err(Failure::new("the harness is over", cause));
                }
            },
            hears = &mut saying, if said_all.is_none() => {
                // What it has to say to the last line is still to come.
                said_all = Some(hears.map_err(&failed)?);
                if is_terminal {
                    return Ok(None);
                }
            },
            action = signals.next() => match action {
                SignalAction::Forward(number) if asks_to_end(number) => return Ok(Some(SIGNAL_BASE + number)),
                SignalAction::Forward(_) | SignalAction::Resized => {}
            },
        }
    }
}

/// Passes on what is typed, until nothing more is.
async fn say_all(
    mut typed: mpsc::Receiver<String>,
    mut hears: HarnessHears,
) -> Result<HarnessHears, ClientError> {
    while let Some(line) = typed.recv().await {
        hears.say(&line).await?;
    }
    Ok(hears)
}

/// Lines of our input, read by a thread of its own, because a read can only be waited for.
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
