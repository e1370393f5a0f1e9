//! Turns of a harness that is a program. A turn borrows the conversation with it, and gives it back
//! in a state in which the next turn can begin; if a conversation is not given back, it cannot be
//! used again, and its program is killed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::TurnId;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::binding::Binding;
use crate::connection::{Connection, Received};
use crate::error::{HarnessError, HarnessErrorCode};
use crate::held_harness::HeldHarness;
use crate::link::{Cancelled, HarnessEnd, HarnessEvent};
use crate::program::{End, Ended, Program, broken};
use crate::protocol::{Meaning, Protocol};

/// How long a harness may take to confirm its binding.
const BIND_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a harness may take to end after its connection has ended, and how long one that has
/// ended is still read.
const EXIT_TIMEOUT: Duration = Duration::from_millis(400);

/// A harness that is a program.
pub(crate) struct ProgramHarness {
    program: Program,
    conversation: Mutex<Option<Conversation>>,
}

/// A connection to a program, and the protocol on it.
pub(crate) struct Conversation {
    pub connection: Connection,
    pub protocol: Box<dyn Protocol>,
}

impl ProgramHarness {
    pub(crate) fn new(program: Program, conversation: Conversation) -> Self {
        Self { program, conversation: Mutex::new(Some(conversation)) }
    }

    fn conversation(&self) -> MutexGuard<'_, Option<Conversation>> {
        self.conversation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.program.is_running()
    }

    /// A watch for the end of its program.
    pub(crate) fn end(&self) -> End {
        self.program.end()
    }

    /// Kills its program without waiting.
    pub(crate) fn abandon(&self) {
        self.program.abandon();
    }

    /// Gives the conversation away for good.
    pub(crate) async fn hold(self: &Arc<Self>) -> Result<HeldHarness, HarnessError> {
        let mut borrowed = self.borrow().await?;
        match borrowed.conversation.take() {
            Some(conversation) => Ok(HeldHarness::new(self, conversation)),
            None => Err(busy()),
        }
    }

    /// Borrows the conversation.
    async fn borrow(self: &Arc<Self>) -> Result<Borrowed, HarnessError> {
        if !self.is_alive() {
            return Err(self.program.end().wait().await.into_error());
        }
        match self.conversation().take() {
            Some(conversation) => {
                let harness = Arc::clone(self);
                Ok(Borrowed { harness, conversation: Some(conversation), is_settling: false })
            }
            None => Err(busy()),
        }
    }

    /// Binds it to a session.
    pub(crate) async fn bind(self: &Arc<Self>, binding: &Binding) -> Result<(), HarnessError> {
        let mut borrowed = self.borrow().await?;
        let Some(line) = borrowed.protocol()?.bind(binding)? else {
            borrowed.give_back();
            return Ok(());
        };
        borrowed.connection()?.say(&line).await;
        let answered = async {
            loop {
                let heard = borrowed.connection()?.next().await;
                if let Received::Line(line) = &heard
                    && borrowed.protocol()?.is_bound(line)
                {
                    return Ok(());
                }
                borrowed.on_line_between_turns(heard)?;
            }
        };
        let answered = timeout(BIND_TIMEOUT, answered).await.unwrap_or_else(|_| {
            let cause = "the harness did not confirm its binding in time";
            Err(HarnessError::new(HarnessErrorCode::ReadyTimeout, cause))
        });
        match answered {
            Ok(()) => {
                borrowed.give_back();
                Ok(())
            }
            Err(error) => Err(self.explain(error).await),
        }
    }

    /// Replaces the end of a connection by how the program ended, if it has. A program that has not
    /// ended is killed.
    async fn explain(&self, error: HarnessError) -> HarnessError {
        let ended = timeout(EXIT_TIMEOUT, self.program.end().wait()).await;
        self.program.kill().await;
        match (ended, error.code) {
            (Ok(ended), HarnessErrorCode::Died) => ended.into_error(),
            (Ok(Ended::Gone), _) => HarnessError::sandbox_gone(),
            (Ok(_) | Err(_), _) => error,
        }
    }
}

fn busy() -> HarnessError {
    HarnessError::new(HarnessErrorCode::Busy, "the harness has a turn, or another caller holds it")
}

/// A borrowed conversation. When it is dropped, its program is killed.
struct Borrowed {
    harness: Arc<ProgramHarness>,
    conversation: Option<Conversation>,
    /// Nothing of a turn was sent yet: if it is dropped now, it is given back.
    is_settling: bool,
}

impl Borrowed {
    fn parts(&mut self) -> Result<&mut Conversation, HarnessError> {
        self.conversation.as_mut().ok_or_else(|| {
            HarnessError::new(
                HarnessErrorCode::Busy,
                "the conversation with the harness was given back already",
            )
        })
    }

    fn connection(&mut self) -> Result<&mut Connection, HarnessError> {
        self.parts().map(|parts| &mut parts.connection)
    }

    fn protocol(&mut self) -> Result<&mut Box<dyn Protocol>, HarnessError> {
        self.parts().map(|parts| &mut parts.protocol)
    }

    fn give_back(mut self) {
        let conversation = self.conversation.take();
        *self.harness.conversation() = conversation;
    }

    /// Reads what came since the last turn, and waits for the end of that turn if it is due.
    async fn settle(&mut self) -> Result<(), HarnessError> {
        while let Some(heard) = self.connection()?.next_at_once().await {
            self.on_line_between_turns(heard)?;
        }
        let Some(patience) = self.protocol()?.settle_timeout() else { return Ok(()) };
        self.is_settling = true;
        let settled = async {
            while self.protocol()?.settle_timeout().is_some() {
                let heard = self.connection()?.next().await;
                self.on_line_between_turns(heard)?;
            }
            Ok(())
        };
        let settled = timeout(patience, settled).await;
        self.is_settling = false;
        settled.unwrap_or_else(|_| {
            let cause = "the harness did not end its last turn in time";
            Err(HarnessError::new(HarnessErrorCode::Protocol, cause))
        })
    }

    /// A line that came while there is no turn.
    fn on_line_between_turns(&mut self, heard: Received) -> Result<(), HarnessError> {
        let line = understood(heard)?;
        match self.protocol()?.on_line_between_turns(&line) {
            Meaning::Nothing | Meaning::Event(_) | Meaning::Ended(_) => Ok(()),
            Meaning::Log(text) => {
                self.harness.program.log(&text);
                Ok(())
            }
            Meaning::Broken(cause) => {
                let plain = "the harness broke its protocol";
                Err(HarnessError::with_program_text(HarnessErrorCode::Protocol, plain, &cause))
            }
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        match self.conversation.take() {
            Some(conversation) if self.is_settling => {
                *self.harness.conversation() = Some(conversation);
            }
            Some(_) => self.harness.program.abandon(),
            None => {}
        }
    }
}

/// The line, or why nothing can be read.
fn understood(heard: Received) -> Result<String, HarnessError> {
    let (code, cause) = match heard {
        Received::Line(line) => return Ok(line),
        Received::Garbage => {
            (HarnessErrorCode::Protocol, "the harness sent a line that is not UTF-8")
        }
        Received::TooLong => (HarnessErrorCode::TooLarge, "a line of the harness is too long"),
        Received::End => (HarnessErrorCode::Died, "the harness closed its connection"),
    };
    Err(HarnessError::new(code, cause))
}

/// A turn of a program.
pub(crate) struct ProgramTurn {
    /// Given back when the turn has ended and the harness can be trusted.
    borrowed: Option<Borrowed>,
    harness: Arc<ProgramHarness>,
    end: End,
    /// How the program ended, and until when it is still read.
    died: Option<(Ended, Instant)>,
    /// When silence has a meaning.
    silent_at: Option<Instant>,
    /// How the turn ended, reported when nothing of it runs.
    over: Option<HarnessEnd>,
}

/// What can happen during a turn.
enum TurnSignal {
    Received(Received),
    Died(Ended),
    Late,
}

impl ProgramTurn {
    pub(crate) async fn begin(
        harness: &Arc<ProgramHarness>,
        turn: TurnId,
        input: &str,
        config: Option<&str>,
    ) -> Result<Self, HarnessError> {
        let mut borrowed = harness.borrow().await?;
        // Errors from before this turn are not its fault.
        if let Err(error) = borrowed.settle().await {
            return Err(harness.explain(error).await);
        }
        match borrowed.protocol()?.begin(turn, input, config) {
            Ok(line) => borrowed.connection()?.say(&line).await,
            Err(error) => {
                borrowed.give_back();
                return Err(error);
            }
        }
        Ok(Self {
            borrowed: Some(borrowed),
            harness: Arc::clone(harness),
            end: harness.program.end(),
            died: None,
            silent_at: None,
            over: None,
        })
    }

    pub(crate) async fn next(&mut self) -> HarnessEvent {
        loop {
            if let Some(end) = &self.over {
                let end = end.clone();
                match self.borrowed.take() {
                    // Given back before the caller learns of the end.
                    Some(borrowed) if self.died.is_none() && is_trusted(&end) => {
                        borrowed.give_back();
                    }
                    Some(borrowed) => {
                        self.borrowed = Some(borrowed);
                        self.harness.program.kill().await;
                        self.borrowed = None;
                    }
                    None => {}
                }
                return HarnessEvent::Ended(end);
            }
            let signal = self.notice().await;
            if let Some(event) = self.take_in(signal).await {
                return event;
            }
        }
    }

    /// Waits for the next signal. Changes no state by itself.
    async fn notice(&mut self) -> TurnSignal {
        let deadline = match (&self.died, self.silent_at) {
            (Some((_, until)), _) => Some(*until),
            (None, silent_at) => silent_at,
        };
        let late = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let heard = async {
            match self.borrowed.as_mut().and_then(|borrowed| borrowed.conversation.as_mut()) {
                Some(conversation) => conversation.connection.next().await,
                None => Received::End,
            }
        };
        tokio::select! {
            biased;
            heard = heard => TurnSignal::Received(heard),
            ended = self.end.wait(), if self.died.is_none() => TurnSignal::Died(ended),
            () = late => TurnSignal::Late,
        }
    }

    /// The event for it, if there is one.
    async fn take_in(&mut self, signal: TurnSignal) -> Option<HarnessEvent> {
        let meaning = match signal {
            TurnSignal::Died(ended) => {
                // What it sent before its end is still read.
                self.died = Some((ended, Instant::now() + EXIT_TIMEOUT));
                return None;
            }
            TurnSignal::Late => match &self.died {
                Some((ended, _)) => Meaning::Ended(ended.clone().into_end()),
                None => self.with_protocol(|protocol| protocol.on_silence()),
            },
            TurnSignal::Received(Received::End) => Meaning::Ended(self.closed().await),
            TurnSignal::Received(heard) => match understood(heard) {
                Ok(line) => self.with_protocol(|protocol| protocol.on_line(&line)),
                Err(error) => Meaning::Ended(broken(error.code, error.cause)),
            },
        };
        let patience = self.borrowed.as_mut().and_then(|borrowed| {
            borrowed.conversation.as_ref().and_then(|parts| parts.protocol.silence_timeout())
        });
        self.silent_at = patience.map(|patience| Instant::now() + patience);
        match meaning {
            Meaning::Nothing => None,
            Meaning::Event(event) => Some(event),
            Meaning::Log(text) => {
                self.harness.program.log(&text);
                None
            }
            Meaning::Ended(end) => {
                self.over = Some(end);
                None
            }
            Meaning::Broken(cause) => {
                self.over = Some(broken(HarnessErrorCode::Protocol, cause));
                None
            }
        }
    }

    fn with_protocol(&mut self, act: impl FnOnce(&mut dyn Protocol) -> Meaning) -> Meaning {
        match self.borrowed.as_mut().and_then(|borrowed| borrowed.conversation.as_mut()) {
            Some(parts) => act(&mut *parts.protocol),
            None => Meaning::Nothing,
        }
    }

    /// The connection has ended: how the turn ends.
    async fn closed(&mut self) -> HarnessEnd {
        if let Some((ended, _)) = &self.died {
            return ended.clone().into_end();
        }
        match timeout(EXIT_TIMEOUT, self.end.wait()).await {
            Ok(ended) => ended.into_end(),
            Err(_) => {
                broken(HarnessErrorCode::Died, "the harness closed its connection but still runs")
            }
        }
    }

    pub(crate) async fn cancel(
        &mut self,
        grace: Duration,
        take: &mut (dyn FnMut(HarnessEvent) + Send),
    ) -> Cancelled {
        let until = Instant::now() + grace;
        if let Some(borrowed) = &mut self.borrowed
            && let Some(parts) = &mut borrowed.conversation
        {
            let line = parts.protocol.cancel();
            parts.connection.say(&line).await;
        }
        loop {
            match timeout_at(until, self.next()).await {
                Ok(HarnessEvent::Ended(HarnessEnd::SandboxGone)) => return Cancelled::SandboxGone,
                Ok(HarnessEvent::Ended(_)) if !self.harness.is_alive() => return Cancelled::Killed,
                Ok(HarnessEvent::Ended(end)) => return Cancelled::Ended(end),
                Ok(event) => take(event),
                Err(_) => break,
            }
        }
        self.harness.program.kill().await;
        let gone = timeout(EXIT_TIMEOUT, self.end.wait()).await;
        match gone {
            Ok(Ended::Gone) => Cancelled::SandboxGone,
            Ok(_) | Err(_) => Cancelled::Killed,
        }
    }
}

/// Whether the harness can be used after such an end.
fn is_trusted(end: &HarnessEnd) -> bool {
    match end {
        HarnessEnd::Completed { .. } => true,
        HarnessEnd::Failed { code, .. } => {
            matches!(code, crate::error::FailureCode::Said(_))
        }
        HarnessEnd::SandboxGone => false,
    }
}
