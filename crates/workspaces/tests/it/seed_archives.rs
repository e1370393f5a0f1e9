//! Files that workspaces begin with, from friends and strangers.

use std::collections::BTreeSet;
use std::io::Read as _;

use proptest::prelude::*;
use tar::{Builder, EntryType, Header};
use workspaces::{SeedBounds, SeedFile, Seeds};

use crate::stage::Stage;

const BOUNDS: SeedBounds = SeedBounds { bytes: 1 << 20, entries: 100, spared_bytes: 0 };

fn file(path: &str, text: &str) -> SeedFile {
    SeedFile { path: path.to_owned(), bytes: text.into(), mode: 0o644 }
}

fn archive(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, path, text) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o6755);
        header.set_mtime(12_345);
        // By hand: the library would refuse to write what we must refuse to read.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        let mut bytes = text.as_bytes();
        if [EntryType::Symlink, EntryType::Link].contains(kind) {
            header.as_old_mut().linkname[..bytes.len()].copy_from_slice(bytes);
            bytes = b"";
        }
        header.set_size(bytes.len() as u64);
        header.set_cksum();
        builder.append(&header, bytes).expect("written");
    }
    builder.into_inner().expect("whole")
}

fn read(seeds: &Seeds, seed: model::SeedId) -> Vec<(String, u32, String)> {
    let mut bytes = Vec::new();
    seeds.read(seed).expect("opened").expect("there").read_to_end(&mut bytes).expect("read");
    let mut archive = tar::Archive::new(bytes.as_slice());
    let entries = archive.entries().expect("entries").map(|entry| {
        let mut entry = entry.expect("an entry");
        let path = String::from_utf8(entry.path_bytes().into_owned()).expect("text");
        let target = entry.link_name_bytes().map(std::borrow::Cow::into_owned).unwrap_or_default();
        let mut text = String::from_utf8(target).expect("text");
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("read");
        text.push_str(&String::from_utf8_lossy(&bytes));
        (path, entry.header().mode().expect("a mode"), text)
    });
    entries.collect()
}

#[test]
fn seed_archive_of_the_same_files_has_the_same_name() {
    let stage = Stage::plain();
    let seeds = Seeds::open(stage.path().join("seeds")).expect("seeds");
    let one = seeds.put_files(vec![file("b/c", "x"), file("a", "y")], BOUNDS).expect("put");
    let two = seeds.put_files(vec![file("a", "y"), file("./b//c", "x")], BOUNDS).expect("put");
    assert_eq!(one, two);
    let other = seeds.put_files(vec![file("a", "z")], BOUNDS).expect("put");
    assert_ne!(one, other);
    let expected = [("a", 0o644, "y"), ("b/c", 0o644, "x")];
    assert_eq!(read(&seeds, one), expected.map(|(p, m, t)| (p.to_owned(), m, t.to_owned())));
    drop(seeds);
    let seeds = Seeds::open(stage.path().join("seeds")).expect("seeds");
    assert_eq!(seeds.list(), BTreeSet::from([one, other]));
    let bytes = [one, other].map(|seed| seeds.bytes_of(seed).expect("known"));
    assert!(bytes.iter().all(|bytes| *bytes > 0));
    assert_eq!(seeds.bytes(), bytes.iter().sum::<u64>());
    let named = BTreeSet::from([other]);
    assert_eq!(seeds.remove_all_but(&named, |seed| seed == one).expect("asked"), 0);
    assert_eq!(seeds.remove_all_but(&named, |_| false).expect("removed"), 1);
    assert!(!seeds.has(one) && seeds.has(other));
    assert!(seeds.read(one).expect("asked").is_none());
    let empty = seeds.put_files(vec![], BOUNDS).expect("put");
    assert!(read(&seeds, empty).is_empty());
}

#[test]
fn an_untrusted_archive_becomes_our_own_seed_archive() {
    use EntryType::{Directory, Link, Regular, Symlink};
    let stage = Stage::plain();
    let seeds = Seeds::open(stage.path().join("seeds")).expect("seeds");
    let bytes = archive(&[
        (Directory, "./", ""),
        (Directory, "./d/", ""),
        (Regular, "./d/f", "text"),
        (Symlink, "l", "/etc/passwd"),
        (Link, "again", "./d/f"),
    ]);
    let seed = seeds.put_archive(bytes.as_slice(), BOUNDS).expect("put");
    let expected = [
        ("d/", 0o755, ""),
        ("d/f", 0o755, "text"),
        ("l", 0o755, "/etc/passwd"),
        ("again", 0o755, "d/f"),
    ];
    assert_eq!(read(&seeds, seed), expected.map(|(p, m, t)| (p.to_owned(), m, t.to_owned())));

    for (what, entries) in [
        ("absolute", &[(Regular, "/etc/passwd", "x")][..]),
        ("up", &[(Regular, "a/../../b", "x")]),
        ("up by a link", &[(Link, "a", "../b")]),
        ("device", &[(EntryType::Char, "null", "")]),
        ("pipe", &[(EntryType::Fifo, "pipe", "")]),
        ("nothing", &[(Symlink, "a", "")]),
        ("no name", &[(Regular, ".", "x")]),
    ] {
        let put = seeds.put_archive(archive(entries).as_slice(), BOUNDS);
        assert!(put.is_err(), "{what}");
    }
    let small = SeedBounds { bytes: 3, ..BOUNDS };
    assert!(seeds.put_archive(bytes.as_slice(), small).is_err(), "too many bytes");
    let few = SeedBounds { entries: 3, ..BOUNDS };
    assert!(seeds.put_archive(bytes.as_slice(), few).is_err(), "too many entries");
    assert!(seeds.put_archive(&bytes[..700], BOUNDS).is_err(), "cut off");
    assert!(seeds.put_files(vec![file("a", ""), file("./a", "")], BOUNDS).is_err(), "twice");
    assert!(seeds.put_files(vec![file("../a", "")], BOUNDS).is_err(), "up");
    assert!(seeds.put_files(vec![file("a", ""), file("a/b/c", "")], BOUNDS).is_err(), "beneath");
    let long = "x".repeat(256);
    assert!(seeds.put_files(vec![file(&format!("a/{long}"), "")], BOUNDS).is_err(), "long");
    assert_eq!(seeds.list(), BTreeSet::from([seed]));
    let left = std::fs::read_dir(stage.path().join("seeds/new")).expect("a room").count();
    assert_eq!(left, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_bytes_are_an_archive_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        let stage = Stage::plain();
        let seeds = Seeds::open(stage.path().join("seeds")).expect("seeds");
        let put = seeds.put_archive(bytes.as_slice(), BOUNDS);
        prop_assert_eq!(put.is_ok(), seeds.list().len() == 1);
    }

    #[test]
    fn a_damaged_archive_never_makes_a_larger_seed(at in 0_usize..6000, with in any::<u8>()) {
        let stage = Stage::plain();
        let seeds = Seeds::open(stage.path().join("seeds")).expect("seeds");
        let text = "x".repeat(900);
        let mut bytes = archive(&[(EntryType::Regular, "a", &text), (EntryType::Regular, "b", "y")]);
        let at = at % bytes.len();
        bytes[at] = with;
        if let Ok(seed) = seeds.put_archive(bytes.as_slice(), BOUNDS) {
            let entries = read(&seeds, seed);
            prop_assert!(entries.len() <= 2, "{:?}", entries);
        }
    }
}
