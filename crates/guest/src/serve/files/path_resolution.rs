//! Resolves paths. The kernel does it in one call that refuses the magic links of `/proc`. Where it
//! has no such call, as in gVisor, the same is done here, one name after the other, and only links
//! that were read are followed. It must never be laxer than the kernel.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{
    CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, fstat, fstatfs, openat, openat2,
    readlinkat,
};
use rustix::io::Errno;

/// The kernel's own maximum of links to follow.
const MAX_LINKS: usize = 40;

/// The kernel's maximum length of a path.
const MAX_PATH_BYTES: usize = 4095;

/// Opens a path. Links are followed, except the kernel's magic links.
pub(super) fn open(from: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    match openat2(from, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
        Err(Errno::NOSYS) => step_by_step(from, path, flags),
        opened => opened,
    }
}

/// Opens a path beneath a directory. No link is followed.
pub(in super::super) fn open_beneath(
    root: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match openat2(root, path, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS) => beneath_step_by_step(root, path, flags),
        opened => opened,
    }
}

const ON_THE_WAY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn beneath_step_by_step(
    root: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    if names.iter().any(|name| matches!(*name, b"" | b"." | b"..")) {
        return Err(Errno::XDEV);
    }
    let last = names.pop().ok_or(Errno::NOENT)?;
    let mut directory: Option<OwnedFd> = None;
    for name in names {
        let from = directory.as_ref().map_or(root, |directory| directory.as_fd());
        directory = Some(openat(from, name, ON_THE_WAY, Mode::empty())?);
    }
    let from = directory.as_ref().map_or(root, |directory| directory.as_fd());
    openat(from, last, flags | OFlags::NOFOLLOW, Mode::empty())
}

fn step_by_step(from: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    match path.len() {
        0 => return Err(Errno::NOENT),
        1..=MAX_PATH_BYTES => {}
        _ => return Err(Errno::NAMETOOLONG),
    }
    let top = || openat(CWD, "/", ON_THE_WAY, Mode::empty());
    let mut at =
        if path.starts_with('/') { top()? } else { openat(from, ".", ON_THE_WAY, Mode::empty())? };
    let mut rest = names_of(path.as_bytes());
    let mut links = 0;
    loop {
        let Some(name) = rest.pop_front() else {
            return openat(&at, ".", flags, Mode::empty());
        };
        if name == b"." {
            continue;
        }
        if name == b".." {
            at = openat(&at, "..", ON_THE_WAY, Mode::empty())?;
            continue;
        }
        let met = openat(&at, &name[..], NOT_OPENED, Mode::empty())?;
        let kind = FileType::from_raw_mode(fstat(&met)?.st_mode);
        let is_last = rest.is_empty();
        if kind == FileType::Symlink && !(is_last && flags.contains(OFlags::NOFOLLOW)) {
            links += 1;
            if links > MAX_LINKS || fstatfs(&at)?.f_type == PROC_SUPER_MAGIC {
                return Err(Errno::LOOP);
            }
            let target = readlinkat(&at, &name[..], Vec::new())?.into_bytes();
            if target.starts_with(b"/") {
                at = top()?;
            }
            let mut names = names_of(&target);
            names.append(&mut rest);
            rest = names;
        } else if is_last {
            // If it has become a link meanwhile, it is not followed.
            return openat(&at, &name[..], flags | OFlags::NOFOLLOW, Mode::empty());
        } else if kind == FileType::Directory {
            at = met;
        } else {
            return Err(Errno::NOTDIR);
        }
    }
}

const NOT_OPENED: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The names in a path. A trailing slash adds a name that stands for the directory before it.
fn names_of(path: &[u8]) -> VecDeque<Vec<u8>> {
    let is_name = |name: &&[u8]| !matches!(*name, b"" | b".");
    let names = path.split(|byte| *byte == b'/');
    let mut names: VecDeque<_> = names.filter(is_name).map(<[u8]>::to_vec).collect();
    if path.ends_with(b"/") || path.ends_with(b"/.") {
        names.push_back(b".".to_vec());
    }
    names
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// The identity of what was opened, or why opening failed.
    fn identity_of(opened: Result<OwnedFd, Errno>) -> Result<(u64, u64), Errno> {
        let found = fstat(&opened?)?;
        Ok((found.st_dev, found.st_ino))
    }

    fn place(name: &str) -> PathBuf {
        let place = std::env::temp_dir().join(format!("resolving-{}-{name}", std::process::id()));
        fs::create_dir_all(place.join("d/e")).unwrap();
        fs::write(place.join("d/file"), "x").unwrap();
        for (link, target) in [
            ("to-d", "d"),
            ("to-d-slash", "d/"),
            ("to-file", "d/file"),
            ("to-file-slash", "d/file/"),
            ("up", "d/e/../.."),
            ("absolute", "/etc"),
            ("self", "self"),
            ("there", "back"),
            ("back", "there"),
            ("dangling", "nowhere"),
            ("proc", "/proc/self"),
            ("magic", "/proc/self/cwd"),
            ("root", "/proc/self/root/etc"),
        ] {
            symlink(target, place.join(link)).unwrap();
        }
        symlink("x/".repeat(30) + "y", place.join("many")).unwrap();
        place
    }

    #[test]
    fn path_resolution_agrees_with_the_kernel() {
        let place = place("same");
        let from = openat(CWD, &place, ON_THE_WAY, Mode::empty()).unwrap();
        let absolute = |path: &str| format!("{}/{path}", place.display());
        let mut paths: Vec<String> = [
            "",
            ".",
            "..",
            "/",
            "//",
            "/..",
            "d",
            "d/",
            "d//e",
            "d/./e",
            "d/../d",
            "d/file",
            "d/file/",
            "d/file/x",
            "none",
            "none/x",
            "d/none",
            "to-d",
            "to-d/",
            "to-d/file",
            "to-d-slash",
            "to-d-slash/e",
            "to-file",
            "to-file/",
            "to-file-slash",
            "up",
            "up/d",
            "absolute",
            "absolute/passwd",
            "self",
            "there",
            "dangling",
            "dangling/x",
            "many",
            "magic",
            "root",
            "magic/x",
        ]
        .map(str::to_owned)
        .to_vec();
        paths.extend(["d/file", "to-d/e", "up/to-d/file", "back"].map(absolute));
        paths.push("d/".repeat(3000));
        let plain = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        for flags in
            [plain, plain | OFlags::NOFOLLOW, ON_THE_WAY, NOT_OPENED, plain | OFlags::DIRECTORY]
        {
            for path in &paths {
                let kernel = identity_of(openat2(
                    &from,
                    path.as_str(),
                    flags,
                    Mode::empty(),
                    ResolveFlags::NO_MAGICLINKS,
                ));
                let ours = identity_of(step_by_step(from.as_fd(), path, flags));
                assert_eq!(ours, kernel, "{path} {flags:?}");
            }
        }
        // Which of its own links the kernel refuses does not matter here: none is followed.
        for path in ["/proc/self", "/proc/self/root", "/proc/self/cwd/x", "/proc/self/fd/0", "proc"]
        {
            assert_eq!(
                identity_of(step_by_step(from.as_fd(), path, plain)),
                Err(Errno::LOOP),
                "{path}"
            );
        }
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn path_resolution_never_leaves_its_directory() {
        let place = place("beneath");
        let root = openat(CWD, &place, ON_THE_WAY, Mode::empty()).unwrap();
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for path in ["d", "d/e", "d/file", "none", "d/none", "d/file/x", "to-d", "to-file"] {
            let path = path.as_bytes();
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let kernel = identity_of(openat2(&root, path, flags, Mode::empty(), resolve));
            assert_eq!(
                identity_of(beneath_step_by_step(root.as_fd(), path, flags)),
                kernel,
                "{path:?}"
            );
        }
        for path in ["..", "d/../..", "/etc", "to-d/file", "absolute/passwd", ""] {
            let opened = beneath_step_by_step(root.as_fd(), path.as_bytes(), flags);
            assert!(opened.is_err(), "{path}");
        }
        fs::remove_dir_all(place).unwrap();
    }
}
