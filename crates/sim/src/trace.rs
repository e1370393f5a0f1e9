//! The trace of one run for people. Lines are made only on request, because making them costs more
//! than the run itself.

use std::fmt::Write as _;

use kernel::{Action, Effect, Event};
use model::Now;
use model::record::JournalEntry;

/// Collects lines, or nothing.
#[derive(Debug, Default)]
pub struct Trace {
    lines: Option<Vec<String>>,
}

impl Trace {
    /// Collects lines.
    pub const fn on() -> Self {
        Self { lines: Some(Vec::new()) }
    }

    /// Adds a line.
    pub fn note(&mut self, step: u32, now: Now, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            let text = shorten(&line());
            lines.push(format!("{step:>5} {:>8} ms  {text}", now.mono.0));
        }
    }

    /// The lines.
    pub fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}

/// An event in one line.
pub(crate) fn event_line(event: &Event) -> String {
    match event {
        Event::TemplatePut { template, traits } => format!(
            "TemplatePut {} {:?} {:?} memory {} MB",
            template.name, template.pool, traits, template.limits.memory_mb
        ),
        Event::PoolResized { .. }
        | Event::PoolDrained { .. }
        | Event::PoolResumed { .. }
        | Event::PoolDestroyed { .. }
        | Event::CheckoutRequested(_)
        | Event::LeaseReturned { .. }
        | Event::LeaseRenewed { .. }
        | Event::UseRequested { .. }
        | Event::UseEnded { .. }
        | Event::ProcessStarted(_)
        | Event::ProcessEndRequested { .. }
        | Event::ProgramEnded { .. }
        | Event::ScaleWritten { .. }
        | Event::StopRequested { .. }
        | Event::FreezeRequested { .. }
        | Event::ThawRequested { .. }
        | Event::DeleteRequested { .. }
        | Event::SessionCreated { .. }
        | Event::TurnRequested { .. }
        | Event::TurnWithdrawn { .. }
        | Event::TurnEnded { .. }
        | Event::AbortRequested { .. }
        | Event::PauseRequested { .. }
        | Event::ResumeRequested { .. }
        | Event::SessionChanged { .. }
        | Event::NetworkChanged { .. }
        | Event::SessionStopRequested { .. }
        | Event::SessionEndRequested { .. }
        | Event::ForkRequested { .. }
        | Event::ReadRequested { .. }
        | Event::ReadEnded { .. }
        | Event::ProcessesRead { .. }
        | Event::KeyLimitsSet { .. }
        | Event::ClientGone { .. }
        | Event::FilesMeasured { .. }
        | Event::LossReported { .. }
        | Event::InstanceDied { .. }
        | Event::GuestLost { .. }
        | Event::WorkspaceMeasured { .. }
        | Event::DiskMeasured { .. }
        | Event::EffectEnded { .. }
        | Event::Ticked
        | Event::ShutdownBegan { .. } => format!("{event:?}"),
    }
}

/// An effect in one line.
pub(crate) fn effect_line(effect: &Effect) -> String {
    let what = match &effect.action {
        Action::Launch(launch) => format!(
            "Launch {:?} for {:?} generation {} on {:?}{}",
            launch.instance,
            launch.sandbox,
            launch.generation,
            launch.workspace,
            if launch.restore { " restored" } else { "" }
        ),
        Action::Claim { .. }
        | Action::Probe { .. }
        | Action::Wipe { .. }
        | Action::Prove { .. }
        | Action::Freeze { .. }
        | Action::Thaw { .. }
        | Action::Quiesce { .. }
        | Action::Unquiesce { .. }
        | Action::StartTurn { .. }
        | Action::StopTurn { .. }
        | Action::KillProcess { .. }
        | Action::RestartProcess { .. }
        | Action::Persist { .. }
        | Action::Kill { .. }
        | Action::CopyWorkspace { .. }
        | Action::ArchiveWorkspace { .. }
        | Action::DeleteWorkspace { .. } => format!("{:?}", effect.action),
    };
    format!("  -> #{} {what} by {} ms", effect.id.n, effect.deadline.0)
}

/// A journal entry in one line.
pub(crate) fn entry_line(entry: &JournalEntry) -> String {
    match entry {
        JournalEntry::SandboxPut(record) => format!(
            "  # {:?} generation {} {:?} {:?}{}{}{} {:?} {:?} expires {:?} used {:?}",
            record.id,
            record.generation,
            record.state,
            record.owner,
            record.ending.map_or(String::new(), |cause| format!(" ending by {cause:?}")),
            if record.announced { " announced" } else { "" },
            if record.dirty { " dirty" } else { "" },
            record.instance,
            record.workspace,
            record.expires_at.map(|at| at.0),
            record.last_used_at.0,
        ),
        JournalEntry::PoolPut(record) => {
            format!("  # pool {} {:?}", record.template.name, record.phase)
        }
        JournalEntry::SandboxRemoved(_)
        | JournalEntry::SessionPut(_)
        | JournalEntry::SessionRemoved(_)
        | JournalEntry::PoolRemoved(_)
        | JournalEntry::WorkspaceDoomed(_)
        | JournalEntry::WorkspaceDeleted(_)
        | JournalEntry::Ended(_) => format!("  # {entry:?}"),
    }
}

/// Cuts UUIDs down to their last digits, which tell them apart well enough.
pub(crate) fn shorten(text: &str) -> String {
    let mut short = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let is_uuid = rest.len() >= 36
            && rest.as_bytes()[..36].iter().enumerate().all(|(at, byte)| match at {
                8 | 13 | 18 | 23 => *byte == b'-',
                _ => byte.is_ascii_hexdigit(),
            });
        if is_uuid {
            let tail = rest[24..36].trim_start_matches('0');
            let tail = if tail.len() > 5 { &tail[tail.len() - 5..] } else { tail };
            let _ = write!(short, "{tail}");
            rest = &rest[36..];
        } else {
            let next = rest.chars().next().map_or(1, char::len_utf8);
            short.push_str(&rest[..next]);
            rest = &rest[next..];
        }
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::LeaseId;

    #[test]
    fn trace_shortens_ids_and_keeps_the_rest() {
        let text = format!("a {:?}, ü", LeaseId::from_u128(0x1234_5678_9abc_def0));
        assert_eq!(shorten(&text), "a LeaseId(cdef0), ü");
    }
}
