//! Starting the launcher: its configuration, its lock, its control groups, its isolation from the
//! host.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use guest_protocol::launcher::{
    self as launcher, CgroupPaths, FromLauncher, LaunchRefusal, LauncherConfig, LauncherFeatures,
    MAX_PACKET_BYTES, RefusalCode, Root,
};
use jail::groups::{self, Groups, Limits, NodeCaps, Use};
use jail::machine::{CgroupLayout, Host};
use jail::plan::Users;
use jail::seccomp::{Policy, Program, compile};
use jail::{packet, sys};
use rustix::event::epoll;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, fstat, openat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::isolation::{self, HostAccess};
use super::prefork::PreforkContext;
use super::prefork_pool::PreforkPool;
use super::sandboxes::Sandboxes;
use super::slots::Slots;
use super::watch::Watch;
use super::{Launcher, plan_input, rootless, token};

/// Descriptors at which our starter leaves the socket and the configuration.
const HOST_SOCKET: i32 = 3;
const CONFIGURATION: i32 = 4;

/// How often to try for the lock of the run, and the pause between two tries.
const LOCK_ATTEMPTS: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// What all parts of the launcher share.
pub(super) struct Shared {
    pub config: LauncherConfig,
    pub groups: Groups,
    pub host_access: HostAccess,
    pub slots: Slots,
    /// The limits that preforks are made with: those of the last launch.
    pub usual_limits: Limits,
    /// The root that preforks have layers over: that of the last launch.
    pub usual_root: Root,
    pub filters: Filters,
    pub host_interest: epoll::EventFlags,
    /// Whether the kernel counts processes per user namespace.
    processes_by_rlimit: bool,
    /// Held as long as we live: it shows others that this run has not ended.
    _lock: OwnedFd,
}

impl Shared {
    pub(super) fn context(&self, slot: u32) -> PreforkContext<'_> {
        let written = self.slots.limits(slot);
        PreforkContext {
            slot,
            first_uid: self.first_uid(slot),
            groups: &self.groups,
            limits: self.usual_limits,
            write_limits: self.config.limits
                && !self.groups.must_join()
                && written != Some(self.usual_limits),
            network: self.config.network,
            users: self.host_access.users,
            count_processes: !self.groups.serves(Use::Pids) && self.processes_by_rlimit,
            usual_root: &self.host_access.roots.built_root(&self.usual_root).built,
            void: self.host_access.void.as_fd(),
            filters: &self.filters,
        }
    }

    pub(super) fn first_uid(&self, slot: u32) -> u32 {
        plan_input::first_uid(&self.config, self.host_access.users, slot)
    }

    /// Writes the limits of a slot, unless its groups have them already.
    pub(super) fn limit(&mut self, slot: u32, limits: Limits) -> io::Result<()> {
        if self.config.limits && self.slots.limits(slot) != Some(limits) {
            // If it fails half way, the limits are unknown.
            self.slots.limits_unknown(slot);
            self.groups.limit(slot, limits)?;
            self.slots.limits_written(slot, limits);
            self.slots.cpu_lifted(slot, false);
        } else if self.config.limits && self.slots.is_cpu_lifted(slot) {
            self.groups.limit_cpu(slot, limits)?;
            self.slots.cpu_lifted(slot, false);
        }
        Ok(())
    }

    /// Returns a slot whose processes are all gone, with its groups as good as new. Whether the
    /// kernel killed something in it because memory ran out.
    pub(super) fn release(&mut self, slot: u32) -> bool {
        self.groups.thaw(slot);
        // If this fails, the next sandbox only starts slower.
        if self.config.limits && self.groups.must_join() && self.groups.lift_cpu(slot).is_ok() {
            self.slots.cpu_lifted(slot, true);
        }
        let kills = self.groups.out_of_memory_kills(slot);
        self.slots.release(slot, kills)
    }

    /// Maps the users of a slot into the user namespace of a process.
    pub(super) fn map_users(&self, slot: u32, pid: Pid) -> io::Result<()> {
        let map = plan_input::user_map(self.host_access.users, self.first_uid(slot));
        let mut path = String::with_capacity(32);
        for kind in ["uid_map", "gid_map"] {
            path.clear();
            // Writing to a string cannot fail.
            let _ = write!(path, "/proc/{}/{kind}", pid.as_raw_nonzero());
            let file = openat(CWD, path.as_str(), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            rustix::io::write(file, map.as_bytes())?;
        }
        Ok(())
    }

    pub(super) fn cgroup_paths(&self, slot: u32) -> CgroupPaths {
        let path =
            |wanted| self.groups.path(slot, wanted).map(|path| path.to_string_lossy().into_owned());
        CgroupPaths {
            freezer: path(Use::Freezer),
            memory: path(Use::Memory),
            out_of_memory_kills: self.slots.out_of_memory_kills(slot),
        }
    }
}

/// The role of the launcher, from start to end.
pub(crate) fn main() -> ExitCode {
    let Ok(host) = sys::descriptors::take(HOST_SOCKET) else { return ExitCode::from(2) };
    match start(&host) {
        Ok(Started { shared, watch, signals, features }) => {
            let preforks = PreforkPool::new(shared.config.spares as usize);
            let mut launcher = Launcher {
                shared,
                host,
                watch,
                signals,
                preforks,
                sandboxes: Sandboxes::default(),
                launches: VecDeque::new(),
                answers: VecDeque::new(),
                retired: super::network::Retired::default(),
                buffer: vec![0; MAX_PACKET_BYTES],
                host_gone: false,
            };
            launcher.answer(&FromLauncher::Up { features });
            let code = launcher.run();
            let Shared { groups, slots, config, .. } = &launcher.shared;
            groups.remove(slots.used(), &config.run);
            code
        }
        Err(isolation::Failed { step, source }) => {
            let errno = source.raw_os_error().unwrap_or(0);
            let refusal = LaunchRefusal { code: RefusalCode::System, step, errno };
            if let Ok(bytes) = postcard::to_allocvec(&FromLauncher::Refused { ticket: 0, refusal })
            {
                let _ = packet::send(&host, &bytes, &[]);
            }
            ExitCode::FAILURE
        }
    }
}

struct Started {
    shared: Shared,
    watch: Watch,
    signals: OwnedFd,
    features: LauncherFeatures,
}

fn start(host: &OwnedFd) -> Result<Started, isolation::Failed> {
    let settings = isolation::step("take configuration", sys::descriptors::take(CONFIGURATION))?;
    let config = isolation::step("read configuration", read_configuration(&settings))?;
    if let Some(user) = config.user.filter(|_| rootless::users() == Some(Users::Ranges)) {
        isolation::step("become an ordinary user", rootless::become_ordinary(user))?;
    }
    let Some(users) = rootless::users() else {
        let kept = rootless::keep(host).and_then(|()| rootless::keep(&settings));
        isolation::step("keep descriptors", kept)?;
        let wanted = config.subordinate_users.then_some(config.slots);
        return isolation::step("make a user namespace", Err(rootless::enter(wanted)));
    };
    drop(settings);
    let _ = rustix::thread::set_name(c"shoal-launcher");
    isolation::step("open /dev/null", null_standard_streams())?;
    let lock = isolation::step("take the lock of the run", take_lock(&config))?;
    let filters = isolation::step("compile the system call filters", Filters::for_run(&config))?;
    let found = CgroupLayout::find(&Host, users == Users::Ranges);
    if let Some(directory) = found.to_vacate() {
        isolation::step("leave the control group we share", groups::vacate(directory))?;
    }
    let mut layout = found.hierarchies();
    if !config.limits {
        for hierarchy in &mut layout {
            hierarchy.uses.retain(|used| *used == Use::Freezer);
        }
        layout.retain(|hierarchy| !hierarchy.uses.is_empty());
    }
    let groups = Groups::open(&layout, &config.run, NodeCaps::of_machine());
    let groups = isolation::step("make control groups", groups)?;
    let host_access =
        isolation::enter(&config, users).inspect_err(|_| groups.remove(0, &config.run))?;

    let nonblocking = rustix::io::ioctl_fionbio(host, true);
    isolation::step("make the host's socket non-blocking", nonblocking)?;
    // A Ctrl-C at a terminal is meant for the program in the sandbox, not for the launcher.
    let _ = rustix::process::setsid();
    let signals = sys::signals::readable(&[Signal::CHILD, Signal::TERM, Signal::INT, Signal::HUP]);
    let signals = isolation::step("listen to signals", signals)?;
    let watch = isolation::step("make epoll", Watch::new())?;
    for (descriptor, token) in [(host.as_fd(), token::HOST), (signals.as_fd(), token::SIGNALS)] {
        isolation::step("wait for events", watch.add(descriptor, token))?;
    }
    let processes_by_rlimit = counts_by_namespace();
    let features = LauncherFeatures {
        memory_limit: groups.serves(Use::Memory),
        cpu_limit: groups.serves(Use::Cpu),
        pids_limit: groups.serves(Use::Pids) || (config.limits && processes_by_rlimit),
        freeze: groups.serves(Use::Freezer),
        disk_workspaces: host_access.workspaces.is_some(),
        network: host_access.network,
        users: match users {
            Users::Ranges => launcher::Users::Ranges,
            Users::Subordinate => launcher::Users::Subordinate,
            Users::Alone => launcher::Users::Alone,
        },
        alone_because: rootless::alone_because(),
    };
    let slots = Slots::new(config.slots);
    let usual_limits = Limits { memory_bytes: 512 << 20, cpu_milli: 1000, pids: 128 };
    let host_interest = epoll::EventFlags::IN;
    let shared = Shared {
        config,
        groups,
        host_access,
        slots,
        usual_limits,
        usual_root: Root::Host,
        filters,
        host_interest,
        processes_by_rlimit,
        _lock: lock,
    };
    Ok(Started { shared, watch, signals, features })
}

/// The system call filters of sandboxes.
pub(super) struct Filters {
    /// That of most sandboxes.
    pub usual: Program,
    /// That of sandboxes that write to files of the host.
    pub lending: Program,
}

impl Filters {
    fn for_run(config: &LauncherConfig) -> io::Result<Self> {
        let lending = || compile(&Policy::lending()).map_err(io::Error::other);
        let usual = if config.lent.is_empty() {
            compile(&Policy::sandbox()).map_err(io::Error::other)
        } else {
            lending()
        };
        Ok(Self { usual: usual?, lending: lending()? })
    }
}

fn read_configuration(settings: &OwnedFd) -> io::Result<LauncherConfig> {
    let mut file = std::fs::File::from(settings.try_clone()?);
    // From the start: the launcher before the user namespace may have read it already.
    file.seek(io::SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let config: LauncherConfig = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
    if !plan_input::is_sound(&config) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(config)
}

/// Since Linux 5.14 the limit on a user's processes counts within each user namespace. Before, it
/// counted all processes of that user on the machine.
fn counts_by_namespace() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    jail::machine::parse::version(&release) >= Some((5, 14))
}

fn null_standard_streams() -> io::Result<()> {
    let null = openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

fn take_lock(config: &LauncherConfig) -> io::Result<OwnedFd> {
    let path = Path::new(&config.run_directory).join(format!("{}.lock", config.run));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    for _ in 0..LOCK_ATTEMPTS {
        let file = openat(CWD, &path, flags, Mode::from_raw_mode(0o600))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // A cleanup that runs in this moment may take our lock file for that of a dead run.
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            Err(error) => return Err(error.into()),
            Ok(()) if fstat(&file)?.st_nlink > 0 => return Ok(file),
            Ok(()) => {}
        }
    }
    Err(Errno::WOULDBLOCK.into())
}

/// Reads all pending signals. Whether one of them asks us to end.
pub(super) fn drain_signals(signals: &OwnedFd) -> bool {
    let mut should_end = false;
    while let Some(signal) = sys::signals::next(signals) {
        should_end |= signal != Signal::CHILD;
    }
    should_end
}
