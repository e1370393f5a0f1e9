//! Starts processes of the way out, from one thread that lives as long as the supervisor: the kernel
//! ends a child when the thread that started it ends. It must never keep a descriptor of a process.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::mpsc;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::sync::oneshot;

/// A process that runs.
#[derive(Debug)]
pub(super) struct Process {
    /// Taken by its user.
    pub socket: Option<OwnedFd>,
    pid: Pid,
}

impl Process {
    /// Its process id.
    pub(super) fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }
}

impl Drop for Process {
    /// It has nothing to save, so it is killed; then there is nothing to wait for either.
    fn drop(&mut self) {
        let _ = kill_process(self.pid, Signal::KILL);
        while matches!(waitpid(Some(self.pid), WaitOptions::empty()), Err(Errno::INTR)) {}
    }
}

type Reply = oneshot::Sender<io::Result<Process>>;

/// The thread.
#[derive(Debug, Clone)]
pub(super) struct Starter {
    orders: mpsc::Sender<Reply>,
}

impl Starter {
    /// Starts the thread. It ends with the last copy of this value.
    pub(super) fn new(program: &Path, arguments: &[String]) -> io::Result<Self> {
        let image: OwnedFd = std::fs::File::open(program)?.into();
        let written = |text: &str| CString::new(text).map_err(io::Error::from);
        let arguments: Vec<CString> = std::iter::once("shoal-egress")
            .chain(arguments.iter().map(String::as_str))
            .map(written)
            .collect::<io::Result<_>>()?;
        let (orders, received) = mpsc::channel::<Reply>();
        std::thread::Builder::new().name("egress-starter".into()).spawn(move || {
            while let Ok(reply) = received.recv() {
                // If the answer is no longer wanted, the process is ended here.
                let _ = reply.send(start(&image, &arguments));
            }
        })?;
        Ok(Self { orders })
    }

    /// Starts a process.
    pub(super) async fn start(&self) -> io::Result<Process> {
        let (reply, started) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts processes has ended");
        self.orders.send(reply).map_err(|_| gone())?;
        started.await.map_err(|_| gone())?
    }
}

fn start(image: &OwnedFd, arguments: &[CString]) -> io::Result<Process> {
    let (socket, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let arguments: Vec<&CStr> = arguments.iter().map(CString::as_c_str).collect();
    let pid = jail::sys::exec::start(image.as_fd(), &arguments, &[theirs.as_fd()])?;
    Ok(Process { socket: Some(socket), pid })
}
