//! Forwards messages from our input to a server, and its answers to our output: several at once,
//! each answer as one line. Cancelling a call ends its HTTP request, and with it the work of the
//! server.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, Read as _};
use std::os::fd::AsFd as _;
use std::time::Duration;

use client::{Client, McpTarget};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet, block_in_place};
use tokio::time::timeout;

use super::message::{self, InputLine, Message};
use crate::failure::Failure;
use crate::run::streams::write_all;

/// The longest line: more than any server accepts.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// Lines that wait to be sent.
const LINES: usize = 16;
/// Messages in progress at once.
const AT_ONCE: usize = 64;
/// How long answers may take after the input has ended.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// The outcome of a message.
struct Answered {
    id: Option<Value>,
    /// The version that it negotiated.
    agreed: Option<String>,
    line: Option<Vec<u8>>,
}

/// Forwards messages until our input ends.
pub(super) async fn run(client: &Client, target: McpTarget) -> Result<(), Failure> {
    let mut lines = read_lines();
    let mut agreed = None;
    let mut asked: BTreeMap<String, AbortHandle> = BTreeMap::new();
    let mut running: JoinSet<Answered> = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(done) = running.join_next() => finish(done.ok(), &mut asked, &mut agreed)?,
            line = lines.recv(), if running.len() < AT_ONCE => {
                let Some(line) = line else { break };
                match InputLine::read(&line) {
                    InputLine::Message(message) => {
                        let id = message.id.as_ref().map(Value::to_string);
                        let passing = forward(client.clone(), target, message, agreed.clone());
                        let handle = running.spawn(passing);
                        if let Some(id) = id {
                            asked.insert(id, handle);
                        }
                    }
                    InputLine::Cancelled(id) => {
                        if let Some(handle) = asked.remove(&id.to_string()) {
                            handle.abort();
                        }
                    }
                    InputLine::Unreadable(cause) => {
                        write_line(message::unreadable(&cause).to_string().into_bytes())?;
                    }
                }
            }
        }
    }
    // Messages from before the end are still answered.
    let rest = async {
        while let Some(done) = running.join_next().await {
            finish(done.ok(), &mut asked, &mut agreed)?;
        }
        Ok(())
    };
    timeout(END_PATIENCE, rest).await.unwrap_or(Ok(()))
}

fn finish(
    done: Option<Answered>,
    asked: &mut BTreeMap<String, AbortHandle>,
    agreed: &mut Option<String>,
) -> Result<(), Failure> {
    // A cancelled message gets no answer.
    let Some(done) = done else { return Ok(()) };
    if let Some(id) = done.id {
        asked.remove(&id.to_string());
    }
    if done.agreed.is_some() {
        *agreed = done.agreed;
    }
    done.line.map_or(Ok(()), write_line)
}

async fn forward(
    client: Client,
    target: McpTarget,
    message: Message,
    agreed: Option<String>,
) -> Answered {
    let id = message.id.clone();
    let is_greeting = message.method.as_deref() == Some("initialize");
    let agreed = if is_greeting { None } else { agreed };
    match (client.forward_mcp(target, message.sent(agreed.as_deref())).await, id) {
        (Ok(answer), id) => {
            let agreed = answer.as_deref().filter(|_| is_greeting).and_then(message::agreed);
            Answered { id, agreed, line: answer.map(Vec::from) }
        }
        (Err(error), Some(id)) => {
            let line = message::unanswered(&id, &error).to_string().into_bytes();
            Answered { id: Some(id), agreed: None, line: Some(line) }
        }
        // A notification gets no answer.
        (Err(_), None) => Answered { id: None, agreed: None, line: None },
    }
}

/// The lines of our input, read in a thread, because a read blocks. The thread ends with this
/// process.
fn read_lines() -> mpsc::Receiver<String> {
    let (lines, arriving) = mpsc::channel(LINES);
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        loop {
            let mut line = String::new();
            match stdin.by_ref().take(LINE_BYTES_MAX).read_line(&mut line) {
                Ok(1..) if line.trim().is_empty() => {}
                Ok(1..) => {
                    if lines.blocking_send(line.trim_end().to_owned()).is_err() {
                        return;
                    }
                }
                Ok(_) | Err(_) => return,
            }
        }
    });
    arriving
}

fn write_line(mut line: Vec<u8>) -> Result<(), Failure> {
    line.push(b'\n');
    let written = block_in_place(|| write_all(io::stdout().as_fd(), &line));
    written.map_err(|error| Failure::new("cannot write an answer", error))
}
