//! `shoal attach`: connects our terminal to a sandbox: to a new shell, to a running process, or to
//! the harness, line by line.

mod harness_lines;

use std::io::{self, IsTerminal as _, Read as _};
use std::os::fd::AsFd as _;
use std::process::ExitCode;

use client::{Client, Terminal, TerminalEvent, TerminalRequest};
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
/// The key that leaves the terminal while the process runs on: Ctrl-], as in telnet.
const LEAVE: u8 = 0x1d;

/// Arguments of `shoal attach`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal attach SANDBOX                       a shell\n  \
    shoal attach SANDBOX --shell 'top'         another program\n  \
    shoal attach SANDBOX web                   a process that runs already\n  \
    shoal attach SANDBOX --keep --name work    a shell that runs on after you leave\n  \
    shoal attach SANDBOX --harness             the harness, line by line; it ends when you leave\n\n\
    Ctrl-] leaves the terminal. A process that ran before runs on; a process that `attach` started ends, unless\n\
    --keep is given.\n\n\
    Exit codes: that of the process; 0 after Ctrl-]; 125 if the server refused, or there is none.")]
pub(crate) struct Arguments {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// A running process: its id, its process id inside the sandbox, or its name
    #[arg(value_name = "PROCESS", conflicts_with_all = ["shell", "cwd", "name", "keep"])]
    process: Option<String>,
    /// Run this line instead of a shell
    #[arg(long, value_name = "LINE")]
    shell: Option<String>,
    /// Directory in the sandbox to start the program in [default: /workspace]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Name of the process
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Let the process run on after you leave
    #[arg(long)]
    keep: bool,
    /// Connect to the harness of the sandbox: send each line that you type, and print each line of
    /// the harness
    #[arg(long, conflicts_with_all = ["process", "shell", "cwd", "name", "keep"])]
    harness: bool,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let client = arguments.server.client().map_err(Failure::as_own_failure)?;
    // Two threads, so that signals are handled while a slow terminal blocks a write.
    let tokio = native::tokio()?;
    let code = native::block_on(&tokio, async {
        let mut signals = Signals::listen()?;
        if arguments.harness {
            let sandbox = client.sandbox(arguments.sandbox);
            return harness_lines::relay(&sandbox, &mut signals)
                .await
                .map_err(Failure::as_own_failure);
        }
        let mut terminal = open(&client, arguments).await.map_err(Failure::as_own_failure)?;
        // From here on every key goes to the process.
        let raw = Raw::enter();
        let code = relay(&mut terminal, &mut signals).await.map_err(Failure::as_own_failure);
        drop(raw);
        code
    });
    // The thread that reads our input may still wait for some.
    tokio.shutdown_background();
    if matches!(code, Ok(None)) {
        output.remark("left the terminal");
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

/// Reads our input in a thread, because a read from a terminal blocks. The thread ends with this
/// process.
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

/// Connects both ends. Gives the exit code of the process, or none if the user left it.
async fn relay(terminal: &mut Terminal, signals: &mut Signals) -> Result<Option<i32>, Failure> {
    let failed = cannot("keep the terminal open");
    let is_terminal = io::stdin().is_terminal();
    let mut typed = typed();
    let mut input_ended = false;
    loop {
        tokio::select! {
            event = terminal.next() => match event.map_err(&failed)? {
                Some(TerminalEvent::Bytes(bytes)) => {
                    let written = block_in_place(|| write_all(io::stdout().as_fd(), &bytes));
                    written.map_err(|error| Failure::new("cannot write output", error))?;
                }
                Some(TerminalEvent::Process(_)) => {}
                Some(TerminalEvent::Exit(process)) => {
                    return Ok(Some(process.exit_code.unwrap_or(1)));
                }
                None => return Ok(Some(1)),
            },
            piece = typed.recv(), if !input_ended => match piece {
                Some(piece) if is_terminal && piece.contains(&LEAVE) => return Ok(None),
                Some(piece) => terminal.write(piece).await.map_err(&failed)?,
                // Ctrl-D, as a terminal sends it at the end of input.
                None => {
                    input_ended = true;
                    terminal.write(vec![0x04]).await.map_err(&failed)?;
                }
            },
            action = signals.next() => match action {
                SignalAction::Resized => terminal.resize(size()).await.map_err(&failed)?,
                SignalAction::Forward(number) if asks_to_end(number) => {
                    return Ok(Some(SIGNAL_BASE + number));
                }
                SignalAction::Forward(_) => {}
            },
        }
    }
}
