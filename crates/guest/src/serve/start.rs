//! From a request to a running program: everything is prepared and opened first, because no work
//! may be done between the clone and the program's first instruction.

use std::ffi::CString;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use guest_protocol::Env;
use guest_protocol::message::{
    Command, Fault, FaultCode, Pipe, ProcessLimits, Spawn, Stdio, TerminalSize, lane,
};
use jail::seccomp;
use jail::sys::spawn::{self, Limit, Resource, SpawnError, Step};
use rustix::event::epoll::EventFlags;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::getrlimit;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, ptsname, unlockpt};
use rustix::stdio::stdin;
use rustix::termios::{Winsize, tcsetwinsize};

use super::Settings;
use super::environment::{self, Environment, text};
use super::fault::{fault, refused, refused_as};
use super::io::Io;
use super::program::{Lanes, Program};
use super::ready::{Part, Source};
use super::stream::{Inlet, Inward, Outward};

const SHELL: &str = "/bin/sh";

/// The ends of a program's descriptors: the program's own and, for lanes, the guest's.
#[derive(Debug, Default)]
struct Ends {
    /// For the program; `None` is `/dev/null`.
    own: [Option<OwnedFd>; 3],
    /// The program's descriptor 3.
    channel: Option<OwnedFd>,
    input: Option<Inward>,
    stdout: Option<Outward>,
    stderr: Option<Outward>,
    /// From a terminal or a channel.
    main: Option<Outward>,
}

/// Starts a program.
pub(super) fn start(
    channel: u32,
    request: &Spawn,
    bound: &Env,
    settings: &Settings,
    scale: Option<&str>,
    io: &mut Io,
) -> Result<Program, Fault> {
    // The descriptors belong to this request, whether it succeeds or not.
    let passed = take_passed(&request.stdio, io)?;
    environment::check(&request.env)?;
    let on_terminal = matches!(request.stdio, Stdio::Terminal(_));
    let environment =
        Environment::new(&settings.workspace, scale, bound, &request.env, on_terminal);
    let argv = match &request.command {
        Command::Argv(argv) => argv.iter().map(String::as_str).collect(),
        Command::Shell(line) => vec![SHELL, "-c", line],
    };
    let Some(&name) = argv.first() else {
        return Err(fault(FaultCode::Invalid, "there is no program to start"));
    };
    let candidates = candidates(name, environment.path())?;
    let argv = argv.into_iter().map(text).collect::<Result<Vec<_>, _>>()?;
    let cwd = request
        .cwd
        .as_deref()
        .map_or_else(|| settings.workspace.clone(), |cwd| absolute(&settings.workspace, cwd));
    let ends = open_ends(&request.stdio, passed)
        .map_err(|errno| refused(errno, "cannot make pipes or a terminal"))?;
    watch_ends(channel, &ends, io).map_err(|errno| refused(errno, "cannot watch a program"))?;
    let program = spawn::Program {
        candidates: &candidates,
        argv: &argv,
        env: &environment.to_list(channel)?,
        cwd: &text(cwd.as_str())?,
        stdio: placed(&ends.own),
        channel: ends.channel.as_ref().map(OwnedFd::as_fd),
        terminal: on_terminal,
        limits: &limits(&request.limits),
        identity: settings.workload,
        filter: settings.contained.as_ref().map(seccomp::Program::instructions),
    };
    let pid = spawn::spawn(&program).map_err(|error| explain(error, name, &cwd))?;
    let Ends { own: [_, out, err], channel: _, input, stdout, stderr, main } = ends;
    let passed = match &request.stdio {
        Stdio::Pipes { stdout, stderr, .. } => {
            [out.filter(|_| *stdout == Pipe::Passed), err.filter(|_| *stderr == Pipe::Passed)]
        }
        // A channel has two descriptors already: a program may keep at most three here.
        Stdio::Terminal(_) | Stdio::Channel { .. } => [None, None],
    };
    let lanes = Lanes { input, stdout, stderr, main };
    Ok(Program::new(channel, pid, lanes, on_terminal, passed))
}

/// A path; a relative one begins at the workspace.
pub(super) fn absolute(workspace: &str, path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("{workspace}/{path}") }
}

/// Takes the descriptors of a program that is not started.
pub(super) fn drop_passed(stdio: &Stdio, io: &mut Io) {
    let _ = take_passed(stdio, io);
}

fn take_passed(stdio: &Stdio, io: &mut Io) -> Result<[Option<OwnedFd>; 3], Fault> {
    let mut passed = [None, None, None];
    for (place, pipe) in pipes(stdio).into_iter().enumerate() {
        if pipe == Pipe::Passed {
            passed[place] = io.connection.take_descriptor();
            if passed[place].is_none() {
                return Err(fault(FaultCode::Invalid, "the request came without its descriptor"));
            }
        }
    }
    Ok(passed)
}

/// The first three descriptors, as far as they are pipes.
fn pipes(stdio: &Stdio) -> [Pipe; 3] {
    match *stdio {
        Stdio::Pipes { stdin, stdout, stderr } => [stdin, stdout, stderr],
        Stdio::Channel { stdout, stderr } => [Pipe::Null, stdout, stderr],
        Stdio::Terminal(_) => [Pipe::Null; 3],
    }
}

/// Paths of a program to try, in order.
fn candidates(name: &str, path: &str) -> Result<Vec<CString>, Fault> {
    if name.contains('/') {
        return Ok(vec![text(name)?]);
    }
    if name.is_empty() {
        return Err(fault(FaultCode::NotFound, "no such program: the name is empty"));
    }
    let place = |directory: &str| match directory {
        "" => text(format!("./{name}")),
        directory => text(format!("{directory}/{name}")),
    };
    path.split(':').map(place).collect()
}

fn open_ends(stdio: &Stdio, passed: [Option<OwnedFd>; 3]) -> Result<Ends, Errno> {
    let mut ends = Ends { own: passed, ..Ends::default() };
    let [stdin, stdout, stderr] = pipes(stdio);
    if stdin == Pipe::Lane {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        ioctl_fionbio(&writer, true)?;
        ends.own[0] = Some(reader);
        ends.input = Some(Inward::new(writer, Inlet::Pipe));
    }
    if stdout == Pipe::Lane {
        ends.stdout = Some(open_outward(&mut ends.own[1])?);
    }
    if stderr == Pipe::Lane {
        ends.stderr = Some(open_outward(&mut ends.own[2])?);
    }
    match stdio {
        Stdio::Pipes { .. } => {}
        Stdio::Terminal(size) => open_terminal(*size, &mut ends)?,
        Stdio::Channel { .. } => open_channel(&mut ends)?,
    }
    Ok(ends)
}

/// Made inside and not by the host: a socket belongs for ever to the network namespace in which it
/// was made, and any process that holds it can inspect that namespace.
fn open_channel(ends: &mut Ends) -> Result<(), Errno> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    ioctl_fionbio(&ours, true)?;
    let writer = ours.try_clone().map_err(|_| Errno::MFILE)?;
    ends.channel = Some(theirs);
    ends.input = Some(Inward::new(writer, Inlet::Socket));
    ends.main = Some(Outward::new(ours));
    Ok(())
}

/// A pipe out of a process: its end, and ours.
pub(super) fn open_outward(own: &mut Option<OwnedFd>) -> Result<Outward, Errno> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    ioctl_fionbio(&reader, true)?;
    *own = Some(writer);
    Ok(Outward::new(reader))
}

/// The program's side is not kept open here: a terminal must report when no process inside has it
/// open any more.
fn open_terminal(size: TerminalSize, ends: &mut Ends) -> Result<(), Errno> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    unlockpt(&master)?;
    let slave = open_slave(&master)?;
    tcsetwinsize(&master, window(size))?;
    ioctl_fionbio(&master, true)?;
    let writer = master.try_clone().map_err(|_| Errno::MFILE)?;
    ends.own[1] = Some(slave.try_clone().map_err(|_| Errno::MFILE)?);
    ends.own[2] = Some(slave.try_clone().map_err(|_| Errno::MFILE)?);
    ends.own[0] = Some(slave);
    ends.input = Some(Inward::new(writer, Inlet::Terminal));
    ends.main = Some(Outward::new(master));
    Ok(())
}

/// The program's side of a terminal. gVisor opens it only by its name, and no program inside can
/// put anything else there.
fn open_slave(master: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    match ioctl_tiocgptpeer(master, flags) {
        Err(Errno::NOTTY) => {
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(CWD, ptsname(master, Vec::new())?, flags, Mode::empty())
        }
        opened => opened,
    }
}

/// A terminal's size in the kernel's form.
pub(super) fn window(size: TerminalSize) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn watch_ends(channel: u32, ends: &Ends, io: &Io) -> Result<(), Errno> {
    if let Some(input) = &ends.input {
        io.watch(&input.descriptor, Source::Part(channel, Part::Input), EventFlags::OUT)?;
    }
    let outward =
        [(&ends.stdout, lane::STDOUT), (&ends.stderr, lane::STDERR), (&ends.main, lane::MAIN)];
    for (end, lane) in outward {
        if let Some(end) = end {
            let source = Source::Part(channel, Part::sending_on(lane));
            io.watch(&end.descriptor, source, EventFlags::IN)?;
        }
    }
    Ok(())
}

/// The guest's own standard input is `/dev/null`.
fn placed(own: &[Option<OwnedFd>; 3]) -> [Option<BorrowedFd<'_>>; 3] {
    let [input, output, error] = own;
    [
        input.as_ref().map(OwnedFd::as_fd),
        Some(output.as_ref().map_or_else(|| stdin(), OwnedFd::as_fd)),
        Some(error.as_ref().map_or_else(|| stdin(), OwnedFd::as_fd)),
    ]
}

/// A limit is never above that of the guest itself, because setting it would fail. The limit on
/// processor time warns one second before it kills.
fn limits(limits: &ProcessLimits) -> Vec<Limit> {
    use rustix::process::Resource as Kernel;
    let mut list = Vec::new();
    let wanted = [
        (limits.cpu_s, Resource::Cpu, Kernel::Cpu, 1),
        (limits.file_bytes, Resource::FileSize, Kernel::Fsize, 0),
        (limits.descriptors, Resource::Descriptors, Kernel::Nofile, 0),
        (limits.address_space_bytes, Resource::AddressSpace, Kernel::As, 0),
    ];
    for (value, resource, kernel, grace) in wanted {
        if let Some(value) = value {
            let most = getrlimit(kernel).maximum.unwrap_or(u64::MAX);
            let hard = value.saturating_add(grace).min(most);
            list.push(Limit { resource, soft: value.min(hard), hard });
        }
    }
    list
}

fn explain(error: SpawnError, name: &str, cwd: &str) -> Fault {
    let SpawnError { step, errno } = error;
    match (step, errno) {
        (Step::Exec, Errno::NOENT | Errno::NOTDIR) => {
            refused_as(FaultCode::NotFound, errno, format!("no such program: {name}"))
        }
        (Step::Exec, _) => refused(errno, &format!("cannot run {name}")),
        (Step::Directory, Errno::NOENT) => {
            refused_as(FaultCode::NotFound, errno, format!("no such directory: {cwd}"))
        }
        (Step::Directory, _) => refused(errno, &format!("cannot start in {cwd}")),
        (Step::Clone, _) => refused(errno, "cannot start another process"),
        (Step::Session, _) => refused(errno, "cannot begin a session"),
        (Step::Terminal, _) => refused(errno, "cannot take the terminal"),
        (Step::Limit, _) => refused(errno, "cannot set a limit"),
        (Step::Identity, _) => refused(errno, "cannot become the user of programs"),
        (Step::Filter, _) => refused(errno, "cannot load a filter"),
        (Step::Descriptors, _) => refused(errno, "cannot put descriptors in place"),
    }
}
