//! The deadline of a session: when the server ends or pauses it without a request. It is stored with
//! the session, so a restart does not extend it.

use serde::{Deserialize, Serialize};

use crate::time::Wall;

/// When a session ends or pauses without a request: at the earlier of the times that are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadline {
    /// At this time, whether the session is in use or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Wall>,
    /// After so long without use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// What happens then.
    pub action: DeadlineAction,
}

/// What happens to a session at its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum DeadlineAction {
    /// It ends: its sandbox and its files are deleted.
    End,
    /// It is paused: its sandbox ends and its files are kept. The next use resumes it.
    Pause,
}

impl DeadlineAction {
    /// All actions.
    pub const ALL: [Self; 2] = [Self::End, Self::Pause];

    /// The action as text: in the API and the metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Pause => "pause",
        }
    }
}

impl Deadline {
    /// The longest time to a deadline, and the longest idle time: ten years.
    pub const MS_MAX: u64 = 10 * 365 * 86_400_000;

    /// What remains after the time `at` has passed.
    #[must_use]
    pub fn without_time(self) -> Option<Self> {
        self.idle_ms.map(|_| Self { at: None, ..self })
    }

    /// Why it cannot be set at this time, if it cannot.
    pub fn refused_at(&self, now: Wall) -> Option<&'static str> {
        let latest = Wall(now.0.saturating_add(Self::MS_MAX));
        if self.at.is_none() && self.idle_ms.is_none() {
            Some("deadline: give a time, an idle time, or both")
        } else if self.at.is_some_and(|at| at <= now) {
            Some("deadline.at: the time has passed")
        } else if self.at.is_some_and(|at| at > latest) {
            Some("deadline.at: must be within ten years")
        } else if self.idle_ms.is_some_and(|ms| ms == 0 || ms > Self::MS_MAX) {
            Some("deadline.idle_s: must be above 0 and at most ten years")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_needs_a_time_that_has_not_passed() {
        let deadline = |at: Option<u64>, idle_ms| Deadline {
            at: at.map(Wall),
            idle_ms,
            action: DeadlineAction::Pause,
        };
        let refused = |deadline: Deadline| deadline.refused_at(Wall(100)).is_some();
        assert!(refused(deadline(None, None)));
        assert!(refused(deadline(Some(100), None)));
        assert!(refused(deadline(Some(101), Some(0))));
        assert!(refused(deadline(Some(101 + Deadline::MS_MAX), None)));
        assert!(refused(deadline(None, Some(Deadline::MS_MAX + 1))));
        assert!(!refused(deadline(Some(101), None)));
        assert!(!refused(deadline(None, Some(1))));
    }

    #[test]
    fn an_idle_time_remains_after_the_time_has_passed() {
        let both = Deadline { at: Some(Wall(5)), idle_ms: Some(7), action: DeadlineAction::Pause };
        assert_eq!(both.without_time(), Some(Deadline { at: None, ..both }));
        assert_eq!(Deadline { idle_ms: None, ..both }.without_time(), None);
    }

    #[test]
    fn actions_are_stored_as_their_text() {
        for action in DeadlineAction::ALL {
            let text = serde_json::to_string(&action).unwrap();
            assert_eq!(text, format!("\"{}\"", action.as_str()));
        }
    }
}
