//! Directories that are used as roots without an import: named by a path beneath a configured
//! directory.

use std::fs::File;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

/// Whether a path without links or detours leads from here to a directory. The launcher checks
/// again before it mounts it, by the same rule.
pub fn is_directory_beneath(above: &Path, name: &str) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let Ok(above) = File::open(above) else { return false };
    let straight = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    straight && openat2(above, name, flags, Mode::empty(), resolve).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_beneath_without_links_are_found() {
        let place = std::env::temp_dir().join(format!("shoal-beneath-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(place.join("roots/a/b")).unwrap();
        std::fs::write(place.join("roots/file"), "").unwrap();
        std::os::unix::fs::symlink("a", place.join("roots/link")).unwrap();
        let roots = place.join("roots");
        for (name, expected) in [
            ("a", true),
            ("a/b", true),
            ("a/../a", false),
            (".", false),
            ("./a", false),
            ("a/", false),
            ("a//b", false),
            ("", false),
            ("..", false),
            ("../roots/a", false),
            ("/", false),
            ("/etc", false),
            ("link", false),
            ("link/b", false),
            ("file", false),
            ("missing", false),
        ] {
            assert_eq!(is_directory_beneath(&roots, name), expected, "{name:?}");
        }
        std::fs::remove_dir_all(&place).unwrap();
    }
}
