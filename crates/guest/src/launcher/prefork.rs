//! A prefork, seen from inside: a process that is already the first of its process namespace, in
//! its control groups, with its users and network. It waits for a spec, builds the rest of the
//! sandbox around itself and becomes the guest, without an exec.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use guest_protocol::launcher::{MAX_PACKET_BYTES, NetworkMode, Spec};
use jail::carry_out::{Executor, Failed};
use jail::groups::{Groups, Limits};
use jail::plan;
use jail::root::{Built, Layers};
use jail::{packet, sys};
use rustix::net::{RecvFlags, recv};

use super::isolation::EMPTY;
use super::plan_input;
use super::start::Filters;
use super::watch::Watched;
use crate::serve::{Identity, Link, ScaleSettings, Settings, refuse, serve};

/// What a prefork sends to the launcher.
pub(super) mod message {
    /// It has a user namespace and asks for its users to be mapped.
    pub(crate) const UNMAPPED: u8 = b'U';
    /// It is prepared and waits for a spec.
    pub(crate) const PREPARED: u8 = b'P';
    /// It failed; the step and the error follow.
    pub(crate) const FAILED: u8 = b'F';
}

/// The launcher's answer that users are mapped.
pub(super) const MAPPED: u8 = b'M';

/// What a prefork needs to know from the launcher.
pub(super) struct PreforkContext<'a> {
    pub slot: u32,
    pub first_uid: u32,
    pub groups: &'a Groups,
    pub limits: Limits,
    /// Whether the prefork has to write them itself.
    pub write_limits: bool,
    pub network: NetworkMode,
    pub users: plan::Users,
    /// Whether a resource limit is the only thing that counts its processes.
    pub count_processes: bool,
    pub usual_root: &'a Built,
    pub void: BorrowedFd<'a>,
    pub filters: &'a Filters,
}

/// The life of a prefork. When it returns, the caller must exit without touching anything that it
/// shares with the launcher's memory.
pub(super) fn run(context: &PreforkContext<'_>, socket: &OwnedFd) {
    if forget_launcher(context, socket).is_ok() {
        let _ = rustix::thread::set_name(c"shoal-guest");
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        with_executor(context, socket, |executor| wait_for_order(context, socket, executor));
    }
}

/// Closes everything of the launcher that is not needed: a process that holds the launcher's end of
/// another prefork's socket would hide the launcher's death from that prefork.
pub(super) fn forget_launcher(context: &PreforkContext<'_>, socket: &OwnedFd) -> io::Result<()> {
    let null = rustix::stdio::stdin();
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)?;
    let mut kept: Vec<_> = context.groups.descriptors().collect();
    kept.extend([socket.as_fd(), context.void]);
    kept.extend([null, rustix::stdio::stdout(), rustix::stdio::stderr()]);
    sys::descriptors::keep_only(&kept)
}

/// Calls `act` with an executor for the steps of a plan.
pub(super) fn with_executor<T>(
    context: &PreforkContext<'_>,
    socket: &OwnedFd,
    act: impl FnOnce(&mut Executor<'_>) -> T,
) -> T {
    let mut await_map = || {
        packet::send(socket, &[message::UNMAPPED], &[])?;
        let mut answer = [0];
        let answered = packet::receive(socket, &mut answer)?;
        if answered.bytes == 1 && answer[0] == MAPPED {
            Ok(())
        } else {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    };
    let mut launcher_lives = || is_launcher_alive(socket);
    let mut load_filter = |lends: bool| {
        let Filters { usual, lending } = context.filters;
        sys::filter::load(if lends { lending } else { usual }.instructions())
    };
    let mut executor = Executor {
        slot: context.slot,
        first_uid: context.first_uid,
        groups: Some(context.groups),
        limits: context.limits,
        await_map: &mut await_map,
        launcher_lives: &mut launcher_lives,
        load_filter: &mut load_filter,
        usual_root: context.usual_root,
        empty: EMPTY,
        void: context.void,
        taken: None,
        proc: None,
        locks: None,
        given: None,
        shown: VecDeque::new(),
        lends: false,
        root: None,
    };
    act(&mut executor)
}

/// Reports a failed step to the launcher.
pub(super) fn report(socket: &OwnedFd, failed: &Failed) {
    let errno = failed.source.raw_os_error().unwrap_or(0);
    let report = postcard::to_allocvec(&(message::FAILED, failed.step.to_string(), errno));
    let _ = packet::send(socket, &report.unwrap_or_default(), &[]);
}

fn wait_for_order(context: &PreforkContext<'_>, socket: &OwnedFd, executor: &mut Executor<'_>) {
    let network = plan_input::network(context.network);
    if let Err(failed) =
        executor.carry_out(&plan::prepare(context.write_limits, network, context.users))
    {
        report(socket, &failed);
        return;
    }
    executor.groups = None;
    let layers = executor.taken.iter().flat_map(Layers::descriptors);
    let mounts = executor.proc.iter().map(OwnedFd::as_fd).chain(layers);
    let standard = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    let kept: Vec<_> = standard.into_iter().chain([socket.as_fd()]).chain(mounts).collect();
    if sys::descriptors::keep_only(&kept).is_err()
        || packet::send(socket, &[message::PREPARED], &[]).is_err()
    {
        return;
    }
    let Some(order) = await_order(socket) else { return };
    executor.given = order.given;
    executor.shown = order.shown;
    executor.lends = order.spec.mounts.iter().any(|mount| !mount.read_only);
    if order.root.is_some() {
        executor.taken = order.root;
    }
    become_guest(context, executor, &order.spec, order.connection);
}

fn is_launcher_alive(socket: &OwnedFd) -> bool {
    let mut byte = [0];
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    matches!(recv(socket, &mut byte, flags), Err(rustix::io::Errno::AGAIN))
}

/// What a prefork needs to become a sandbox.
struct Order {
    spec: Spec,
    connection: OwnedFd,
    /// The workspace, if it is on disk.
    given: Option<OwnedFd>,
    /// Layers over another root than the usual one.
    root: Option<Layers>,
    /// Mounts of host directories.
    shown: VecDeque<OwnedFd>,
}

/// Sends a prefork the order to become a sandbox.
pub(super) fn order(
    socket: &Watched,
    spec: &Spec,
    connection: &OwnedFd,
    given: Option<&OwnedFd>,
    root: Option<&Layers>,
    shown: &[OwnedFd],
) -> io::Result<()> {
    let parts = root.map(|root| root.parts.iter().map(|(at, _)| at.as_str()).collect::<Vec<_>>());
    let bytes = postcard::to_allocvec(&(spec, given.is_some(), parts)).map_err(io::Error::other)?;
    let mut descriptors = vec![connection.as_fd()];
    descriptors.extend(given.map(OwnedFd::as_fd));
    descriptors.extend(root.into_iter().flat_map(Layers::descriptors));
    descriptors.extend(shown.iter().map(OwnedFd::as_fd));
    packet::send(socket, &bytes, &descriptors)
}

fn await_order(socket: &OwnedFd) -> Option<Order> {
    let mut buffer = vec![0; MAX_PACKET_BYTES];
    let packet = packet::receive(socket, &mut buffer).ok()?;
    let (spec, is_given, parts): (Spec, bool, Option<Vec<String>>) =
        postcard::from_bytes(&buffer[..packet.bytes]).ok()?;
    let mut descriptors = packet.descriptors.into_iter();
    let connection = descriptors.next()?;
    let given = if is_given { Some(descriptors.next()?) } else { None };
    let root = match parts {
        None => None,
        Some(names) => {
            let root = descriptors.next()?;
            let parts: Vec<_> = names.into_iter().zip(&mut descriptors).collect();
            Some(Layers { root, parts })
        }
    };
    let shown: VecDeque<_> = descriptors.collect();
    (shown.len() == spec.mounts.len()).then_some(Order { spec, connection, given, root, shown })
}

fn become_guest(
    context: &PreforkContext<'_>,
    executor: &mut Executor<'_>,
    spec: &Spec,
    connection: OwnedFd,
) {
    let input = plan_input::for_spec(spec, context.network, context.users, context.count_processes);
    match executor.carry_out(&plan::enter(&input)) {
        Ok(()) => {
            let standard =
                [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
            let locks = executor.locks.iter().map(OwnedFd::as_fd);
            let kept: Vec<_> =
                standard.into_iter().chain([connection.as_fd()]).chain(locks).collect();
            if sys::descriptors::keep_only(&kept).is_ok() {
                let workload = match context.users {
                    plan::Users::Ranges | plan::Users::Subordinate => {
                        Some(Identity { uid: plan::USER, gid: plan::USER })
                    }
                    plan::Users::Alone => None,
                };
                let settings = Settings {
                    workload,
                    workspace: plan::WORKSPACE.to_owned(),
                    scale: Some(ScaleSettings {
                        directory: plan::SCALE.to_owned(),
                        locks: executor.locks.take(),
                    }),
                    contained: None,
                };
                // Whatever the reason for its end, it ends the sandbox.
                let _ = serve(Link::Socket(connection), settings);
            }
        }
        Err(failed) => {
            let errno = failed.source.raw_os_error().unwrap_or(0);
            refuse(&Link::Socket(connection), failed.step.to_string(), errno);
        }
    }
}
