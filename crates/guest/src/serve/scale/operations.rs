//! What is written to the scale file, as words: `+` and `-`, by one or by a number, and `=` a number.
//! Everything else is passed over. Pure.

/// More of a file is not read.
pub(super) const MAX_BYTES: usize = 4096;

/// One word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// So many more.
    More(u32),
    /// So many fewer.
    Fewer(u32),
    /// So many, and nothing else counts.
    Exactly(u32),
}

/// The words of a text, in order. Numbers that are too large are as large as can be.
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

/// What of a file is new since it was `seen`. `was_emptied`: it was empty in between, so that all of
/// it is. Otherwise it was written over or behind what was there; over it, what is the same as
/// before at the end is what was not written.
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

/// The process ids of those who wait for the lease on a file, as the kernel's table of locks tells.
/// A line of the one they wait for comes before theirs, under the same number.
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
    fn texts_are_words() {
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
    fn what_is_new_is_found_by_what_was_there() {
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
    fn those_who_wait_are_found_in_the_table() {
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
