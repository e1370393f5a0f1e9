//! Why a sandbox is in its state, or how it ended: every fact, and one sentence for people.

use model::record::Owner;
use model::state::Wakefulness;
use model::template::{RuntimeKind, WorkspaceLimit};
use model::why::{Alive, Ended, Shortage, Tier};
use model::{
    EndCause, Generation, KeyId, LeaseId, SandboxId, SandboxState, SessionId, TemplateName,
    TerminatedReason, Wall,
};
use serde::{Deserialize, Serialize};

use crate::network::NetworkEntry;
use crate::time::Time;

/// Why a sandbox is in its state, or how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Why {
    /// It exists.
    Alive(Box<WhyAlive>),
    /// It ended.
    Ended(Box<WhyEnded>),
}

/// The state of a sandbox, and what will happen to it if it is not used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WhyAlive {
    /// A summary in one sentence.
    pub summary: String,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Its generation.
    pub generation: Generation,
    /// Its template.
    pub template: TemplateName,
    /// The runtime that isolates it.
    #[serde(default)]
    pub runtime: RuntimeKind,
    /// The id of its container in the engine of its runtime; null if there is none.
    #[serde(default)]
    pub container_id: Option<String>,
    /// How often its instance was handed out, this time included.
    #[serde(default)]
    pub use_count: u32,
    /// Its state.
    pub state: SandboxState,
    /// The lease it is under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseId>,
    /// The session it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The key it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    /// Whether it is frozen.
    pub frozen: bool,
    /// Whether it may hibernate.
    pub wakefulness: Wakefulness,
    /// Execs and calls in progress.
    pub uses_in_progress: u32,
    /// How many processes keep it from being frozen.
    pub keep_alive_processes: u32,
    /// The counter in the scale file.
    pub scale: u32,
    /// How the size of its workspace is limited, if it is on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_limit: Option<WorkspaceLimit>,
    /// The size of its workspace when it was last measured; only with a soft limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_bytes: Option<u64>,
    /// Why it is being ended, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<EndCause>,
    /// Why it is cold, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slept: Option<EndCause>,
    /// How its last instance ended, if it is cold: with the detail and, for an eviction, what was
    /// short and what was considered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_end: Option<WhyEnded>,
    /// Whether it reaches nothing because its policy could not be attached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub network_detached: bool,
    /// What it tried to reach lately and was refused, failed or has a note, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network_refused: Vec<NetworkEntry>,
    /// When it was last used.
    pub last_used_at: Time,
    /// When it will be frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freezes_at: Option<Time>,
    /// When it will become cold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleeps_at: Option<Time>,
    /// When it will end unless renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

/// How a sandbox ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WhyEnded {
    /// A summary in one sentence.
    pub summary: String,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Its last generation.
    pub generation: Generation,
    /// Its template.
    pub template: TemplateName,
    /// The lease it was under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseId>,
    /// How that lease ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_end: Option<EndCause>,
    /// The session it belonged to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The key it belonged to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    /// Why, for branching.
    pub reason: TerminatedReason,
    /// Why, exactly.
    pub cause: EndCause,
    /// The detail that the runtime reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The decision, if it was an eviction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction: Option<Eviction>,
    /// What it tried to reach lately and was refused, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network_refused: Vec<NetworkEntry>,
    /// When it was made.
    pub created_at: Time,
    /// When it ended.
    pub ended_at: Time,
}

/// An eviction, with what was considered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Eviction {
    /// The tier of the evicted sandbox.
    pub tier: Tier,
    /// The resource that ran out.
    pub shortage: Shortage,
    /// The next in line of each tier when it was decided.
    pub candidates: Vec<Candidate>,
    /// When it was decided.
    pub decided_at: Time,
}

/// One tier's next in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Candidate {
    /// The tier.
    pub tier: Tier,
    /// Its least recently used sandbox.
    pub sandbox: SandboxId,
    /// When that was last used.
    pub last_used_at: Time,
    /// How many the tier held.
    pub of: u32,
}

impl Why {
    /// The facts as of `now`, with a sentence about them.
    pub fn new(why: model::why::Why, now: Wall) -> Self {
        match why {
            model::why::Why::Alive(alive) => Self::Alive(Box::new(self::alive(*alive, now.into()))),
            model::why::Why::Ended(ended) => Self::Ended(Box::new(self::ended(&ended, now.into()))),
        }
    }

    /// What it tried to reach and was refused.
    pub fn network_refused(&mut self) -> &mut Vec<NetworkEntry> {
        match self {
            Self::Alive(alive) => &mut alive.network_refused,
            Self::Ended(ended) => &mut ended.network_refused,
        }
    }

    /// The sentence for people.
    pub fn summary(&self) -> &str {
        match self {
            Self::Alive(alive) => &alive.summary,
            Self::Ended(ended) => &ended.summary,
        }
    }
}

fn own(key: KeyId) -> Option<KeyId> {
    (key != KeyId::NIL).then_some(key)
}

fn alive(alive: Alive, now: Time) -> WhyAlive {
    let summary = alive_sentence(&alive, now);
    let (lease, session) = match alive.owner {
        Owner::Unowned => (None, None),
        Owner::Lease(lease) => (Some(lease), None),
        Owner::Session(session) => (None, Some(session)),
    };
    WhyAlive {
        summary,
        sandbox: alive.sandbox,
        generation: alive.generation,
        template: alive.template,
        runtime: alive.runtime,
        container_id: None,
        use_count: alive.uses,
        state: alive.state,
        lease,
        session,
        key: own(alive.tenant),
        frozen: alive.frozen,
        wakefulness: alive.wakefulness,
        uses_in_progress: alive.uses_in_progress,
        keep_alive_processes: alive.keep_alive_processes,
        scale: alive.scale,
        workspace_limit: alive.workspace_limit,
        workspace_bytes: alive.workspace_bytes,
        ending: alive.ending,
        slept: alive.slept,
        last_end: alive.last_end.as_ref().map(|end| ended(end, now)),
        network_detached: false,
        network_refused: Vec::new(),
        last_used_at: alive.last_used_at.into(),
        freezes_at: alive.freezes_at.map(Time::from),
        sleeps_at: alive.sleeps_at.map(Time::from),
        expires_at: alive.expires_at.map(Time::from),
    }
}

fn ended(ended: &Ended, now: Time) -> WhyEnded {
    WhyEnded {
        summary: ended_sentence(ended, now),
        sandbox: ended.sandbox,
        generation: ended.generation,
        template: ended.template.clone(),
        lease: ended.lease,
        lease_end: ended.lease_end,
        session: ended.session,
        key: own(ended.tenant),
        reason: ended.cause.reason(),
        cause: ended.cause,
        detail: ended.detail.as_deref().map(str::to_owned),
        eviction: ended.eviction.as_deref().map(|eviction| Eviction {
            tier: eviction.tier,
            shortage: eviction.shortage,
            candidates: eviction
                .candidates
                .iter()
                .map(|candidate| Candidate {
                    tier: candidate.tier,
                    sandbox: candidate.sandbox,
                    last_used_at: candidate.last_used_at.into(),
                    of: candidate.of,
                })
                .collect(),
            decided_at: eviction.decided_at.into(),
        }),
        network_refused: Vec::new(),
        created_at: ended.created_at.into(),
        ended_at: ended.ended_at.into(),
    }
}

fn alive_sentence(alive: &Alive, now: Time) -> String {
    if let Some(cause) = alive.ending {
        return format!("is being ended: {}", cause.in_words());
    }
    let state = match alive.state {
        SandboxState::Cold => {
            return match (&alive.last_end, alive.slept) {
                (Some(end), _) => {
                    format!("cold, without a process: {}", ended_sentence(end, now))
                }
                (None, Some(cause)) => {
                    format!("cold, without a process: {}", cause.in_words())
                }
                (None, None) => "cold, without a process".to_owned(),
            };
        }
        SandboxState::Warming => "is being started",
        SandboxState::Warm => "ready, not used yet",
        SandboxState::Waiting => "between uses",
        SandboxState::Running => "in use",
    };
    let owner = match alive.owner {
        Owner::Unowned => "in its pool",
        Owner::Lease(_) => "under a lease",
        Owner::Session(_) => "of a session",
    };
    let frozen = if alive.frozen { ", frozen until its next use" } else { "" };
    // Only a lease can be renewed; nothing extends the lifetime of another sandbox.
    let (expires, unless_renewed) = match alive.owner {
        Owner::Lease(_) => ("its lease expires", ", unless the lease is renewed"),
        Owner::Unowned | Owner::Session(_) => ("its lifetime ends", ""),
    };
    let unless_used = ", unless it is used before";
    let next = [
        (alive.freezes_at.filter(|_| !alive.frozen), "it will be frozen", unless_used),
        (alive.sleeps_at, "it will become cold", unless_used),
        (alive.expires_at, expires, unless_renewed),
    ];
    let next =
        next.into_iter().filter_map(|(at, what, unless)| Some((Time::from(at?), what, unless)));
    let next = next.min().map_or_else(String::new, |(at, what, unless)| {
        format!("; {what} in {} (at {at}){unless}", span(at.ms_after(now)))
    });
    format!("{state}, {owner}{frozen}{next}")
}

fn ended_sentence(ended: &Ended, now: Time) -> String {
    let ago = span(now.ms_after(Time::from(ended.ended_at)));
    let shortage = ended.eviction.as_deref().map(|eviction| eviction.shortage.in_words());
    let details: Vec<&str> = shortage.into_iter().chain(ended.detail.as_deref()).collect();
    let details =
        if details.is_empty() { String::new() } else { format!(" ({})", details.join("; ")) };
    format!("{}, {ago} ago{details}", ended.cause.in_words())
}

/// A span of time in its largest unit.
fn span(ms: i64) -> String {
    match ms.max(0) {
        ms @ 0..1_000 => format!("{ms} ms"),
        ms @ 1_000..120_000 => format!("{} s", ms / 1_000),
        ms @ 120_000..7_200_000 => format!("{} min", ms / 60_000),
        ms @ 7_200_000..172_800_000 => format!("{} h", ms / 3_600_000),
        ms => format!("{} d", ms / 86_400_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Wall = Wall(1_767_323_045_678);

    fn an_end(cause: EndCause) -> Ended {
        Ended {
            sandbox: SandboxId::from_u128(1),
            generation: Generation::FIRST,
            template: TemplateName::new("t").unwrap(),
            lease: None,
            lease_end: None,
            session: None,
            tenant: KeyId::NIL,
            cause,
            detail: None,
            eviction: None,
            created_at: Wall(0),
            ended_at: Wall(NOW.0 - 3_000),
        }
    }

    fn a_life() -> Alive {
        Alive {
            sandbox: SandboxId::from_u128(1),
            generation: Generation::FIRST,
            template: TemplateName::new("t").unwrap(),
            runtime: RuntimeKind::Native,
            uses: 1,
            state: SandboxState::Waiting,
            owner: Owner::Lease(LeaseId::from_u128(2)),
            tenant: KeyId::from_u128(3),
            frozen: false,
            wakefulness: Wakefulness::Auto,
            uses_in_progress: 0,
            keep_alive_processes: 0,
            scale: 0,
            workspace_limit: None,
            workspace_bytes: None,
            ending: None,
            slept: None,
            last_end: None,
            last_used_at: NOW,
            freezes_at: Some(NOW.plus(10_000)),
            sleeps_at: None,
            expires_at: Some(NOW.plus(600_000)),
        }
    }

    #[test]
    fn why_explains_an_end_in_a_sentence() {
        for &cause in EndCause::ALL {
            let why = Why::new(model::why::Why::Ended(an_end(cause)), NOW);
            assert!(why.summary().ends_with("3 s ago"), "{}", why.summary());
            let value = serde_json::to_value(&why).unwrap();
            assert_eq!(
                (&value["status"], &value["cause"]),
                (&"ended".into(), &cause.as_str().into())
            );
            assert_eq!(serde_json::from_value::<Why>(value).unwrap(), why);
        }
        let returned = Why::new(model::why::Why::Ended(an_end(EndCause::Returned)), NOW);
        assert_eq!(returned.summary(), "returned by its user, 3 s ago");
    }

    #[test]
    fn why_explains_what_comes_next() {
        let tell = |change: fn(&mut Alive)| {
            let mut alive = a_life();
            change(&mut alive);
            Why::new(model::why::Why::Alive(Box::new(alive)), NOW).summary().to_owned()
        };
        for (summary, parts) in [
            (
                tell(|_| ()),
                &[
                    "between uses, under a lease; it will be frozen in 10 s (at ",
                    "unless it is used",
                ][..],
            ),
            (
                tell(|a| a.frozen = true),
                &["frozen until its next use", "its lease expires in 10 min", "is renewed"],
            ),
            (
                tell(|a| a.ending = Some(EndCause::Deleted)),
                &["is being ended: deleted by its user"],
            ),
            (tell(|a| a.state = SandboxState::Cold), &["cold, without a process"]),
            (
                tell(|a| (a.state, a.slept) = (SandboxState::Cold, Some(EndCause::Idle))),
                &["cold, without a process: ended because it was idle for too long"],
            ),
            (
                tell(|a| (a.owner, a.freezes_at) = (Owner::Session(SessionId::NIL), None)),
                &["of a session; its lifetime ends in 10 min"],
            ),
            (
                tell(|a| (a.freezes_at, a.expires_at) = (None, None)),
                &["between uses, under a lease"],
            ),
        ] {
            assert!(parts.iter().all(|part| summary.contains(part)), "{summary}");
        }
    }

    #[test]
    fn durations_have_one_unit() {
        for (ms, text) in [
            (-5, "0 ms"),
            (999, "999 ms"),
            (1_000, "1 s"),
            (119_999, "119 s"),
            (120_000, "2 min"),
            (7_200_000, "2 h"),
            (172_800_000, "2 d"),
        ] {
            assert_eq!(span(ms), text);
        }
    }
}
