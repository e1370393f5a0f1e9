//! The effects in progress on a sandbox. One thing at a time is done to it; besides that its files
//! may be saved, and a turn may be started or stopped in it, which get in the way of nothing. A
//! completion counts only for an effect that is found here. Some kinds are waits without an effect:
//! they take the place of the effect that follows them, and have a deadline like one.

use model::Mono;

/// The effects in progress on a sandbox.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Operations {
    /// The one thing that is being done to it.
    main: Option<Op>,
    /// Its files are being made durable.
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
    HoldStill,
    /// A wait: it is held still while its files are copied.
    Quiesced,
    /// With the number of the attempt.
    LetRun(u32),
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

/// Which of the effects that may be in progress side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Main,
    Save,
    Turn,
}

impl Lane {
    /// All of them, in the order in which they are looked at.
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
            | Self::HoldStill
            | Self::Quiesced
            | Self::LetRun(_)
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

    /// An effect ended: says which it was, unless none of that number is in progress.
    pub(crate) fn ended(&mut self, n: u64) -> Option<OpKind> {
        Lane::ALL.into_iter().find_map(|lane| self.take_if(lane, |op| op.n == n))
    }

    /// Takes an effect that nothing was heard of in time.
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

    /// What is being done to it counts no more, whatever becomes of it.
    pub(crate) const fn cancel(&mut self) {
        self.main = None;
    }

    pub(crate) const fn cancel_save(&mut self) {
        self.save = None;
    }

    pub(crate) const fn cancel_turn(&mut self) {
        self.turn = None;
    }

    /// Nothing is being done to it, but that its files may be saved or a turn started or stopped.
    pub(crate) const fn is_free(&self) -> bool {
        self.main.is_none()
    }

    /// The one thing that is being done to it.
    pub(crate) fn doing(&self) -> Option<OpKind> {
        self.main.map(|op| op.kind)
    }

    pub(crate) fn is_doing(&self, kind: OpKind) -> bool {
        self.doing() == Some(kind)
    }

    /// The number of the one thing that is being done to it.
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

    /// Its files are to be saved as soon as its guest runs.
    pub(crate) fn awaits_guest(&self) -> bool {
        self.save.is_some_and(|op| op.kind == OpKind::AwaitGuest)
    }

    /// It is held still for a copy of its files, or about to be, or not sure to run again yet.
    pub(crate) const fn is_quiescing(&self) -> bool {
        match self.main {
            Some(Op { kind: OpKind::HoldStill | OpKind::Quiesced | OpKind::LetRun(_), .. }) => true,
            Some(_) | None => false,
        }
    }

    /// What is being done to it stops its processes from running, or lets them run again.
    pub(crate) const fn is_freezing_or_thawing(&self) -> bool {
        match self.main {
            Some(Op { kind: OpKind::Freeze | OpKind::Thaw, .. }) => true,
            Some(_) | None => self.is_quiescing(),
        }
    }

    /// When the first of them is late.
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
    fn saves_and_turns_go_on_beside_the_one_thing() {
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
