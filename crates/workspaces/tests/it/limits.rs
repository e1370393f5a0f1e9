//! Which hard limits work where, and how exact they are. How they feel from inside a sandbox is
//! tested with sandboxes.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use model::template::WorkspaceLimit::{Hard, Soft};
use workspaces::{HardBy, WorkspaceErrorKind, Workspaces, probe};

use crate::stage::{Stage, id, mb, ran, skip, usage};

const BTRFS: &[&str] = &["/usr/sbin/mkfs.btrfs", "-q"];

/// Writes until nothing more fits; says how many bytes did, and what the kernel said.
fn fill(path: &Path, at_most: u64) -> (u64, Option<ErrorKind>) {
    let mut file = File::create(path).expect("a file");
    let mut piece = vec![7; 1 << 20];
    let mut written = 0;
    let mut said = None;
    while written < at_most {
        match file.write(&piece) {
            Ok(bytes) => written += bytes as u64,
            Err(error) if piece.len() == 4096 => {
                said = Some(error.kind());
                break;
            }
            // Less may still fit.
            Err(_) => piece.truncate(4096),
        }
    }
    let synced = file.sync_all().map_err(|error| error.kind());
    (written, said.or(synced.err()))
}

fn is_about(bytes: u64, wanted: u64) -> bool {
    bytes.abs_diff(wanted) * 20 <= wanted
}

#[test]
fn subvolumes_of_btrfs_are_exact_and_go_at_once() {
    let Some(stage) = Stage::on(BTRFS, 1024, "loop") else { return };
    ran(Command::new("btrfs").args(["quota", "enable"]).arg(stage.path()));
    let workspaces = stage.open();
    assert_eq!(workspaces.hard().by, Some(HardBy::Btrfs), "{:?}", workspaces.hard());
    workspaces.create(id(1), mb(64), Hard, 0).expect("made");
    workspaces.create(id(2), mb(64), Soft, 0).expect("made");
    let place = |n| stage.workspaces().join(id(n).to_string());
    let (written, said) = fill(&place(1).join("file"), 256 << 20);
    assert_eq!(said, Some(ErrorKind::QuotaExceeded));
    assert!(is_about(written, 64 << 20), "{written}");
    let (_, said) = fill(&place(2).join("file"), 96 << 20);
    assert_eq!(said, None, "the others are not limited by it");
    for n in [1, 2] {
        assert_eq!(std::fs::metadata(place(n)).expect("there").uid(), 1000);
        workspaces.remove(id(n)).expect("removed");
        assert!(!place(n).exists());
    }
    assert!(workspaces.wait_until_removed(crate::lifecycle::PATIENCE), "{:?}", workspaces.stuck());
}

#[test]
fn btrfs_without_quotas_names_the_remedy() {
    let Some(stage) = Stage::on(BTRFS, 256, "loop") else { return };
    let found = probe(&stage.workspaces()).expect("looked");
    assert_eq!(found.by, Some(HardBy::Image), "{found:?}");
    assert!(found.reasons().contains("btrfs quota enable"), "{}", found.reasons());
    assert_eq!(std::fs::read_dir(stage.workspaces().join("new")).expect("a room").count(), 0);
}

#[test]
fn project_quotas_are_found_where_there_are_any_and_missed_where_not() {
    let plain = Stage::plain();
    let found = probe(&plain.workspaces()).expect("looked");
    let missed = found.not.iter().any(|(by, _)| *by == HardBy::ProjectQuota);
    // A developer's disk may have them.
    assert!(missed || found.by == Some(HardBy::ProjectQuota), "{found:?}");
    let kernel = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !kernel.contains("ext4") || !Path::new("/proc/sys/fs/quota").exists() {
        return skip("no quotas in this kernel").unwrap_or_default();
    }
    let ext4 = &["/usr/sbin/mkfs.ext4", "-q", "-F", "-O", "quota,project"];
    if !mounts_with_quota(ext4) {
        // This kernel was built without the format that ext4 keeps them in.
        return;
    }
    let Some(stage) = Stage::on(ext4, 256, "loop,prjquota") else { return };
    let workspaces = stage.open();
    assert_eq!(workspaces.hard().by, Some(HardBy::ProjectQuota), "{:?}", workspaces.hard());
    workspaces.create(id(1), mb(32), Hard, 0).expect("made");
    let place = stage.workspaces().join(id(1).to_string());
    // Root may exceed a quota where it has CAP_SYS_RESOURCE; the user of workspaces may not.
    let script = "exec head -c 100000000 /dev/zero > file";
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "1000", "--clear-groups", "sh", "-c", script]).current_dir(&place);
    assert!(!command.status().expect("it starts").success());
    assert!(is_about(usage(&workspaces, id(1), mb(100)).bytes, 32 << 20));
    // Another server on the same disk, and what it removes, leave the limit as it is.
    let other = Workspaces::open(stage.path().join("other")).expect("workspaces");
    other.create(id(2), mb(64), Hard, 0).expect("made");
    other.remove(id(2)).expect("removed");
    assert!(other.wait_until_removed(crate::lifecycle::PATIENCE), "{:?}", other.stuck());
    assert!(!command.status().expect("it starts").success());
    assert!(is_about(usage(&workspaces, id(1), mb(100)).bytes, 32 << 20));
}

fn mounts_with_quota(mkfs: &[&str]) -> bool {
    let stage = Stage::plain();
    let image = stage.path().join("image");
    let file = File::create(&image).expect("an image");
    file.set_len(32 << 20).expect("its size");
    ran(Command::new(mkfs[0]).args(&mkfs[1..]).arg(&image));
    let there = stage.path().join("there");
    std::fs::create_dir(&there).expect("a place");
    let mut mount = Command::new("mount");
    let mounted = mount.args(["-o", "loop,prjquota"]).arg(&image).arg(&there).output();
    let mounted = mounted.is_ok_and(|output| output.status.success());
    if mounted {
        ran(Command::new("umount").arg(&there));
    }
    mounted
}

#[test]
fn workspace_images_hold_their_size_and_little_more() {
    if !rustix::process::geteuid().is_root() {
        return skip("no root").unwrap_or_default();
    }
    let stage = Stage::plain();
    let workspaces = stage.open();
    assert_eq!(workspaces.hard().by, Some(HardBy::Image), "{:?}", workspaces.hard());
    for (n, size_mb) in [(1, 4), (2, 20), (3, 100), (4, 512)] {
        workspaces.create(id(n), mb(size_mb), Hard, 0).expect("made");
        let image = stage.workspaces().join(format!("{}.img", id(n)));
        let found = std::fs::metadata(&image).expect("there");
        assert_eq!(found.mode() & 0o777, 0o600);
        assert!(found.blocks() * 512 < found.len() / 4, "{size_mb}: it is sparse");
        let there = stage.path().join(format!("mounted-{n}"));
        std::fs::create_dir(&there).expect("a place");
        ran(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&there));
        let files = Command::new("stat").args(["-f", "-c", "%c"]).arg(&there).output();
        let files = String::from_utf8(files.expect("asked").stdout).expect("text");
        let (written, said) = fill(&there.join("file"), 4 << 30);
        ran(Command::new("umount").arg(&there));
        assert_eq!(said, Some(ErrorKind::StorageFull), "{size_mb}");
        assert!(is_about(written, size_mb << 20), "{size_mb} MB hold {written} bytes");
        let files: u64 = files.trim().parse().expect("a number");
        assert!(files >= mb(size_mb).files() && files < 2 * mb(size_mb).files() + 512, "{files}");
        assert!(usage(&workspaces, id(n), mb(1)).bytes > written, "what is in it counts");
    }
}

#[test]
fn hard_limits_together_never_exceed_the_disk() {
    let Some(stage) = Stage::on(&["/usr/sbin/mkfs.ext4", "-q", "-F", "-m", "0"], 256, "loop")
    else {
        return;
    };
    let workspaces = stage.open();
    let spared = 50 << 20;
    let create = |workspaces: &Workspaces, n| workspaces.create(id(n), mb(80), Hard, spared);
    create(&workspaces, 1).expect("there is room");
    create(&workspaces, 2).expect("there is room");
    let error = create(&workspaces, 3).expect_err("all of it is promised");
    assert_eq!(error.kind, WorkspaceErrorKind::DiskFull, "{error}");
    assert!(error.to_string().contains("reserved"), "{error}");
    workspaces.create(id(3), mb(80), Soft, spared).expect("a soft one is no promise");
    // What the first fills is not missing twice.
    let image = stage.workspaces().join(format!("{}.img", id(1)));
    let file = File::options().write(true).open(&image).expect("an image");
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 80 << 20).expect("full");
    create(&workspaces, 4).expect_err("it still is");
    workspaces.remove(id(2)).expect("removed");
    create(&workspaces, 4).expect("that made room");
    drop(workspaces);
    let workspaces = stage.open();
    create(&workspaces, 5).expect_err("the next run knows what was promised");
    workspaces.remove(id(4)).expect("removed");
    create(&workspaces, 5).expect("that made room");
}

#[test]
fn hard_limit_refusal_says_why() {
    // Memory has no quotas here, and a disk that is too small for an image has no images.
    let Some(stage) = Stage::on(&["/usr/sbin/mkfs.ext4", "-q", "-F", "-m", "0"], 2, "loop") else {
        return;
    };
    let opened = Workspaces::open(stage.workspaces());
    let Ok(workspaces) = opened else { return };
    let _ = fill(&stage.path().join("ballast"), 64 << 20);
    drop(workspaces);
    let workspaces = stage.open();
    assert_eq!(workspaces.hard().by, None, "{:?}", workspaces.hard());
    let error = workspaces.create(id(1), mb(4), Hard, 0).expect_err("refused");
    assert_eq!(error.kind, WorkspaceErrorKind::Unsupported);
    for word in ["btrfs", "project quota", "images"] {
        assert!(error.to_string().contains(word), "{error}");
    }
}
