//! `shoal attach`: a terminal in a sandbox at our own, with a new shell or with a process that is
//! there already; or the lines of its harness.

mod harness_lines;

use std::io::{self, IsTerminal as _, Read as _};
use std::os::fd::AsFd as _;
use std::process::ExitCode;

use client::{Client, Shown, Terminal, TerminalRequest};
use model::SandboxId;
use tokio::sync::mpsc;
use tokio::task::block_in_place;
use wire::TerminalSize;

use crate::failure::Failure;
use crate::native;
use crate::output::Output;
use crate::run::signals::{SignalAction, Signals, asks_to_end};
use crate::run::streams::write_all;
use crate::run::terminal::{self, Raw};
use crate::server::{Server, cannot};

const INPUT_CHUNK_BYTES: usize = 64 * 1024;
const INPUT_PIECES: usize = 2;
/// Added to the number of the signal that ended us, as shells do.
const SIGNAL_BASE: i32 = 128;
/// What leaves the terminal and lets the process run on: control and `]`, as in telnet.
const LEAVE: u8 = 0x1d;

/// What was typed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal attach SANDBOX                       a shell\n  \
    shoal attach SANDBOX --shell 'top'         another program\n  \
    shoal attach SANDBOX web                   a process that is there already\n  \
    shoal attach SANDBOX --keep --name work    a shell that runs on, to come back to\n  \
    shoal attach SANDBOX --harness             the harness, line by line; it ends afterwards\n\n\
    Ctrl-] leaves. A process that was there before runs on; what was started here ends, unless it is\n\
    kept.\n\n\
    Exit codes: that of the process; 0 if it was left; 125 if the server refused, or there is none.")]
pub(crate) struct Arguments {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// A process that is there already: its id, its process id inside, or its name
    #[arg(value_name = "PROCESS", conflicts_with_all = ["shell", "cwd", "name", "keep"])]
    process: Option<String>,
    /// Run this line in place of a shell
    #[arg(long, value_name = "LINE")]
    shell: Option<String>,
    /// Directory to start in [default: /workspace]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// What the process is called
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Let it run on afterwards
    #[arg(long)]
    keep: bool,
    /// Speak with the sandbox's harness: what is typed are its lines, and what it says is printed
    #[arg(long, conflicts_with_all = ["process", "shell", "cwd", "name", "keep"])]
    harness: bool,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let client = arguments.server.client().map_err(Failure::as_own_failure)?;
    // Two threads: a slow screen must not keep us from hearing a signal.
    let tokio = native::tokio()?;
    let code = native::block_on(&tokio, async {
        let mut signals = Signals::listen()?;
        if arguments.harness {
            let sandbox = client.sandbox(arguments.sandbox);
            return harness_lines::speak(&sandbox, &mut signals)
                .await
                .map_err(Failure::as_own_failure);
        }
        let mut terminal = open(&client, arguments).await.map_err(Failure::as_own_failure)?;
        // From here on every key is the process's.
        let raw = Raw::enter();
        let code = speak(&mut terminal, &mut signals).await.map_err(Failure::as_own_failure);
        drop(raw);
        code
    });
    // The thread that reads our input may still wait for some.
    tokio.shutdown_background();
    if matches!(code, Ok(None)) {
        output.remark("left");
    }
    let code = code?.unwrap_or(0);
    Ok(ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX)))
}

fn size() -> TerminalSize {
    let runtime::TerminalSize { rows, columns } = terminal::size();
    TerminalSize { rows, columns }
}

async fn open(client: &Client, arguments: &Arguments) -> Result<Terminal, Failure> {
    let sandbox = client.sandbox(arguments.sandbox);
    let failed = cannot("open a terminal");
    if let Some(process) = &arguments.process {
        let mut terminal = sandbox.attach(process).await.map_err(&failed)?;
        if io::stdin().is_terminal() {
            terminal.resize(size()).await.map_err(&failed)?;
        }
        return Ok(terminal);
    }
    let request = TerminalRequest {
        command: arguments.shell.clone(),
        cwd: arguments.cwd.clone(),
        name: arguments.name.clone(),
        keep: arguments.keep,
    };
    sandbox.open_terminal(&request, size()).await.map_err(&failed)
}

/// What is typed here, read by a thread of its own, because a read from a terminal can only be waited
/// for. It ends with the process.
fn typed() -> mpsc::Receiver<Vec<u8>> {
    let (pieces, arriving) = mpsc::channel(INPUT_PIECES);
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut buffer = vec![0; INPUT_CHUNK_BYTES];
        while let Ok(length @ 1..) = stdin.read(&mut buffer) {
            if pieces.blocking_send(buffer[..length].to_vec()).is_err() {
                break;
            }
        }
    });
    arriving
}

/// The exit code of the process; none if it was left.
async fn speak(terminal: &mut Terminal, signals: &mut Signals) -> Result<Option<i32>, Failure> {
    let failed = cannot("go on with the terminal");
    let is_terminal = io::stdin().is_terminal();
    let mut typed = typed();
    let mut input_ended = false;
    loop {
        tokio::select! {
            shown = terminal.next() => match shown.map_err(&failed)? {
                Some(Shown::Bytes(bytes)) => {
                    let written = block_in_place(|| write_all(io::stdout().as_fd(), &bytes));
                    written.map_err(|error| Failure::new("cannot pass on output", error))?;
                }
                Some(Shown::Process(_)) => {}
                Some(Shown::Exit(process)) => return Ok(Some(process.exit_code.unwrap_or(1))),
                None => return Ok(Some(1)),
            },
            piece = typed.recv(), if !input_ended => match piece {
                Some(piece) if is_terminal && piece.contains(&LEAVE) => return Ok(None),
                Some(piece) => terminal.write(piece).await.map_err(&failed)?,
                // What a terminal says when nothing more is typed.
                None => {
                    input_ended = true;
                    terminal.write(vec![0x04]).await.map_err(&failed)?;
                }
            },
            action = signals.next() => match action {
                SignalAction::Resized => terminal.resize(size()).await.map_err(&failed)?,
                SignalAction::Forward(number) if asks_to_end(number) => return Ok(Some(SIGNAL_BASE + number)),
                SignalAction::Forward(_) => {}
            },
        }
    }
}
