//! Replaces a text in a file. An ambiguous or missing text is refused, so that a model with a wrong
//! idea of the file changes nothing.

use model::ErrorCode;

use web::refused::Refused;

/// The most that a text may have once it is changed: a short text replaced by a long one in many
/// places would take all memory there is.
const RESULT_BYTES_MAX: u64 = 32 << 20;

/// How the texts are called where they are asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    pub(super) old: &'static str,
    pub(super) new: &'static str,
    pub(super) all: &'static str,
}

/// Replaces the only place where `old` is, or all of them; and says how many there were.
pub(super) fn replaced(
    text: &str,
    old: &str,
    new: &str,
    all: bool,
    names: Names,
) -> Result<(String, u64), Refused> {
    let Names { old: field, new: other, all: flag } = names;
    if old.is_empty() {
        return Err(Refused::invalid(field, format!("{field}: is empty")));
    }
    if old == new {
        return Err(Refused::invalid(other, format!("{other}: is the same as {field}")));
    }
    let count = text.matches(old).count() as u64;
    match count {
        0 => Err(Refused::invalid(field, format!("{field}: does not occur in the file"))),
        2.. if !all => {
            let cause = format!(
                "{field}: occurs {count} times in the file; include more of the surrounding text, or set {flag}"
            );
            Err(Refused::invalid(field, cause))
        }
        _ if text.len() as u64 + count * new.len() as u64 > RESULT_BYTES_MAX => {
            let cause = format!("the file would have more than {RESULT_BYTES_MAX} bytes");
            Err(Refused::new(ErrorCode::TooLarge, cause))
        }
        _ => Ok((text.replace(old, new), count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: Names = Names { old: "old", new: "new", all: "all" };

    #[test]
    fn edited_file_does_not_grow_without_bound() {
        let (text, new) = ("a".repeat(1 << 20), "b".repeat(64));
        let refused = replaced(&text, "a", &new, true, NAMES).unwrap_err();
        assert_eq!(refused.refusal.code, ErrorCode::TooLarge);
    }

    #[test]
    fn edit_replaces_only_an_unambiguous_text() {
        for (text, old, new, all, expected) in [
            ("a b c", "b", "x", false, Ok(("a x c", 1))),
            ("a b b", "b", "x", true, Ok(("a x x", 2))),
            ("a b c", "b", "", false, Ok(("a  c", 1))),
            ("a b b", "b", "x", false, Err("old")),
            ("a", "b", "x", true, Err("old")),
            ("a", "", "x", true, Err("old")),
            ("a", "a", "a", false, Err("new")),
        ] {
            let done = replaced(text, old, new, all, NAMES);
            let done = done.as_ref().map(|(text, count)| (text.as_str(), *count));
            let blamed = done.map_err(|refused| refused.field.as_deref().unwrap_or_default());
            assert_eq!(blamed, expected, "{text:?} {old:?} {new:?} {all}");
        }
    }
}
