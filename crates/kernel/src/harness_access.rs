//! Exclusive access to a sandbox's harness: a turn has it, or one caller that holds it, and never
//! two. The kernel decides at the request, so a caller that still waits for the sandbox already has
//! the harness.

use model::{ErrorCode, Refusal, TemplateName};

use crate::Kernel;
use crate::entry::{Entry, EntryIx};
use crate::event::UseKind;
use crate::request::{RequestIx, WaitingFor};
use crate::session::SessionIx;

impl Kernel {
    /// Refuses access to the harness of a leased sandbox that has none, or that another caller
    /// holds.
    pub(crate) fn refuse_harness_of_lease(
        &self,
        entry: EntryIx,
        kind: UseKind,
    ) -> Result<(), Refusal> {
        if kind != UseKind::Harness {
            return Ok(());
        }
        let sandbox = &self.entries[entry];
        self.refuse_without_program(&sandbox.template.name)?;
        let wants = |req: &RequestIx| {
            matches!(self.requests[*req].what, WaitingFor::LeaseUse { kind: UseKind::Harness, .. })
        };
        let waiting = sandbox.rare.iter().flat_map(|rare| &rare.waiting);
        if sandbox.has_held_harness() || waiting.into_iter().any(wants) {
            return self.refuse_held_harness();
        }
        Ok(())
    }

    /// The same for a session, where a turn may have the harness.
    pub(crate) fn refuse_harness_of_session(
        &self,
        session: SessionIx,
        kind: UseKind,
    ) -> Result<(), Refusal> {
        if kind != UseKind::Harness {
            return Ok(());
        }
        let known = &self.sessions[session];
        self.refuse_without_program(&known.template)?;
        if known.turn.is_some() || !known.queued.is_empty() {
            let cause = "a turn of the session is in progress";
            return Err(Refusal::new(ErrorCode::HarnessBusy, cause));
        }
        self.refuse_while_harness_held(session)
    }

    /// Refuses a turn while a caller holds the harness or waits for it.
    pub(crate) fn refuse_while_harness_held(&self, session: SessionIx) -> Result<(), Refusal> {
        let known = &self.sessions[session];
        let wants = |req: &RequestIx| {
            matches!(
                self.requests[*req].what,
                WaitingFor::SessionUse { kind: UseKind::Harness, .. }
            )
        };
        let held = known.entry.is_some_and(|entry| self.entries[entry].has_held_harness());
        if held || known.wanting.iter().any(wants) {
            return self.refuse_held_harness();
        }
        Ok(())
    }

    fn refuse_held_harness(&self) -> Result<(), Refusal> {
        if self.flaws.shares_harness() {
            return Ok(());
        }
        let cause = "another caller holds the harness of the sandbox";
        Err(Refusal::new(ErrorCode::HarnessBusy, cause))
    }

    fn refuse_without_program(&self, name: &TemplateName) -> Result<(), Refusal> {
        match self.template(name) {
            Some(template) if template.harness.program().is_none() => {
                let cause = format!(
                    "the harness of template \"{name}\" is the shell, which is no program to connect to"
                );
                Err(Refusal::new(ErrorCode::NoHarness, cause))
            }
            // A template that is gone is reported where it is needed.
            Some(_) | None => Ok(()),
        }
    }
}

impl Entry {
    /// A caller holds its harness.
    fn has_held_harness(&self) -> bool {
        self.rare.iter().flat_map(|rare| &rare.uses).any(|(_, kind)| *kind == UseKind::Harness)
    }
}
