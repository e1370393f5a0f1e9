//! What programs write to the scale file: `+` and `-`, by one or by a number, and `=` with a
//! number. Everything else is ignored. Pure.

/// More of a file is not read.
pub(super) const MAX_BYTES: usize = 4096;

/// One operation on the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// Adds this many.
    More(u32),
    /// Subtracts this many.
    Fewer(u32),
    /// Sets the counter, and drops all other keep-alives.
    Exactly(u32),
}

/// The operations in a text, in order. A number that is too large becomes the maximum.
pub(super) fn parse(text: &[u8]) -> Vec<Operation> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some((&sign, after)) = rest.split_first() {
        let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = (digits > 0).then(|| {
            after[..digits].iter().fold(0_u32, |number, digit| {
                number.saturating_mul(10).saturating_add(u32::from(digit - b'0'))
            })
        });
        rest = after;
        match (sign, number) {
            (b'+', number) => words.push(Operation::More(number.unwrap_or(1))),
            (b'-', number) => words.push(Operation::Fewer(number.unwrap_or(1))),
            (b'=', Some(number)) => words.push(Operation::Exactly(number)),
            _ => continue,
        }
        rest = &after[digits..];
    }
    words
}

/// The new bytes of a file since it was `seen`. `was_emptied`: it was truncated in between, so
/// everything is new. Otherwise a program wrote over or after the old contents; after an overwrite,
/// an unchanged end counts as not written.
pub(super) fn new_bytes<'a>(seen: &[u8], now: &'a [u8], was_emptied: bool) -> &'a [u8] {
    if was_emptied {
        return now;
    }
    if let Some(behind) = now.strip_prefix(seen) {
        return behind;
    }
    if now.len() != seen.len() {
        return now;
    }
    let differs = now.iter().zip(seen).rposition(|(now, seen)| now != seen);
    &now[..differs.map_or(0, |last| last + 1)]
}

/// The processes that wait for the lease on a file, from the kernel's table of locks. The line of
/// the lease comes before theirs, under the same number.
pub(super) fn waiting(locks: &str, inode: u64) -> Vec<i32> {
    let mut waiting = Vec::new();
    let mut number = None;
    for line in locks.lines() {
        let mut fields = line.split_ascii_whitespace().filter(|&field| field != "->");
        let (Some(place), Some("LEASE"), Some(kind)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (Some(pid), Some(file)) = (fields.nth(1), fields.next()) else { continue };
        if kind == "BREAKER" {
            if number == Some(place) {
                waiting.extend(pid.parse::<i32>());
            }
        } else {
            let is_it = file.rsplit(':').next().and_then(|part| part.parse().ok()) == Some(inode);
            number = is_it.then_some(place);
        }
    }
    waiting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_operations_are_parsed() {
        use Operation::{Exactly, Fewer, More};
        for (text, expected) in [
            ("", vec![]),
            ("+", vec![More(1)]),
            ("+\n", vec![More(1)]),
            ("-\n+3 -2\n", vec![Fewer(1), More(3), Fewer(2)]),
            ("++-", vec![More(1), More(1), Fewer(1)]),
            ("=0", vec![Exactly(0)]),
            ("=12\n+", vec![Exactly(12), More(1)]),
            ("=", vec![]),
            ("=x", vec![]),
            ("7", vec![]),
            ("+99999999999", vec![More(u32::MAX)]),
            ("\0\u{ff}awake+", vec![More(1)]),
        ] {
            assert_eq!(parse(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn new_bytes_are_found_by_the_old_contents() {
        for (seen, now, was_emptied, expected) in [
            ("=3\n", "=3\n", false, ""),
            ("=3\n", "=3\n", true, "=3\n"),
            ("=3\n", "+\n", true, "+\n"),
            ("=3\n", "+3\n", false, "+"),
            ("=3\n", "+3\n", true, "+3\n"),
            ("=3\n", "-3\n", false, "-"),
            ("=3\n", "+1\n", false, "+1"),
            ("=12\n", "=02\n", false, "=0"),
            ("=3\n", "=0\n", false, "=0"),
            ("=3\n", "+12\n", false, "+12\n"),
            ("=3\n", "=3\n+\n", false, "+\n"),
            ("+\n", "+\n+\n", false, "+\n"),
            ("=3\n", "", true, ""),
        ] {
            let found = new_bytes(seen.as_bytes(), now.as_bytes(), was_emptied);
            assert_eq!(found, expected.as_bytes(), "{seen:?} {now:?}");
        }
    }

    #[test]
    fn lease_waiters_are_found_in_the_lock_table() {
        let locks = "1: FLOCK  ADVISORY  WRITE 9 fe:00:7 0 EOF\n\
            2: LEASE  ACTIVE    WRITE 1 00:1b:70 0 EOF\n\
            3: LEASE  BREAKING  UNLCK 1 00:1b:7 0 EOF\n\
            3: -> LEASE  BREAKER   WRITE 11 <none>:0 0 EOF\n\
            3:  -> LEASE  BREAKER   READ 12 <none>:0 0 EOF\n\
            4: LEASE  BREAKING  UNLCK 1 00:1b:8 0 EOF\n\
            4: -> LEASE  BREAKER   WRITE 13 <none>:0 0 EOF\n";
        assert_eq!(waiting(locks, 7), [11, 12]);
        assert_eq!(waiting(locks, 8), [13]);
        assert_eq!(waiting(locks, 70), [] as [i32; 0]);
        assert_eq!(waiting("", 7), [] as [i32; 0]);
        assert_eq!(waiting("x LEASE\n1: LEASE BREAKER WRITE", 7), [] as [i32; 0]);
    }
}
