//! A running program: its lanes, its end, and the order in which the host hears of them. First all
//! output, then the ends of its lanes, then how it ended.

use std::os::fd::OwnedFd;

use guest_protocol::message::{Exited, Reply, RunningProcess, TerminalSize, lane};
use rustix::io::Errno;
use rustix::termios::tcsetwinsize;

use super::io::Io;
use super::ready::Part;
use super::start::window;
use super::stream::{Inward, Outward, Progress};

/// The guest's ends of the lanes of a program.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) input: Option<Inward>,
    pub(super) stdout: Option<Outward>,
    pub(super) stderr: Option<Outward>,
    /// From a terminal or a channel.
    pub(super) main: Option<Outward>,
}

/// A program that runs, or that has ended and has output left.
#[derive(Debug)]
pub(super) struct Program {
    channel: u32,
    pid: i32,
    exited: Option<Exited>,
    lanes: Lanes,
    has_terminal: bool,
    /// Whether the host sees it as one of its programs.
    is_listed: bool,
    /// Our copies of pipes that go straight to the host. They are closed after the host was sent
    /// the end: otherwise the end of the pipes would wake it just before, for nothing.
    passed: [Option<OwnedFd>; 2],
}

impl Program {
    pub(super) fn new(
        channel: u32,
        pid: i32,
        lanes: Lanes,
        has_terminal: bool,
        passed: [Option<OwnedFd>; 2],
    ) -> Self {
        Self { channel, pid, exited: None, lanes, has_terminal, is_listed: true, passed }
    }

    /// The same, but not shown as one of the host's programs.
    pub(super) fn unlisted(self) -> Self {
        Self { is_listed: false, ..self }
    }

    /// Its process id. Not used again before the process is collected.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Its entry in a list of programs, unless it has ended.
    pub(super) fn listed(&self) -> Option<RunningProcess> {
        let pid = u32::try_from(self.pid).ok()?;
        (self.is_listed && self.exited.is_none())
            .then_some(RunningProcess { process: self.channel, pid })
    }

    /// Its process id, unless it was collected.
    pub(super) fn alive(&self) -> Option<i32> {
        self.exited.is_none().then_some(self.pid)
    }

    /// The program has ended. What it has written and was not read yet is still sent.
    pub(super) fn exited(&mut self, exited: Exited, io: &mut Io) -> Progress {
        self.exited = Some(exited);
        self.lanes.input = None;
        let Lanes { input: _, stdout, stderr, main } = &mut self.lanes;
        for (end, part) in [(stdout, Part::Stdout), (stderr, Part::Stderr), (main, Part::Output)] {
            match end {
                // After the end of its session, no process can write to a terminal.
                Some(end) if part == Part::Output && self.has_terminal => end.finish_at_end(),
                Some(end) => end.finish(),
                None => continue,
            }
            io.make_ready(self.channel, part);
        }
        self.settle(io)
    }

    /// Continues one lane.
    pub(super) fn step(&mut self, part: Part, io: &mut Io) -> Progress {
        let (outward, lane) = match part {
            Part::Input => return self.step_input(io),
            Part::Stdout => (&mut self.lanes.stdout, lane::STDOUT),
            Part::Stderr => (&mut self.lanes.stderr, lane::STDERR),
            Part::Output => (&mut self.lanes.main, lane::MAIN),
            Part::Work => return Progress::Wait,
        };
        let Some(end) = outward else { return Progress::Wait };
        match end.pump(self.channel, lane, io) {
            Progress::More => Progress::More,
            Progress::Wait => Progress::Wait,
            Progress::Over => {
                *outward = None;
                io.connection.endpoint.end(self.channel, lane);
                self.settle(io)
            }
        }
    }

    fn step_input(&mut self, io: &mut Io) -> Progress {
        if let Some(input) = &mut self.lanes.input
            && input.pump(self.channel, lane::MAIN, &mut io.connection.endpoint) == Progress::Over
        {
            self.lanes.input = None;
        }
        Progress::Wait
    }

    /// Input came.
    pub(super) fn take(&mut self, lane: u8, bytes: Vec<u8>, io: &mut Io) -> Progress {
        match &mut self.lanes.input {
            Some(input) if lane == lane::MAIN => {
                input.take(bytes);
                self.step_input(io)
            }
            // Not read any more: drop it, so that the host does not wait for credit.
            Some(_) | None => {
                io.connection.endpoint.consumed(self.channel, lane, bytes.len());
                Progress::Wait
            }
        }
    }

    /// Input is at its end.
    pub(super) fn end(&mut self, lane: u8, io: &mut Io) -> Progress {
        match &mut self.lanes.input {
            Some(input) if lane == lane::MAIN => {
                input.end();
                self.step_input(io)
            }
            Some(_) | None => Progress::Wait,
        }
    }

    /// The host wants nothing further from a lane. The program sees a broken pipe, a terminal that
    /// was hung up, or a closed connection.
    pub(super) fn reset(&mut self, lane: u8, io: &mut Io) -> Progress {
        match lane {
            lane::STDOUT => self.lanes.stdout = None,
            lane::STDERR => self.lanes.stderr = None,
            _ => {
                self.lanes.input = None;
                self.lanes.main = None;
            }
        }
        self.settle(io)
    }

    /// Changes the size of its terminal.
    pub(super) fn resize(&self, size: TerminalSize) -> Result<(), Errno> {
        self.lanes
            .main
            .as_ref()
            .map_or(Ok(()), |terminal| tcsetwinsize(&terminal.descriptor, window(size)))
    }

    /// Whether it has a terminal.
    pub(super) fn has_terminal(&self) -> bool {
        self.has_terminal && self.lanes.main.is_some()
    }

    /// Reports how it ended once everything else has been sent.
    fn settle(&mut self, io: &mut Io) -> Progress {
        let Lanes { input: _, stdout, stderr, main } = &self.lanes;
        let has_output = stdout.is_some() || stderr.is_some() || main.is_some();
        match self.exited {
            Some(exited) if !has_output => {
                io.reply(self.channel, &Reply::Exited(exited));
                for descriptor in &mut self.passed {
                    io.close_later(descriptor.take());
                }
                Progress::Over
            }
            Some(_) | None => Progress::Wait,
        }
    }
}
