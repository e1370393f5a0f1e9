//! Foreign archives: what they may claim, and what the reader does.

use std::io::Read as _;

use proptest::prelude::*;

use super::*;

fn written(kind: Kind, path: &[u8], attributes: &[Attribute], size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let written = NewEntry {
        kind,
        path,
        mode: 0o4751,
        owner: (1000, 3_000_000_000),
        size,
        modified: (-5, 250),
        target: b"",
        attributes,
        comment: None,
    };
    written.write(&mut bytes);
    bytes
}

/// A header of any type and size, with a valid checksum.
fn header(letter: u8, size: u64) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_path("some").unwrap();
    header.set_entry_type(tar::EntryType::new(letter));
    header.set_mode(0o644);
    header.set_size(size);
    header.set_cksum();
    header.as_bytes().to_vec()
}

fn pax(records: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    builder
        .append_pax_extensions(records.iter().map(|(key, value)| (*key, value.as_bytes())))
        .unwrap();
    let mut bytes = builder.into_inner().unwrap();
    bytes.truncate(bytes.len() - 2 * BLOCK);
    bytes
}

fn all(bytes: &[u8], bounds: Bounds) -> Result<Vec<Entry>, TarError> {
    let mut entries = Entries::whole(bytes, bounds);
    let mut found = Vec::new();
    while let Some(entry) = entries.next_entry()? {
        found.push(entry);
    }
    Ok(found)
}

fn refused(bytes: &[u8]) -> String {
    all(bytes, Bounds::NONE).expect_err("it is refused").to_string()
}

#[test]
fn written_tar_entries_are_read() {
    let long = [b"\xff".repeat(300), b"/x".to_vec()].concat();
    let attributes: [Attribute; 1] = [(b"user.note"[..].into(), b"a\0b\n=".as_slice().into())];
    let mut bytes = written(Kind::File, &long, &attributes, 3);
    bytes.extend_from_slice(b"abc");
    bytes.resize(bytes.len() + padding(3) as usize, 0);
    bytes.extend(written(Kind::Directory, b"empty/", &[], 0));
    end(&mut bytes);
    let mut entries = Entries::whole(bytes.as_slice(), Bounds::NONE);
    let first = entries.next_entry().unwrap().unwrap();
    assert_eq!((first.kind, &first.path, first.size), (Kind::File, &long, 3));
    assert_eq!((first.mode, first.owner), (0o4751, (1000, 3_000_000_000)));
    assert_eq!((first.modified, &first.attributes[..]), ((-5, 250), &attributes[..]));
    let mut buffer = [0; 2];
    assert_eq!(entries.read(&mut buffer).unwrap(), 2);
    let second = entries.next_entry().unwrap().unwrap();
    assert_eq!((second.kind, second.path, second.size), (Kind::Directory, b"empty/".to_vec(), 0));
    assert_eq!(entries.read(&mut buffer).unwrap(), 0);
    assert_eq!(entries.next_entry().unwrap(), None);
    assert_eq!(entries.next_entry().unwrap(), None);
}

#[test]
fn a_cut_or_damaged_tar_archive_is_refused() {
    let mut whole = written(Kind::File, b"file", &[], 700);
    whole.resize(whole.len() + 1024, b'x');
    end(&mut whole);
    assert_eq!(all(&whole, Bounds::NONE).unwrap().len(), 1);
    for cut in (1..whole.len() - 1024).step_by(37) {
        assert!(matches!(all(&whole[..cut], Bounds::NONE), Err(TarError::Cut)), "{cut}");
    }
    let mut wrong = whole.clone();
    wrong[1024 + 10] ^= 1;
    assert!(refused(&wrong).contains("a header is damaged"));
    let mut followed = whole.clone();
    followed.resize(followed.len() + (2 << 20), 7);
    assert!(refused(&followed).contains("data follows the end"));
    let unmarked = &whole[..whole.len() - 1024];
    assert!(matches!(all(unmarked, Bounds::NONE), Err(TarError::Cut)), "it needs its mark");
    let mut entries = Entries::new(unmarked, Bounds::NONE);
    assert!(entries.next_entry().unwrap().is_some());
    assert_eq!(entries.next_entry().unwrap(), None, "others write none");
}

#[test]
fn impossible_tar_sizes_are_refused() {
    let largest = u64::MAX.to_string();
    for size in [largest.as_str(), "9223372036854775807", "9223372036854775297"] {
        let bytes = [pax(&[("size", size)]), header(b'0', 0)].concat();
        assert!(refused(&bytes).contains("more than any file can have"), "{size}");
        let holes = [
            pax(&[("size", size), ("GNU.sparse.major", "1"), ("GNU.sparse.realsize", size)]),
            header(b'0', 0),
        ];
        assert!(all(&holes.concat(), Bounds::NONE).is_err(), "{size}");
    }
    for size in ["18446744073709551616", "-1", "+1", "", "1e3"] {
        let bytes = [pax(&[("size", size)]), header(b'0', 0)].concat();
        assert!(refused(&bytes).contains("size of an extended header"), "{size}");
    }
    for letter in [b'0', b'x', b'L', b'K', b'g', b'S', b'Z', b'D'] {
        for size in [i64::MAX as u64, u64::MAX >> 8, 1 << 62] {
            assert!(all(&header(letter, size), Bounds::NONE).is_err(), "{letter} {size}");
        }
    }
    let whole = [pax(&[("size", &largest)]), header(b'5', 0), vec![0; 1024]].concat();
    assert_eq!(all(&whole, Bounds::NONE).unwrap()[0].size, 0, "a directory has no contents");
}

#[test]
fn sparse_maps_cannot_overflow() {
    let largest = u64::MAX.to_string();
    let maps = [
        vec![("GNU.sparse.size", largest.as_str()), ("GNU.sparse.map", "1,18446744073709551615")],
        vec![("GNU.sparse.size", largest.as_str()), ("GNU.sparse.map", "18446744073709551615,1")],
        vec![("GNU.sparse.size", "9"), ("GNU.sparse.map", "0,5,3,5")],
        vec![("GNU.sparse.size", "9"), ("GNU.sparse.numbytes", "5")],
        vec![("GNU.sparse.size", largest.as_str()), ("GNU.sparse.map", "0,18446744073709551615")],
    ];
    for map in maps {
        assert!(all(&[pax(&map), header(b'0', 0)].concat(), Bounds::NONE).is_err(), "{map:?}");
    }
    let mut in_data = [
        pax(&[("GNU.sparse.major", "1"), ("GNU.sparse.realsize", "1024")]),
        header(b'0', BLOCK as u64 + 3),
        b"1\n512\n3\n".to_vec(),
    ]
    .concat();
    in_data.resize(in_data.len().next_multiple_of(BLOCK), 0);
    in_data.extend(b"abc");
    in_data.resize(in_data.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    let mut entries = Entries::whole(in_data.as_slice(), Bounds::NONE);
    let entry = entries.next_entry().unwrap().unwrap();
    let regions = vec![Region { offset: 512, length: 3 }];
    assert_eq!((entry.size, entry.sparse), (3, Some(Sparse { real_size: 1024, regions })));
    let mut contents = Vec::new();
    entries.read_to_end(&mut contents).unwrap();
    assert_eq!(contents, b"abc");
    assert_eq!(entries.next_entry().unwrap(), None);
}

#[test]
fn extension_headers_of_an_entry_are_bounded() {
    let long = |size: usize| {
        let text = [header(b'L', size as u64), vec![b'n'; size]].concat();
        let rounded = text.len().next_multiple_of(BLOCK);
        [text, vec![0; BLOCK]].concat()[..rounded].to_vec()
    };
    let with_end = |parts: &[Vec<u8>]| [parts.concat(), header(b'0', 0), vec![0; 1024]].concat();
    let found = all(&with_end(&[long(1 << 20)]), Bounds::NONE).unwrap();
    assert_eq!(found[0].path.len(), 1 << 20);
    assert!(refused(&with_end(&[long((1 << 20) + 1)])).contains("too long"));
    let halves = [long(1 << 19), long(1 << 19), long(1)];
    assert!(refused(&with_end(&halves)).contains("too long"), "together they are");
    let sixteen = vec![long(1); 16];
    assert_eq!(all(&with_end(&sixteen), Bounds::NONE).unwrap().len(), 1);
    assert!(refused(&with_end(&vec![long(1); 17])).contains("too many headers"));
    let announced = [long(1), vec![0; 1024]].concat();
    assert!(matches!(all(&announced, Bounds::NONE), Err(TarError::Cut)), "nothing follows it");
}

#[test]
fn a_tar_archive_stays_within_its_bounds() {
    let mut bytes = Vec::new();
    for _ in 0..3 {
        bytes.extend(header(b'0', 512));
        bytes.extend([1; 512]);
    }
    end(&mut bytes);
    let bounds = Bounds { headers: 3, bytes: 1536 };
    assert_eq!(all(&bytes, bounds).unwrap().len(), 3);
    for tight in [Bounds { headers: 2, ..bounds }, Bounds { bytes: 1535, ..bounds }] {
        assert!(matches!(all(&bytes, tight), Err(TarError::TooLarge(_))), "{tight:?}");
    }
}

proptest! {
    #[test]
    fn the_tar_reader_ends_on_any_input(
        mut bytes in prop::collection::vec(any::<u8>(), 0..6000),
        letters in prop::collection::vec(prop::sample::select(&b"0x\0LKgS5127DMVZ"[..]), 12),
        digits in prop::collection::vec(0_u8..=9, 12),
    ) {
        // Blocks with valid checksums get past the first check.
        for (at, block) in bytes.chunks_exact_mut(BLOCK).enumerate() {
            block[100..108].copy_from_slice(b"0000644\0");
            block[124..136].copy_from_slice(b"00000000000\0");
            block[134] = b'0' + digits[at] % 8;
            block[133] = b'0' + digits[at] / 8;
            block[156] = letters[at];
            block[148..156].fill(b' ');
            let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:07o}\0").as_bytes());
        }
        let found = all(&bytes, Bounds::NONE).map_or(0, |found| found.len());
        prop_assert!(found <= bytes.len() / BLOCK);
    }

    #[test]
    fn any_pax_records_are_read_or_refused(
        records in prop::collection::vec(
            (
                prop::sample::select(vec![
                    "path", "linkpath", "size", "uid", "mtime", "GNU.sparse.major",
                    "GNU.sparse.realsize", "GNU.sparse.map", "GNU.sparse.offset",
                    "GNU.sparse.numbytes", "SCHILY.xattr.user.a", "comment",
                ]),
                "[0-9,.a-]{0,21}",
            ),
            0..6,
        ),
    ) {
        let records: Vec<_> = records.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let bytes = [pax(&records), header(b'0', 512), vec![b'1'; 512], vec![0; 1024]].concat();
        if let Ok(found) = all(&bytes, Bounds::NONE) {
            prop_assert!(found.iter().all(|entry| i64::try_from(entry.size).is_ok()));
        }
    }
}
