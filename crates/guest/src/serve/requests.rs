//! The requests of the host: each is answered at once, or begins an activity that answers later.

use guest_protocol::ProtocolError;
use guest_protocol::look::Look;
use guest_protocol::message::{Fault, FaultCode, Pipe, Reply, Request, Spawn, TerminalSize};
use jail::sys::reap;

use super::activity::Activity;
use super::dial::Dial;
use super::family::FamilySignal;
use super::fault::{fault, refused};
use super::files::{self, links, metadata, removal};
use super::files::{file_reader::FileReader, file_writer::FileWriter, listing::Listing};
use super::guest::Guest;
use super::ready::Part;
use super::scale::Scale;
use super::{ExitReason, environment, look, ports, start};

/// The highest signal number.
const MAX_SIGNAL: i32 = 64;

/// The outcome of a request.
enum Answer {
    /// The reply.
    Now(Reply),
    /// An activity that goes on, and the part to begin with, if any.
    Later(Activity, Option<Part>),
}

impl Guest {
    /// Handles a request. Only a second request on a channel is an error of the connection.
    pub(super) fn request(&mut self, channel: u32, request: Request) -> Result<(), ExitReason> {
        if self.activities.contains_key(&channel) {
            return Err(ProtocolError::BadMessage.into());
        }
        if request == Request::BeginAgain {
            return self.begin_again(channel);
        }
        let answer = self.answer(channel, request);
        match answer {
            Ok(Answer::Later(activity, part)) => {
                self.activities.insert(channel, activity);
                if let Some(part) = part {
                    self.io.make_ready(channel, part);
                }
            }
            Ok(Answer::Now(reply)) => self.close_with(channel, &reply),
            Err(fault) => self.close_with(channel, &Reply::Failed(fault)),
        }
        Ok(())
    }

    pub(super) fn close_with(&mut self, channel: u32, reply: &Reply) {
        self.io.reply(channel, reply);
        self.io.connection.endpoint.close(channel);
    }

    fn answer(&mut self, channel: u32, request: Request) -> Result<Answer, Fault> {
        let workspace = &self.settings.workspace;
        let done = |()| Answer::Now(Reply::Done);
        match request {
            Request::Ping => Ok(Answer::Now(Reply::Done)),
            Request::Claim { env } => {
                environment::check(&env)?;
                self.bound = env;
                Ok(Answer::Now(Reply::Done))
            }
            Request::Spawn(spawn) => self.spawn(channel, &spawn),
            Request::Signal { process, signal, tree } => {
                self.signal(channel, process, signal, tree)
            }
            Request::Resize { process, size } => self.resize(process, size).map(done),
            Request::ReadFile { path, offset, length } => {
                self.read_file(channel, &path, offset, length)
            }
            Request::WriteFile { path, mode, parents } => {
                self.write_file(channel, &path, mode, parents)
            }
            Request::List { path, after, limit } => self.list(channel, &path, after, limit),
            Request::Stat { path } => {
                let path = start::absolute(workspace, &path);
                files::stat(&path).map(|entry| Answer::Now(Reply::Entry(entry)))
            }
            Request::MakeDirectory { path, parents } => {
                files::make_directory(&start::absolute(workspace, &path), parents).map(done)
            }
            Request::Move { from, to, overwrite } => {
                let from = start::absolute(workspace, &from);
                files::rename(&from, &start::absolute(workspace, &to), overwrite).map(done)
            }
            Request::Remove { path, recursive } => self.remove(channel, &path, recursive),
            Request::Dial { port } => self.dial(channel, port),
            Request::Ports => Ok(Answer::Now(Reply::Ports(ports::listening()))),
            Request::Processes => Ok(Answer::Now(self.processes())),
            Request::MakeLink { path, target } => {
                links::make_link(&start::absolute(workspace, &path), &target).map(done)
            }
            Request::LinkFile { path, target } => {
                let target = start::absolute(workspace, &target);
                links::link_file(&start::absolute(workspace, &path), &target).map(done)
            }
            Request::SetAbout { path, mode, modified_ms } => {
                metadata::set(&start::absolute(workspace, &path), mode, modified_ms).map(done)
            }
            Request::DialUnix { path } => self.dial_unix(channel, &path),
            Request::Look { look, output } => self.look(channel, &look, output),
            Request::ScaleHeard { seq } => {
                self.scale.iter_mut().for_each(|scale| scale.acknowledged(seq));
                Ok(Answer::Now(Reply::Done))
            }
            Request::ShowHolds { processes, seen } => {
                self.scale.iter_mut().for_each(|scale| scale.show_holds(processes, seen));
                Ok(Answer::Now(Reply::Done))
            }
            Request::EndAll => {
                let end_all = self.end_all(channel)?;
                Ok(Answer::Later(Activity::EndAll(end_all), None))
            }
            Request::BeginAgain => {
                Err(fault(FaultCode::Invalid, "this request cannot be sent here"))
            }
        }
    }

    fn read_file(
        &mut self,
        channel: u32,
        path: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<Answer, Fault> {
        self.check_activity_limit()?;
        let path = start::absolute(&self.settings.workspace, path);
        let reading = FileReader::start(channel, &path, offset, length, &mut self.io)?;
        Ok(Answer::Later(Activity::ReadFile(reading), Some(Part::Output)))
    }

    fn write_file(
        &self,
        channel: u32,
        path: &str,
        mode: Option<u32>,
        parents: bool,
    ) -> Result<Answer, Fault> {
        self.check_activity_limit()?;
        let path = start::absolute(&self.settings.workspace, path);
        let writing = FileWriter::start(channel, path, mode, parents)?;
        Ok(Answer::Later(Activity::WriteFile(writing), None))
    }

    fn list(
        &self,
        channel: u32,
        path: &str,
        after: Option<Vec<u8>>,
        limit: u32,
    ) -> Result<Answer, Fault> {
        self.check_activity_limit()?;
        let path = start::absolute(&self.settings.workspace, path);
        let listing = Listing::start(channel, &path, after, limit)?;
        Ok(Answer::Later(Activity::Listing(listing), Some(Part::Work)))
    }

    fn remove(&self, channel: u32, path: &str, recursive: bool) -> Result<Answer, Fault> {
        self.check_activity_limit()?;
        let path = start::absolute(&self.settings.workspace, path);
        Ok(match removal::start(channel, path, recursive)? {
            None => Answer::Now(Reply::Done),
            Some(removal) => Answer::Later(Activity::Removal(removal), Some(Part::Work)),
        })
    }

    fn dial(&mut self, channel: u32, port: u16) -> Result<Answer, Fault> {
        self.check_activity_limit()?;
        let dial = Dial::start(channel, port, &mut self.io)?;
        Ok(Answer::Later(Activity::Dial(dial), Some(Part::Input)))
    }

    fn dial_unix(&mut self, channel: u32, path: &str) -> Result<Answer, Fault> {
        self.check_activity_limit()?;
        // Files are accessed as the user of programs, and so is a Unix socket.
        let path = start::absolute(&self.settings.workspace, path);
        let dial = Dial::start_unix(channel, &path, &mut self.io)?;
        Ok(Answer::Later(Activity::Dial(dial), Some(Part::Output)))
    }

    /// Everything that keeps descriptors open has a limit, or none would be left for pipes.
    fn check_activity_limit(&self) -> Result<(), Fault> {
        if self.activities.len() < self.max_activities {
            return Ok(());
        }
        let most = self.max_activities;
        Err(fault(
            FaultCode::Limit,
            format!("the sandbox already has {most} programs, files and connections open"),
        ))
    }

    fn spawn(&mut self, channel: u32, spawn: &Spawn) -> Result<Answer, Fault> {
        let allowed = self.check_activity_limit();
        let program = match allowed {
            Ok(()) => {
                let Self { bound, settings, scale, io, .. } = self;
                if let Some(scale) = scale {
                    scale.restore();
                }
                let scale = scale.as_ref().map(Scale::path);
                start::start(channel, spawn, bound, settings, scale, io)?
            }
            Err(fault) => {
                start::drop_passed(&spawn.stdio, &mut self.io);
                return Err(fault);
            }
        };
        self.children.insert(program.pid(), channel);
        if spawn.announce {
            let pid = u32::try_from(program.pid()).ok();
            self.io.reply(channel, &Reply::Started { pid });
        }
        Ok(Answer::Later(Activity::Program(program), None))
    }

    fn look(&mut self, channel: u32, look: &Look, output: Pipe) -> Result<Answer, Fault> {
        let allowed = self.check_activity_limit();
        let program = match allowed {
            Ok(()) => {
                let Self { settings, children, io, .. } = self;
                look::start(channel, look, output, settings, children, io)?
            }
            Err(fault) => {
                look::drop_passed(output, &mut self.io);
                return Err(fault);
            }
        };
        self.children.insert(program.pid(), channel);
        Ok(Answer::Later(Activity::Program(program), None))
    }

    fn signal(
        &mut self,
        channel: u32,
        process: u32,
        signal: i32,
        tree: bool,
    ) -> Result<Answer, Fault> {
        if !(1..=MAX_SIGNAL).contains(&signal) {
            return Err(fault(FaultCode::Invalid, format!("{signal} is not a signal")));
        }
        let leader = match self.activities.get(&process) {
            Some(Activity::Program(program)) => program.alive(),
            Some(_) | None => None,
        };
        if tree {
            self.family_signals.push(channel);
            let family_signal = FamilySignal::new(process, leader, signal);
            return Ok(Answer::Later(Activity::FamilySignal(family_signal), None));
        }
        if let Some(pid) = leader {
            reap::signal(pid, signal)
                .map_err(|errno| refused(errno, &format!("cannot signal process {process}")))?;
        }
        Ok(Answer::Now(Reply::Done))
    }

    fn resize(&self, process: u32, size: TerminalSize) -> Result<(), Fault> {
        match self.activities.get(&process) {
            Some(Activity::Program(program)) if program.has_terminal() => program
                .resize(size)
                .map_err(|errno| refused(errno, "cannot change the size of the terminal")),
            Some(_) | None => {
                Err(fault(FaultCode::NotFound, format!("process {process} has no terminal")))
            }
        }
    }

    fn processes(&self) -> Reply {
        let listed = |activity: &Activity| match activity {
            Activity::Program(program) => program.listed(),
            Activity::Dial(_)
            | Activity::ReadFile(_)
            | Activity::WriteFile(_)
            | Activity::Listing(_)
            | Activity::Removal(_)
            | Activity::FamilySignal(_)
            | Activity::EndAll(_) => None,
        };
        Reply::Processes(self.activities.values().filter_map(listed).collect())
    }
}

/// The answer to a kill that does not succeed.
pub(super) fn still_there(left: usize) -> Fault {
    fault(FaultCode::System, format!("{left} processes did not end after a kill"))
}
