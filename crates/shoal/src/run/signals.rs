//! Signals that are forwarded to the program: a user who interrupts us means the program.

use runtime::RuntimeError;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// What to do about a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalAction {
    /// Forward this signal to the program.
    Forward(i32),
    /// The size of the terminal changed.
    Resized,
}

/// The signals we listen to.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    quit: Signal,
    user1: Signal,
    user2: Signal,
    resize: Signal,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                let error = RuntimeError::system("listen to signals", &error);
                Failure::of_runtime("cannot listen to signals", &error)
            })
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
            quit: listen(SignalKind::quit())?,
            user1: listen(SignalKind::user_defined1())?,
            user2: listen(SignalKind::user_defined2())?,
            resize: listen(SignalKind::window_change())?,
        })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> SignalAction {
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hangup.recv() => SignalKind::hangup(),
            _ = self.quit.recv() => SignalKind::quit(),
            _ = self.user1.recv() => SignalKind::user_defined1(),
            _ = self.user2.recv() => SignalKind::user_defined2(),
            _ = self.resize.recv() => return SignalAction::Resized,
        };
        SignalAction::Forward(kind.as_raw_value())
    }

    /// The next signal that asks us to end, while there is no program to forward it to.
    pub(crate) async fn next_end(&mut self) -> i32 {
        loop {
            match self.next().await {
                SignalAction::Forward(number) if asks_to_end(number) => return number,
                SignalAction::Forward(_) | SignalAction::Resized => {}
            }
        }
    }
}

/// Whether this signal asks us to end.
pub(crate) fn asks_to_end(number: i32) -> bool {
    [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()]
        .iter()
        .any(|kind| kind.as_raw_value() == number)
}
