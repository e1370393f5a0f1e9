//! A program that runs: its lanes, its end, and in which order the host hears of them. All its
//! output, then the ends of its lanes, then how it ended.

use std::os::fd::OwnedFd;

use guest_protocol::message::{Exited, Reply, RunningProcess, TerminalSize, lane};
use rustix::io::Errno;
use rustix::termios::tcsetwinsize;

use super::io::Io;
use super::ready::Part;
use super::start::window;
use super::stream::{Inward, Outward, Progress};

/// The guest's ends of what a program has on lanes.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) input: Option<Inward>,
    pub(super) stdout: Option<Outward>,
    pub(super) stderr: Option<Outward>,
    /// Out of a terminal or a channel.
    pub(super) main: Option<Outward>,
}

/// A program that runs, or is over and has output left.
#[derive(Debug)]
pub(super) struct Program {
    channel: u32,
    pid: i32,
    exited: Option<Exited>,
    lanes: Lanes,
    has_terminal: bool,
    /// Whether the host is told of it as one of its programs.
    is_listed: bool,
    /// Our copies of pipes that go straight to the host. They are closed after it has been told of
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

    /// The same, but none of the host's programs.
    pub(super) fn unlisted(self) -> Self {
        Self { is_listed: false, ..self }
    }

    /// Its process id, which is nobody else's as long as it has not been collected.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// How it is listed, unless it is over.
    pub(super) fn listed(&self) -> Option<RunningProcess> {
        let pid = u32::try_from(self.pid).ok()?;
        (self.is_listed && self.exited.is_none())
            .then_some(RunningProcess { process: self.channel, pid })
    }

    /// Its process id, unless it was collected.
    pub(super) fn alive(&self) -> Option<i32> {
        self.exited.is_none().then_some(self.pid)
    }

    /// It is over. What it has written and nobody has read yet still goes out.
    pub(super) fn exited(&mut self, exited: Exited, io: &mut Io) -> Progress {
        self.exited = Some(exited);
        self.lanes.input = None;
        let Lanes { input: _, stdout, stderr, main } = &mut self.lanes;
        for (end, part) in [(stdout, Part::Stdout), (stderr, Part::Stderr), (main, Part::Output)] {
            match end {
                // Nobody can write to a terminal whose session is over.
                Some(end) if part == Part::Output && self.has_terminal => end.finish_at_end(),
                Some(end) => end.finish(),
                None => continue,
            }
            io.make_ready(self.channel, part);
        }
        self.settle(io)
    }

    /// Goes on with one lane.
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
            // Nobody reads it, and nobody is to wait because of that.
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

    /// The host wants no more of a lane. The program learns it as it would from a broken pipe, from
    /// a terminal that was hung up, or from a connection that was closed.
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

    /// Whether it has a terminal to change.
    pub(super) fn has_terminal(&self) -> bool {
        self.has_terminal && self.lanes.main.is_some()
    }

    /// Says how it ended once all else is said.
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
