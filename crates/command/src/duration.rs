//! Spans of time as people type them: `30s`, `1500ms`, `2m`, `1h30m`. A number alone is seconds.

use std::time::Duration;

/// Reads one.
pub fn parse(text: &str) -> Result<Duration, String> {
    const EXPLAIN: &str = "a time like 30s, 1500ms, 2m or 1h30m";
    let wrong = || EXPLAIN.to_owned();
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let unit_s = match unit {
            "ms" => 0.001,
            "" | "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let part = Duration::try_from_secs_f64(number * unit_s).map_err(|_| wrong())?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = tail;
    }
    if total.is_zero() { Err("a time above 0".to_owned()) } else { Ok(total) }
}

/// Writes one, as short as it can be said.
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
    fn times_are_read() {
        let cases = [
            ("30s", Some(30_000)),
            ("30", Some(30_000)),
            ("1.5s", Some(1500)),
            ("1500ms", Some(1500)),
            ("2m", Some(120_000)),
            ("1h30m", Some(5_400_000)),
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
    fn times_are_written() {
        let cases = [(250, "250 µs"), (1500, "1.5 ms"), (2_500_000, "2.5 s")];
        for (us, expected) in cases {
            assert_eq!(words(Duration::from_micros(us)), expected);
        }
    }
}
