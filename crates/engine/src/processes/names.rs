//! Which names processes may have, and the names of those started without one. A name never looks
//! like a process id.

use model::{ErrorCode, Refusal};

/// The longest name, in characters.
const NAME_CHARS_MAX: usize = 128;
/// How many characters of a generated name are random.
const MADE_UP_CHARS: usize = 8;

const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// Refuses an invalid name.
pub(super) fn check(name: &str) -> Result<(), Refusal> {
    let problem = if name.is_empty() {
        "is empty"
    } else if name.chars().count() > NAME_CHARS_MAX {
        "has more than 128 characters"
    } else if name.chars().any(|one| one == '/' || one.is_control()) {
        "has a `/` or a control character in it"
    } else if name.bytes().all(|byte| byte.is_ascii_digit()) {
        "has only digits, as process ids do"
    } else if name.parse::<model::ProcessId>().is_ok() {
        "is an id"
    } else {
        return Ok(());
    };
    Err(Refusal::new(ErrorCode::InvalidArgument, format!("name: the name {problem}")))
}

/// A generated name.
pub(super) fn made_up() -> Result<String, Refusal> {
    let mut bits =
        getrandom::u64().map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?;
    let mut name = String::from("proc-");
    for _ in 0..MADE_UP_CHARS {
        let letter = LETTERS[(bits % LETTERS.len() as u64) as usize];
        name.push(letter.into());
        bits /= LETTERS.len() as u64;
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_names_differ_from_ids_and_paths() {
        for (name, good) in [
            ("web", true),
            ("my server (2)", true),
            ("7up", true),
            ("ü", true),
            ("", false),
            ("12", false),
            ("a/b", false),
            ("a\nb", false),
            ("a\u{7f}", false),
            ("01900000-0000-7000-8000-000000000000", false),
        ] {
            assert_eq!(check(name).is_ok(), good, "{name:?}");
        }
        assert!(check(&"ü".repeat(128)).is_ok());
        assert!(check(&"a".repeat(129)).is_err());
    }

    #[test]
    fn generated_process_names_are_valid_and_differ() {
        let (one, other) = (made_up().unwrap(), made_up().unwrap());
        assert_ne!(one, other);
        for name in [one, other] {
            assert!(check(&name).is_ok());
            let rest = name.strip_prefix("proc-").unwrap();
            assert_eq!(rest.len(), 8);
            assert!(rest.bytes().all(|byte| LETTERS.contains(&byte)));
        }
    }
}
