//! The cursor of a page of sessions, which clients send back unchanged. It names a position in the
//! order and not a session, so that the next page is the same whether that session still exists or
//! not. It must never be trusted: a made-up cursor only leads to another page of the caller's
//! sessions.

use std::fmt;
use std::str::FromStr;

use model::{SessionId, Wall};

/// The pattern of a cursor.
pub(crate) const PATTERN: &str = "^[0-9a-f]{48}$";

/// After a session that was made then and has this id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor(pub(crate) Wall, pub(crate) SessionId);

/// A text that is none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoCursor;

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:032x}", self.0.0, self.1.as_u128())
    }
}

impl fmt::Display for NoCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the cursor is not the `next` of an earlier page")
    }
}

impl FromStr for Cursor {
    type Err = NoCursor;

    fn from_str(text: &str) -> Result<Self, NoCursor> {
        let is_plain = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if text.len() != 48 || !is_plain {
            return Err(NoCursor);
        }
        let (made_at, id) = text.split_at(16);
        let made_at = u64::from_str_radix(made_at, 16).map_err(|_| NoCursor)?;
        let id = u128::from_str_radix(id, 16).map_err(|_| NoCursor)?;
        Ok(Self(Wall(made_at), SessionId::from_u128(id)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_cursor_is_refused() {
        let cursor = Cursor(Wall(1), SessionId::from_u128(2)).to_string();
        assert_eq!(cursor.len(), 48);
        for text in [
            "",
            "0198",
            "01980000-0000-7000-8000-000000000000",
            &cursor[1..],
            &format!("{cursor}0"),
            &cursor.replace('1', "A"),
            &cursor.replace('1', "+"),
            &cursor.replace("00", "\u{e9}"),
        ] {
            assert_eq!(text.parse::<Cursor>(), Err(NoCursor), "{text}");
        }
    }

    proptest! {
        #[test]
        fn cursor_is_read_as_it_was_written(made_at: u64, id: u128) {
            let cursor = Cursor(Wall(made_at), SessionId::from_u128(id));
            prop_assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
    }
}
