//! Whatever a layer of an image contains, it becomes files, directories, links and whiteouts in its
//! own directory and nowhere else, without any privilege that it did not get from us.
#![no_main]

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use images::unpack::{Limits, unpack};
use libfuzzer_sys::fuzz_target;

#[path = "checksums.rs"]
mod checksums;
#[path = "fuzz_root.rs"]
mod fuzz_root;

const LAYER: &str = "/workspace/layer";
const LIMITS: Limits = Limits { max_bytes: 1 << 20, max_entries: 256, path_bytes: 1024, depth: 32 };

/// The files beside the layer and in the root.
fn around() -> Vec<String> {
    let mut names: Vec<String> = ["/", "/workspace", "/dev"]
        .into_iter()
        .flat_map(|directory| fs::read_dir(directory).expect("it is there"))
        .map(|entry| entry.expect("it can be read").path().display().to_string())
        .collect();
    names.sort();
    names
}

fn check(directory: &Path, bytes: &mut u64) {
    for entry in fs::read_dir(directory).expect("a directory of ours can be read") {
        let path = entry.expect("so can what is in it").path();
        let found = fs::symlink_metadata(&path).expect("it is there");
        let kind = found.file_type();
        let is_whiteout = kind.is_char_device() && found.rdev() == 0;
        let is_allowed = kind.is_file() || kind.is_dir() || kind.is_symlink() || is_whiteout;
        assert!(is_allowed, "{}: {kind:?}", path.display());
        assert!(kind.is_symlink() || found.mode() & 0o7000 == 0, "{}", path.display());
        assert_eq!((found.uid(), found.gid()), (0, 0), "{}", path.display());
        if kind.is_file() {
            *bytes += if found.nlink() > 1 { 0 } else { found.len() };
        }
        if kind.is_dir() {
            check(&path, bytes);
        }
    }
}

fuzz_target!(
    init: {
        fuzz_root::enter();
    },
    |input: (bool, &[u8])| {
        let (is_mended, bytes) = input;
        let bytes = if is_mended { checksums::with_checksums(bytes) } else { bytes.to_vec() };
        fs::create_dir(LAYER).expect("there is none");
        let before = around();
        let unpacked = {
            let layer = File::open(LAYER).expect("it was made");
            unpack(bytes.as_slice(), &layer, &LIMITS)
        };
        let mut written = 0;
        check(Path::new(LAYER), &mut written);
        if let Ok(report) = unpacked {
            assert!(report.entries <= LIMITS.max_entries && report.bytes <= LIMITS.max_bytes);
            assert!(written <= LIMITS.max_bytes, "{written}");
        }
        assert_eq!(around(), before, "something is elsewhere");
        assert_eq!(fs::read_to_string("/secret").expect("it is there"), fuzz_root::SECRET);
        fs::remove_dir_all(LAYER).expect("it can be removed");
    }
);
