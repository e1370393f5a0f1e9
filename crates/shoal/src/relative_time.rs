//! Times as people read them: "3 min ago", "in 2 h".

use std::time::SystemTime;

use wire::Time;

/// The time of the wall clock.
pub(crate) fn now() -> Time {
    #[expect(clippy::disallowed_methods, reason = "this is the edge where the clock is read")]
    let now = SystemTime::now();
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// How long ago `then` was.
pub(crate) fn ago(then: Time, now: Time) -> String {
    format!("{} ago", span(now.ms_after(then)))
}

/// How long it is until `then`.
pub(crate) fn until(then: Time, now: Time) -> String {
    match then.ms_after(now) {
        ..=0 => "now".to_owned(),
        ms => format!("in {}", span(ms)),
    }
}

/// A span of time in its largest unit.
pub(crate) fn span(ms: i64) -> String {
    match ms.max(0) {
        ms @ 0..120_000 => format!("{} s", ms / 1_000),
        ms @ 120_000..7_200_000 => format!("{} min", ms / 60_000),
        ms @ 7_200_000..172_800_000 => format!("{} h", ms / 3_600_000),
        ms => format!("{} d", ms / 86_400_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_times_count_from_now() {
        let now = Time(1_000_000_000);
        assert_eq!(ago(Time(now.0 - 3_500), now), "3 s ago");
        assert_eq!(ago(Time(now.0 + 5), now), "0 s ago", "clocks differ");
        assert_eq!(until(Time(now.0 + 600_000), now), "in 10 min");
        assert_eq!(until(now, now), "now");
        assert_eq!(span(3 * 86_400_000), "3 d");
    }
}
