//! Starts a program without copying this process: the child borrows its memory, and this process
//! waits until the program runs or cannot. The child must never allocate, lock, unwind or return:
//! whatever it does to memory, it does to its parent's.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

use libc::{sock_filter, sock_fprog};
use rustix::io::Errno;

use super::descriptors::LAST_DESCRIPTOR;
use super::no_leases;
use super::reap::{collect, empty_set, last_errno};

/// A program to start, with everything prepared.
#[derive(Debug)]
pub struct Program<'a> {
    /// Paths to try, in this order; one without a slash is relative to `cwd`.
    pub candidates: &'a [CString],
    /// Its arguments, its own name first.
    pub argv: &'a [CString],
    /// Its environment, each `NAME=value`.
    pub env: &'a [CString],
    /// Where it starts.
    pub cwd: &'a CStr,
    /// Its first three descriptors; `None` is what this process has there. Numbers 1 and 2 cannot
    /// be given away, and 0 only as another number.
    pub stdio: [Option<BorrowedFd<'a>>; 3],
    /// Its descriptor 3, if any.
    pub channel: Option<BorrowedFd<'a>>,
    /// Whether its standard input becomes its controlling terminal.
    pub terminal: bool,
    /// Resource limits.
    pub limits: &'a [Limit],
    /// The user it runs as; `None` is this process' own.
    pub identity: Option<Identity>,
    /// The filter it loads last, which also forbids leases; `None` forbids leases alone.
    pub filter: Option<&'a [sock_filter]>,
}

/// A resource limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// What is limited.
    pub resource: Resource,
    /// The soft limit, at which the program gets a signal if there is one.
    pub soft: u64,
    /// The hard limit.
    pub hard: u64,
}

/// What can be limited for one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Seconds of processor time.
    Cpu,
    /// Bytes of a file it writes.
    FileSize,
    /// Open descriptors.
    Descriptors,
    /// Bytes of address space.
    AddressSpace,
}

/// The user of a program. It has no supplementary groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// The steps of a child before the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// Making the process.
    Clone,
    /// Starting a session of its own.
    Session,
    /// Taking the terminal.
    Terminal,
    /// Setting a resource limit.
    Limit,
    /// Becoming its user.
    Identity,
    /// Going to its directory.
    Directory,
    /// Putting its descriptors in place.
    Descriptors,
    /// Loading the filter.
    Filter,
    /// Running the program.
    Exec,
}

const CHILD_STEPS: [Step; 8] = [
    Step::Session,
    Step::Terminal,
    Step::Limit,
    Step::Directory,
    Step::Descriptors,
    // As late as possible: from here on other programs can signal it, while the guest waits for it.
    Step::Identity,
    Step::Filter,
    Step::Exec,
];

/// Why a program could not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{step:?}: {errno}")]
pub struct SpawnError {
    /// What failed.
    pub step: Step,
    /// What the kernel said.
    pub errno: Errno,
}

/// The shell for an executable file whose format the kernel does not know.
const SHELL: &CStr = c"/bin/sh";

/// Enough for a few nested calls, also without optimisation.
const STACK_BYTES: usize = 32 * 1024;

#[repr(align(16))]
struct Stack(
    #[expect(dead_code, reason = "only its address matters")] [MaybeUninit<u8>; STACK_BYTES],
);

/// What the child needs, all prepared, and where it leaves its error.
struct Orders {
    candidates: *const *const c_char,
    argv: *const *const c_char,
    /// `SHELL`, room for the script's path, and the arguments after the program's name.
    script_argv: *mut *const c_char,
    env: *const *const c_char,
    cwd: *const c_char,
    stdio: [RawFd; 3],
    channel: RawFd,
    terminal: bool,
    limits: *const Limit,
    limit_count: usize,
    identity: Option<Identity>,
    filter: sock_fprog,
    mask: libc::sigset_t,
    failed_step: AtomicU8,
    errno: AtomicI32,
}

const KEEP: RawFd = -1;

/// Where a channel is put.
const CHANNEL: RawFd = 3;

/// Starts a program and returns its process id once it runs. It has a session of its own, no
/// blocked signals, and no descriptor of this process but those it is given.
/// [`super::reap::watch_children`] must have been called.
pub fn spawn(program: &Program<'_>) -> Result<i32, SpawnError> {
    let [stdin, stdout, stderr] = program.stdio.map(|fd| fd.map_or(KEEP, |fd| fd.as_raw_fd()));
    let channel = program.channel.map_or(KEEP, |fd| fd.as_raw_fd());
    let is_fixed = |fd: &RawFd| matches!(fd, 1 | 2);
    if stdin == 0 || channel == 0 || [stdin, stdout, stderr, channel].iter().any(is_fixed) {
        return Err(SpawnError { step: Step::Descriptors, errno: Errno::INVAL });
    }
    if program.argv.is_empty() || program.candidates.is_empty() {
        return Err(SpawnError { step: Step::Exec, errno: Errno::NOENT });
    }
    let candidates = pointers(&[], program.candidates);
    let argv = pointers(&[], program.argv);
    let mut script_argv = pointers(&[SHELL.as_ptr(), ptr::null()], &program.argv[1..]);
    let env = pointers(&[], program.env);
    let orders = Orders {
        candidates: candidates.as_ptr(),
        argv: argv.as_ptr(),
        script_argv: script_argv.as_mut_ptr(),
        env: env.as_ptr(),
        cwd: program.cwd.as_ptr(),
        stdio: [stdin, stdout, stderr],
        channel,
        terminal: program.terminal,
        limits: program.limits.as_ptr(),
        limit_count: program.limits.len(),
        identity: program.identity,
        filter: no_leases::program(program.filter),
        mask: empty_set(),
        failed_step: AtomicU8::new(0),
        errno: AtomicI32::new(0),
    };
    let mut stack = MaybeUninit::<Stack>::uninit();
    // SAFETY: one past the end of an allocation is a valid address; the stack grows down from it.
    let top = unsafe { stack.as_mut_ptr().add(1) };
    // SAFETY: the child has a stack of its own, and `CLONE_VFORK` keeps this function, and so all
    // that `orders` points to, where it is until the child has exec'ed or is gone.
    let pid = unsafe {
        libc::clone(
            child,
            top.cast::<c_void>(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            (&raw const orders).cast_mut().cast::<c_void>(),
        )
    };
    if pid < 0 {
        return Err(SpawnError { step: Step::Clone, errno: last_errno() });
    }
    let errno = orders.errno.load(Ordering::Relaxed);
    if errno == 0 {
        return Ok(pid);
    }
    // The child has ended already, and is not reported.
    collect(pid);
    let step = CHILD_STEPS[usize::from(orders.failed_step.load(Ordering::Relaxed))];
    Err(SpawnError { step, errno: Errno::from_raw_os_error(errno) })
}

/// A list for the kernel: pointers, and a null at the end.
fn pointers(first: &[*const c_char], rest: &[CString]) -> Vec<*const c_char> {
    let mut list = Vec::with_capacity(first.len() + rest.len() + 1);
    list.extend_from_slice(first);
    list.extend(rest.iter().map(|text| text.as_ptr()));
    list.push(ptr::null());
    list
}

extern "C" fn child(orders: *mut c_void) -> c_int {
    // SAFETY: the parent passed a pointer to its `Orders`, and waits.
    let orders = unsafe { &*orders.cast::<Orders>().cast_const() };
    for (number, step) in CHILD_STEPS.into_iter().enumerate() {
        let errno = take(step, orders);
        if errno != 0 {
            orders.failed_step.store(number as u8, Ordering::Relaxed);
            orders.errno.store(errno, Ordering::Relaxed);
            break;
        }
    }
    // SAFETY: ends this child alone, without running anything of the parent's.
    unsafe { libc::_exit(127) }
}

/// Does one step, and returns the error number, or 0.
fn take(step: Step, orders: &Orders) -> c_int {
    match step {
        // SAFETY: takes nothing.
        Step::Session => failed(unsafe { libc::setsid() }),
        Step::Terminal if orders.terminal => {
            // SAFETY: takes numbers only.
            failed(unsafe { libc::ioctl(orders.stdio[0], libc::TIOCSCTTY, 0) })
        }
        Step::Clone | Step::Terminal => 0,
        Step::Limit => limit(orders),
        Step::Identity => orders.identity.map_or(0, become_other),
        // SAFETY: a C string that the parent keeps.
        Step::Directory => failed(unsafe { libc::chdir(orders.cwd) }),
        Step::Descriptors => place_descriptors(orders),
        Step::Filter => no_leases::forbid(&orders.filter),
        Step::Exec => exec(orders),
    }
}

fn limit(orders: &Orders) -> c_int {
    for place in 0..orders.limit_count {
        // SAFETY: within the slice that the parent keeps.
        let entry = unsafe { orders.limits.add(place) };
        // SAFETY: an initialised element of that slice.
        let Limit { resource, soft, hard } = unsafe { *entry };
        let resource = match resource {
            Resource::Cpu => libc::RLIMIT_CPU,
            Resource::FileSize => libc::RLIMIT_FSIZE,
            Resource::Descriptors => libc::RLIMIT_NOFILE,
            Resource::AddressSpace => libc::RLIMIT_AS,
        };
        let value = libc::rlimit { rlim_cur: soft, rlim_max: hard };
        // SAFETY: reads one struct of this function.
        let errno = failed(unsafe { libc::setrlimit(resource, &raw const value) });
        if errno != 0 {
            return errno;
        }
    }
    0
}

/// System calls and not the C library's functions of these names: those would signal other threads,
/// of which there are none, in memory that is not the child's.
pub(super) fn become_other(Identity { uid, gid }: Identity) -> c_int {
    // SAFETY: an empty list.
    let result = unsafe { libc::syscall(libc::SYS_setgroups, 0, ptr::null::<libc::gid_t>()) };
    if result != 0 {
        let errno = errno();
        // Where groups may not be changed at all, having none is as good.
        // SAFETY: asks for the number of groups only.
        let groups =
            unsafe { libc::syscall(libc::SYS_getgroups, 0, ptr::null_mut::<libc::gid_t>()) };
        if groups != 0 {
            return errno;
        }
    }
    // SAFETY: takes numbers only.
    if unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) } != 0 {
        return errno();
    }
    // SAFETY: takes numbers only.
    if unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) } != 0 {
        return errno();
    }
    0
}

/// Standard input comes after the other two: its number may be given for one of them. The channel
/// comes last: one of the three may be at its number.
fn place_descriptors(orders: &Orders) -> c_int {
    let [stdin, stdout, stderr] = orders.stdio;
    for (source, target) in [(stdout, 1), (stderr, 2), (stdin, 0)] {
        if source != KEEP {
            // SAFETY: takes numbers only.
            let errno = failed(unsafe { libc::dup2(source, target) });
            if errno != 0 {
                return errno;
            }
        }
    }
    let mut first_closed = CHANNEL;
    if orders.channel != KEEP {
        let errno = place_channel(orders.channel);
        if errno != 0 {
            return errno;
        }
        first_closed += 1;
    }
    // Close-on-exec also ensures that nothing else is inherited, so a kernel without this call is
    // fine.
    // SAFETY: takes numbers only; the table of descriptors is the child's own copy.
    unsafe { libc::syscall(libc::SYS_close_range, first_closed, LAST_DESCRIPTOR, 0) };
    0
}

/// A descriptor that is already in its place must lose close-on-exec.
fn place_channel(source: RawFd) -> c_int {
    if source == CHANNEL {
        // SAFETY: takes numbers only.
        return failed(unsafe { libc::fcntl(CHANNEL, libc::F_SETFD, 0) });
    }
    // SAFETY: takes numbers only.
    failed(unsafe { libc::dup2(source, CHANNEL) })
}

fn exec(orders: &Orders) -> c_int {
    // SAFETY: reads one set that the parent keeps.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const orders.mask, ptr::null_mut()) };
    let mut worst = libc::ENOENT;
    let mut candidate = orders.candidates;
    loop {
        // SAFETY: the list ends with a null, at which this loop ends.
        let path = unsafe { *candidate };
        if path.is_null() {
            return worst;
        }
        // SAFETY: lists that end with a null, of C strings that the parent keeps.
        unsafe { libc::execve(path, orders.argv, orders.env) };
        match errno() {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => worst = libc::EACCES,
            libc::ENOEXEC => return exec_script(path, orders),
            other => return other,
        }
        // SAFETY: not beyond the null.
        candidate = unsafe { candidate.add(1) };
    }
}

/// What every shell does with a file that has neither a known format nor a `#!` line.
fn exec_script(path: *const c_char, orders: &Orders) -> c_int {
    // SAFETY: the list has at least two places before its end.
    let place = unsafe { orders.script_argv.add(1) };
    // SAFETY: the parent made the list for this and does not read it.
    unsafe { place.write(path) };
    // SAFETY: lists that end with a null, of C strings that the parent keeps.
    unsafe { libc::execve(SHELL.as_ptr(), orders.script_argv.cast_const(), orders.env) };
    libc::ENOEXEC
}

fn failed(result: c_int) -> c_int {
    if result < 0 { errno() } else { 0 }
}

pub(super) fn errno() -> c_int {
    // SAFETY: takes nothing.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it always points to this thread's number.
    unsafe { *place }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::reap::{End, collect, look, watch_children};

    fn run(candidates: &[&CStr], argv: &[&CStr], limits: &[Limit]) -> Result<End, SpawnError> {
        run_with(candidates, argv, limits, None)
    }

    fn run_with(
        candidates: &[&CStr],
        argv: &[&CStr],
        limits: &[Limit],
        channel: Option<BorrowedFd<'_>>,
    ) -> Result<End, SpawnError> {
        watch_children().unwrap();
        let owned = |list: &[&CStr]| list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let (candidates, argv) = (owned(candidates), owned(argv));
        let program = Program {
            candidates: &candidates,
            argv: &argv,
            env: &[],
            cwd: c"/",
            stdio: [None; 3],
            channel,
            terminal: false,
            limits,
            identity: None,
            filter: None,
        };
        let pid = spawn(&program)?;
        loop {
            if let Some(reaped) = look().unwrap() {
                assert_eq!(reaped.pid, pid);
                collect(pid);
                return Ok(reaped.end);
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_first_candidate_that_exists_runs() {
        let candidates = [c"/nowhere/sh", c"/dev/null/sh", c"/bin/sh"];
        assert_eq!(run(&candidates, &[c"sh", c"-c", c"exit 7"], &[]), Ok(End::Code(7)));
    }

    #[test]
    fn signals_end_a_spawned_program() {
        assert_eq!(run(&[c"/bin/sh"], &[c"sh", c"-c", c"kill -9 $$"], &[]), Ok(End::Signal(9)));
        let pipe = c"yes | true; test ${PIPESTATUS:-0} = 0; kill -PIPE $$";
        assert_eq!(run(&[c"/bin/sh"], &[c"sh", c"-c", pipe], &[]), Ok(End::Signal(libc::SIGPIPE)));
    }

    #[test]
    fn a_failed_spawn_reports_why_and_leaves_no_child() {
        let missing = SpawnError { step: Step::Exec, errno: Errno::NOENT };
        assert_eq!(run(&[c"/nowhere"], &[c"x"], &[]), Err(missing));
        let denied = SpawnError { step: Step::Exec, errno: Errno::ACCESS };
        assert_eq!(run(&[c"/etc", c"/nowhere"], &[c"x"], &[]), Err(denied));
        let limit = Limit { resource: Resource::Descriptors, soft: 5, hard: 4 };
        let invalid = SpawnError { step: Step::Limit, errno: Errno::INVAL };
        assert_eq!(run(&[c"/bin/true"], &[c"x"], &[limit]), Err(invalid));
        assert_eq!(look(), Ok(None));
    }

    #[test]
    fn a_spawned_program_inherits_nothing() {
        let _open = std::fs::File::open("/dev/null").unwrap();
        let line = c"for fd in /proc/self/fd/*; do case $fd in */[012]) ;; *) test ! -e $fd || exit 9; esac; done";
        assert_eq!(run(&[c"/bin/sh"], &[c"sh", c"-c", line], &[]), Ok(End::Code(0)));
        // Signals 32 and 33 belong to the C library, which does not let programs change them.
        let blocked = c"set -- $(grep -E 'Sig(Blk|Ign)' /proc/self/status | cut -f2)
            test $1 = 0000000000000000 || exit 8
            case $2 in 0000000[01][08]0000000) ;; *) exit 9; esac";
        assert_eq!(run(&[c"/bin/sh"], &[c"sh", c"-c", blocked], &[]), Ok(End::Code(0)));
    }
    #[test]
    fn a_channel_is_descriptor_three_and_all_there_is_besides() {
        use std::io::Read as _;
        use std::os::fd::AsFd as _;
        use std::os::unix::net::UnixStream;

        let line = c"for fd in /proc/self/fd/*; do case $fd in */[0123]) ;; *) test ! -e $fd || exit 9; esac; done; echo here >&3";
        let wanted = [c"sh", c"-c", line];
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let channel = Some(theirs.as_fd());
        assert_eq!(run_with(&[c"/bin/sh"], &wanted, &[], channel), Ok(End::Code(0)));
        drop(theirs);
        let mut said = String::new();
        ours.read_to_string(&mut said).unwrap();
        assert_eq!(said, "here\n");
        let refused = SpawnError { step: Step::Descriptors, errno: Errno::INVAL };
        let own = std::io::stderr();
        assert_eq!(run_with(&[c"/bin/sh"], &wanted, &[], Some(own.as_fd())), Err(refused));
    }
}
