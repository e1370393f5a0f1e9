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

/// Replaces the only place where `old` is in the text of a file, or all of them; and says how many
/// there were.
pub(super) fn replaced(
    path: &str,
    text: &str,
    old: &str,
    new: &str,
    all: bool,
    names: Names,
) -> Result<(String, u64), Refused> {
    let Names { old: field, new: other, all: flag } = names;
    if old.is_empty() {
        return Err(Refused::invalid(field, format!("{field} must not be empty")));
    }
    if old == new {
        return Err(Refused::invalid(other, format!("{field} and {other} are identical")));
    }
    let count = text.matches(old).count() as u64;
    match count {
        0 => {
            let cause = format!(
                "{field} not found in {path}: read the file again, and copy the text exactly"
            );
            Err(Refused::invalid(field, cause))
        }
        2.. if !all => {
            let cause = format!(
                "{field} matches {count} locations in {path}: include more of the surrounding text, or set {flag}"
            );
            Err(Refused::invalid(field, cause))
        }
        _ if text.len() as u64 + count * new.len() as u64 > RESULT_BYTES_MAX => {
            let cause = format!("{path} would have more than {RESULT_BYTES_MAX} bytes");
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
        let refused = replaced("/f", &text, "a", &new, true, NAMES).unwrap_err();
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
            let done = replaced("/f", text, old, new, all, NAMES);
            let done = done.as_ref().map(|(text, count)| (text.as_str(), *count));
            let blamed = done.map_err(|refused| refused.field.as_deref().unwrap_or_default());
            assert_eq!(blamed, expected, "{text:?} {old:?} {new:?} {all}");
        }
    }

    #[test]
    fn refused_edit_names_the_file_the_argument_and_what_to_do() {
        for (text, old, cause) in [
            ("a", "b", "old not found in /f: read the file again, and copy the text exactly"),
            (
                "b b",
                "b",
                "old matches 2 locations in /f: include more of the surrounding text, or set all",
            ),
            ("a", "", "old must not be empty"),
            ("a", "x", "old and new are identical"),
        ] {
            let refused = replaced("/f", text, old, "x", false, NAMES).unwrap_err();
            assert_eq!(refused.refusal.cause, cause);
        }
    }
}
