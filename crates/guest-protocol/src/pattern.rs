//! Matches names with patterns: `*` is any text, `?` one byte, `[a-z]` one of these bytes and
//! `[!a-z]` one of the others, and a backslash makes the next byte literal. Every other byte is
//! literal.

/// Whether a name matches one of these patterns, or there are none.
pub fn matches_any(patterns: &[String], name: &[u8]) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| is_like(pattern.as_bytes(), name))
}

/// Whether a name matches a pattern. Of several `*` only the last is tried again, so that no
/// pattern takes longer than the product of both lengths.
fn is_like(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    let mut again: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&b'*') {
            again = Some((at + 1, read));
            at += 1;
            continue;
        }
        let matched = match (pattern.get(at), name.get(read)) {
            (None, None) => return true,
            (Some(_), Some(&byte)) => one(&pattern[at..], byte),
            (None, Some(_)) | (Some(_), None) => None,
        };
        match (matched, again) {
            (Some(length), _) => (at, read) = (at + length, read + 1),
            (None, Some((after, from))) if from < name.len() => {
                (at, read) = (after, from + 1);
                again = Some((after, from + 1));
            }
            (None, _) => return false,
        }
    }
}

/// How many bytes of a pattern match this byte at its beginning.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', quoted, ..] => (*quoted == byte).then_some(2),
        // A bracket that is never closed is literal.
        [b'[', rest @ ..] => match set(rest, byte) {
            Some((has, length)) => has.then_some(length + 1),
            None => (byte == b'[').then_some(1),
        },
        [literal, ..] => (*literal == byte).then_some(1),
        [] => None,
    }
}

/// Whether a set, after its bracket, contains this byte, and how long it is.
fn set(rest: &[u8], byte: u8) -> Option<(bool, usize)> {
    let negated = matches!(rest.first(), Some(b'!' | b'^'));
    let first = usize::from(negated);
    let mut at = first;
    let mut has = false;
    loop {
        match rest[at..] {
            [b']', ..] if at > first => return Some((has != negated, at + 1)),
            [low, b'-', high, ..] if high != b']' => {
                has |= (low..=high).contains(&byte);
                at += 3;
            }
            [only, ..] => {
                has |= only == byte;
                at += 1;
            }
            [] => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_patterns_match() {
        for (pattern, name, expected) in [
            ("", "", true),
            ("", "a", false),
            ("a", "a", true),
            ("a", "b", false),
            ("*", "", true),
            ("*", ".a", true),
            ("*.rs", "main.rs", true),
            ("*.rs", "main.rs.bak", false),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbXb", false),
            ("?", "", false),
            ("??", "ab", true),
            ("[ab]c", "bc", true),
            ("[!ab]c", "bc", false),
            ("[^ab]c", "xc", true),
            ("[a-c0-9]", "7", true),
            ("[a-c0-9]", "d", false),
            ("[]a]", "]", true),
            ("[!]a]", "]", false),
            ("[a-]", "-", true),
            ("[ab", "[ab", true),
            ("[", "[", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("\\", "\\", true),
            ("*[0-9]", "a1b2", true),
            ("*\\?", "what?", true),
            ("**a", "bba", true),
        ] {
            assert_eq!(is_like(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn no_pattern_takes_for_ever() {
        let pattern = "*a".repeat(200) + "b";
        assert!(!is_like(pattern.as_bytes(), &[b'a'; 5000]));
    }

    #[test]
    fn no_pattern_matches_every_name() {
        assert!(matches_any(&[], b"\xff"));
        assert!(!matches_any(&["a".to_owned()], b"b"));
    }
}
