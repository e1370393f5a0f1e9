//! Random archives: where GNU tar and we both unpack one, the trees are the same. Links that lead
//! out are not among them: GNU tar makes those at the very end, and forgets what came between.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};

use images::{Limits, unpack::unpack};
use proptest::prelude::*;

use crate::temp_directory::{TempDirectory, tree};

#[derive(Debug, Clone)]
pub(crate) enum Entry {
    File(String, Vec<u8>, u32),
    Directory(String, u32),
    Symlink(String, String),
    Hardlink(String, String),
}

pub(crate) fn path() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        4 => "[a-c]",
        1 => "ä[a-z]{1,3}",
        1 => "[a-z]{120}",
    ];
    prop::collection::vec(name, 1..4).prop_map(|names| names.join("/"))
}

pub(crate) fn entry() -> impl Strategy<Value = Entry> {
    let size = prop_oneof![0..4_usize, 510..515_usize, 1000..3000_usize];
    let data = (size, any::<u8>()).prop_map(|(size, byte)| vec![byte; size]);
    let mode = prop_oneof![Just(0o644_u32), Just(0o755), Just(0o600), Just(0o4711)];
    prop_oneof![
        4 => (path(), data, mode.clone()).prop_map(|(path, data, mode)| Entry::File(path, data, mode)),
        3 => (path(), mode).prop_map(|(path, mode)| Entry::Directory(path, mode)),
        1 => (path(), path()).prop_map(|(path, to)| Entry::Symlink(path, to)),
        1 => (path(), path()).prop_map(|(path, to)| Entry::Hardlink(path, to)),
    ]
}

pub(crate) fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mtime(1_600_000_000);
        header.set_size(0);
        match entry {
            Entry::File(path, data, mode) => {
                header.set_mode(*mode);
                header.set_size(data.len() as u64);
                builder.append_data(&mut header, path, data.as_slice()).unwrap();
            }
            Entry::Directory(path, mode) => {
                header.set_entry_type(tar::EntryType::Directory);
                header.set_mode(*mode);
                builder.append_data(&mut header, path, std::io::empty()).unwrap();
            }
            Entry::Symlink(path, to) => {
                header.set_entry_type(tar::EntryType::Symlink);
                builder.append_link(&mut header, path, to).unwrap();
            }
            Entry::Hardlink(path, to) => {
                header.set_entry_type(tar::EntryType::Link);
                builder.append_link(&mut header, path, to).unwrap();
            }
        }
    }
    builder.into_inner().unwrap()
}

/// What we change on purpose: no special bits, and the owner can always read and remove.
fn as_ours(line: &str) -> String {
    let Some((name, rest)) = line.split_once(' ') else { return line.to_owned() };
    let (kind, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let (mode, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    match (kind, u32::from_str_radix(mode, 8)) {
        ("file", Ok(mode)) => format!("{name} file {:o} {rest}", mode & 0o777 | 0o400),
        ("directory", Ok(mode)) => format!("{name} directory {:o}", mode & 0o777 | 0o700),
        _ => line.to_owned(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn unpacked_trees_are_those_of_gnu_tar(entries in prop::collection::vec(entry(), 1..12)) {
        let place = TempDirectory::new();
        let bytes = archive(&entries);
        fs::write(place.join("a.tar"), &bytes).unwrap();
        let (ours, theirs) = (place.directory("ours"), place.directory("theirs"));
        let outcome = unpack(bytes.as_slice(), &File::open(&ours).unwrap(), &Limits::default());
        let status = Command::new("sh")
            .args(["-c", "umask 022; exec tar -xpf a.tar --no-same-owner -C theirs"])
            .current_dir(place.path())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        if let (Ok(report), true) = (outcome, status.success()) {
            let theirs: Vec<_> = tree(&theirs).iter().map(|line| as_ours(line)).collect();
            prop_assert_eq!(tree(&ours), theirs);
            prop_assert_eq!(report.entries, entries.len() as u64);
        }
    }
}

/// We read what GNU tar writes in each of its formats: long names, large numbers, holes.
#[test]
fn every_format_of_gnu_tar_is_read() {
    let place = TempDirectory::new();
    let tree_in = place.directory("in");
    let long = tree_in.join("d".repeat(90)).join("e".repeat(90)).join("f".repeat(90));
    fs::create_dir_all(&long).unwrap();
    fs::write(long.join("file"), "deep").unwrap();
    std::os::unix::fs::symlink("t".repeat(200), tree_in.join("link")).unwrap();
    fs::write(tree_in.join("one"), "x").unwrap();
    fs::hard_link(tree_in.join("one"), long.join("two")).unwrap();
    let holes = File::create(tree_in.join("holes")).unwrap();
    for n in 0..30_u64 {
        std::os::unix::fs::FileExt::write_all_at(&holes, b"data", n << 18).unwrap();
    }
    holes.set_len(8 << 20).unwrap();
    drop(holes);
    for format in ["gnu", "pax", "pax --sparse-version=0.0", "pax --sparse-version=0.1", "oldgnu"] {
        let script = format!("tar --format={format} -S -cf a.tar -C in .");
        let status = Command::new("sh").arg("-c").arg(script).current_dir(place.path()).status();
        assert!(status.unwrap().success(), "{format}");
        let out = place.directory("out");
        let archive = File::open(place.join("a.tar")).unwrap();
        assert!(archive.metadata().unwrap().len() < 4 << 20, "{format}: there are holes");
        let outcome = unpack(archive, &File::open(&out).unwrap(), &Limits::default());
        assert!(outcome.is_ok(), "{format}: {outcome:?}");
        assert_eq!(tree(&out), tree(&tree_in), "{format}");
        let blocks = fs::metadata(out.join("holes")).unwrap().blocks();
        assert!(blocks < 4096, "{format}: holes stay holes, not {blocks} blocks");
        let time = |name: &str| fs::metadata(place.join(name)).unwrap().mtime();
        assert_eq!(time("out/one"), time("in/one"), "{format}");
        fs::remove_dir_all(&out).unwrap();
    }
}
