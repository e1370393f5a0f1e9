//! The kernel enforces the filter as the policy says. Each test starts this test binary again for
//! one of the `inside_` tests, which load the filter into their own thread only: whatever a mistake
//! in the policy does, the rest of the process can still end. Each has a deadline, and those that
//! start programs a limit on processes.

use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getuid, set_parent_process_death_signal, setrlimit};
use rustix::thread::{Gid, Uid, set_no_new_privs, set_thread_res_gid, set_thread_res_uid};

use super::load;
use crate::seccomp::{Policy, Rule, Verdict, compile, refused};

const DEADLINE_S: u32 = 40;
const PROGRAMS_MAX: u64 = 64;
/// A user without files or other processes, so that a limit on its processes counts ours only.
const UNUSED_USER: u32 = 3_999_999_990;

/// Runs one of the tests below in a process of its own; returns its status and output.
fn inside(test: &str) -> (ExitStatus, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "--exact", &format!("sys::filter::tests::{test}")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    for _ in 0..DEADLINE_S * 100 {
        if let Some(status) = child.try_wait().unwrap() {
            let mut said = String::new();
            child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
            return (status, said);
        }
        sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("{test} did not end in {DEADLINE_S} s");
}

/// Loads the filter of a sandbox into the calling thread.
fn confine() {
    set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let program = compile(&Policy::sandbox()).unwrap();
    set_no_new_privs(true).unwrap();
    load(program.instructions()).unwrap();
}

/// Makes a call and gives its error number, 0 if it succeeded.
fn call(number: u32, arguments: [u64; 6]) -> i32 {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    // SAFETY: the calls made here are meant to be refused before the kernel looks at the
    // arguments; if one were not, its arguments are no valid pointers, so that it fails.
    let result = unsafe {
        libc::syscall(libc::c_long::from(number), first, second, third, fourth, fifth, sixth)
    };
    match result {
        0 if number == libc::SYS_clone as u32 => {
            // SAFETY: a child that should not exist leaves without running anything of its parent.
            unsafe { libc::_exit(0) }
        }
        -1 => std::io::Error::last_os_error().raw_os_error().unwrap(),
        _ => 0,
    }
}

#[test]
#[ignore = "runs inside another test"]
fn inside_refused_calls() {
    // Away from the terminal, because one call would hang it up.
    let _ = rustix::process::setsid();
    confine();
    for group in refused::GROUPS {
        for refused in group.calls {
            let Rule::Always(Verdict::Errno(expected)) = group.rule else { panic!("not refused") };
            let errno = call(refused.number(), [u64::MAX; 6]);
            assert_eq!(errno, i32::from(expected), "{}", refused.name());
        }
    }
    for unknown in (470..600).chain([1023, 4095]) {
        assert_eq!(call(unknown, [u64::MAX; 6]), libc::ENOSYS, "{unknown}");
    }
    for protocol in 0..32 {
        let netlink = [libc::AF_NETLINK as u64, libc::SOCK_RAW as u64, protocol, 0, 0, 0];
        let expected = if protocol == libc::NETLINK_ROUTE as u64 { 0 } else { libc::EAFNOSUPPORT };
        assert_eq!(call(libc::SYS_socket as u32, netlink), expected, "netlink {protocol}");
    }
    let raw = [libc::AF_INET as u64, libc::SOCK_RAW as u64, 1, 0, 0, 0];
    assert_eq!(call(libc::SYS_socket as u32, raw), libc::EPERM);
    for dirt in [0, 1 << 32, u64::MAX << 32] {
        let typing = [0, libc::TIOCSTI | dirt, 0, 0, 0, 0];
        assert_eq!(call(libc::SYS_ioctl as u32, typing), libc::EPERM);
    }
    // On an invalid descriptor, an allowed request fails with that error.
    let size = [u64::MAX, libc::TIOCGWINSZ, 0, 0, 0, 0];
    assert_eq!(call(libc::SYS_ioctl as u32, size), libc::EBADF);
    let new_user = [(libc::CLONE_NEWUSER | libc::SIGCHLD) as u64, 0, 0, 0, 0, 0];
    assert_eq!(call(libc::SYS_clone as u32, new_user), libc::EPERM);
    assert_eq!(call(libc::SYS_personality as u32, [0x40_0000, 0, 0, 0, 0, 0]), libc::EPERM);
    println!("all as decided");
}

#[test]
fn refused_calls_give_exactly_their_error() {
    let (status, said) = inside("inside_refused_calls");
    assert!(status.success() && said.contains("all as decided"), "{status}: {said}");
}

#[cfg(target_arch = "x86_64")]
#[test]
#[ignore = "runs inside another test"]
fn inside_x32() {
    confine();
    println!("still alive: {}", call(0x4000_0000 | libc::SYS_getpid as u32, [0; 6]));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_call_of_x32_kills() {
    let (status, said) = inside("inside_x32");
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{said}");
}

#[cfg(target_arch = "x86_64")]
#[test]
#[ignore = "runs inside another test"]
fn inside_32_bit_call() {
    confine();
    let mut register: u64 = 20;
    // SAFETY: the old way into the kernel, for `getpid`, which touches no memory.
    unsafe { std::arch::asm!("int 0x80", inout("rax") register, options(nostack)) };
    println!("still alive: {register}");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_32_bit_call_kills() {
    let (status, said) = inside("inside_32_bit_call");
    // A kernel without 32-bit calls does not know this instruction.
    let expected = [Some(libc::SIGSYS), Some(libc::SIGSEGV)];
    assert!(expected.contains(&status.signal()), "{status}: {said}");
}

/// A program, a shell line that uses it, and its output.
const PROGRAMS: &[(&str, &str, &str)] = &[
    ("sh", "for i in 1 2 3; do echo $i; done | tail -n 1", "3"),
    ("bash", "bash -c 'cat <(echo from a substitution)'", "from a substitution"),
    ("awk", "echo 3 4 | awk '{ print $1 * $2 }'", "12"),
    (
        "python3",
        "python3 -c 'import threading, subprocess, socket, multiprocessing as m
t = threading.Thread(target=print, args=(1,)); t.start(); t.join()
print(subprocess.check_output([\"echo\", \"2\"]).decode().strip())
p = m.get_context(\"fork\").Pool(2); print(sum(p.map(abs, [-1, -2]))); p.close(); p.join()
a, b = socket.socketpair(); a.send(b\"x\"); print(b.recv(1).decode())
print(socket.getaddrinfo(\"127.0.0.1\", 80)[0][4][0])'",
        "1\n2\n3\nx\n127.0.0.1",
    ),
    (
        "node",
        "node -e 'const w = require(\"worker_threads\"); const c = require(\"child_process\");
new w.Worker(\"require(\\\"worker_threads\\\").parentPort.postMessage(6)\", {eval: true})
.on(\"message\", (n) => require(\"fs\").promises.readFile(\"/etc/hostname\").finally(
() => console.log(n * 7, c.execSync(\"echo ok\").toString().trim())))'",
        "42 ok",
    ),
    (
        "git",
        "git init -q . && git -c user.name=a -c user.email=b commit -q --allow-empty -m one \
         && git log --oneline | wc -l",
        "1",
    ),
    (
        "gcc",
        "printf '#include <stdio.h>\\nint main(){puts(\"compiled\");}' > a.c && gcc a.c && ./a.out",
        "compiled",
    ),
    ("java", "java -version 2>&1 | grep -c version", "1"),
    ("perl", "perl -e 'print fork ? (wait, \"reaped\")[1] : \"\"'", "reaped"),
    ("tar", "tar -cf - /etc/passwd 2>/dev/null | tar -tf -", "etc/passwd"),
    ("flock", "flock . sync; mkfifo p && echo done", "done"),
    (
        "script",
        "script -qec 'stty size >/dev/null && echo on a terminal' /dev/null",
        "on a terminal",
    ),
];

#[test]
#[ignore = "runs inside another test"]
fn inside_programs() {
    // A filter under which no process can end would fill the machine.
    let policy = Policy::sandbox();
    let ends = policy.rule(libc::SYS_exit_group as u32);
    assert_eq!(ends, Rule::Always(Verdict::Allow), "programs must be able to end");
    let directory = std::env::temp_dir().join(format!("jail-filter-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    if getuid().is_root() {
        let (user, group) = (Uid::from_raw(UNUSED_USER), Gid::from_raw(UNUSED_USER));
        rustix::fs::chown(&directory, Some(user), Some(group)).unwrap();
        let most = Rlimit { current: Some(PROGRAMS_MAX), maximum: Some(PROGRAMS_MAX) };
        setrlimit(Resource::Nproc, most).unwrap();
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
    }
    confine();
    for (program, line, expected) in PROGRAMS {
        let there = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        if !there.unwrap().status.success() {
            println!("{program} is not installed: not tried");
            continue;
        }
        let output = Command::new("sh")
            .args(["-c", line])
            .current_dir(&directory)
            .env("HOME", &directory)
            .output()
            .unwrap();
        let (said, complained) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        println!("{program}: {said}{complained}");
        assert_eq!(said.replace('\r', "").trim(), *expected, "{program}: {complained}");
    }
    println!("all programs behaved");
}

#[test]
fn ordinary_programs_run_under_the_filter() {
    let (status, said) = inside("inside_programs");
    for left in std::fs::read_dir(std::env::temp_dir()).unwrap().flatten() {
        if left.file_name().to_string_lossy().starts_with("jail-filter-") {
            let _ = std::fs::remove_dir_all(left.path());
        }
    }
    assert!(status.success() && said.contains("all programs behaved"), "{status}: {said}");
}
