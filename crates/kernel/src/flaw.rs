//! Deliberate bugs. Each breaks one promise at the place where it is kept, so that tests can show
//! that the simulator notices. `flaws` says how each changes a decision. They exist only with the
//! feature of that name, which no product crate may enable.

/// A way in which the kernel can be broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flaw {
    /// Live sandboxes reserve no place.
    NoReservation,
    /// The last waiter is served first.
    LifoWaiters,
    /// Waiting keys are served in order of arrival, whatever they have already.
    QueueIgnoresShares,
    /// Eviction takes the least recently used sandbox, also of keys within their share.
    EvictionIgnoresShares,
    /// A key may have more live sandboxes than its limit.
    KeyLimitIgnored,
    /// A session outlives its deadline.
    SessionDeadlineIgnored,
    /// The idle time of a session counts while it is in use.
    UseCountsAsIdle,
    /// A sandbox about to expire is handed out.
    MarginIgnored,
    /// The idle sweep ends sandboxes that something holds.
    SweepIgnoresHolds,
    /// A used sandbox goes back to the pool as it is.
    WipeSkipped,
    /// The end of a sandbox is announced twice.
    TerminatedTwice,
    /// A turn that starts after its sandbox was chosen as a victim does not save it.
    VictimNotVoided,
    /// A pool's slot is given back twice.
    SlotFreedTwice,
    /// A sandbox is launched before it is journalled.
    UnwrittenLaunch,
    /// A returned sandbox is not given to a waiter.
    ReturnForgetsWaiters,
    /// A client that goes away while its sandbox is being bound keeps it.
    GoneClientLeaks,
    /// A waiting sandbox is evicted without saving its files.
    PersistSkipped,
    /// A sandbox that could not be removed counts as removed.
    KillNotRetried,
    /// A completion counts for any effect.
    LateCompletionTrusted,
    /// A session that is getting a sandbox gets another.
    TwoSandboxesPerSession,
    /// A frozen sandbox is used without being thawed.
    FrozenNotThawed,
    /// A running sandbox may be evicted.
    RunningEvicted,
    /// A leased sandbox is put back into its pool by a restart.
    LeaseSurvivesRestart,
    /// The deadlines of waiting requests are ignored.
    DeadlineIgnored,
    /// State loss is not reported.
    SilentStateLoss,
    /// A scheduled stop also releases processes that were started after it was requested.
    StopTakesLaterProcesses,
    /// The time limits of processes run on while their sandbox is frozen.
    TimeRunsInSleep,
    /// A returned sandbox keeps its id for the next user.
    IdReused,
    /// The most recently used sandbox is evicted first.
    MruEviction,
    /// A sandbox whose files could not be saved is killed all the same.
    FailedPersistKills,
    /// A sandbox that has not answered for long is handed out without a probe.
    StaleProofTrusted,
    /// The death of a sandbox that was handed out is ignored.
    DeathIgnored,
    /// A sandbox that goes back to its pool keeps the key of its last user.
    TenantRemains,
    /// A sandbox whose workspace is too large does not end.
    DiskLimitIgnored,
    /// Sandboxes are launched on a disk that is short.
    FullDiskIgnored,
    /// Files are archived and deleted although a session wants them.
    WantedGivenUp,
    /// Two callers have one harness at the same time.
    HarnessShared,
    /// A write that was acknowledged during a save counts as saved.
    SaveCoversLater,
    /// A sandbox with unsaved files is frozen without saving them.
    FrozenUnsaved,
    /// The limit on entries deletes the files of sleeping sessions.
    LimitDeletesFiles,
    /// The files of a session that its owner ended stay.
    EndedKeepsFiles,
    /// A loss counts as reported before any answer reported it.
    LossForgotten,
    /// A wall clock that is set during a run is trusted.
    WallStepBelieved,
    /// A fork copies the files of a sandbox into which they are still being restored.
    HalfRestoredCopied,
    /// A program is restarted although its sandbox ended during the pause.
    RestartInEndedSandbox,
    /// The restarts of a program are not counted.
    RestartsUncounted,
    /// A stop that is requested between two programs of a process is forgotten.
    StopForgotten,
    /// The end of a process is announced twice.
    ProcessEndsTwice,
    /// A process that waits for a restart does not keep its sandbox alive.
    PauseDropsHold,
    /// The start of a turn is published only when its harness has it.
    TurnStartPublishedLate,
    /// The user of a sandbox that dies is not notified.
    DeathUnreported,
    /// The transition to `waiting` is not published, and not counted as skipped.
    WaitingHidden,
    /// A sandbox stays quiesced for as long as the copy of its files takes.
    QuiescedTooLong,
    /// A sandbox that could not be released after a copy counts as running.
    LeftQuiesced,
    /// A sandbox is quiesced while a turn is being started or stopped in it.
    QuiescedMidTurn,
    /// A frozen guest is asked for files.
    FrozenGuestAsked,
    /// A caller that wants to use a quiesced sandbox is refused.
    QuiesceRefuses,
    /// A caller that polls a process does not keep its sandbox from being frozen.
    ProcessReadsIgnored,
}

impl Flaw {
    /// All flaws.
    pub const ALL: &'static [Self] = &[
        Self::NoReservation,
        Self::LifoWaiters,
        Self::MarginIgnored,
        Self::SweepIgnoresHolds,
        Self::WipeSkipped,
        Self::TerminatedTwice,
        Self::VictimNotVoided,
        Self::SlotFreedTwice,
        Self::UnwrittenLaunch,
        Self::ReturnForgetsWaiters,
        Self::GoneClientLeaks,
        Self::PersistSkipped,
        Self::KillNotRetried,
        Self::LateCompletionTrusted,
        Self::TwoSandboxesPerSession,
        Self::FrozenNotThawed,
        Self::RunningEvicted,
        Self::LeaseSurvivesRestart,
        Self::DeadlineIgnored,
        Self::SilentStateLoss,
        Self::StopTakesLaterProcesses,
        Self::TimeRunsInSleep,
        Self::IdReused,
        Self::MruEviction,
        Self::FailedPersistKills,
        Self::StaleProofTrusted,
        Self::DeathIgnored,
        Self::TenantRemains,
        Self::DiskLimitIgnored,
        Self::FullDiskIgnored,
        Self::WantedGivenUp,
        Self::HarnessShared,
        Self::SaveCoversLater,
        Self::FrozenUnsaved,
        Self::LimitDeletesFiles,
        Self::EndedKeepsFiles,
        Self::LossForgotten,
        Self::WallStepBelieved,
        Self::HalfRestoredCopied,
        Self::RestartInEndedSandbox,
        Self::RestartsUncounted,
        Self::StopForgotten,
        Self::ProcessEndsTwice,
        Self::PauseDropsHold,
        Self::TurnStartPublishedLate,
        Self::DeathUnreported,
        Self::WaitingHidden,
        Self::QuiescedTooLong,
        Self::LeftQuiesced,
        Self::QuiescedMidTurn,
        Self::FrozenGuestAsked,
        Self::QuiesceRefuses,
        Self::ProcessReadsIgnored,
        Self::QueueIgnoresShares,
        Self::EvictionIgnoresShares,
        Self::KeyLimitIgnored,
        Self::SessionDeadlineIgnored,
        Self::UseCountsAsIdle,
    ];

    /// Its name on the simulator's command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoReservation => "no-reservation",
            Self::LifoWaiters => "lifo-waiters",
            Self::MarginIgnored => "margin-ignored",
            Self::SweepIgnoresHolds => "sweep-ignores-holds",
            Self::WipeSkipped => "wipe-skipped",
            Self::TerminatedTwice => "terminated-twice",
            Self::VictimNotVoided => "victim-not-voided",
            Self::SlotFreedTwice => "slot-freed-twice",
            Self::UnwrittenLaunch => "unwritten-launch",
            Self::ReturnForgetsWaiters => "return-forgets-waiters",
            Self::GoneClientLeaks => "gone-client-leaks",
            Self::PersistSkipped => "persist-skipped",
            Self::KillNotRetried => "kill-not-retried",
            Self::LateCompletionTrusted => "late-completion-trusted",
            Self::TwoSandboxesPerSession => "two-sandboxes-per-session",
            Self::FrozenNotThawed => "frozen-not-thawed",
            Self::RunningEvicted => "running-evicted",
            Self::LeaseSurvivesRestart => "lease-survives-restart",
            Self::DeadlineIgnored => "deadline-ignored",
            Self::SilentStateLoss => "silent-state-loss",
            Self::StopTakesLaterProcesses => "stop-takes-later-processes",
            Self::TimeRunsInSleep => "time-runs-in-sleep",
            Self::IdReused => "id-reused",
            Self::MruEviction => "mru-eviction",
            Self::FailedPersistKills => "failed-persist-kills",
            Self::StaleProofTrusted => "stale-proof-trusted",
            Self::DeathIgnored => "death-ignored",
            Self::TenantRemains => "tenant-remains",
            Self::DiskLimitIgnored => "disk-limit-ignored",
            Self::FullDiskIgnored => "full-disk-ignored",
            Self::WantedGivenUp => "wanted-given-up",
            Self::HarnessShared => "harness-shared",
            Self::SaveCoversLater => "save-covers-later",
            Self::FrozenUnsaved => "frozen-unsaved",
            Self::LimitDeletesFiles => "limit-deletes-files",
            Self::EndedKeepsFiles => "ended-keeps-files",
            Self::LossForgotten => "loss-forgotten",
            Self::WallStepBelieved => "wall-step-believed",
            Self::HalfRestoredCopied => "half-restored-copied",
            Self::RestartInEndedSandbox => "restart-in-ended-sandbox",
            Self::RestartsUncounted => "restarts-uncounted",
            Self::StopForgotten => "stop-forgotten",
            Self::ProcessEndsTwice => "process-ends-twice",
            Self::PauseDropsHold => "pause-drops-hold",
            Self::TurnStartPublishedLate => "turn-start-published-late",
            Self::DeathUnreported => "death-unreported",
            Self::WaitingHidden => "waiting-hidden",
            Self::QuiescedTooLong => "quiesced-too-long",
            Self::LeftQuiesced => "left-quiesced",
            Self::QuiescedMidTurn => "quiesced-mid-turn",
            Self::FrozenGuestAsked => "frozen-guest-asked",
            Self::QuiesceRefuses => "quiesce-refuses",
            Self::ProcessReadsIgnored => "process-reads-ignored",
            Self::QueueIgnoresShares => "queue-ignores-shares",
            Self::EvictionIgnoresShares => "eviction-ignores-shares",
            Self::KeyLimitIgnored => "key-limit-ignored",
            Self::SessionDeadlineIgnored => "session-deadline-ignored",
            Self::UseCountsAsIdle => "use-counts-as-idle",
        }
    }
}
