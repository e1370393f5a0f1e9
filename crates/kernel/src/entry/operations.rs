//! The effects in progress on a sandbox. The main lane does one thing at a time; a save, and the
//! start or stop of a turn, run beside it. A completion counts only if its effect is found here.
//! Some operations are waits without an effect: they hold the lane for the effect that follows, and
//! have a deadline like one.

use model::Mono;

/// The effects in progress on a sandbox.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Operations {
    /// The main operation.
    main: Option<Op>,
    /// Its files are being saved.
    save: Option<Op>,
    /// A turn is being started or stopped in it.
    turn: Option<Op>,
}

/// An effect in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) n: u64,
    pub(crate) kind: OpKind,
    pub(crate) deadline: Mono,
}

/// What is in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpKind {
    Launch,
    Claim,
    /// With the number of the attempt.
    Probe(u32),
    Wipe,
    Prove,
    Freeze,
    Thaw,
    Quiesce,
    /// A wait: it is quiesced while its files are copied.
    Quiesced,
    /// With the number of the attempt.
    Unquiesce(u32),
    StartTurn,
    StopTurn,
    /// A wait: its files are saved as soon as its guest runs.
    AwaitGuest,
    Persist,
    Kill,
    /// A wait: files are copied into it as soon as the sandbox that has them is ready for that.
    AwaitSource,
    Copy,
    Archive,
}

/// Which of the operations that may run side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Main,
    Save,
    Turn,
}

impl Lane {
    /// All lanes, in the order in which they are checked.
    pub(crate) const ALL: [Self; 3] = [Self::Main, Self::Save, Self::Turn];
}

impl OpKind {
    const fn lane(self) -> Lane {
        match self {
            Self::AwaitGuest | Self::Persist => Lane::Save,
            Self::StartTurn | Self::StopTurn => Lane::Turn,
            Self::Launch
            | Self::Claim
            | Self::Probe(_)
            | Self::Wipe
            | Self::Prove
            | Self::Freeze
            | Self::Thaw
            | Self::Quiesce
            | Self::Quiesced
            | Self::Unquiesce(_)
            | Self::Kill
            | Self::AwaitSource
            | Self::Copy
            | Self::Archive => Lane::Main,
        }
    }
}

impl Operations {
    pub(crate) const fn began(&mut self, op: Op) {
        *self.lane(op.kind.lane()) = Some(op);
    }

    /// An effect ended. Returns which, if one of that number is in progress.
    pub(crate) fn ended(&mut self, n: u64) -> Option<OpKind> {
        Lane::ALL.into_iter().find_map(|lane| self.take_if(lane, |op| op.n == n))
    }

    /// Takes an effect that missed its deadline.
    pub(crate) fn take_late(&mut self, lane: Lane, now: Mono) -> Option<OpKind> {
        self.take_if(lane, |op| op.deadline <= now)
    }

    fn take_if(&mut self, lane: Lane, wanted: impl Fn(&Op) -> bool) -> Option<OpKind> {
        self.lane(lane).take_if(|op| wanted(op)).map(|op| op.kind)
    }

    const fn lane(&mut self, lane: Lane) -> &mut Option<Op> {
        match lane {
            Lane::Main => &mut self.main,
            Lane::Save => &mut self.save,
            Lane::Turn => &mut self.turn,
        }
    }

    /// Cancels the main operation: its completion will not count.
    pub(crate) const fn cancel(&mut self) {
        self.main = None;
    }

    pub(crate) const fn cancel_save(&mut self) {
        self.save = None;
    }

    pub(crate) const fn cancel_turn(&mut self) {
        self.turn = None;
    }

    /// The main lane is free. A save or a turn change may still be in progress.
    pub(crate) const fn is_free(&self) -> bool {
        self.main.is_none()
    }

    /// The main operation.
    pub(crate) fn doing(&self) -> Option<OpKind> {
        self.main.map(|op| op.kind)
    }

    pub(crate) fn is_doing(&self, kind: OpKind) -> bool {
        self.doing() == Some(kind)
    }

    /// The number of the main operation.
    pub(crate) fn number(&self) -> Option<u64> {
        self.main.map(|op| op.n)
    }

    pub(crate) const fn is_saving(&self) -> bool {
        self.save.is_some()
    }

    /// A turn is being started or stopped in it.
    pub(crate) const fn is_changing_turn(&self) -> bool {
        self.turn.is_some()
    }

    /// A save waits until its guest runs.
    pub(crate) fn awaits_guest(&self) -> bool {
        self.save.is_some_and(|op| op.kind == OpKind::AwaitGuest)
    }

    /// It is being quiesced for a copy, is quiesced, or is being released again.
    pub(crate) const fn is_quiescing(&self) -> bool {
        match self.main {
            Some(Op {
                kind: OpKind::Quiesce | OpKind::Quiesced | OpKind::Unquiesce(_), ..
            }) => true,
            Some(_) | None => false,
        }
    }

    /// The main operation freezes, thaws, quiesces or releases its processes.
    pub(crate) const fn is_freezing_or_thawing(&self) -> bool {
        match self.main {
            Some(Op { kind: OpKind::Freeze | OpKind::Thaw, .. }) => true,
            Some(_) | None => self.is_quiescing(),
        }
    }

    /// The earliest deadline.
    pub(crate) fn first_deadline(&self) -> Option<Mono> {
        [self.main, self.save, self.turn].into_iter().flatten().map(|op| op.deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn op(n: u64, kind: OpKind) -> Op {
        Op { n, kind, deadline: Mono(n * 10) }
    }

    #[test]
    fn saves_and_turns_run_beside_the_main_operation() {
        let mut ops = Operations::default();
        ops.began(op(3, OpKind::Freeze));
        ops.began(op(1, OpKind::Persist));
        ops.began(op(2, OpKind::StopTurn));
        assert!(ops.is_doing(OpKind::Freeze) && ops.is_saving());
        assert_eq!((ops.number(), ops.first_deadline()), (Some(3), Some(Mono(10))));
        assert_eq!(ops.ended(2), Some(OpKind::StopTurn));
        assert_eq!(ops.ended(2), None, "it ends once");
        assert_eq!(ops.take_late(Lane::Save, Mono(9)), None);
        assert_eq!(ops.take_late(Lane::Save, Mono(10)), Some(OpKind::Persist));
        ops.cancel();
        assert!(ops.is_free() && ops.ended(3).is_none());
    }
}
