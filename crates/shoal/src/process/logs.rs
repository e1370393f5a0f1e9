//! `shoal process logs`: prints the stored output of a process, or follows it until the process
//! ends.

use std::process::ExitCode;

use client::{Client, LogEvent, LogPart};
use wire::LogStream;

use super::arguments::{LogsArgs, ProcessArgs};
use super::{code_of, write_output};
use crate::failure::Failure;
use crate::native;
use crate::output::Output;
use crate::server::cannot;

pub(super) fn main(wanted: &LogsArgs, output: &Output) -> Result<ExitCode, Failure> {
    let client = wanted.of.server.client()?;
    // Two threads, so that the connection is served while a slow reader blocks a write.
    let tokio = native::tokio()?;
    let code = native::block_on(&tokio, async {
        if wanted.follow {
            follow(&client, wanted, output).await
        } else {
            print(&client, wanted, output).await
        }
    });
    tokio.shutdown_background();
    code
}

fn part(wanted: &LogsArgs) -> LogPart {
    let stream = match (wanted.stdout, wanted.stderr) {
        (true, _) => Some("stdout"),
        (_, true) => Some("stderr"),
        (false, false) => None,
    };
    LogPart { stream, offset: wanted.offset, max_bytes: None }
}

async fn print(client: &Client, wanted: &LogsArgs, output: &Output) -> Result<ExitCode, Failure> {
    let ProcessArgs { sandbox, process, json, .. } = &wanted.of;
    let (sandbox, failed) = (client.sandbox(*sandbox), cannot("read the log"));
    let mut at = part(wanted);
    if !json {
        // Stdout and stderr in the order in which they were written.
        at.offset = at.offset.or(Some(0));
    }
    loop {
        let page = sandbox.process_log(process, at).await.map_err(&failed)?;
        if *json {
            output.say_value(&page)?;
            return Ok(ExitCode::SUCCESS);
        }
        for piece in &page.pieces {
            let bytes = piece.output.bytes().map_err(|e| Failure::new("cannot read output", e))?;
            if !write_output(&bytes, piece.stream == LogStream::Stderr)? {
                return Ok(ExitCode::SUCCESS);
            }
        }
        if !page.more || at.offset == Some(page.next_offset) {
            return Ok(ExitCode::SUCCESS);
        }
        at.offset = Some(page.next_offset);
    }
}

async fn follow(client: &Client, wanted: &LogsArgs, output: &Output) -> Result<ExitCode, Failure> {
    let ProcessArgs { sandbox, process, json, .. } = &wanted.of;
    let mut log = client.sandbox(*sandbox).follow_log(process, part(wanted));
    while let Some(entry) = log.next().await.map_err(cannot("follow the log"))? {
        match entry {
            LogEvent::Piece(piece) if *json => {
                let text = serde_json::to_string(&piece)
                    .map_err(|error| Failure::new("cannot write a piece", error))?;
                output.say(&text);
            }
            LogEvent::Piece(piece) => {
                let bytes =
                    piece.output.bytes().map_err(|e| Failure::new("cannot read output", e))?;
                if !write_output(&bytes, piece.stream == LogStream::Stderr)? {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            LogEvent::Exit(process) => return Ok(code_of(&process, output)),
        }
    }
    Err(Failure::new("cannot follow the log", "the log ended before the process"))
}
