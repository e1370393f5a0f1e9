//! The promises and their checks. Each file checks one group of promises on every step. It looks
//! only at what changed, by what is true in the world and never by the kernel's internal state. A
//! check never changes the world except for what it must remember.

pub(crate) mod after_event;
pub(crate) mod capacity;
pub(crate) mod cold_workspaces;
pub(crate) mod deadlines;
pub(crate) mod disk_limits;
pub(crate) mod effects;
pub(crate) mod eviction;
pub(crate) mod full_audit;
pub(crate) mod handout;
pub(crate) mod holds;
pub(crate) mod leases;
pub(crate) mod processes;
pub(crate) mod published_events;
pub(crate) mod quiesce;
pub(crate) mod records;
pub(crate) mod refusals;
pub(crate) mod sessions;
pub(crate) mod shares;
pub(crate) mod tenants;
pub(crate) mod terminations;
pub(crate) mod transitions;
pub(crate) mod turns;
pub(crate) mod uses;
pub(crate) mod waiters;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::trace::shorten;
use model::{
    EndCause, Generation, InstanceId, LeaseId, Mono, RequestId, SandboxId, TemplateName, TurnId,
    UseId, Wall, WorkspaceId,
};

macro_rules! promises {
    ($($promise:ident, $name:literal, $words:literal;)+) => {
        /// The promises.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(missing_docs, reason = "the words say it")]
        pub enum Promise { $($promise,)+ }

        impl Promise {
            /// All promises.
            pub const ALL: &'static [Self] = &[$(Self::$promise,)+];

            /// Its short name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$promise => $name,)+ }
            }

            /// What it promises.
            pub const fn words(self) -> &'static str {
                match self { $(Self::$promise => $words,)+ }
            }
        }
    };
}

promises! {
    LiveLimit, "live_limit", "at most max_live instances exist";
    MemoryLimit, "memory_limit", "the memory of all instances stays within the budget";
    EntryLimit, "entry_limit", "at most max_sandboxes sandboxes are journalled";
    SlotLimit, "slot_limit", "a pool has at most as many sandboxes as slots";
    LaunchWritten, "launch_written", "an instance is journalled before it is launched";
    NothingForgotten, "nothing_forgotten", "an instance stays in the journal until it is removed";
    OneOwner, "one_owner", "a sandbox serves one owner at a time";
    IdNeverReused, "id_never_reused", "a sandbox id is never given to a second owner";
    Clean, "clean", "nothing of one owner reaches the next";
    Margin, "margin", "a sandbox handed out has more than the margin left to live";
    HandedOutAlive, "handed_out_alive", "a sandbox handed out exists, works and is journalled for its owner";
    RecentlyProven, "recently_proven", "a sandbox handed out was probed, or answered lately";
    DeathHeard, "death_heard", "a death that becomes known ends its sandbox at once";
    DiskLimitKept, "disk_limit_kept", "a sandbox whose workspace holds too much ends at once";
    DiskSpared, "disk_spared", "nothing is launched on a disk that is short";
    TenantKept, "tenant_kept", "what belongs to a key carries that key in every record and event, and none after";
    FirstServed, "first_served", "of the callers of a key, the one that waits longest is served first";
    FairShare, "fair_share", "keys with fewer sandboxes are served first, and keys above their share are evicted first";
    KeyLimitKept, "key_limit_kept", "a key gets no more live sandboxes than its limit";
    NoWaitInVain, "no_wait_in_vain", "no caller waits while a sandbox is idle or could be launched";
    DeadlineKept, "deadline_kept", "no request waits past its deadline";
    SessionDeadlineKept, "session_deadline_kept", "a session ends or pauses at its deadline, and not before";
    OneAnswer, "one_answer", "every request gets exactly one answer";
    AnswerFits, "answer_fits", "an answer is of the kind that was asked for";
    AnswerTrue, "answer_true", "what an answer says is so";
    RefusalFits, "refusal_fits", "a refusal has a code that fits what was asked for";
    TerminatedOnce, "terminated_once", "the end of a sandbox is published once, after its removal, if it had been ready";
    GenerationsGrow, "generations_grow", "the generations of a session's sandboxes grow";
    TurnsEndOnce, "turns_end_once", "a turn that started ends exactly once";
    TurnStartPublished, "turn_start_published", "the start of a turn is published once, by the decision that gives it to a harness";
    OneSandboxEach, "one_sandbox_each", "a session has at most one sandbox";
    FilesKept, "files_kept", "a session finds its files as it left them, or an answer reports the loss";
    ColdUnwanted, "cold_unwanted", "files are archived or deleted only when no client used them for long enough, nor wants them";
    LimitsSpareFiles, "limits_spare_files", "a limit on the number of sandboxes never deletes files, unless a setting says so";
    EndedGone, "ended_gone", "no files stay of a session that its owner ended";
    FrozenSaved, "frozen_saved", "a session's sandbox is frozen only when its files would survive it";
    FilesSaved, "files_saved", "a sandbox does not end before its files are saved";
    RunningSafe, "running_safe", "a sandbox in use is never evicted, swept, frozen, wiped or thrown away";
    HoldsKept, "holds_kept", "a sandbox that is kept alive is never frozen, swept or evicted";
    HoldsExact, "holds_exact", "the kernel knows exactly what keeps a sandbox alive";
    EndJustified, "end_justified", "a sandbox ends for the reason that is given, and only then";
    TimeGiven, "time_given", "a process is killed only after the time it was given, not counting frozen time";
    RestartsInPlace, "restarts_in_place", "a program is restarted only in the sandbox in which it failed, while that lives";
    RestartsBounded, "restarts_bounded", "a program is restarted at most as often as its policy says, and not before its pause ends";
    StopIsFinal, "stop_is_final", "a process whose end was requested is not restarted";
    ProcessesEndOnce, "processes_end_once", "a process ends exactly once, at the latest with its sandbox";
    FrozenUnused, "frozen_unused", "nothing is done in a frozen sandbox";
    QuiescedBriefly, "quiesced_briefly", "a sandbox is quiesced only for a copy, and for a second at most";
    QuiescedBetween, "quiesced_between", "a sandbox is not quiesced while a turn is being started or stopped in it";
    GuestAwake, "guest_awake", "a guest that sends files runs from the beginning to the end of that";
    CopyCostsNoUse, "copy_costs_no_use", "no caller is refused a sandbox because its files are being copied";
    FrozenQuietly, "frozen_quietly", "a sandbox is frozen only after it was idle for long enough";
    PolledRuns, "polled_runs", "a process that its caller polls goes on";
    LeastRecentFirst, "least_recent_first", "the least recently used of a tier is evicted first";
    TiersInOrder, "tiers_in_order", "tiers are evicted in order, and only those that help";
    LeaseHonoured, "lease_honoured", "a lease works while it lasts, and not after";
    LeaseEnds, "lease_ends", "an expired lease is ended at once";
    OneSpeaker, "one_speaker", "a turn or one caller has a harness, never two at once";
    UsesEndOnce, "uses_end_once", "a use is interrupted at most once, and only when its sandbox is gone";
    EndNotified, "end_notified", "each user of an instance is notified of its end once, before the end is published";
    StatesFollow, "states_follow", "states follow each other as the design says";
    StatesPublished, "states_published", "each transition is published, or counted as skipped when there are too many";
    StatsAddUp, "stats_add_up", "the statistics add up to what is journalled";
    AuditPasses, "audit_passes", "the kernel's own derived facts are right";
    EffectSound, "effect_sound", "an effect has a fresh id and a deadline to come";
    LateIsHarmless, "late_is_harmless", "a completion that is late or repeated changes nothing";
    WakeMovesOn, "wake_moves_on", "a kernel that got a tick does not ask for the next one at once";
    ShutdownFinal, "shutdown_final", "a server that stops starts nothing and leaves nothing";
    NoPanic, "no_panic", "the kernel never panics";
    AllAnswered, "all_answered", "when faults end, every request is answered";
    PoolsFill, "pools_fill", "when faults end, every pool reaches its size";
    NothingLeaks, "nothing_leaks", "when faults end, nothing is left over";
}

/// A promise that was broken, and how.
#[derive(Debug, Clone)]
pub struct Violation {
    /// Which.
    pub promise: Promise,
    /// How.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.promise.name(), self.promise.words(), self.detail)
    }
}

/// The result of a check.
pub type Judged<T = ()> = Result<T, Box<Violation>>;

/// A promise was broken.
#[cold]
pub fn broken<T>(promise: Promise, detail: impl FnOnce() -> String) -> Judged<T> {
    Err(Box::new(Violation { promise, detail: shorten(&detail()) }))
}

/// Fails unless the promise is kept.
pub fn holds(promise: Promise, kept: bool, detail: impl FnOnce() -> String) -> Judged {
    if kept { Ok(()) } else { broken(promise, detail) }
}

/// The state of the checks between steps.
#[derive(Debug, Default)]
pub struct Watch {
    /// Generations that were ready and whose end is not published yet, with their instances.
    pub announced: BTreeMap<(SandboxId, Generation), InstanceId>,
    /// The number of the last effect of this kernel.
    pub last_effect: Option<u64>,
    /// Whether the wall clock ever jumped.
    pub clock_jumped: bool,
    /// The latest that the wall clock ever showed before it jumped.
    pub latest_wall: Wall,
    /// Whether the wall clock ever went back.
    pub clock_went_back: bool,
    /// Turns whose start the decision being judged publishes.
    pub turns_started: Vec<TurnId>,
    /// Instances whose end was notified, until the end of their sandboxes is published.
    pub end_notified: BTreeSet<InstanceId>,
    /// Instances for whose sandboxes the decision being judged publishes the end.
    pub ended_now: Vec<InstanceId>,
    /// Requests that are answered by the decision being judged.
    pub answered: Vec<RequestId>,
    /// Requests whose clients went away.
    pub gone: BTreeSet<RequestId>,
    /// How leases ended, as first recorded.
    pub lease_ends: BTreeMap<LeaseId, EndCause>,
    /// Pools whose destruction by force was requested.
    pub forced: BTreeSet<TemplateName>,
    /// Instances that were removed during a use.
    pub removed_in_use: Vec<(InstanceId, Vec<UseId>)>,
    /// Instances that are being evicted with unsaved files: a violation unless their files are
    /// deleted too.
    pub unsaved: BTreeMap<InstanceId, Box<Violation>>,
    /// Instances that the kernel decided to quiesce, and when.
    pub quiesced: BTreeMap<InstanceId, Mono>,
    /// Workspaces that are being copied, each until its copy counts as timed out.
    pub copies: Vec<(WorkspaceId, Mono)>,
    /// Workspaces that were lost in a simulated accident.
    pub vanished: BTreeSet<WorkspaceId>,
    /// Generations that continue under another id.
    pub renamed: Vec<(SandboxId, Generation)>,
    /// Sandboxes as users see them.
    pub seen: BTreeMap<SandboxId, transitions::Seen>,
    /// The next completion is late, and must change nothing.
    pub expect_silence: bool,
}
