//! Hostile archives. Each is refused or harmless, and nothing beside the target changes.

use std::fs::{self, File};
use std::path::Path;

use images::{ImageErrorCode, Limits, Report, unpack::unpack};

use crate::archive::Archive;
use crate::temp_directory::{TempDirectory, tree};

/// Unpacks into a directory that has a canary beside it.
fn attempt(bytes: &[u8], limits: &Limits) -> (TempDirectory, Result<Report, ImageErrorCode>) {
    let place = TempDirectory::new();
    fs::write(place.join("canary"), "alive").unwrap();
    fs::create_dir(place.join("outside")).unwrap();
    fs::write(place.join("outside/canary"), "alive").unwrap();
    let before = outside(place.path());
    let target = place.directory("target");
    let outcome = unpack(bytes, &File::open(&target).unwrap(), limits);
    assert_eq!(outside(place.path()), before, "something beside the target changed: {outcome:?}");
    (place, outcome.map_err(|error| error.code))
}

fn outside(path: &Path) -> Vec<String> {
    let of_target = |line: &String| line.starts_with("target/") || line.starts_with("target ");
    tree(path).into_iter().filter(|line| !of_target(line)).collect()
}

const UNSAFE: ImageErrorCode = ImageErrorCode::Unsafe;
const BROKEN: ImageErrorCode = ImageErrorCode::Broken;
const TOO_LARGE: ImageErrorCode = ImageErrorCode::TooLarge;

#[test]
fn archives_that_lead_out_are_refused() {
    let new = Archive::new;
    let long = format!("{}x", "d/".repeat(300));
    let cases: Vec<(&str, Archive, ImageErrorCode)> = vec![
        ("dots first", new().file("../canary", b"x"), UNSAFE),
        ("dots later", new().file("a/../../canary", b"x"), UNSAFE),
        ("dots last", new().directory("a/.."), UNSAFE),
        ("dots behind a root", new().file("/../canary", b"x"), UNSAFE),
        ("through a link up", new().symlink("l", "..").file("l/canary", b"x"), UNSAFE),
        ("through a link of dots", new().symlink("l", "../outside").file("l/n", b"x"), UNSAFE),
        ("through a link to root", new().symlink("l", "/").file("l/tmp/canary", b"x"), UNSAFE),
        (
            "through two links",
            new().symlink("a", ".").symlink("b", "a/..").file("b/n", b""),
            UNSAFE,
        ),
        (
            "a directory that became a link",
            new().directory("a").file("a/f", b"").symlink("a", "../outside").file("a/canary", b"x"),
            UNSAFE,
        ),
        (
            "a directory below one that became a link",
            new().directory("a/b").symlink("a", "../outside").directory("a/b"),
            UNSAFE,
        ),
        ("through a file", new().file("f", b"").file("f/x", b""), UNSAFE),
        ("a hard link up", new().hardlink("h", "../canary"), UNSAFE),
        ("a hard link to root", new().hardlink("h", "/etc/passwd"), UNSAFE),
        ("a hard link through a link", new().symlink("l", "..").hardlink("h", "l/canary"), UNSAFE),
        ("a hard link to a directory", new().directory("d").hardlink("h", "d"), UNSAFE),
        ("a hard link to the root", new().hardlink("h", "."), UNSAFE),
        ("a hard link to nothing", new().hardlink("h", "n"), UNSAFE),
        ("a hard link to a whiteout", new().file(".wh.w", b"").hardlink("h", "w"), UNSAFE),
        (
            "a hard link in place of what it names",
            new().directory("a").file("a/f", b"x").hardlink("a", "a/f"),
            UNSAFE,
        ),
        ("a long name", new().pax(&[("path", b"../canary")]).file("innocent", b"x"), UNSAFE),
        (
            "a long name of another kind",
            new().raw(b'L', b"././@LongLink", b"", 0, b"../canary\0").file("innocent", b"x"),
            UNSAFE,
        ),
        ("a zero in a name", new().pax(&[("path", b"a\0/../../canary")]).file("a", b"x"), UNSAFE),
        ("a zero in a link", new().pax(&[("linkpath", b"a\0b")]).symlink("a", "x"), UNSAFE),
        ("a link that says nothing", new().symlink("l", ""), UNSAFE),
        ("the root as a link", new().symlink("./", "/"), UNSAFE),
        ("the root as a file", new().file(".", b"x"), UNSAFE),
        ("a whiteout of nothing", new().file(".wh.", b""), UNSAFE),
        ("a whiteout of here", new().file("a/.wh..", b""), UNSAFE),
        ("a whiteout of what is above", new().file("a/.wh...", b""), UNSAFE),
        ("a whiteout through a link", new().symlink("l", "..").file("l/.wh.canary", b""), UNSAFE),
        (
            "all hidden through a link",
            new().symlink("l", "../outside").file("l/.wh..wh..opq", b""),
            UNSAFE,
        ),
        ("a directory called like a whiteout", new().directory(".wh.d"), UNSAFE),
        ("something in a whiteout", new().file(".wh.d/f", b""), UNSAFE),
        (
            "a path that is too deep",
            new().pax(&[("path", long.as_bytes())]).file("a", b""),
            TOO_LARGE,
        ),
        ("a name that is too long", new().pax(&[("path", &[b'x'; 256])]).file("a", b""), TOO_LARGE),
        ("one of several volumes", new().raw(b'M', b"a", b"", 0, b""), ImageErrorCode::Unsupported),
        (
            "a size that is none",
            new().file("a", b"").with(|header| header.as_mut_bytes()[124..136].fill(0xff)),
            BROKEN,
        ),
        (
            "more contents than there are",
            new().file("a", b"").with(|header| header.set_size(1 << 40)),
            TOO_LARGE,
        ),
        ("a header without its entry", new().pax(&[("path", b"a")]), BROKEN),
        (
            "a map of holes that overlaps",
            new()
                .pax(&[("GNU.sparse.size", b"9"), ("GNU.sparse.map", b"0,5,3,5")])
                .file("a", b"0123456789"),
            BROKEN,
        ),
        (
            "a hole that is too large",
            new()
                .pax(&[("GNU.sparse.size", b"1099511627776"), ("GNU.sparse.map", b"0,1")])
                .file("a", b"x"),
            TOO_LARGE,
        ),
        (
            "an extended header that is too large",
            new().raw(b'x', b"p", b"", 0, b"").with(|header| header.set_size(1 << 30)),
            TOO_LARGE,
        ),
    ];
    for (what, archive, expected) in cases {
        let (_place, outcome) =
            attempt(&archive.end(), &Limits { max_bytes: 1 << 30, ..Limits::default() });
        assert_eq!(outcome, Err(expected), "{what}");
    }
}

#[test]
fn dangerous_entries_are_made_harmless() {
    let new = Archive::new;
    let cases: Vec<(&str, Archive, &[&str])> = vec![
        ("from the root", new().file("/a", b"x"), &["a file 644 links 1 1 120 x"]),
        (
            "a file in place of a link out",
            new().symlink("f", "../canary").file("f", b"x"),
            &["f file 644 links 1 1 120 x"],
        ),
        (
            "a file in place of another name of a link out",
            new().symlink("l", "../canary").hardlink("h", "l").file("h", b"x"),
            &["h file 644 links 1 1 120 x", "l -> ../canary"],
        ),
        (
            "a directory in place of a link out",
            new().symlink("d", "../outside").directory("d").file("d/f", b"x"),
            &["d directory 755", "d/f file 644 links 1 1 120 x"],
        ),
        (
            "a link in place of a full directory",
            new().directory("d").file("d/e/f", b"x").symlink("d", "/"),
            &["d -> /"],
        ),
        (
            "the last of two wins",
            new().file("a", b"long").file("a", b"x"),
            &["a file 644 links 1 1 120 x"],
        ),
        (
            "a new file in place of one with two names",
            new().file("a", b"x").hardlink("b", "a").file("b", b"y"),
            &["a file 644 links 1 1 120 x", "b file 644 links 1 1 121 y"],
        ),
        (
            "a hard link to itself",
            new().file("a", b"x").hardlink("a", "./a"),
            &["a file 644 links 1 1 120 x"],
        ),
        (
            "devices of every kind",
            new()
                .raw(b'3', b"c", b"", 0o666, b"")
                .raw(b'4', b"b", b"", 0o666, b"")
                .raw(b'6', b"p", b"", 0o666, b"")
                .raw(b'Z', b"z", b"", 0o666, b"data"),
            &[],
        ),
        ("a raw whiteout of overlayfs", new().raw(b'3', b"w", b"", 0, b""), &[]),
        (
            "special bits",
            new().raw(b'0', b"s", b"", 0o6755, b"x").raw(b'5', b"t", b"", 0o1777, b""),
            &["s file 755 links 1 1 120 x", "t directory 777"],
        ),
        (
            "a directory that no user may enter",
            new().raw(b'5', b"d", b"", 0, b"").raw(b'0', b"d/f", b"", 0, b"x"),
            &["d directory 700", "d/f file 400 links 1 1 120 x"],
        ),
        (
            "what old union file systems left",
            new().file(".wh..wh.plnk", b"").file(".wh..wh.orph", b""),
            &[],
        ),
        (
            "a slash makes a directory",
            new().raw(b'0', b"d/", b"", 0o755, b""),
            &["d directory 755"],
        ),
        (
            "bytes are names",
            new().raw(b'0', b"\xff\xfe", b"", 0o644, b"x"),
            &["\\xff\\xfe file 644 links 1 1 120 x"],
        ),
        ("nothing", new(), &[]),
    ];
    for (what, archive, expected) in cases {
        let (place, outcome) = attempt(&archive.end(), &Limits::default());
        assert!(outcome.is_ok(), "{what}: {outcome:?}");
        assert_eq!(tree(&place.join("target")), expected, "{what}");
    }
}

#[test]
fn dropped_bits_and_attributes_are_counted() {
    let archive = Archive::new()
        .raw(b'3', b"c", b"", 0o666, b"")
        .raw(b'6', b"p", b"", 0o666, b"")
        .raw(b'0', b"s", b"", 0o4755, b"abc")
        .pax(&[
            ("SCHILY.xattr.user.overlay.opaque", b"y"),
            ("SCHILY.xattr.security.capability", b"x"),
        ])
        .directory("d")
        .file(".wh.gone", b"")
        .end();
    let (place, outcome) = attempt(&archive, &Limits::default());
    let expected = Report {
        entries: 5,
        bytes: 3,
        left_out: 2,
        bits_dropped: 1,
        attributes_dropped: 1,
        whiteouts: 1,
        hides_all_below: false,
    };
    assert_eq!(outcome, Ok(expected));
    let mut names = [0; 256];
    let length = rustix::fs::listxattr(place.join("target/d"), &mut names).unwrap();
    assert_eq!(&names[..length], b"", "no attribute of the archive gets in");
}

#[test]
fn whiteouts_become_those_of_overlayfs() {
    let new = Archive::new;
    let opaque = |path: &Path| {
        let mut value = [0; 8];
        let name = c"user.overlay.opaque";
        rustix::fs::getxattr(path, name, &mut value).is_ok_and(|length| value[..length] == *b"y")
    };
    let cases: Vec<(&str, Archive, &[&str], Option<&str>)> = vec![
        ("a file", new().file("d/.wh.f", b""), &["d directory 755", "d/f special 0"], None),
        (
            "all of a directory",
            new().file("d/.wh..wh..opq", b"").file("d/n", b"x"),
            &["d directory 755", "d/n file 644 links 1 1 120 x"],
            Some("d"),
        ),
        (
            "a file that is there again, before",
            new().file(".wh.f", b"").file("f", b"x"),
            &["f file 644 links 1 1 120 x"],
            None,
        ),
        (
            "a file that is there again, after",
            new().file("f", b"x").file(".wh.f", b""),
            &["f file 644 links 1 1 120 x"],
            None,
        ),
        (
            "a directory that is there again, before",
            new().file(".wh.d", b"").directory("d"),
            &["d directory 755"],
            Some("d"),
        ),
        (
            "a directory that is there again, after",
            new().directory("d").file(".wh.d", b""),
            &["d directory 755"],
            Some("d"),
        ),
        (
            "a directory that is there again, unsaid",
            new().file(".wh.d", b"").file("d/f", b"x"),
            &["d directory 755", "d/f file 644 links 1 1 120 x"],
            Some("d"),
        ),
        (
            "a link that is there again",
            new().file(".wh.l", b"").symlink("l", "x"),
            &["l -> x"],
            None,
        ),
    ];
    for (what, archive, expected, hides) in cases {
        let (place, outcome) = attempt(&archive.end(), &Limits::default());
        assert!(outcome.is_ok(), "{what}: {outcome:?}");
        assert_eq!(tree(&place.join("target")), expected, "{what}");
        if let Some(directory) = hides {
            assert!(opaque(&place.join("target").join(directory)), "{what}");
        } else {
            assert!(!opaque(&place.join("target/d")), "{what}");
        }
    }
    let (_place, outcome) = attempt(&new().file(".wh..wh..opq", b"").end(), &Limits::default());
    assert!(outcome.unwrap().hides_all_below);
}

#[test]
fn files_of_the_user_inside_stay_usable() {
    let owned = |uid: u64, gid: u64, mode: u32| {
        let archive = Archive::new().raw(b'5', b"d", b"", mode, b"").with(|header| {
            header.set_uid(uid);
            header.set_gid(gid);
        });
        let (place, outcome) = attempt(&archive.end(), &Limits::default());
        outcome.unwrap();
        tree(&place.join("target"))[0].clone()
    };
    assert_eq!(owned(0, 0, 0o750), "d directory 750");
    assert_eq!(owned(1000, 0, 0o750), "d directory 757");
    assert_eq!(owned(1000, 1000, 0o700), "d directory 707");
    assert_eq!(owned(0, 1000, 0o750), "d directory 755");
}

#[test]
fn unpack_limits_hold_at_their_edges() {
    let archive = Archive::new().file("a", b"12345").file("b", b"12345").end();
    let with = |max_bytes, max_entries| {
        attempt(&archive, &Limits { max_bytes, max_entries, ..Limits::default() }).1
    };
    assert!(with(10, 2).is_ok());
    assert_eq!(with(9, 2), Err(TOO_LARGE));
    assert_eq!(with(10, 1), Err(TOO_LARGE));
    let endless = Archive::new().pax(&[("comment", b"x")]).open().repeat(1000);
    let (_place, outcome) = attempt(&endless, &Limits { max_entries: 10, ..Limits::default() });
    assert_eq!(outcome, Err(TOO_LARGE), "headers without entries are counted, too");
}

#[test]
fn archives_that_are_cut_or_damaged_are_refused_at_every_byte() {
    let archive = Archive::new()
        .directory("d")
        .pax(&[("path", b"d/long")])
        .file("x", &[7; 600])
        .symlink("l", "d")
        .open();
    for length in (0..archive.len()).filter(|length| length % 128 < 3) {
        let (_place, outcome) = attempt(&archive[..length], &Limits::default());
        // Between two entries an archive may just end, as with tar.
        let is_whole = [0, 512, 512 + 1024 + 1536].contains(&length);
        assert_eq!(outcome.is_ok(), is_whole, "cut at {length}: {outcome:?}");
    }
    for at in (0..archive.len()).step_by(37) {
        let mut damaged = archive.clone();
        damaged[at] ^= 0x55;
        // Refused or not: nothing outside changed.
        let _ = attempt(&damaged, &Limits::default());
    }
}
