//! Counts of what happened, so that a report shows whether the worlds reached the interesting
//! cases. Counting never influences a run.

use std::collections::BTreeMap;

use kernel::Event;

/// Counts by group and name.
#[derive(Debug, Clone)]
pub struct Coverage {
    events: [u64; EVENT_NAMES.len()],
    counts: BTreeMap<(&'static str, &'static str), u64>,
}

impl Default for Coverage {
    fn default() -> Self {
        Self { events: [0; EVENT_NAMES.len()], counts: BTreeMap::new() }
    }
}

impl Coverage {
    /// Counts an event of that kind.
    pub fn event(&mut self, kind: usize) {
        self.events[kind] += 1;
    }

    /// Counts anything else.
    pub fn count(&mut self, group: &'static str, name: &'static str) {
        *self.counts.entry((group, name)).or_insert(0) += 1;
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.events.iter_mut().zip(other.events) {
            *mine += theirs;
        }
        for (key, count) in &other.counts {
            *self.counts.entry(*key).or_insert(0) += count;
        }
    }

    /// How often something was seen.
    pub fn of(&self, group: &'static str, name: &'static str) -> u64 {
        self.counts.get(&(group, name)).copied().unwrap_or(0)
    }

    /// One line for each group.
    pub fn lines(&self) -> Vec<String> {
        let mut groups: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (name, count) in EVENT_NAMES.iter().zip(self.events) {
            groups.entry("events").or_default().push(format!("{name} {count}"));
        }
        for ((group, name), count) in &self.counts {
            groups.entry(group).or_default().push(format!("{name} {count}"));
        }
        groups.into_iter().map(|(group, all)| format!("{group}: {}", all.join(", "))).collect()
    }
}

const EVENT_NAMES: [&str; 44] = [
    "template_put",
    "pool_resized",
    "pool_drained",
    "pool_resumed",
    "pool_destroyed",
    "checkout_requested",
    "lease_returned",
    "lease_renewed",
    "use_requested",
    "use_ended",
    "process_started",
    "program_ended",
    "scale_written",
    "stop_requested",
    "freeze_requested",
    "thaw_requested",
    "delete_requested",
    "session_created",
    "turn_requested",
    "turn_ended",
    "abort_requested",
    "pause_requested",
    "resume_requested",
    "session_stop_requested",
    "session_end_requested",
    "fork_requested",
    "client_gone",
    "instance_died",
    "effect_ended",
    "ticked",
    "shutdown_began",
    "workspace_measured",
    "disk_measured",
    "session_changed",
    "turn_withdrawn",
    "files_measured",
    "loss_reported",
    "process_end_requested",
    "read_requested",
    "read_ended",
    "processes_read",
    "key_limits_set",
    "guest_lost",
    "network_changed",
];

/// The place of an event's kind in the counts.
pub const fn event_kind(event: &Event) -> usize {
    match event {
        Event::TemplatePut { .. } => 0,
        Event::PoolResized { .. } => 1,
        Event::PoolDrained { .. } => 2,
        Event::PoolResumed { .. } => 3,
        Event::PoolDestroyed { .. } => 4,
        Event::CheckoutRequested(_) => 5,
        Event::LeaseReturned { .. } => 6,
        Event::LeaseRenewed { .. } => 7,
        Event::UseRequested { .. } => 8,
        Event::UseEnded { .. } => 9,
        Event::ProcessStarted(_) => 10,
        Event::ProgramEnded { .. } => 11,
        Event::ScaleWritten { .. } => 12,
        Event::StopRequested { .. } => 13,
        Event::FreezeRequested { .. } => 14,
        Event::ThawRequested { .. } => 15,
        Event::DeleteRequested { .. } => 16,
        Event::SessionCreated { .. } => 17,
        Event::TurnRequested { .. } => 18,
        Event::TurnEnded { .. } => 19,
        Event::AbortRequested { .. } => 20,
        Event::PauseRequested { .. } => 21,
        Event::ResumeRequested { .. } => 22,
        Event::SessionStopRequested { .. } => 23,
        Event::SessionEndRequested { .. } => 24,
        Event::ForkRequested { .. } => 25,
        Event::ClientGone { .. } => 26,
        Event::InstanceDied { .. } => 27,
        Event::EffectEnded { .. } => 28,
        Event::Ticked => 29,
        Event::ShutdownBegan { .. } => 30,
        Event::WorkspaceMeasured { .. } => 31,
        Event::DiskMeasured { .. } => 32,
        Event::SessionChanged { .. } => 33,
        Event::TurnWithdrawn { .. } => 34,
        Event::FilesMeasured { .. } => 35,
        Event::LossReported { .. } => 36,
        Event::ProcessEndRequested { .. } => 37,
        Event::ReadRequested { .. } => 38,
        Event::ReadEnded { .. } => 39,
        Event::ProcessesRead { .. } => 40,
        Event::KeyLimitsSet { .. } => 41,
        Event::GuestLost { .. } => 42,
        Event::NetworkChanged { .. } => 43,
    }
}

/// The name of an event's kind.
pub const fn event_name(kind: usize) -> &'static str {
    EVENT_NAMES[kind]
}
