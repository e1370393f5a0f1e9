//! The end of a use: every process besides the guest is killed, whatever started it and however it
//! tried to get away, and the guest forgets all activities. It must never run where the guest is
//! not the first process: it would kill the whole machine.

use std::collections::BTreeMap;

use guest_protocol::Env;
use guest_protocol::message::{Fault, FaultCode, Reply};
use jail::sys::reap;
use rustix::io::Errno;
use rustix::process::getpid;

use super::activity::Activity;
use super::fault::{fault, refused};
use super::guest::{Guest, now_ms};
use super::{ExitReason, Link, refuse};
use crate::contained;

/// How long it may take until every process has ended. Killed processes end at once unless the
/// kernel is stuck.
const TIMEOUT_MS: u64 = 2000;

const RESTART: &str = "start the guest again";

/// All processes are being ended.
#[derive(Debug)]
pub(super) struct EndAll {
    until_ms: u64,
}

impl Guest {
    /// Forgets all activities, and begins to end their processes.
    pub(super) fn end_all(&mut self, channel: u32) -> Result<EndAll, Fault> {
        self.refuse_if_not_alone()?;
        if self.end_all_channel.is_some() {
            return Err(fault(FaultCode::Invalid, "all processes are being ended already"));
        }
        for (other, activity) in std::mem::take(&mut self.activities) {
            drop(activity);
            let over = fault(FaultCode::System, "this use of the sandbox has ended");
            self.close_with(other, &Reply::Failed(over));
        }
        self.children = BTreeMap::new();
        self.family_signals = Vec::new();
        self.bound = Env::default();
        self.end_all_channel = Some(channel);
        Ok(EndAll { until_ms: now_ms() + TIMEOUT_MS })
    }

    fn refuse_if_not_alone(&self) -> Result<(), Fault> {
        if self.settings.contained.is_some() && getpid().is_init() {
            return Ok(());
        }
        Err(fault(FaultCode::Invalid, "this guest is not the first process of a container"))
    }

    /// Continues until no process is left. Ended processes are collected meanwhile, as always.
    pub(super) fn continue_end_all(&mut self) {
        let Some(channel) = self.end_all_channel else { return };
        let Some(Activity::EndAll(end_all)) = self.activities.get(&channel) else {
            self.end_all_channel = None;
            return;
        };
        let reply = match reap::kill_others() {
            Ok(true) if now_ms() < end_all.until_ms => return,
            Ok(true) => {
                Reply::Failed(fault(FaultCode::System, "a process does not end after a kill"))
            }
            Ok(false) => Reply::Done,
            Err(errno) => Reply::Failed(refused(errno, "cannot end all processes")),
        };
        self.end_all_channel = None;
        self.finish_activity(channel, &reply);
    }

    /// Starts the guest again. If that fails, this guest ends too: there is no way back from the
    /// end of a use.
    pub(super) fn begin_again(&mut self, channel: u32) -> Result<(), ExitReason> {
        let Some(connection) = self.io.connection.take_descriptor() else {
            let missing = fault(FaultCode::Invalid, "the request came without its descriptor");
            self.close_with(channel, &Reply::Failed(missing));
            return Ok(());
        };
        if let Err(fault) = self.refuse_if_not_alone() {
            self.close_with(channel, &Reply::Failed(fault));
            return Ok(());
        }
        let is_cleared = self.activities.is_empty() && reap::has_others() == Ok(false);
        let errno = if is_cleared {
            let failed = contained::restart(&connection);
            Errno::from_io_error(&failed).unwrap_or(Errno::INVAL)
        } else {
            Errno::BUSY
        };
        refuse(&Link::Socket(connection), RESTART.to_owned(), errno.raw_os_error());
        Err(ExitReason::System { step: RESTART, errno })
    }
}
