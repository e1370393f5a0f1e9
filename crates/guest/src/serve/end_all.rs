//! The end of a use: everything that runs besides the guest is ended, whoever started it and however
//! it tried to get away, and all that the guest knew of it is forgotten. It must never be done where
//! the guest is not the first process: everybody would be the whole machine then.

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

/// How long everything may take to end. Killed processes go at once unless the kernel is stuck.
const TIMEOUT_MS: u64 = 2000;

const AGAIN: &str = "begin another life";

/// Everything is being ended.
#[derive(Debug)]
pub(super) struct EndAll {
    until_ms: u64,
}

impl Guest {
    /// Forgets all that goes on, and begins to end it.
    pub(super) fn end_all(&mut self, channel: u32) -> Result<EndAll, Fault> {
        self.refuse_if_not_alone()?;
        if self.end_all_channel.is_some() {
            return Err(fault(FaultCode::Invalid, "everything is being ended already"));
        }
        for (other, activity) in std::mem::take(&mut self.activities) {
            drop(activity);
            let over = fault(FaultCode::System, "this use of the sandbox is over");
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
        Err(fault(FaultCode::Invalid, "this guest is not alone with its programs"))
    }

    /// Goes on until nobody is left: those who are over are collected meanwhile, as always.
    pub(super) fn continue_end_all(&mut self) {
        let Some(channel) = self.end_all_channel else { return };
        let Some(Activity::EndAll(end_all)) = self.activities.get(&channel) else {
            self.end_all_channel = None;
            return;
        };
        let reply = match reap::kill_others() {
            Ok(true) if now_ms() < end_all.until_ms => return,
            Ok(true) => {
                Reply::Failed(fault(FaultCode::System, "something is left that does not end"))
            }
            Ok(false) => Reply::Done,
            Err(errno) => Reply::Failed(refused(errno, "cannot end everything")),
        };
        self.end_all_channel = None;
        self.finish_activity(channel, &reply);
    }

    /// Begins another life. If that fails, this one is over too: there is no way back from the end
    /// of a use.
    pub(super) fn begin_again(&mut self, channel: u32) -> Result<(), ExitReason> {
        let Some(connection) = self.io.connection.take_descriptor() else {
            let missing = fault(FaultCode::Invalid, "a descriptor did not come along");
            self.close_with(channel, &Reply::Failed(missing));
            return Ok(());
        };
        if let Err(fault) = self.refuse_if_not_alone() {
            self.close_with(channel, &Reply::Failed(fault));
            return Ok(());
        }
        let is_cleared = self.activities.is_empty() && reap::has_others() == Ok(false);
        let errno = if is_cleared {
            let failed = contained::again(&connection);
            Errno::from_io_error(&failed).unwrap_or(Errno::INVAL)
        } else {
            Errno::BUSY
        };
        refuse(&Link::Socket(connection), AGAIN.to_owned(), errno.raw_os_error());
        Err(ExitReason::System { step: AGAIN, errno })
    }
}
