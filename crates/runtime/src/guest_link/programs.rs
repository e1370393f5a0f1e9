//! Programs over a connection.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use guest_protocol::Env;
use guest_protocol::message::{
    ExitStatus, Exited, Pipe, Reply, Request, Spawn, Stdio, TerminalSize, lane,
};

use super::GuestLink;
use super::call::Call;
use super::calls::expect_done;
use super::channel::Kind;
use super::lanes::{LaneDuplex, LaneReader, LaneWriter};
use super::pipes::{self, PipeReader};
use crate::error::RuntimeError;
use crate::exec::{ExecSpec, Exit, Process, ProcessControl, Sink, Stdin};
use crate::files::{ByteReader, ByteWriter};

const STEP: &str = "run a program";

/// The signal that the Linux kernel sends for want of memory, and the exit code a shell makes of
/// it.
const SIGKILL: i32 = 9;
const CODE_OF_KILLED: i32 = 128 + SIGKILL;

/// Our end of one of a program's streams, before the call exists to which it belongs.
enum Ours {
    None,
    Lane,
    Output(OwnedFd),
    Input(OwnedFd),
    /// Input that is known already, and how much of it is in the pipe.
    Bytes {
        pipe: Option<OwnedFd>,
        bytes: Vec<u8>,
        written: usize,
    },
}

impl GuestLink {
    /// Starts a program. Without confirmation it returns as soon as the request is on its way.
    pub(super) async fn spawn(&self, spec: ExecSpec) -> Result<Process, RuntimeError> {
        let spec = spec.validated()?;
        let pass = self.connection.settings.pass_descriptors;
        let mut passed = Vec::new();
        let (stdio, [input, out, err], kind) = if let Some(size) = spec.terminal {
            let input = match spec.stdin {
                Stdin::Bytes(bytes) => Ours::Bytes { pipe: None, bytes, written: 0 },
                Stdin::Null | Stdin::Stream => Ours::Lane,
            };
            let kind = Kind::Program { main: true, output: false };
            (Stdio::Terminal(size), [input, Ours::Lane, Ours::None], kind)
        } else {
            let (stdin, input) = input(spec.stdin, pass, &mut passed)?;
            let (stdout, out) = output(spec.stdout, pass, &mut passed)?;
            let (stderr, err) = output(spec.stderr, pass, &mut passed)?;
            let is_lane = |pipe: Pipe| pipe == Pipe::Lane;
            let kind = Kind::Program {
                main: is_lane(stdin) || spec.channel,
                output: is_lane(stdout) || is_lane(stderr),
            };
            let stdio = if spec.channel {
                Stdio::Channel { stdout, stderr }
            } else {
                Stdio::Pipes { stdin, stdout, stderr }
            };
            (stdio, [input, out, err], kind)
        };
        let request = Request::Spawn(Box::new(Spawn {
            command: spec.command,
            env: Env(spec.env),
            cwd: spec.cwd,
            stdio,
            limits: spec.limits,
            announce: spec.confirm_start,
        }));
        let call = Arc::new(Call::open(&self.connection, STEP, kind, &request, passed)?);
        let program = Program::new(Arc::clone(&call));
        // From here on, dropping it kills the program.
        let mut process = Process::new(Arc::new(program));
        match input {
            Ours::None | Ours::Output(_) => {}
            Ours::Lane => process.stdin = Some(lane_writer(&call)),
            Ours::Input(pipe) => process.stdin = Some(Box::new(pipes::sender(pipe)?)),
            // All of it is in the pipe, whose end follows by closing it here.
            Ours::Bytes { pipe: Some(_), bytes, written } if written == bytes.len() => {}
            Ours::Bytes { pipe, bytes, written } => {
                let writer = match pipe {
                    Some(pipe) => Box::new(pipes::sender(pipe)?),
                    None => lane_writer(&call),
                };
                process.feed(writer, bytes, written);
            }
        }
        let out_lane = if spec.terminal.is_some() { lane::MAIN } else { lane::STDOUT };
        process.stdout = reader(out, &call, out_lane);
        process.stderr = reader(err, &call, lane::STDERR);
        if spec.channel {
            process.channel = Some(Box::new(LaneDuplex::ending(Arc::clone(&call))));
        }
        if spec.confirm_start {
            let reply = call.first().await?;
            let Reply::Started { pid } = reply else { return Err(call.unexpected_answer(&reply)) };
            process.started(pid);
        }
        Ok(process)
    }
}

fn lane_writer(call: &Arc<Call>) -> ByteWriter {
    Box::new(LaneWriter::new(Arc::clone(call), lane::MAIN))
}

fn reader(ours: Ours, call: &Arc<Call>, lane: u8) -> Option<ByteReader> {
    match ours {
        Ours::None | Ours::Input(_) | Ours::Bytes { .. } => None,
        Ours::Lane => Some(Box::new(LaneReader::new(Arc::clone(call), lane))),
        Ours::Output(pipe) => Some(Box::new(PipeReader::new(pipe, Arc::clone(call), lane))),
    }
}

fn input(
    stdin: Stdin,
    pass: bool,
    passed: &mut Vec<OwnedFd>,
) -> Result<(Pipe, Ours), RuntimeError> {
    match stdin {
        Stdin::Null => Ok((Pipe::Null, Ours::None)),
        Stdin::Bytes(bytes) if bytes.is_empty() => Ok((Pipe::Null, Ours::None)),
        Stdin::Bytes(bytes) if pass => {
            let (ours, theirs) = pipes::input()?;
            let written = pipes::fill(&ours, &bytes)?;
            passed.push(theirs);
            Ok((Pipe::Passed, Ours::Bytes { pipe: Some(ours), bytes, written }))
        }
        Stdin::Bytes(bytes) => Ok((Pipe::Lane, Ours::Bytes { pipe: None, bytes, written: 0 })),
        Stdin::Stream if pass => {
            let (ours, theirs) = pipes::input()?;
            passed.push(theirs);
            Ok((Pipe::Passed, Ours::Input(ours)))
        }
        Stdin::Stream => Ok((Pipe::Lane, Ours::Lane)),
    }
}

fn output(sink: Sink, pass: bool, passed: &mut Vec<OwnedFd>) -> Result<(Pipe, Ours), RuntimeError> {
    match sink {
        Sink::Null => Ok((Pipe::Null, Ours::None)),
        Sink::Stream if pass => {
            let (ours, theirs) = pipes::output()?;
            passed.push(theirs);
            Ok((Pipe::Passed, Ours::Output(ours)))
        }
        Sink::Stream => Ok((Pipe::Lane, Ours::Lane)),
    }
}

/// A program that was started over a connection.
pub(super) struct Program {
    call: Arc<Call>,
    /// How it exited, once that is known.
    exit: Mutex<Option<Result<Exit, RuntimeError>>>,
}

impl Program {
    pub(super) fn new(call: Arc<Call>) -> Self {
        Self { call, exit: Mutex::new(None) }
    }

    fn exit(&self, exited: Exited) -> Exit {
        let Exited { status, user_us, system_us, max_rss_kb } = exited;
        let killed = match status {
            ExitStatus::Signal(signal) => signal == SIGKILL,
            ExitStatus::Code(code) => code == CODE_OF_KILLED,
        };
        // Only a counter shows kills for want of memory: read it when a program was killed, and
        // only then.
        let out_of_memory = killed && self.call.connection.surroundings.memory_ran_out();
        Exit { status, out_of_memory, user_us, system_us, max_rss_kb }
    }

    async fn done(&self, step: &'static str, request: &Request) -> Result<(), RuntimeError> {
        let call = Call::open(&self.call.connection, step, Kind::Single, request, Vec::new())?;
        let reply = call.last().await?;
        expect_done(&call, &reply)
    }
}

#[async_trait]
impl ProcessControl for Program {
    fn poll_exit(&self, cx: &mut Context<'_>) -> Poll<Result<Exit, RuntimeError>> {
        let mut exit = self.exit.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(exit) = &*exit {
            return Poll::Ready(exit.clone());
        }
        let found = match ready!(self.call.poll_last(cx)) {
            Ok(Reply::Exited(exited)) => Ok(self.exit(exited)),
            Ok(other) => Err(self.call.unexpected_answer(&other)),
            Err(error) => Err(error),
        };
        Poll::Ready(exit.insert(found).clone())
    }

    async fn signal(&self, signal: i32, tree: bool) -> Result<(), RuntimeError> {
        let request = Request::Signal { process: self.call.number, signal, tree };
        self.done("signal a program", &request).await
    }

    async fn resize(&self, size: TerminalSize) -> Result<(), RuntimeError> {
        let request = Request::Resize { process: self.call.number, size };
        self.done("resize a terminal", &request).await
    }

    fn abandon(&self) {
        let Call { connection, number, .. } = &*self.call;
        let finished = match connection.lock().channel(*number) {
            Some(channel) => channel.finished,
            None => true,
        };
        if !finished {
            connection.send_unawaited(&Request::Signal {
                process: *number,
                signal: SIGKILL,
                tree: true,
            });
        }
    }
}
