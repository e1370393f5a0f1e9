//! The launcher: makes sandboxes from specs, keeps preforks ready, reaps what has ended. One
//! thread, one loop. It holds no secrets and decides only the order of its work: quick requests
//! that the host waits for (kills, attachments) come before launches, launches before preforks.
//! When the host closes its end of the socket, the launcher ends every sandbox and removes all it
//! made. When the launcher itself is killed, the kernel ends the sandboxes, and `shoal clean`
//! removes the rest.

mod isolation;
mod mounts;
mod network;
mod plan_input;
mod prefork;
mod prefork_pool;
mod rootless;
mod roots;
mod sandboxes;
mod slot_parents;
mod slots;
mod start;
mod watch;
mod workspace_mount;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use guest_protocol::launcher::{
    FromLauncher, InstanceBytes, LaunchRefusal, RefusalCode, Root, Spec, ToLauncher, Workspace,
};
use guest_protocol::network::NetworkRequest;
use jail::packet;
use rustix::event::epoll;
use rustix::io::Errno;

use prefork_pool::PreforkPool;
use sandboxes::Sandboxes;
use watch::Watch;

use crate::network::Done;

pub(super) use start::main;

/// Tokens of the descriptors that the launcher waits for. A prefork has `PREFORKS` plus its slot.
mod token {
    pub(super) const HOST: u64 = 0;
    pub(super) const SIGNALS: u64 = 1;
    pub(super) const PREFORKS: u64 = 2;
    /// A slot parent has this plus its slot.
    pub(super) const SLOT_PARENTS: u64 = 1 << 32;
}

/// Launches that begin in one round, so that kills and attachments are handled in between.
const LAUNCHES_A_ROUND: usize = 8;

/// How long to wait when there is nothing to do.
const IDLE: Duration = Duration::from_hours(1);

/// When this many answers wait for the host to read them, requests are no longer read.
const ANSWERS_WAITING_AT_MOST: usize = 4096;

/// The whole state of the launcher.
struct Launcher {
    shared: start::Shared,
    host: OwnedFd,
    watch: Watch,
    signals: OwnedFd,
    preforks: PreforkPool,
    sandboxes: Sandboxes,
    launches: VecDeque<PendingLaunch>,
    answers: VecDeque<PendingAnswer>,
    retired: network::Retired,
    buffer: Vec<u8>,
    host_gone: bool,
}

/// An answer that the host has not read yet, with the descriptors that it carries.
struct PendingAnswer {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// A launch that waits for a prefork.
struct PendingLaunch {
    ticket: u64,
    spec: Spec,
    connection: OwnedFd,
    /// The files and directories of the host that the sandbox will see.
    opened: Vec<mounts::Opened>,
}

impl Launcher {
    fn run(&mut self) -> ExitCode {
        let mut events = Vec::with_capacity(64);
        // Checked before each wait: the host may have gone before the first.
        while !(self.host_gone && self.sandboxes.is_empty() && self.preforks.is_empty()) {
            let timeout = self.next_wake();
            let timeout = self.retired.pause().map_or(timeout, |pause| timeout.min(pause));
            let wait = rustix::event::Timespec {
                tv_sec: timeout.as_secs().cast_signed(),
                tv_nsec: timeout.subsec_nanos().into(),
            };
            match self.watch.wait(&mut events, &wait) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return ExitCode::FAILURE,
            }
            for event in &events {
                match event.data.u64() {
                    token::HOST => self.read_host(),
                    token::SIGNALS => self.read_signals(),
                    parent if parent >= token::SLOT_PARENTS => {
                        self.read_slot_parent((parent - token::SLOT_PARENTS) as u32);
                    }
                    prefork => self.read_prefork((prefork - token::PREFORKS) as u32),
                }
            }
            self.begin_launches();
            self.preforks.give_up_on_slow_ones(&self.shared.groups);
            self.refill();
            self.tidy_roots();
            self.flush();
            self.retired.close_old();
        }
        ExitCode::SUCCESS
    }

    fn next_wake(&self) -> Duration {
        if !self.launches.is_empty() && self.preforks.has_ready() {
            Duration::ZERO
        } else if self.preforks.is_making() {
            prefork_pool::PREPARE_TIMEOUT
        } else if self.shared.slots.has_free()
            && (!self.launches.is_empty() || self.preforks.wants_more())
        {
            self.preforks.pause()
        } else if self.shared.host_access.roots.has_others() {
            roots::Roots::tidy_after()
        } else {
            IDLE
        }
    }

    fn read_host(&mut self) {
        while self.answers.len() < ANSWERS_WAITING_AT_MOST {
            match packet::receive(&self.host, &mut self.buffer) {
                Ok(packet) if packet.bytes == 0 => return self.shut_down(),
                Ok(mut packet) => match postcard::from_bytes(&self.buffer[..packet.bytes]) {
                    Ok(message) => self.handle(message, packet.descriptors.pop()),
                    Err(_) => return self.shut_down(),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.shut_down(),
            }
        }
    }

    fn handle(&mut self, message: ToLauncher, descriptor: Option<OwnedFd>) {
        match message {
            ToLauncher::Launch { ticket, spec } => match descriptor {
                Some(connection) => {
                    self.accept(PendingLaunch { ticket, spec, connection, opened: Vec::new() });
                }
                None => self.refuse(
                    ticket,
                    RefusalCode::System,
                    "receive the connection of the guest",
                    0,
                ),
            },
            ToLauncher::Attach { ticket, instance, workspace } => {
                let Some(pid) = self.sandboxes.pid_of(&instance) else {
                    return self.refuse(ticket, RefusalCode::Unknown, "find sandbox", 0);
                };
                let host_access = &self.shared.host_access;
                let attached = workspace_mount::mount_for(host_access, &workspace, pid)
                    .and_then(|mount| workspace_mount::attach(host_access, mount, pid));
                match attached {
                    Ok(()) => self.answer(&FromLauncher::Done { ticket }),
                    Err(error) => self.refuse_error(ticket, "attach workspace", &error),
                }
            }
            ToLauncher::Kill { ticket, instance } => {
                let waits = self.launches.iter().position(|one| one.spec.instance == instance);
                if let Some(launch) = waits.and_then(|at| self.launches.remove(at)) {
                    self.refuse(
                        launch.ticket,
                        RefusalCode::Unknown,
                        "begin launch (the sandbox was killed)",
                        0,
                    );
                }
                match self.sandboxes.kill(&instance, ticket) {
                    // On v1, frozen processes do not even die.
                    Some(slot) => self.shared.groups.thaw(slot),
                    None => self.answer(&FromLauncher::Done { ticket }),
                }
            }
            ToLauncher::Network { ticket, instance, request } => {
                self.handle_network(ticket, &instance, &request);
            }
            ToLauncher::List { ticket } => {
                let all = self.sandboxes.instances();
                // As many as surely fit into one packet.
                let mut parts = all.chunks(1024).peekable();
                if parts.peek().is_none() {
                    let listed =
                        FromLauncher::Listed { ticket, instances: Vec::new(), more: false };
                    self.answer(&listed);
                }
                while let Some(part) = parts.next() {
                    let (instances, more) = (part.to_vec(), parts.peek().is_some());
                    self.answer(&FromLauncher::Listed { ticket, instances, more });
                }
            }
        }
    }

    fn handle_network(&mut self, ticket: u64, instance: &InstanceBytes, request: &NetworkRequest) {
        let Some(pid) = self.sandboxes.pid_of(instance) else {
            return self.refuse(ticket, RefusalCode::Unknown, "find sandbox", 0);
        };
        let (step, done) =
            network::handle(&self.shared.host_access, &mut self.retired, pid, request);
        match done {
            Ok(Done::Armed(sockets)) => {
                self.answer_with(&FromLauncher::Armed { ticket }, sockets);
            }
            Ok(Done::Refused(addresses)) => {
                self.answer(&FromLauncher::RefusedAddresses { ticket, addresses });
            }
            Ok(Done::Nothing) => self.answer(&FromLauncher::Done { ticket }),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                self.refuse(ticket, RefusalCode::Unsupported, step, 0);
            }
            Err(error) => self.refuse_error(ticket, step, &error),
        }
    }

    fn accept(&mut self, mut launch: PendingLaunch) {
        match mounts::open(&self.shared.host_access, &launch.spec.mounts) {
            Ok(opened) => launch.opened = opened,
            Err(mounts::MountRefusal { step, errno }) => {
                return self.refuse(launch.ticket, RefusalCode::System, &step, errno);
            }
        }
        launch.spec.root = mounts::root_for(launch.spec.root, &launch.opened);
        launch.spec.mounts = launch.opened.iter().map(mounts::Opened::mount).collect();
        let spec = &launch.spec;
        let taken = self.sandboxes.pid_of(&spec.instance).is_some()
            || self.launches.iter().any(|other| other.spec.instance == spec.instance);
        if taken {
            self.refuse(launch.ticket, RefusalCode::Duplicate, "accept", 0);
        } else if self.sandboxes.len() + self.launches.len() >= self.shared.config.slots as usize {
            self.refuse(launch.ticket, RefusalCode::Full, "find a free slot", 0);
        } else if let Err(error) =
            self.shared.host_access.roots.prepared(&spec.root, prefork_pool::now())
        {
            let unknown = error.kind() == io::ErrorKind::NotFound;
            let code = if unknown { RefusalCode::UnknownRoot } else { RefusalCode::System };
            let errno = error.raw_os_error().unwrap_or(0);
            let step = if error.kind() == io::ErrorKind::AlreadyExists {
                "make a workspace alias (the root already has a file of that name)"
            } else if matches!(spec.root, Root::Pointed { .. }) {
                "make mount points in the root"
            } else {
                "build the root filesystem"
            };
            self.refuse(launch.ticket, code, step, errno);
        } else {
            // Preforks may have layers over the root that was replaced.
            self.tidy_roots();
            self.launches.push_back(launch);
        }
    }

    /// Gives ready preforks to waiting launches.
    fn begin_launches(&mut self) {
        for _ in 0..LAUNCHES_A_ROUND {
            if self.launches.is_empty() {
                return;
            }
            let Some(root) = self.launches.front().map(|launch| &launch.spec.root) else { return };
            let Some(prefork) = self.preforks.take(root) else { return };
            let Some(launch) = self.launches.pop_front() else { return };
            self.begin(prefork, launch);
        }
    }

    fn begin(&mut self, prefork: prefork_pool::Prefork, launch: PendingLaunch) {
        let PendingLaunch { ticket, spec, connection, opened } = launch;
        let limits = plan_input::limits(&spec);
        let begun = (|| {
            self.shared.limit(prefork.slot, limits)?;
            let given = match &spec.workspace {
                Workspace::Memory => None,
                Workspace::Disk(id) => {
                    Some(workspace_mount::mount_for(&self.shared.host_access, id, prefork.pid)?)
                }
            };
            let prepared =
                self.shared.host_access.roots.prepared(&spec.root, prefork_pool::now())?;
            let layers = if prefork.root == spec.root { None } else { Some(prepared.layers()?) };
            let first_uid = self.shared.first_uid(prefork.slot);
            let shown = mounts::mounts_for(&self.shared.host_access, &opened, first_uid)?;
            let (given, layers) = (given.as_ref(), layers.as_ref());
            prefork::order(&prefork.socket, &spec, &connection, given, layers, &shown)?;
            Ok(prepared)
        })();
        self.shared.usual_limits = limits;
        match begun {
            Ok(root) => {
                self.shared.usual_root.clone_from(&spec.root);
                let pid = prefork.pid.as_raw_nonzero().get().cast_unsigned();
                let cgroup = self.shared.cgroup_paths(prefork.slot);
                self.sandboxes.add(spec.instance, prefork, root);
                self.answer(&FromLauncher::Launched { ticket, pid, cgroup });
            }
            Err(error) => {
                self.preforks.discard(&prefork);
                self.refuse_error(ticket, "begin launch", &error);
            }
        }
    }

    fn read_prefork(&mut self, slot: u32) {
        if let Err(failure) = self.preforks.read_prefork(&self.shared, slot) {
            self.shared.slots.limits_unknown(slot);
            self.report_failure(&failure);
        }
        self.sandboxes.close_socket(slot);
    }

    fn read_slot_parent(&mut self, slot: u32) {
        if let Err(failure) = self.preforks.read_slot_parent(&mut self.shared, &self.watch, slot) {
            self.shared.slots.limits_unknown(slot);
            self.report_failure(&failure);
        }
    }

    fn refill(&mut self) {
        let waiting = self.launches.len();
        if let Err(failure) = self.preforks.refill(&mut self.shared, &self.watch, waiting) {
            self.report_failure(&failure);
        }
    }

    /// If every prefork fails, waiting launches would wait for ever: one of them is refused, and if
    /// no prefork is being made any more, all of them are.
    fn report_failure(&mut self, failure: &prefork_pool::Failure) {
        while let Some(launch) = self.launches.pop_front() {
            self.refuse(launch.ticket, RefusalCode::System, &failure.step, failure.errno);
            if self.preforks.is_making() {
                return;
            }
        }
    }

    fn tidy_roots(&mut self) {
        for gone in self.shared.host_access.roots.tidy(prefork_pool::now()) {
            self.preforks.drop_root(&gone);
            if self.shared.usual_root == gone {
                self.shared.usual_root = Root::Host;
            }
        }
    }

    fn read_signals(&mut self) {
        if start::drain_signals(&self.signals) {
            self.shut_down();
        }
        self.reap();
    }

    /// Collects the children that have ended.
    fn reap(&mut self) {
        while let Some((pid, status)) = sandboxes::next_dead() {
            if self.preforks.slot_parent_died(&mut self.shared, pid) {
                continue;
            }
            if let Some(slot) = self.preforks.died(pid) {
                // It may have died before it wrote its limits.
                self.shared.slots.limits_unknown(slot);
                self.shared.release(slot);
            } else if let Some(over) = self.sandboxes.died(pid) {
                let instance = over.instance;
                let out_of_memory = self.shared.release(over.slot);
                self.answer(&FromLauncher::Died { instance, status, out_of_memory });
                for ticket in over.kills {
                    self.answer(&FromLauncher::Done { ticket });
                }
            }
        }
    }

    fn shut_down(&mut self) {
        if !self.host_gone {
            self.host_gone = true;
            self.watch.remove(&self.host);
            self.launches.clear();
            self.answers.clear();
            for slot in self.sandboxes.kill_all() {
                self.shared.groups.thaw(slot);
            }
            self.preforks.close();
        }
    }

    fn refuse_error(&mut self, ticket: u64, step: &str, error: &io::Error) {
        let code = if error.kind() == io::ErrorKind::NotFound {
            RefusalCode::Unknown
        } else if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) {
            RefusalCode::NoDevice
        } else {
            RefusalCode::System
        };
        self.refuse(ticket, code, step, error.raw_os_error().unwrap_or(0));
    }

    fn refuse(&mut self, ticket: u64, code: RefusalCode, step: &str, errno: i32) {
        let refusal = LaunchRefusal { code, step: step.to_owned(), errno };
        self.answer(&FromLauncher::Refused { ticket, refusal });
    }

    fn answer(&mut self, message: &FromLauncher) {
        self.answer_with(message, Vec::new());
    }

    fn answer_with(&mut self, message: &FromLauncher, descriptors: Vec<OwnedFd>) {
        if self.host_gone {
            return;
        }
        // Our own messages are well formed and small.
        if let Ok(bytes) = postcard::to_allocvec(message) {
            self.answers.push_back(PendingAnswer { bytes, descriptors });
        }
        self.flush();
    }

    fn flush(&mut self) {
        while let Some(PendingAnswer { bytes, descriptors }) = self.answers.front() {
            let descriptors: Vec<_> = descriptors.iter().map(OwnedFd::as_fd).collect();
            match packet::send(&self.host, bytes, &descriptors) {
                Ok(()) => drop(self.answers.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return self.shut_down(),
            }
        }
        if !self.host_gone {
            let mut interest = epoll::EventFlags::empty();
            if self.answers.len() < ANSWERS_WAITING_AT_MOST {
                interest |= epoll::EventFlags::IN;
            }
            if !self.answers.is_empty() {
                interest |= epoll::EventFlags::OUT;
            }
            if interest != self.shared.host_interest {
                self.shared.host_interest = interest;
                self.watch.change(&self.host, token::HOST, interest);
            }
        }
    }
}
