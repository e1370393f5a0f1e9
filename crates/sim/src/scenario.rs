//! The parameters of a world: limits, templates, fault rates, what its clients like to do. All of
//! it is drawn once, before the first step, and small numbers are preferred so that limits are hit
//! often.

use std::sync::Arc;

use kernel::Event;
use model::config::{Backoff, Deadlines};
use model::template::{Harness, HarnessProgram, Recycle, RuntimeTraits, WorkspaceLimit};
use model::{
    ColdEviction, KeyId, KeyLimits, Limits, NetworkPolicy, NetworkRule, NodeConfig, PoolSettings,
    Template, TemplateName,
};

use crate::choices::Choices;

/// The key that may have a limit.
pub(crate) const LIMITED_KEY: KeyId = KeyId::from_u128(2);
/// The key that asks for most, if one does.
pub(crate) const GREEDY_KEY: KeyId = KeyId::from_u128(1);

/// How often things go wrong, per thousand effects or steps.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rates {
    /// Effects that fail.
    pub fail: u32,
    /// Effects reported only after their deadline.
    pub late: u32,
    /// Effects never reported.
    pub silent: u32,
    /// Effects that take a large part of their deadline.
    pub slow: u32,
    /// Effects reported twice.
    pub twice: u32,
    /// Wipes that leave something behind and say they did not.
    pub lie: u32,
    /// Steps in which a sandbox dies on its own.
    pub death: u32,
    /// Steps in which the wall clock jumps.
    pub jump: u32,
    /// Steps in which the server is killed.
    pub crash: u32,
    /// Steps in which the server is stopped in order.
    pub shutdown: u32,
    /// Steps in which the disk is measured.
    pub disk: u32,
}

/// What a client may do. The order is that of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Checkout,
    Return,
    Renew,
    LeaseUse,
    EndUse,
    StaleUse,
    StartProcess,
    EndProcess,
    WriteScale,
    StopKeepAlive,
    Freeze,
    Thaw,
    Delete,
    CreateSession,
    Turn,
    SessionUse,
    Abort,
    Pause,
    Resume,
    StopSession,
    EndSession,
    Fork,
    Vanish,
    Resize,
    Drain,
    ResumePool,
    Destroy,
    PutTemplate,
    Read,
    PollProcesses,
}

impl Act {
    /// All acts with how often each is done in a mixed world.
    pub(crate) const ALL: [(Self, u32); 30] = [
        (Self::Checkout, 160),
        (Self::Return, 110),
        (Self::Renew, 20),
        (Self::LeaseUse, 90),
        (Self::EndUse, 60),
        (Self::StaleUse, 15),
        (Self::StartProcess, 24),
        (Self::EndProcess, 14),
        (Self::WriteScale, 16),
        (Self::StopKeepAlive, 16),
        (Self::Freeze, 12),
        (Self::Thaw, 8),
        (Self::Delete, 12),
        (Self::CreateSession, 50),
        (Self::Turn, 120),
        (Self::SessionUse, 50),
        (Self::Abort, 20),
        (Self::Pause, 16),
        (Self::Resume, 20),
        (Self::StopSession, 14),
        (Self::EndSession, 24),
        (Self::Fork, 24),
        (Self::Vanish, 24),
        (Self::Resize, 6),
        (Self::Drain, 1),
        (Self::ResumePool, 8),
        (Self::Destroy, 1),
        (Self::PutTemplate, 4),
        (Self::Read, 12),
        (Self::PollProcesses, 12),
    ];

    const fn is_of_sessions(self) -> bool {
        matches!(
            self,
            Self::CreateSession
                | Self::Turn
                | Self::SessionUse
                | Self::Abort
                | Self::Pause
                | Self::Resume
                | Self::StopSession
                | Self::EndSession
                | Self::Fork
        )
    }

    const fn is_of_holds(self) -> bool {
        matches!(
            self,
            Self::StartProcess
                | Self::EndProcess
                | Self::WriteScale
                | Self::StopKeepAlive
                | Self::Freeze
                | Self::Thaw
        )
    }

    const fn is_of_operators(self) -> bool {
        matches!(
            self,
            Self::Resize | Self::Drain | Self::ResumePool | Self::Destroy | Self::PutTemplate
        )
    }
}

/// A template of the world with what its runtime can do.
#[derive(Debug, Clone)]
pub(crate) struct Recipe {
    /// The template as it was last put.
    pub template: Arc<Template>,
    /// What its runtime can do; the same for the whole life of the world.
    pub traits: RuntimeTraits,
}

/// A world before its first step.
#[derive(Debug)]
pub(crate) struct Scenario {
    /// The node's settings.
    pub config: NodeConfig,
    /// Its templates.
    pub recipes: Vec<Recipe>,
    /// What goes wrong.
    pub rates: Rates,
    /// Of a thousand steps, those in which time passes.
    pub time_share: u32,
    /// How many clients there are: bounds what is held and asked for at once.
    pub clients: u32,
    /// How often each act is done.
    pub weights: Vec<u32>,
    /// How long turns and uses last at most.
    pub work_ms: u64,
    /// Whether one key asks for most of what is asked for.
    pub greedy: bool,
    /// The most live sandboxes of the key that has a limit.
    pub live_limit: Option<u32>,
}

impl Scenario {
    /// Draws a world.
    pub(crate) fn draw(choices: &mut Choices) -> Self {
        let max_live = choices.pick(&[4, 2, 3, 5, 6, 8, 12, 16, 32, 64]).unwrap_or(4);
        let around = choices.below(4);
        let max_sandboxes = match around {
            0 => max_live * 4,
            1 => max_live + choices.below(3),
            2 => max_live * 2,
            _ => (max_live / 2).max(2) + choices.below(max_live),
        };
        let memory_mb = [128, 256, 512];
        let budget = (choices.below(4) == 3)
            .then(|| u64::from(max_live) * u64::from(128 + choices.below(256)).max(512));
        let mix = choices.below(6);
        let config = NodeConfig {
            max_sandboxes,
            max_live,
            max_sessions: choices.pick(&[64, 8]).unwrap_or(64),
            memory_budget_mb: budget,
            sweep_interval_ms: choices.pick(&[1_000, 500, 5_000]).unwrap_or(1_000),
            idle_timeout_ms: choices.pick(&[20_000, 2_000, 6_000, 60_000]).unwrap_or(20_000),
            freeze_after_ms: choices.pick(&[2_000, 500, 10_000]).unwrap_or(2_000),
            wait_ms: choices.pick(&[5_000, 1_000, 20_000]).unwrap_or(5_000),
            bind_timeout_ms: choices.pick(&[15_000, 4_000]).unwrap_or(15_000),
            control_timeout_ms: choices.pick(&[20_000, 5_000]).unwrap_or(20_000),
            probe_timeout_ms: 500,
            probe_attempts: 1 + choices.below(2),
            probe_fresh_ms: choices.pick(&[1_000, 0, 5_000]).unwrap_or(1_000),
            keep_alive_timeout_ms: choices.pick(&[10_000, 2_000]).unwrap_or(10_000),
            max_queued_turns: 1 + choices.below(4),
            max_processes: 2 + choices.below(6),
            remembered_ends: choices.pick(&[1_000, 8, 50]).unwrap_or(1_000),
            deadlines: Deadlines {
                claim_ms: 400,
                wipe_ms: 600,
                freeze_ms: 200,
                turn_ms: 400,
                workspace_ms: 1_500,
                kill_ms: 800,
            },
            workspace_free_floor_mb: 1_024,
            workspace_scan_interval_ms: 1_000,
            archive_after_ms: None,
            prune_after_ms: None,
            cold_eviction: ColdEviction::KeepFiles,
            kept_bytes_per_key: None,
            kept_bytes_total: None,
            give_up_at_floor: false,
            templates: Vec::new(),
            backoff: Backoff { degraded_after: 3, first_ms: 200, max_ms: 2_000 },
        };
        let templates = 1 + choices.below(4);
        let recipes =
            (0..templates).map(|n| Recipe::draw(choices, n, &memory_mb, config.max_live)).collect();
        let calm = choices.below(4);
        let scale = [0, 1, 3, 8][calm as usize];
        let mut draw = |top: u32| choices.below(top + 1) * scale;
        let rates = Rates {
            fail: draw(12),
            late: draw(6),
            silent: draw(6),
            slow: draw(15),
            twice: draw(10),
            lie: draw(20),
            death: draw(4),
            jump: draw(2),
            crash: draw(1),
            shutdown: 0,
            disk: draw(6),
        };
        let rates = Rates {
            crash: if rates.crash > 0 { 1 + choices.below(4) } else { 0 },
            shutdown: u32::from(choices.below(5) == 4),
            ..rates
        };
        let weights = Act::ALL
            .map(|(act, weight)| match mix {
                1 if act.is_of_sessions() => 0,
                2 if act.is_of_sessions() => weight * 4,
                3 if act.is_of_holds() => weight * 6,
                4 if act.is_of_operators() => weight * 6,
                5 if act.is_of_operators() => 0,
                _ => weight,
            })
            .to_vec();
        let mut drawn = Self {
            config,
            recipes,
            rates,
            time_share: choices.pick(&[600, 400, 750, 850]).unwrap_or(600),
            clients: 1 + choices.below(12),
            weights,
            work_ms: choices.pick(&[300, 50, 2_000, 6_000]).unwrap_or(300),
            greedy: false,
            live_limit: None,
        };
        drawn.config.archive_after_ms = choices.pick(&[None, Some(3_000), Some(15_000)]).flatten();
        drawn.config.prune_after_ms =
            choices.pick(&[None, None, Some(30_000), Some(8_000)]).flatten();
        if choices.below(4) == 3 {
            drawn.config.cold_eviction = ColdEviction::DeleteFiles;
        }
        let bytes = [None, None, Some(600 << 20), Some(100 << 20)];
        drawn.config.kept_bytes_per_key = choices.pick(&bytes).flatten();
        drawn.config.kept_bytes_total = choices.pick(&bytes).flatten();
        drawn.config.give_up_at_floor = choices.below(4) == 3;
        drawn.greedy = choices.below(2) == 1;
        drawn.live_limit = choices.pick(&[None, None, Some(1), Some(3)]).flatten();
        drawn
    }

    /// The most live sandboxes that a key may have.
    pub(crate) fn limit_of(&self, key: KeyId) -> Option<u32> {
        self.live_limit.filter(|_| key == LIMITED_KEY)
    }

    /// The limits of keys, as the server sets them when it starts.
    pub(crate) fn key_limits(&self) -> Event {
        let limits = KeyLimits { live_sandboxes: self.live_limit, ..KeyLimits::default() };
        Event::KeyLimitsSet { key: LIMITED_KEY, limits }
    }

    /// Whether the operator allows the deletion of sleeping sessions' files.
    pub(crate) fn gives_up_files(&self) -> bool {
        self.config.prune_after_ms.is_some()
            || self.config.kept_bytes_per_key.is_some()
            || self.config.kept_bytes_total.is_some()
            || self.config.give_up_at_floor
    }
}

impl Recipe {
    /// Draws a template that is valid.
    pub(crate) fn draw(choices: &mut Choices, n: u32, memory_mb: &[u32], max_live: u32) -> Self {
        let name = NAMES[n as usize % NAMES.len()];
        let name = TemplateName::new(name).unwrap_or_else(|_| unreachable!("a valid name"));
        let idle_ttl_ms = choices.pick(&[30_000, 8_000, 4_000, 120_000]).unwrap_or(30_000);
        let margin = match choices.below(4) {
            0 => None,
            1 => Some(0),
            2 => Some(idle_ttl_ms / 4),
            _ => Some(idle_ttl_ms - 1_500),
        };
        let pool_size = choices.below(4.min(max_live + 1));
        let pool = PoolSettings {
            pool_size,
            max_overflow: u32::from(pool_size == 0) + choices.below(6),
            idle_ttl_ms,
            acquire_min_remaining_ttl_ms: margin,
            max_uses: 1 + choices.below(6),
            lease_ttl_ms: choices.pick(&[10_000, 3_000, 40_000]).unwrap_or(10_000),
            max_waiters: choices.pick(&[16, 3, 64]).unwrap_or(16),
            refill_per_s: choices.pick(&[100, 5, 20]).unwrap_or(100),
        };
        let template = Template {
            limits: Limits {
                memory_mb: choices.pick(memory_mb).unwrap_or(128),
                ..Limits::default()
            },
            ready_timeout_ms: choices.pick(&[2_000, 800]).unwrap_or(2_000),
            turn_timeout_ms: choices.pick(&[20_000, 3_000]).unwrap_or(20_000),
            idle_timeout_ms: choices.pick(&[None, Some(3_000), Some(9_000)]).flatten(),
            freeze_after_ms: choices.pick(&[None, Some(1_000)]).flatten(),
            max_lifetime_ms: choices
                .pick(&[None, None, Some(pool.acquire_margin_ms() + 15_000)])
                .flatten(),
            pool,
            network: NetworkPolicy::Allow(vec![rule("a.test:443"), rule("b.test:443")]),
            harness: if n.is_multiple_of(2) { a_program() } else { Harness::Shell },
            ..Template::named(name)
        };
        let traits = RuntimeTraits {
            recycle: if choices.below(2) == 0 { Recycle::Recreate } else { Recycle::Wipe },
            can_freeze: choices.below(3) != 2,
            workspace_survives: choices.below(2) == 0,
            disk: None,
        };
        let limits = [None, Some(WorkspaceLimit::Soft), Some(WorkspaceLimit::Hard)];
        let disk = if traits.workspace_survives { choices.pick(&limits).flatten() } else { None };
        let traits = RuntimeTraits { disk, ..traits };
        Self { template: Arc::new(template), traits }
    }
}

/// A harness that is a program.
fn a_program() -> Harness {
    Harness::Jsonl(HarnessProgram { command: vec!["harness".to_owned()], prewarm: false })
}

/// A rule that is written as it should be.
pub(crate) fn rule(text: &str) -> NetworkRule {
    text.parse().unwrap_or_else(|error| unreachable!("{error}"))
}

const NAMES: [&str; 4] = ["alder", "birch", "cedar", "dogwood"];
