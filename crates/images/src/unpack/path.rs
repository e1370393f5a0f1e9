//! Names in archives as paths relative to the root of a layer.

use crate::error::{ImageError, ImageErrorCode};
use crate::unpack::Limits;

/// The longest file name on Linux.
const NAME_BYTES_MAX: usize = 255;

/// A path relative to the root: names, none of them `.`, `..` or empty. The root itself has none.
pub(super) type PathParts<'a> = Vec<&'a [u8]>;

/// Splits a name as tar does: leading slashes and `.` mean nothing. `..` is refused anywhere,
/// because its target depends on links.
pub(super) fn path_parts<'a>(path: &'a [u8], limits: &Limits) -> Result<PathParts<'a>, ImageError> {
    let refused = |code, why: &str| {
        let shown = path[..path.len().min(256)].escape_ascii();
        Err(ImageError::new(code, format!("{why}: {shown}")))
    };
    if path.len() > limits.path_bytes {
        return refused(ImageErrorCode::TooLarge, "a path is too long");
    }
    if path.contains(&0) {
        return refused(ImageErrorCode::Unsafe, "a path has a zero byte in it");
    }
    let mut way = Vec::new();
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return refused(ImageErrorCode::Unsafe, "a path has .. in it"),
            name if name.len() > NAME_BYTES_MAX => {
                return refused(ImageErrorCode::TooLarge, "a name in a path is too long");
            }
            name => way.push(name),
        }
    }
    if way.len() > limits.depth {
        return refused(ImageErrorCode::TooLarge, "a path is too deep");
    }
    Ok(way)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_paths_stay_beneath_the_root() {
        let limits = Limits { depth: 3, path_bytes: 300, ..Limits::default() };
        let cases: &[(&[u8], Option<&[&str]>)] = &[
            (b"a/b", Some(&["a", "b"])),
            (b"/a//./b/", Some(&["a", "b"])),
            (b"./", Some(&[])),
            (b"/", Some(&[])),
            (b"", Some(&[])),
            (b"...", Some(&["..."])),
            (b"..", None),
            (b"a/../b", None),
            (b"a/..", None),
            (b"/..", None),
            (b"a\0b", None),
            (b"a/b/c", Some(&["a", "b", "c"])),
            (b"a/b/c/d", None),
            (&[b'x'; 256], None),
            (&[b'/'; 301], None),
        ];
        for (path, expected) in cases {
            let expected = expected.map(|names| names.iter().map(|n| n.as_bytes()).collect());
            assert_eq!(path_parts(path, &limits).ok(), expected, "{}", path.escape_ascii());
        }
        assert_eq!(
            path_parts(b"\xff/\xfe", &limits).unwrap(),
            [b"\xff", b"\xfe"],
            "bytes stay bytes"
        );
    }
}
