//! The promises, and who watches over them. Each file judges one group of promises on every step,
//! looking only at what changed, by what is true in the world and never by what the kernel keeps
//! inside. A check never changes the world except for what it has to remember.

pub(crate) mod after_event;
pub(crate) mod capacity;
pub(crate) mod cold_workspaces;
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
        /// What must never be broken.
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
    LiveLimit, "live_limit", "no more instances exist than max_live";
    MemoryLimit, "memory_limit", "the memory of all instances stays within the budget";
    EntryLimit, "entry_limit", "no more sandboxes are written down than max_sandboxes";
    SlotLimit, "slot_limit", "a pool has no more sandboxes than slots";
    LaunchWritten, "launch_written", "an instance is written down before it is launched";
    NothingForgotten, "nothing_forgotten", "what exists stays written down until it is removed";
    OneOwner, "one_owner", "a sandbox serves one owner at a time";
    IdNeverReused, "id_never_reused", "a sandbox id is never given to a second owner";
    Clean, "clean", "nothing of one owner reaches the next";
    Margin, "margin", "a sandbox handed out has more than the margin left to live";
    HandedOutAlive, "handed_out_alive", "a sandbox handed out exists, works and is written down for its owner";
    RecentlyProven, "recently_proven", "a sandbox handed out was asked, or answered lately";
    DeathHeard, "death_heard", "a death that becomes known ends its sandbox at once";
    DiskLimitKept, "disk_limit_kept", "a sandbox whose workspace holds too much ends at once";
    DiskSpared, "disk_spared", "nothing is launched on a disk that is short";
    TenantKept, "tenant_kept", "what belongs to a key is that key's in every record and event, and nobody's after";
    FirstServed, "first_served", "who waits longest is served first";
    NoWaitInVain, "no_wait_in_vain", "nobody waits while a sandbox is idle or could be started";
    DeadlineKept, "deadline_kept", "nobody waits past their deadline";
    OneAnswer, "one_answer", "every request gets exactly one answer";
    AnswerFits, "answer_fits", "an answer is of the kind that was asked for";
    AnswerTrue, "answer_true", "what an answer says is so";
    RefusalFits, "refusal_fits", "a refusal has a code that fits what was asked for";
    TerminatedOnce, "terminated_once", "the end of a sandbox is told once, after its removal, if it had been ready";
    GenerationsGrow, "generations_grow", "the generations of a session's sandboxes grow";
    TurnsEndOnce, "turns_end_once", "a turn that started ends exactly once";
    TurnStartPublished, "turn_start_published", "the start of a turn is published once, by the decision that gives it to a harness";
    OneSandboxEach, "one_sandbox_each", "a session has at most one sandbox";
    FilesKept, "files_kept", "a session finds its files as it left them, or is told that they are lost";
    ColdUnwanted, "cold_unwanted", "files are archived or given up only when nobody used them for long enough, nor wants them";
    LimitsSpareFiles, "limits_spare_files", "a limit on the number of sandboxes never deletes files, unless a setting says so";
    EndedGone, "ended_gone", "a session that its owner ended leaves no record of files that stay";
    FrozenSaved, "frozen_saved", "a session's sandbox is frozen only when its files would survive it";
    FilesSaved, "files_saved", "a sandbox is not given up before its files are safe";
    RunningSafe, "running_safe", "a sandbox in use is never evicted, swept, frozen, wiped or thrown away";
    HoldsKept, "holds_kept", "what is held awake is never frozen, swept or evicted";
    HoldsExact, "holds_exact", "what keeps a sandbox awake is known exactly";
    EndJustified, "end_justified", "a sandbox ends for the reason that is given, and only then";
    TimeGiven, "time_given", "a process is killed only after the time it was given, not counting frozen time";
    RestartsInPlace, "restarts_in_place", "a program is started again only in the sandbox in which it failed, while that lives";
    RestartsBounded, "restarts_bounded", "a program is started again as often as is wished and after its pause, not more often nor sooner";
    StopIsFinal, "stop_is_final", "a process that was asked to end is not started again";
    ProcessesEndOnce, "processes_end_once", "a process ends exactly once, at the latest with its sandbox";
    FrozenUnused, "frozen_unused", "nothing is done in a frozen sandbox";
    QuiescedBriefly, "quiesced_briefly", "a sandbox is held still only for a copy, and for a second at most";
    QuiescedBetween, "quiesced_between", "a sandbox is not held still while a turn is being started or stopped in it";
    GuestAwake, "guest_awake", "a guest that gives files out runs from the beginning to the end of that";
    CopyCostsNoUse, "copy_costs_no_use", "no caller is refused a sandbox because its files are being copied";
    FrozenQuietly, "frozen_quietly", "a sandbox is frozen only after it was quiet for long enough";
    LeastRecentFirst, "least_recent_first", "the least recently used of a tier is evicted first";
    TiersInOrder, "tiers_in_order", "tiers give way in order, and only those that help";
    LeaseHonoured, "lease_honoured", "a lease works while it lasts, and not after";
    LeaseEnds, "lease_ends", "an expired lease is ended at once";
    OneSpeaker, "one_speaker", "a harness is spoken with by a turn or by one who holds it, never by two";
    UsesEndOnce, "uses_end_once", "a use is broken off at most once, and when its sandbox is gone";
    EndNotified, "end_notified", "each user of an instance hears once that it is over, before its end is published";
    StatesFollow, "states_follow", "states follow each other as the design says";
    StatesPublished, "states_published", "users see each change of a state, or it counts as left out when there are too many";
    StatsAddUp, "stats_add_up", "the numbers shown add up to what is written down";
    AuditPasses, "audit_passes", "the kernel's own derived facts are right";
    EffectSound, "effect_sound", "an effect has a fresh id and a deadline to come";
    LateIsHarmless, "late_is_harmless", "a completion that is late or repeated changes nothing";
    WakeMovesOn, "wake_moves_on", "a kernel that was told the time does not ask for it again at once";
    ShutdownFinal, "shutdown_final", "a server that stops starts nothing and leaves nothing";
    NoPanic, "no_panic", "the kernel never panics";
    AllAnswered, "all_answered", "when faults end, everyone gets an answer";
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

/// The result of something that is judged.
pub type Judged<T = ()> = Result<T, Box<Violation>>;

/// A promise was broken.
#[cold]
pub fn broken<T>(promise: Promise, detail: impl FnOnce() -> String) -> Judged<T> {
    Err(Box::new(Violation { promise, detail: shorten(&detail()) }))
}

/// A promise is kept if this holds.
pub fn holds(promise: Promise, kept: bool, detail: impl FnOnce() -> String) -> Judged {
    if kept { Ok(()) } else { broken(promise, detail) }
}

/// What checks remember from one step to the next.
#[derive(Debug, Default)]
pub struct Watch {
    /// Generations that were ready and whose end was not told yet, with what was launched.
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
    /// Instances that this kernel said to be over, until it publishes the end of their sandboxes.
    pub end_notified: BTreeSet<InstanceId>,
    /// Instances for whose sandboxes the decision being judged publishes the end.
    pub ended_now: Vec<InstanceId>,
    /// Requests that are answered by the decision being judged.
    pub answered: Vec<RequestId>,
    /// Requests whose clients went away.
    pub gone: BTreeSet<RequestId>,
    /// How leases ended, as it was first written down.
    pub lease_ends: BTreeMap<LeaseId, EndCause>,
    /// Pools that someone asked to be destroyed by force.
    pub forced: BTreeSet<TemplateName>,
    /// Instances that were removed while someone worked in them.
    pub removed_in_use: Vec<(InstanceId, Vec<UseId>)>,
    /// Instances that are being evicted with files that are not safe, as a violation unless they
    /// are deleted with everything.
    pub unsaved: BTreeMap<InstanceId, Box<Violation>>,
    /// Instances that are held still by decision, each since when.
    pub quiesced: BTreeMap<InstanceId, Mono>,
    /// Workspaces that are being copied, each until its copy counts as timed out.
    pub copies: Vec<(WorkspaceId, Mono)>,
    /// Workspaces that were lost by an accident.
    pub vanished: BTreeSet<WorkspaceId>,
    /// Generations that live on under another id.
    pub renamed: Vec<(SandboxId, Generation)>,
    /// Sandboxes as users see them.
    pub seen: BTreeMap<SandboxId, transitions::Seen>,
    /// The next completion is late, and must change nothing.
    pub expect_silence: bool,
}
