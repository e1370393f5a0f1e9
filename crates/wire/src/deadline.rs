//! The deadline of a session: how clients set it, and how the server shows it.

use model::DeadlineAction;
use serde::{Deserialize, Deserializer, Serialize};

use crate::time::Time;

/// A deadline to set: `at` or `after_s`, or `idle_s`, or `idle_s` with one of the others. What
/// comes first counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeadlineRequest {
    /// At this time, whether the session is in use or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// So many seconds from now, whether the session is in use or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 315_360_000))]
    pub after_s: Option<u64>,
    /// After so many seconds without use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 315_360_000))]
    pub idle_s: Option<u64>,
    /// What happens then.
    pub action: DeadlineAction,
}

/// The deadline that a session gets: null for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NewDeadline(pub Option<DeadlineRequest>);

impl NewDeadline {
    /// Null is something that was given, too.
    pub(crate) fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Self>, D::Error> {
        Self::deserialize(from).map(Some)
    }
}

/// The deadline of a session as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionDeadline {
    /// At this time, whether the session is in use or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// After so many seconds without use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<u64>,
    /// What happens then.
    pub action: DeadlineAction,
    /// When that will be if nothing uses the session before; null while the session is in use and
    /// has no fixed time.
    pub due_at: Option<Time>,
}

#[cfg(test)]
mod tests {
    use crate::SessionUpdate;

    #[test]
    fn a_deadline_that_is_not_given_differs_from_none() {
        let read = |text| serde_json::from_str::<SessionUpdate>(text).unwrap().deadline;
        assert_eq!(read("{}"), None);
        assert_eq!(read(r#"{"deadline":null}"#).map(|new| new.0), Some(None));
        let set = read(r#"{"deadline":{"idle_s":60,"action":"pause"}}"#).unwrap().0.unwrap();
        assert_eq!(set.idle_s, Some(60));
        let text = serde_json::to_string(&SessionUpdate {
            deadline: Some(super::NewDeadline(None)),
            ..SessionUpdate::default()
        });
        assert_eq!(text.unwrap(), r#"{"deadline":null}"#);
    }
}
