//! The main loop: wait, see what happened, continue everything that can go on, write the replies.
//! It must never do more than one piece of work of one activity before it looks at the others.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::fd::OwnedFd;

use guest_protocol::message::{ExitStatus, Exited, GUEST_CHANNEL, Reply, Request, VERSION};
use guest_protocol::{Env, Incoming, decode};
use jail::sys::reap::{self, End, Reaped};
use jail::sys::{ids, memory};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventFlags};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{Resource, getpid, getrlimit, set_child_subreaper, umask};
use rustix::time::{ClockId, clock_gettime};

use super::activity::Activity;
use super::connection::Connection;
use super::family::Round;
use super::io::Io;
use super::ready::{Part, Source};
use super::scale::Scale;
use super::stream::Progress;
use super::{ExitReason, Link, Named as _, Settings};

/// Events read at once.
const EVENTS_AT_ONCE: usize = 32;

/// Pieces of work between two checks for events.
const PIECES_AT_ONCE: usize = 16;

/// The most activities, however many descriptors are allowed.
const MAX_ACTIVITIES: u64 = 2048;

/// Descriptors of the guest itself, and those on their way to a program.
const SPARE_DESCRIPTORS: u64 = 320;

/// The most descriptors that one activity keeps open.
const DESCRIPTORS_EACH: u64 = 3;

/// After this long without an event, buffers are given back.
const QUIET_MS: i64 = 1000;

/// The umask of programs.
const UMASK: u32 = 0o022;

/// With less than this in its buffers, the guest has nothing worth giving back.
const WARM_BYTES: usize = 16 * 1024;

/// How often the guest checks a family that is being killed.
const ROUND_MS: i64 = 2;

/// The guest.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) io: Io,
    pub(super) settings: Settings,
    /// The environment that is bound to the sandbox.
    pub(super) bound: Env,
    pub(super) activities: BTreeMap<u32, Activity>,
    /// The channel of each child.
    pub(super) children: BTreeMap<i32, u32>,
    /// Channels in which a signal is sent to a family.
    pub(super) family_signals: Vec<u32>,
    /// The channel of the request to end all processes.
    pub(super) end_all_channel: Option<u32>,
    pub(super) max_activities: usize,
    pub(super) scale: Option<Scale>,
    /// There is memory to give back when the guest becomes idle.
    is_warm: bool,
    signals: OwnedFd,
}

impl Guest {
    /// Says `Ready`, and makes itself so: what the host sends meanwhile waits.
    pub(super) fn start(link: Link, mut settings: Settings) -> Result<Self, ExitReason> {
        let mut connection = Connection::new(link);
        connection.endpoint.send(GUEST_CHANNEL, &Reply::Ready { version: VERSION })?;
        connection.flush()?;
        hold_null().named("/dev/null")?;
        let signals = reap::watch_children().named("watch children")?;
        if !getpid().is_init() {
            // Orphans become children of process 1 without this.
            set_child_subreaper(Some(getpid())).named("adopt orphans")?;
        }
        umask(Mode::from(UMASK));
        if let Some(identity) = settings.workload {
            // Where this is not allowed, the guest already is that user, or file permissions report
            // it.
            let _ = ids::use_files_as(identity.uid, identity.gid);
        }
        // Without a scale file, programs get no variable for it.
        let scale = settings.scale.take().and_then(|scale| Scale::start(scale).ok());
        let io = Io::new(connection)?;
        io.watch(&signals, Source::Children, EventFlags::IN).named("watch children")?;
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let room = descriptors.saturating_sub(SPARE_DESCRIPTORS) / DESCRIPTORS_EACH;
        Ok(Self {
            io,
            settings,
            bound: Env::default(),
            activities: BTreeMap::new(),
            children: BTreeMap::new(),
            family_signals: Vec::new(),
            end_all_channel: None,
            max_activities: room.min(MAX_ACTIVITIES) as usize,
            scale,
            is_warm: false,
            signals,
        })
    }

    /// Serves until there is a reason to end.
    pub(super) fn run(mut self) -> Result<Infallible, ExitReason> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_AT_ONCE);
        loop {
            events.clear();
            match epoll::wait(
                self.io.epoll(),
                spare_capacity(&mut events),
                self.wait_timeout().as_ref(),
            ) {
                Ok(0) => self.on_idle(),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(ExitReason::System { step: "wait for events", errno }),
            }
            for event in &events {
                self.on_event(Source::from_number(event.data.u64()), event.flags)?;
            }
            self.go_on();
            self.continue_family_signals();
            self.continue_end_all();
            self.check_scale_file();
            self.is_warm |=
                self.io.scratch.is_held() || self.io.connection.endpoint.held_bytes() > WARM_BYTES;
            self.io.flush()?;
            self.io.follow_interest()?;
        }
    }

    /// How long to wait for an event.
    fn wait_timeout(&self) -> Option<Timespec> {
        let milliseconds = if !self.io.ready.is_empty() && self.io.connection.has_room() {
            0
        } else if !self.family_signals.is_empty() || self.end_all_channel.is_some() {
            ROUND_MS
        } else if let Some(due_ms) = self.scale.as_ref().and_then(Scale::due_ms) {
            due_ms.saturating_sub(now_ms()).cast_signed()
        } else if self.is_warm {
            QUIET_MS
        } else {
            return None;
        };
        Some(Timespec { tv_sec: milliseconds / 1000, tv_nsec: (milliseconds % 1000) * 1_000_000 })
    }

    /// Nothing happened for a while.
    fn on_idle(&mut self) {
        let is_due = self.scale.as_ref().is_some_and(|scale| scale.due_ms().is_some());
        let is_signalling = !self.family_signals.is_empty() || self.end_all_channel.is_some();
        if self.io.ready.is_empty() && !is_signalling && !is_due {
            self.is_warm = false;
            self.io.scratch.release();
            memory::give_back();
        }
    }

    fn on_event(&mut self, source: Source, flags: EventFlags) -> Result<(), ExitReason> {
        match source {
            Source::Connection => {
                if flags.contains(EventFlags::OUT) {
                    self.io.connection.unblocked();
                }
                if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                    self.io.connection.read(&mut self.io.scratch)?;
                    self.arrived()?;
                }
                Ok(())
            }
            Source::Outlet if flags.contains(EventFlags::ERR) => Err(ExitReason::Closed),
            Source::Outlet => {
                self.io.connection.unblocked();
                Ok(())
            }
            Source::Children => self.reap_children(),
            Source::Part(channel, part) => {
                self.io.make_ready(channel, part);
                Ok(())
            }
        }
    }

    /// Handles everything that has fully arrived.
    fn arrived(&mut self) -> Result<(), ExitReason> {
        while let Some(incoming) = self.io.connection.endpoint.next() {
            match incoming {
                Incoming::Message { channel, payload } => {
                    let request: Request = decode(&payload)?;
                    self.request(channel, request)?;
                }
                Incoming::Data { channel, lane, bytes } => {
                    self.with(channel, |activity, io| activity.take(lane, bytes, io));
                }
                Incoming::End { channel, lane } => {
                    self.with(channel, |activity, io| activity.end(lane, io));
                }
                Incoming::Reset { channel, lane } => {
                    self.with(channel, |activity, io| activity.reset(lane, io));
                }
                Incoming::Writable { channel, lane } => {
                    self.io.make_ready(channel, Part::sending_on(lane));
                }
            }
        }
        Ok(())
    }

    /// Lets an activity do something, and forgets it if it has ended.
    pub(super) fn with(
        &mut self,
        channel: u32,
        act: impl FnOnce(&mut Activity, &mut Io) -> Progress,
    ) -> Progress {
        let Some(activity) = self.activities.get_mut(&channel) else { return Progress::Wait };
        let progress = act(activity, &mut self.io);
        if progress == Progress::Over {
            self.activities.remove(&channel);
            self.io.connection.endpoint.close(channel);
        }
        progress
    }

    /// Continues everything that can go on, as long as the host takes the output.
    fn go_on(&mut self) {
        for _ in 0..PIECES_AT_ONCE {
            if !self.io.connection.has_room() {
                return;
            }
            let Some((channel, part)) = self.io.ready.next() else { return };
            if self.with(channel, |activity, io| activity.step(part, io)) == Progress::More {
                self.io.make_ready(channel, part);
            }
        }
    }

    /// Collects children. The first one is reported to the host before anything else: a caller
    /// waits for it, and most often it is the only one.
    fn reap_children(&mut self) -> Result<(), ExitReason> {
        if let Some(first) = reap::look().named("look for children")? {
            self.child_ended(first);
            self.io.flush()?;
            reap::collect(first.pid);
        }
        // Read before the last check: a child that ends after it sends another signal.
        let is_lease = reap::take_notices(&self.signals).named("read a signal")?;
        if is_lease && let Some(scale) = &mut self.scale {
            scale.on_requests(now_ms());
        }
        while let Some(reaped) = reap::look().named("look for children")? {
            self.child_ended(reaped);
            reap::collect(reaped.pid);
        }
        Ok(())
    }

    /// Orphans are collected too, without a report.
    fn child_ended(&mut self, reaped: Reaped) {
        let Some(channel) = self.children.remove(&reaped.pid) else { return };
        let exited = Exited {
            status: match reaped.end {
                End::Code(code) => ExitStatus::Code(code),
                End::Signal(signal) => ExitStatus::Signal(signal),
            },
            user_us: reaped.user_us,
            system_us: reaped.system_us,
            max_rss_kb: reaped.max_rss_kb,
        };
        self.with(channel, |activity, io| match activity {
            Activity::Program(program) => program.exited(exited, io),
            Activity::Dial(_)
            | Activity::ReadFile(_)
            | Activity::WriteFile(_)
            | Activity::Listing(_)
            | Activity::Removal(_)
            | Activity::FamilySignal(_)
            | Activity::EndAll(_) => Progress::Wait,
        });
    }

    /// Reads the scale file when it is time, and reports changes to the host.
    fn check_scale_file(&mut self) {
        let Some(scale) = &mut self.scale else { return };
        if scale.due_ms().is_none() {
            return;
        }
        let now_ms = now_ms();
        scale.look_if_due(now_ms);
        if let Some(news) = scale.next_report(now_ms) {
            self.io.reply(GUEST_CHANNEL, &news);
        }
    }

    /// Continues signals to families, where it is time.
    fn continue_family_signals(&mut self) {
        if self.family_signals.is_empty() {
            return;
        }
        let now_ms = now_ms();
        for channel in std::mem::take(&mut self.family_signals) {
            let Some(Activity::FamilySignal(family_signal)) = self.activities.get_mut(&channel)
            else {
                continue;
            };
            if !family_signal.is_due(now_ms) {
                self.family_signals.push(channel);
                continue;
            }
            let process = family_signal.process();
            let others: Vec<i32> = self
                .children
                .iter()
                .filter_map(|(&pid, &owner)| (owner != process).then_some(pid))
                .collect();
            match family_signal.round(&others, now_ms) {
                Round::Again => self.family_signals.push(channel),
                Round::Done => self.finish_activity(channel, &Reply::Done),
                Round::GaveUp(left) => {
                    self.finish_activity(
                        channel,
                        &Reply::Failed(super::requests::still_there(left)),
                    );
                }
            }
        }
    }

    pub(super) fn finish_activity(&mut self, channel: u32, reply: &Reply) {
        self.io.reply(channel, reply);
        self.activities.remove(&channel);
        self.io.connection.endpoint.close(channel);
    }
}

/// Makes standard input `/dev/null`, for programs that are given none, and makes sure that no later
/// descriptor can be 0, 1 or 2.
fn hold_null() -> Result<(), Errno> {
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    if rustix::io::fcntl_getfd(rustix::stdio::stdout()).is_err() {
        rustix::stdio::dup2_stdout(&null)?;
    }
    if rustix::io::fcntl_getfd(rustix::stdio::stderr()).is_err() {
        rustix::stdio::dup2_stderr(&null)?;
    }
    Ok(())
}

pub(super) fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let milliseconds = now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000);
    u64::try_from(milliseconds).unwrap_or(0)
}
