//! Children: learning that one ended, collecting its status, and sending signals. It must never
//! wait: the process that uses it serves others meanwhile.

use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::ptr;

use rustix::io::Errno;

/// A child that has ended, and what it used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reaped {
    /// Its process id.
    pub pid: i32,
    /// How it ended.
    pub end: End,
    /// Processor time in its own code.
    pub user_us: u64,
    /// Processor time in the kernel.
    pub system_us: u64,
    /// The most memory it had at once.
    pub max_rss_kb: u64,
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// Turns the ends of children, and the signal of [`super::lease`], into a descriptor to poll, and
/// broken pipes into plain errors.
/// Afterwards no signal has a handler here and none is ignored, so that a child that shares this
/// memory until its exec only has to reset its mask.
pub fn watch_children() -> Result<OwnedFd, Errno> {
    for signal in 1..libc::SIGRTMIN() {
        // Some signals cannot be changed, which is fine.
        // SAFETY: the default disposition runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let mut blocked = empty_set();
    // SAFETY: `blocked` is an initialised set.
    unsafe { libc::sigaddset(&raw mut blocked, libc::SIGCHLD) };
    // SAFETY: as above.
    unsafe { libc::sigaddset(&raw mut blocked, super::lease::SIGNAL) };
    let watched = blocked;
    // SAFETY: `blocked` is an initialised set.
    unsafe { libc::sigaddset(&raw mut blocked, libc::SIGPIPE) };
    // SAFETY: reads one set, and changes the mask of this thread only.
    let result = unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const blocked, ptr::null_mut()) };
    if result != 0 {
        return Err(last_errno());
    }
    // SAFETY: reads one set, and makes a new descriptor.
    let raw =
        unsafe { libc::signalfd(-1, &raw const watched, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
    if raw < 0 {
        return Err(last_errno());
    }
    // SAFETY: the descriptor was just made, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Reads pending signals, and returns whether one of them is about a lease.
pub fn take_notices(signals: &OwnedFd) -> Result<bool, Errno> {
    const NOTICE_BYTES: usize = size_of::<libc::signalfd_siginfo>();
    let mut is_lease = false;
    loop {
        let mut notice = [0; NOTICE_BYTES];
        match rustix::io::read(signals, &mut notice) {
            Ok(_) => {
                // It begins with the signal number.
                let [a, b, c, d, ..] = notice;
                is_lease |= i32::from_ne_bytes([a, b, c, d]) == super::lease::SIGNAL;
            }
            Err(Errno::AGAIN) => return Ok(is_lease),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Looks at one child that has ended, if there is one. Its process id is not used again until
/// [`collect`]: freeing the process takes longer than looking, and the host waits for the report.
pub fn look() -> Result<Option<Reaped>, Errno> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both pointers are to memory of this function that is large enough.
        let result = unsafe {
            libc::syscall(
                libc::SYS_waitid,
                libc::P_ALL,
                0,
                info.as_mut_ptr(),
                libc::WEXITED | libc::WNOHANG | libc::WNOWAIT,
                usage.as_mut_ptr(),
            )
        };
        if result != 0 {
            match last_errno() {
                Errno::INTR => continue,
                Errno::CHILD => return Ok(None),
                other => return Err(other),
            }
        }
        // SAFETY: it was zeroed, which is a valid value, and the kernel may have filled it.
        let info = unsafe { info.assume_init() };
        // SAFETY: the kernel fills this field for a child, and it is zero where there is none.
        let pid = unsafe { info.si_pid() };
        if pid == 0 {
            return Ok(None);
        }
        // SAFETY: the kernel fills this field for a child.
        let status = unsafe { info.si_status() };
        // SAFETY: it was zeroed, which is a valid value, and the kernel has filled it.
        let usage = unsafe { usage.assume_init() };
        let end =
            if info.si_code == libc::CLD_EXITED { End::Code(status) } else { End::Signal(status) };
        return Ok(Some(Reaped {
            pid,
            end,
            user_us: microseconds(usage.ru_utime),
            system_us: microseconds(usage.ru_stime),
            max_rss_kb: u64::try_from(usage.ru_maxrss).unwrap_or(0),
        }));
    }
}

/// Frees a child that has ended. Its process id may be used again.
pub fn collect(pid: i32) {
    loop {
        // SAFETY: no pointer but null.
        let result = unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
        if result >= 0 || last_errno() != Errno::INTR {
            return;
        }
    }
}

/// Signals one process, with any signal number of the kernel. Process ids below 2 are refused: they
/// mean all processes, a whole group, or this guest itself.
pub fn signal(pid: i32, signal: i32) -> Result<(), Errno> {
    if pid < 2 { Err(Errno::INVAL) } else { kill(pid, signal) }
}

/// Signals all processes of a group at once, including those being forked.
pub fn signal_group(group: i32, signal: i32) -> Result<(), Errno> {
    if group < 2 { Err(Errno::INVAL) } else { kill(-group, signal) }
}

/// Kills all processes but this one, which must be the first of its process namespace, including
/// those being forked. Returns whether there were any: a process counts that has ended and was not
/// collected, and one that may not be signalled.
pub fn kill_others() -> Result<bool, Errno> {
    signal_others(libc::SIGKILL)
}

/// Whether there is any other process. This one must be the first of its process namespace.
pub fn has_others() -> Result<bool, Errno> {
    signal_others(0)
}

fn signal_others(signal: i32) -> Result<bool, Errno> {
    // Anywhere else, it would reach the whole machine.
    if !rustix::process::getpid().is_init() {
        return Err(Errno::PERM);
    }
    match kill(-1, signal) {
        Ok(()) | Err(Errno::PERM) => Ok(true),
        Err(Errno::SRCH) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Makes threads of a process that wait in a system call restart it, without the program noticing:
/// a stop signal wakes them and is taken back before it stops the process. If it stops after all,
/// it continues at once.
pub fn nudge(pid: i32, threads: &[i32]) {
    if threads.is_empty() {
        return;
    }
    for &thread in threads {
        // SAFETY: takes numbers only.
        unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, libc::SIGSTOP) };
    }
    // A thread that is gone needs nothing.
    let _ = signal(pid, libc::SIGCONT);
}

fn kill(pid: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: takes two numbers.
    if unsafe { libc::kill(pid, signal) } == 0 { Ok(()) } else { Err(last_errno()) }
}

pub(super) fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: writes to memory of this function that is large enough.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: it was zeroed, which is a valid value, and then emptied.
    unsafe { set.assume_init() }
}

pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn microseconds(time: libc::timeval) -> u64 {
    let total = time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_usec);
    u64::try_from(total).unwrap_or(0)
}
