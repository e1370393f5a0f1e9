//! Where a path leads. Pure: what is at a place is asked for, and links are followed as a kernel
//! follows them, up to a limit. It never says whether something may be done there.

use crate::error::{RuntimeError, RuntimeErrorCode};

/// As many links as a kernel would follow.
const MAX_LINKS: usize = 40;

/// What a kernel says when it has followed enough of them.
const ELOOP: i32 = 40;

/// Whether the last name of a path is followed if it is a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Last {
    Follow,
    Keep,
}

/// What is at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    Nothing,
    Link(String),
    Something,
}

/// The absolute path of a place, without `.`, `..` and links; relative ones begin at `cwd`.
pub(crate) fn resolve(
    look: &dyn Fn(&str) -> Seen,
    cwd: &str,
    path: &str,
    last: Last,
) -> Result<String, RuntimeError> {
    if path.contains('\0') {
        return Err(refuse(RuntimeErrorCode::Invalid, path));
    }
    walk(look, cwd, path, last, &mut { MAX_LINKS })
}

fn refuse(code: RuntimeErrorCode, path: &str) -> RuntimeError {
    RuntimeError::new(code, "read a path", path.to_owned())
}

fn walk(
    look: &dyn Fn(&str) -> Seen,
    cwd: &str,
    path: &str,
    last: Last,
    links: &mut usize,
) -> Result<String, RuntimeError> {
    let base = if path.starts_with('/') { "" } else { cwd };
    let parts = base.split('/').chain(path.split('/'));
    let mut parts = parts.filter(|part| !matches!(*part, "" | ".")).peekable();
    let mut place = String::new();
    while let Some(part) = parts.next() {
        let above = place.rfind('/').unwrap_or(0);
        if part == ".." {
            place.truncate(above);
            continue;
        }
        let directory = place.clone();
        place.push('/');
        place.push_str(part);
        let is_last = parts.peek().is_none();
        if is_last && last == Last::Keep {
            break;
        }
        let Seen::Link(target) = look(&place) else { continue };
        *links = links
            .checked_sub(1)
            .ok_or_else(|| refuse(RuntimeErrorCode::Denied, path).with_errno(ELOOP))?;
        place = walk(look, &directory, &target, Last::Follow, links)?;
        if !is_last && look(&place) == Seen::Nothing {
            return Err(refuse(RuntimeErrorCode::NotFound, path).with_errno(2));
        }
        if place == "/" {
            place.clear();
        }
    }
    Ok(if place.is_empty() { "/".to_owned() } else { place })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `/w/l -> d`, `/w/up -> ../x`, `/w/loop -> loop`, `/w/no -> nowhere`, `/w/root -> /`.
    fn look(path: &str) -> Seen {
        match path {
            "/w/l" => Seen::Link("d".to_owned()),
            "/w/up" => Seen::Link("../x".to_owned()),
            "/w/loop" => Seen::Link("loop".to_owned()),
            "/w/no" => Seen::Link("nowhere".to_owned()),
            "/w/root" => Seen::Link("/".to_owned()),
            "/" | "/w" | "/w/d" | "/x" => Seen::Something,
            _ => Seen::Nothing,
        }
    }

    #[test]
    fn fake_paths_follow_links() {
        for (path, followed, kept) in [
            ("a", "/w/a", "/w/a"),
            ("/a/../b/./c/", "/b/c", "/b/c"),
            ("../..", "/", "/"),
            ("..//x", "/x", "/x"),
            ("l", "/w/d", "/w/l"),
            ("l/f", "/w/d/f", "/w/d/f"),
            ("up", "/x", "/w/up"),
            ("up/../f", "/f", "/f"),
            ("no", "/w/nowhere", "/w/no"),
            ("root/w/l/f", "/w/d/f", "/w/d/f"),
            ("loop/..", "", ""),
            ("loop", "", "/w/loop"),
            ("no/f", "", ""),
            ("a\0b", "", ""),
        ] {
            for (last, expected) in [(Last::Follow, followed), (Last::Keep, kept)] {
                let found = resolve(&look, "/w", path, last).unwrap_or_default();
                assert_eq!(found, expected, "{path} {last:?}");
            }
        }
    }

    #[test]
    fn guest_refusals_have_codes() {
        for (path, code) in [
            ("loop", RuntimeErrorCode::Denied),
            ("no/f", RuntimeErrorCode::NotFound),
            ("a\0b", RuntimeErrorCode::Invalid),
        ] {
            let error = resolve(&look, "/w", path, Last::Follow).unwrap_err();
            assert_eq!(error.code, code, "{path}");
        }
    }
}
