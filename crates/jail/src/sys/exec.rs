//! Starts a program from a descriptor, with descriptors at the numbers that it expects. For the
//! start of the launcher by a process that may have threads: between fork and exec the child calls
//! nothing that could need a lock.

use std::ffi::{CStr, c_char};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::ptr;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::clone::exit_now;
use super::signals;

/// The number of the first descriptor that is passed; the others follow.
const FIRST_PASSED: RawFd = 3;

/// Above all numbers that are used for passing.
const OUT_OF_THE_WAY: RawFd = 64;

/// The most descriptors that can be passed.
const MAX_PASSED: usize = 16;

/// Executes the program in `image` in a new process, with these arguments, an empty environment,
/// our standard streams, `passed` as descriptors 3, 4, ..., and no others. Returns when the exec
/// succeeded, or with its error. The caller must wait for the process later.
pub fn start(
    image: BorrowedFd<'_>,
    arguments: &[&CStr],
    passed: &[BorrowedFd<'_>],
) -> io::Result<Pid> {
    if passed.len() > MAX_PASSED {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Everything the child needs is made here: it must not allocate.
    let out_of_the_way = |fd: BorrowedFd<'_>| fcntl_dupfd_cloexec(fd, OUT_OF_THE_WAY);
    let image = out_of_the_way(image)?;
    let passed: Vec<OwnedFd> =
        passed.iter().map(|fd| out_of_the_way(*fd)).collect::<Result<_, _>>()?;
    let (failure, low) = pipe_with(PipeFlags::CLOEXEC)?;
    let tell = out_of_the_way(low.as_fd())?;
    drop(low);
    let ends = [ptr::null()];
    let argv: Vec<*const c_char> =
        arguments.iter().map(|argument| argument.as_ptr()).chain(ends).collect();

    // SAFETY: takes nothing. The child has a copy of this memory with one thread in it, uses only
    // what was made above, and ends in `exec` or `exit_now`: it never returns into our caller.
    let forked = unsafe { libc::fork() };
    if forked < 0 {
        return Err(io::Error::last_os_error());
    }
    let Some(child) = Pid::from_raw(forked) else {
        let errno = become_program(&image, &passed, &argv, &ends);
        // If even this fails, the parent sees the end of the pipe without an error, and then no
        // launcher.
        let _ = rustix::io::write(&tell, &errno.to_ne_bytes());
        exit_now(127);
    };
    drop(tell);
    let mut errno = [0; 4];
    match std::fs::File::from(failure).read_exact(&mut errno) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(child),
        outcome => {
            let _ = waitpid(Some(child), WaitOptions::empty());
            outcome?;
            Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
        }
    }
}

/// Executes the program of this process again, in this process, with an empty environment and the
/// descriptors that are not close-on-exec. Returns only on failure.
pub fn exec_self(arguments: &[&CStr]) -> io::Error {
    let ends = [ptr::null()];
    let argv: Vec<*const c_char> =
        arguments.iter().map(|argument| argument.as_ptr()).chain(ends).collect();
    // SAFETY: both lists end with a null pointer and point to strings that live until the call
    // returns, which it does only if it failed.
    unsafe { libc::execve(c"/proc/self/exe".as_ptr(), argv.as_ptr(), ends.as_ptr()) };
    io::Error::last_os_error()
}

/// In the child. Returns only if it failed, with the error.
fn become_program(
    image: &OwnedFd,
    passed: &[OwnedFd],
    argv: &[*const c_char],
    envp: &[*const c_char],
) -> i32 {
    if let Err(error) = signals::block_only(&[]) {
        return error.raw_os_error().unwrap_or(0);
    }
    let mut number = FIRST_PASSED;
    for descriptor in passed {
        // SAFETY: takes numbers. Whatever Rust value owned the number it overwrites exists only
        // in the parent, whose descriptors are its own.
        if unsafe { libc::dup2(descriptor.as_raw_fd(), number) } < 0 {
            return last_errno();
        }
        number += 1;
    }
    let rest = number.cast_unsigned();
    // SAFETY: takes numbers and only marks descriptors to be closed at the exec.
    let marked =
        unsafe { libc::syscall(libc::SYS_close_range, rest, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if marked < 0 {
        return last_errno();
    }
    // SAFETY: both lists end with a null pointer and point to strings that live in this copy of
    // the caller's memory until it is replaced; the empty path is a literal.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            image.as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    last_errno()
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use super::*;

    fn run(image: &File, script: &CStr, passed: &[BorrowedFd<'_>]) -> i32 {
        let child = start(image.as_fd(), &[c"sh", c"-c", script], passed).unwrap();
        let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
        status.exit_status().unwrap()
    }

    #[test]
    fn exec_passes_descriptors_where_expected_and_no_others() {
        let shell = File::open("/bin/sh").unwrap();
        let (first, mut first_in) = io::pipe().unwrap();
        let (second, mut second_in) = io::pipe().unwrap();
        io::Write::write_all(&mut first_in, b"one\n").unwrap();
        io::Write::write_all(&mut second_in, b"two\n").unwrap();
        let script = c"read a <&3; read b <&4; [ \"$a$b\" = onetwo ] || exit 1
            for fd in /proc/self/fd/*; do
                n=${fd##*/}
                [ $n -le 4 ] || [ ! -e /proc/$$/fd/$n ] || exit 2
            done
            [ -z \"$HOME$SECRET\" ] || exit 3; exit 42";
        assert_eq!(run(&shell, script, &[first.as_fd(), second.as_fd()]), 42);
        drop((first_in, second_in));
    }

    #[test]
    fn a_failed_exec_is_reported() {
        let text = File::open("/etc/passwd").unwrap();
        let error = start(text.as_fd(), &[c"x"], &[]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    }
}
