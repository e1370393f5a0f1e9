//! Spans of time as people type them: `30s`, `1500ms`, `2m`, `1h30m`. A number alone is seconds.

use std::time::Duration;

/// Parses a duration.
pub fn parse(text: &str) -> Result<Duration, String> {
    const EXPLAIN: &str = "a time like 30s, 1500ms, 2m or 1h30m";
    let text = text.trim();
    let unit = if text.ends_with(|last: char| last.is_ascii_digit()) { "s" } else { "" };
    match humantime::parse_duration(&format!("{text}{unit}")) {
        Ok(Duration::ZERO) => Err("a time above 0".to_owned()),
        Ok(time) => Ok(time),
        Err(_) => Err(EXPLAIN.to_owned()),
    }
}

/// Formats a duration in its largest unit.
pub fn words(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1000.0;
    if ms < 1.0 {
        format!("{:.0} µs", ms * 1000.0)
    } else if ms < 1000.0 {
        format!("{ms:.1} ms")
    } else {
        format!("{:.1} s", ms / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        let cases = [
            ("30s", Some(30_000)),
            ("30", Some(30_000)),
            ("1.5s", Some(1500)),
            ("1500ms", Some(1500)),
            ("2m", Some(120_000)),
            ("1h30m", Some(5_400_000)),
            ("1.5", Some(1500)),
            ("1h30", Some(3_630_000)),
            (" 2m ", Some(120_000)),
            ("0s", None),
            ("", None),
            ("s", None),
            ("5 parsecs", None),
            ("-3s", None),
            ("1e400h", None),
            ("99999999999999999999h", None),
        ];
        for (text, expected_ms) in cases {
            let read = parse(text).ok().map(|time| time.as_millis());
            assert_eq!(read, expected_ms, "{text}");
        }
    }

    #[test]
    fn durations_are_formatted() {
        let cases = [(250, "250 µs"), (1500, "1.5 ms"), (2_500_000, "2.5 s")];
        for (us, expected) in cases {
            assert_eq!(words(Duration::from_micros(us)), expected);
        }
    }
}
