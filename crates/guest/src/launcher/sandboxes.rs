//! The live sandboxes, by instance. A sandbox has ended when its first process has been reaped: the
//! kernel allows that only after every other process of the sandbox is gone. Its slot, with the
//! control groups of the slot, is then free for the next one.

use std::collections::BTreeMap;
use std::rc::Rc;

use guest_protocol::launcher::InstanceBytes;
use guest_protocol::message::ExitStatus;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

use super::prefork_pool::Prefork;
use super::roots::Prepared;
use super::watch::Watched;

#[derive(Default)]
pub(super) struct Sandboxes {
    live: BTreeMap<InstanceBytes, Live>,
    by_pid: BTreeMap<i32, InstanceBytes>,
    /// Sockets of those that are not guests yet, by slot: a closed socket tells them that we died.
    entering: BTreeMap<u32, Watched>,
}

struct Live {
    pid: Pid,
    slot: u32,
    kills: Vec<u64>,
    /// The root beneath its layers: kept as long as the sandbox lives.
    _root: Rc<Prepared>,
}

/// A sandbox that has ended.
pub(super) struct Ended {
    pub slot: u32,
    pub instance: InstanceBytes,
    /// Tickets of the kills that wait for its end.
    pub kills: Vec<u64>,
}

impl Sandboxes {
    pub(super) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    pub(super) fn instances(&self) -> Vec<InstanceBytes> {
        self.live.keys().copied().collect()
    }

    pub(super) fn pid_of(&self, instance: &InstanceBytes) -> Option<Pid> {
        self.live.get(instance).map(|live| live.pid)
    }

    pub(super) fn add(&mut self, instance: InstanceBytes, prefork: Prefork, root: Rc<Prepared>) {
        let Prefork { slot, pid, socket, forked_at: _, root: _ } = prefork;
        self.by_pid.insert(pid.as_raw_nonzero().get(), instance);
        self.entering.insert(slot, socket);
        self.live.insert(instance, Live { pid, slot, kills: Vec::new(), _root: root });
    }

    /// The guest has closed its end: it no longer needs the launcher.
    pub(super) fn close_socket(&mut self, slot: u32) {
        self.entering.remove(&slot);
    }

    /// Kills a sandbox and returns its slot; `None` if there is no such sandbox.
    pub(super) fn kill(&mut self, instance: &InstanceBytes, ticket: u64) -> Option<u32> {
        let live = self.live.get_mut(instance)?;
        live.kills.push(ticket);
        let _ = kill_process(live.pid, Signal::KILL);
        Some(live.slot)
    }

    /// Kills all and returns their slots.
    pub(super) fn kill_all(&self) -> Vec<u32> {
        for live in self.live.values() {
            let _ = kill_process(live.pid, Signal::KILL);
        }
        self.live.values().map(|live| live.slot).collect()
    }

    /// Forgets a sandbox whose first process has been reaped.
    pub(super) fn died(&mut self, pid: Pid) -> Option<Ended> {
        let instance = self.by_pid.remove(&pid.as_raw_nonzero().get())?;
        let Live { slot, kills, pid: _, _root } = self.live.remove(&instance)?;
        self.entering.remove(&slot);
        Some(Ended { slot, instance, kills })
    }
}

/// A child that has ended and has not been reaped yet.
pub(super) fn next_dead() -> Option<(Pid, ExitStatus)> {
    let (pid, status) = wait(WaitOptions::NOHANG).ok()??;
    let status = match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ExitStatus::Code(code),
        (None, Some(signal)) => ExitStatus::Signal(signal),
        (None, None) => ExitStatus::Code(0),
    };
    Some((pid, status))
}
