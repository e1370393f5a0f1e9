//! What keeps files: copies, archives, restores. Each is whole or not there.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use model::template::WorkspaceLimit::{self, Hard, Soft};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat};
use workspaces::{
    Archives, DEPTH_MAX, NewWorkspace, Size, WorkspaceError, WorkspaceErrorKind, Workspaces,
};

use crate::hostile::nest;
use crate::lifecycle::PATIENCE;
use crate::stage::{Stage, id, mb, ran, skip};

fn new(n: u128, limit: WorkspaceLimit) -> NewWorkspace {
    NewWorkspace { id: id(n), size: mb(64), limit, spared_bytes: 0 }
}

fn place(stage: &Stage, n: u128) -> std::path::PathBuf {
    stage.workspaces().join(id(n).to_string())
}

fn copy(workspaces: &Workspaces, from: u128, to: NewWorkspace) -> Result<(), WorkspaceError> {
    workspaces.copy(id(from), to, &mut |_| true)
}

/// Everything of a tree that is to be kept, by path.
fn described(top: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut names: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let mut left = vec![top.to_path_buf()];
    while let Some(at) = left.pop() {
        let about = std::fs::symlink_metadata(&at).expect("there");
        let path = at.strip_prefix(top).expect("beneath").as_os_str().as_bytes();
        let path = path.escape_ascii().to_string();
        let what = if about.is_dir() {
            left.extend(std::fs::read_dir(&at).expect("read").map(|one| one.expect("one").path()));
            "directory".to_owned()
        } else if about.is_symlink() {
            format!("link to {}", std::fs::read_link(&at).expect("read").display())
        } else if about.file_type().is_fifo() {
            "pipe".to_owned()
        } else if about.len() > 1 << 30 {
            "huge".to_owned()
        } else {
            let mut note = [0; 16];
            let note =
                rustix::fs::lgetxattr(&at, "user.note", &mut note).map(|n| note[..n].to_vec());
            let bytes = std::fs::read(&at).expect("read");
            let sum = bytes.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(*byte));
            format!("{} bytes, {sum:x}, with {:?}", bytes.len(), note.ok())
        };
        names.entry(about.ino()).or_default().push(path.clone());
        let said = (about.mode(), about.uid(), about.gid(), about.mtime(), about.mtime_nsec());
        found.insert(path, format!("{what} {said:?}"));
    }
    for same in names.values_mut().filter(|same| same.len() > 1) {
        same.sort();
        found.insert(same.join(" is "), "one file".to_owned());
    }
    found
}

/// A tree with one of everything.
fn plant(top: &Path) {
    std::fs::create_dir_all(top.join("d/e/f")).expect("made");
    std::fs::write(top.join("plain"), "hello").expect("written");
    std::fs::write(top.join("d/big"), vec![7; 3 << 20]).expect("written");
    std::fs::write(top.join("d/empty"), "").expect("written");
    std::fs::hard_link(top.join("plain"), top.join("d/e/again")).expect("linked");
    std::fs::hard_link(top.join("plain"), top.join("d/e/f/third")).expect("linked");
    symlink("/etc/passwd", top.join("out")).expect("linked");
    symlink("../../..", top.join("d/up")).expect("linked");
    symlink("nowhere", top.join("dangling")).expect("linked");
    let sparse = std::fs::File::create(top.join("sparse")).expect("made");
    sparse.set_len(3 << 20).expect("long");
    rustix::io::pwrite(&sparse, b"in the middle", (1 << 20) + 5).expect("written");
    mknodat(CWD, top.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("made");
    for name in [&b"with\nnewline"[..], b"-rf", b"\xff\xfe", b" ", &[b'n'; 255]] {
        std::fs::write(top.join(std::ffi::OsStr::from_bytes(name)), name).expect("written");
    }
    let long = format!("{}/", "long".repeat(20)).repeat(12);
    std::fs::create_dir_all(top.join(&long)).expect("made");
    std::fs::write(top.join(&long).join("x"), "deep").expect("written");
    let note = ("user.note", &b"kept\0too"[..]);
    rustix::fs::setxattr(top.join("plain"), note.0, note.1, XattrFlags::empty()).expect("set");
    for (path, mode) in [("plain", 0o4751), ("d/e", 0o1777), ("d/empty", 0o0), ("d/e/f", 0o500)] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(top.join(path), mode).expect("set");
    }
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(top.join("out"), Some(1000), Some(7)).expect("given");
        std::os::unix::fs::chown(top.join("d/big"), Some(1000), Some(1000)).expect("given");
    }
    for path in ["plain", "d/e", "out", "d/up"] {
        ran(Command::new("touch")
            .args(["-h", "-d", "2001-02-03 04:05:06.789"])
            .arg(top.join(path)));
    }
}

#[test]
fn workspace_copy_equals_its_source() {
    let stage = Stage::plain();
    let workspaces = stage.open();
    workspaces.create(id(1), mb(64), Soft, 0).expect("made");
    plant(&place(&stage, 1));
    copy(&workspaces, 1, new(2, Soft)).expect("copied");
    let (from, to) = (described(&place(&stage, 1)), described(&place(&stage, 2)));
    assert_eq!(from, to);
    assert!(from.len() > 25, "{from:#?}");
    let sparse = std::fs::metadata(place(&stage, 2).join("sparse")).expect("there");
    assert!(sparse.blocks() * 512 < 1 << 20, "holes stay holes: {}", sparse.blocks());
    assert_eq!(copy(&workspaces, 1, new(2, Soft)).expect_err("there").kind, WorkspaceErrorKind::Id);
    assert_eq!(copy(&workspaces, 9, new(3, Soft)).expect_err("none").kind, WorkspaceErrorKind::Id);
    // They share nothing that one could change for the other.
    std::fs::write(place(&stage, 2).join("plain"), "changed").expect("written");
    assert_eq!(std::fs::read(place(&stage, 1).join("plain")).expect("read"), b"hello");
    workspaces.sync(id(2)).expect("durable");
}

#[test]
fn workspace_copy_shares_files_where_the_file_system_can() {
    for mkfs in
        [&["/usr/sbin/mkfs.xfs", "-q", "-m", "reflink=1"][..], &["/usr/sbin/mkfs.btrfs", "-q"]]
    {
        let Some(stage) = Stage::on(mkfs, 512, "loop") else { continue };
        let workspaces = stage.open();
        workspaces.create(id(1), mb(200), Soft, 0).expect("made");
        let bytes: Vec<u8> = (0..40_u32 << 20).map(|n| ((n * 31) >> 7) as u8).collect();
        std::fs::write(place(&stage, 1).join("big"), bytes).expect("written");
        workspaces.sync(id(1)).expect("durable");
        let before = workspaces.free_bytes().expect("asked");
        let new = NewWorkspace { size: mb(200), ..new(2, Soft) };
        copy(&workspaces, 1, new).expect("copied");
        let taken = before.saturating_sub(workspaces.free_bytes().expect("asked"));
        assert!(taken < 8 << 20, "{mkfs:?}: {taken} bytes were taken");
    }
}

#[test]
fn copy_of_a_tree_that_is_too_large_or_too_deep_fails_as_a_whole() {
    let stage = Stage::plain();
    let workspaces = stage.open();
    workspaces.create(id(1), mb(64), Soft, 0).expect("made");
    std::fs::write(place(&stage, 1).join("big"), vec![1; 6 << 20]).expect("written");
    let small = NewWorkspace { size: mb(4), ..new(2, Soft) };
    assert_eq!(copy(&workspaces, 1, small).expect_err("much").kind, WorkspaceErrorKind::DiskFull);
    workspaces.create(id(3), mb(64), Soft, 0).expect("made");
    nest(&place(&stage, 3), DEPTH_MAX + 5);
    assert!(copy(&workspaces, 3, new(2, Soft)).is_err());
    workspaces.create(id(4), mb(64), Soft, 0).expect("made");
    for n in 0..300 {
        std::fs::write(place(&stage, 4).join(format!("{n}")), "").expect("written");
    }
    let called_off = workspaces.copy(id(4), new(2, Soft), &mut |_| false).expect_err("called off");
    assert_eq!(called_off.kind, WorkspaceErrorKind::CalledOff);
    assert!(!workspaces.has(id(2)) && !place(&stage, 2).exists());
    assert!(workspaces.wait_until_removed(PATIENCE));
    let left = std::fs::read_dir(stage.workspaces().join("new")).expect("a room").count();
    assert_eq!(left, 0);
    // As deep as may be measured may be copied, too.
    workspaces.create(id(5), mb(64), Soft, 0).expect("made");
    nest(&place(&stage, 5), DEPTH_MAX - 1);
    copy(&workspaces, 5, new(6, Soft)).expect("copied");
}

#[test]
fn an_archive_restores_what_was_packed() {
    let stage = Stage::plain();
    let workspaces = stage.open();
    let archives = Archives::open(stage.path().join("archives")).expect("archives");
    workspaces.create(id(1), mb(64), Soft, 0).expect("made");
    plant(&place(&stage, 1));
    let mut writer = archives.write(id(1), 0).expect("begun");
    workspaces.pack(id(1), &mut writer, &mut |_| true).expect("packed");
    assert_eq!(archives.get(id(1)), None, "it is not there before it is whole");
    let archived = writer.finish().expect("whole");
    assert!(archived.bytes < 1 << 20, "{archived:?}");
    let expected = described(&place(&stage, 1));
    workspaces.remove(id(1)).expect("removed");
    drop((archives, workspaces));

    let (workspaces, archives) =
        (stage.open(), Archives::open(stage.path().join("archives")).expect("archives"));
    assert_eq!(archives.list(), BTreeMap::from([(id(1), archived)]));
    assert_eq!(archives.count(), (1, archived.bytes));
    let reader = archives.read(id(1)).expect("opened").expect("there");
    workspaces.restore(new(1, Soft), reader, &mut |_| true).expect("restored");
    assert_eq!(described(&place(&stage, 1)), expected);
    let sparse = std::fs::metadata(place(&stage, 1).join("sparse")).expect("there");
    assert!(sparse.blocks() * 512 < 1 << 20, "zeros become holes: {}", sparse.blocks());

    let reader = archives.read(id(1)).expect("opened").expect("there");
    let small = NewWorkspace { size: Size::SMALLEST, ..new(2, Soft) };
    assert!(workspaces.restore(small, reader, &mut |_| true).is_ok(), "zeros take nothing");
    archives.remove(id(1)).expect("removed");
    archives.remove(id(1)).expect("removed again");
    assert!(archives.read(id(1)).expect("asked").is_none());
}

#[test]
fn restore_ignores_the_soft_limit() {
    let stage = Stage::plain();
    let workspaces = stage.open();
    let archives = Archives::open(stage.path().join("archives")).expect("archives");
    let too_much = vec![7; 2 * Size::SMALLEST.bytes() as usize];
    workspaces.create(id(1), Size::SMALLEST, Soft, 0).expect("made");
    std::fs::write(place(&stage, 1).join("large"), &too_much).expect("nothing hinders it");
    let mut writer = archives.write(id(1), 0).expect("begun");
    workspaces.pack(id(1), &mut writer, &mut |_| true).expect("packed");
    writer.finish().expect("whole");
    let reader = archives.read(id(1)).expect("opened").expect("there");
    let small = NewWorkspace { size: Size::SMALLEST, ..new(2, Soft) };
    workspaces.restore(small, reader, &mut |_| true).expect("restored");
    assert_eq!(std::fs::read(place(&stage, 2).join("large")).expect("read"), too_much);
}

#[test]
fn workspaces_removed_by_other_means_are_forgotten() {
    let stage = Stage::plain();
    let workspaces = stage.open();
    let archives = Archives::open(stage.path().join("archives")).expect("archives");
    workspaces.create(id(1), mb(64), Soft, 0).expect("made");
    let mut writer = archives.write(id(1), 0).expect("begun");
    workspaces.pack(id(1), &mut writer, &mut |_| true).expect("packed");
    writer.finish().expect("whole");
    assert!(workspaces.has(id(1)));
    std::fs::remove_dir_all(place(&stage, 1)).expect("removed");
    assert!(!workspaces.has(id(1)));
    assert_eq!(workspaces.count(), 0, "it is forgotten");
    let reader = archives.read(id(1)).expect("opened").expect("there");
    workspaces.restore(new(1, Soft), reader, &mut |_| true).expect("it can be made again");

    std::fs::remove_file(stage.path().join(format!("archives/{}.tar.zst", id(1))))
        .expect("removed");
    let error = archives.copy(id(1), id(2)).expect_err("nothing to copy");
    assert_eq!(error.kind, WorkspaceErrorKind::Damaged);
    assert!(archives.read(id(1)).expect("asked").is_none());
    assert_eq!(archives.get(id(1)), None, "it is forgotten");
}

#[test]
fn a_damaged_archive_restores_nothing() {
    let stage = Stage::plain();
    let workspaces = stage.open();
    let archives = Archives::open(stage.path().join("archives")).expect("archives");
    workspaces.create(id(1), mb(64), Soft, 0).expect("made");
    let bytes: Vec<u8> =
        (0..300_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
    std::fs::write(place(&stage, 1).join("noise"), bytes).expect("written");
    let mut writer = archives.write(id(1), 0).expect("begun");
    workspaces.pack(id(1), &mut writer, &mut |_| true).expect("packed");
    writer.finish().expect("whole");
    let path = stage.path().join(format!("archives/{}.tar.zst", id(1)));
    let whole = std::fs::read(&path).expect("read");
    let mut bad = whole.clone();
    bad[whole.len() / 2] ^= 0x10;
    for (what, damaged) in [
        ("cut", whole[..whole.len() - 3].to_vec()),
        ("half", whole[..whole.len() / 2].to_vec()),
        ("changed", bad),
        ("empty", Vec::new()),
        ("other", b"not an archive at all".to_vec()),
    ] {
        std::fs::write(&path, damaged).expect("written");
        let reader = archives.read(id(1)).expect("opened").expect("there");
        let error = workspaces.restore(new(2, Soft), reader, &mut |_| true).expect_err(what);
        assert_eq!(error.kind, WorkspaceErrorKind::Damaged, "{what}: {error}");
        assert!(!workspaces.has(id(2)) && !place(&stage, 2).exists(), "{what}");
    }
    let full = archives.write(id(3), u64::MAX).expect("begun");
    let mut full = full;
    let error = workspaces.pack(id(1), &mut full, &mut |_| true).and_then(|()| full.finish());
    assert_eq!(error.expect_err("no room").kind, WorkspaceErrorKind::DiskFull);
    assert_eq!(std::fs::read_dir(stage.path().join("archives/new")).expect("a room").count(), 0);
}

#[test]
fn workspace_images_are_copied_packed_and_restored() {
    let stage = Stage::plain();
    let workspaces = stage.open();
    if workspaces.hard().by != Some(workspaces::HardBy::Image) {
        return skip("no images on loop devices here").unwrap_or_default();
    }
    let archives = Archives::open(stage.path().join("archives")).expect("archives");
    workspaces.create(id(1), mb(32), Hard, 0).expect("made");
    let there = stage.path().join("there");
    std::fs::create_dir(&there).expect("made");
    let image = |n: u128| stage.workspaces().join(format!("{}.img", id(n)));
    let inside = |n: u128, act: &mut dyn FnMut(&Path)| {
        ran(Command::new("mount").args(["-o", "loop"]).arg(image(n)).arg(&there));
        act(&there);
        ran(Command::new("umount").arg(&there));
    };
    inside(1, &mut plant);
    let new = |n| NewWorkspace { size: mb(32), ..new(n, Hard) };
    copy(&workspaces, 1, new(2)).expect("copied");
    let mut writer = archives.write(id(1), 0).expect("begun");
    workspaces.pack(id(1), &mut writer, &mut |_| true).expect("packed");
    writer.finish().expect("whole");
    let reader = archives.read(id(1)).expect("opened").expect("there");
    workspaces.restore(new(3), reader, &mut |_| true).expect("restored");
    // From a file system of its own into a directory, and the other way round.
    let reader = archives.read(id(1)).expect("opened").expect("there");
    workspaces
        .restore(NewWorkspace { limit: Soft, ..new(4) }, reader, &mut |_| true)
        .expect("restored");
    copy(&workspaces, 4, new(5)).expect("copied");
    let mut found = Vec::new();
    for n in [1, 2, 3, 5] {
        inside(n, &mut |top| found.push(described(top)));
    }
    found.push(described(&place(&stage, 4)));
    for one in &mut found {
        one.remove("lost+found");
        one.remove("");
        assert_eq!(one.len(), found_len(&stage), "{one:#?}");
    }
    assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "{found:#?}");
    workspaces.sync(id(3)).expect("durable");
    assert!(workspaces.is_closed(id(3)) && !workspaces.is_closed(id(4)));
    inside(1, &mut |_| {
        // It is in use: a sandbox that mounts it holds a lock.
        let held = std::fs::File::open(image(2)).expect("opened");
        held.lock().expect("locked");
        assert_eq!(
            copy(&workspaces, 2, new(6)).expect_err("in use").kind,
            WorkspaceErrorKind::InUse
        );
    });
}

#[test]
fn a_filled_workspace_image_is_restored() {
    let stage = Stage::plain();
    let workspaces = stage.open();
    if workspaces.hard().by != Some(workspaces::HardBy::Image) {
        return skip("no images on loop devices here").unwrap_or_default();
    }
    let archives = Archives::open(stage.path().join("archives")).expect("archives");
    workspaces.create(id(1), mb(16), Hard, 0).expect("made");
    let there = stage.path().join("there");
    std::fs::create_dir(&there).expect("made");
    let image = |n: u128| stage.workspaces().join(format!("{}.img", id(n)));
    let mut sizes = Vec::new();
    for n in [1, 2] {
        ran(Command::new("mount").args(["-o", "loop"]).arg(image(n)).arg(&there));
        if n == 1 {
            let mut file = std::fs::File::create(there.join("filled")).expect("made");
            while file.write_all(&[7; 4096]).is_ok() {}
        }
        sizes.push(std::fs::metadata(there.join("filled")).expect("there").len());
        ran(Command::new("umount").arg(&there));
        if n == 1 {
            let mut writer = archives.write(id(1), 0).expect("begun");
            workspaces.pack(id(1), &mut writer, &mut |_| true).expect("packed");
            writer.finish().expect("whole");
            let reader = archives.read(id(1)).expect("opened").expect("there");
            let new = NewWorkspace { size: mb(16), ..new(2, Hard) };
            workspaces.restore(new, reader, &mut |_| true).expect("restored");
        }
    }
    assert_eq!(sizes[0], sizes[1]);
}

fn found_len(stage: &Stage) -> usize {
    described(&place(stage, 4)).len() - 1
}

const CRASH: &str = "WORKSPACES_CRASH";

/// Works until it is killed: copies, archives, restores, removes, again and again.
#[test]
#[ignore = "run by the test below, which kills it"]
fn works_until_it_is_killed() {
    let Some(path) = std::env::var_os(CRASH) else { return };
    let path = Path::new(&path);
    let workspaces = Workspaces::open(path.join("workspaces")).expect("workspaces");
    let archives = Archives::open(path.join("archives")).expect("archives");
    std::io::stdout().write_all(b"ready\n").expect("said");
    for n in (100..100_000).step_by(2) {
        copy(&workspaces, 1, new(n, Soft)).expect("copied");
        let mut writer = archives.write(id(n), 0).expect("begun");
        workspaces.pack(id(n), &mut writer, &mut |_| true).expect("packed");
        writer.finish().expect("whole");
        let reader = archives.read(id(n)).expect("opened").expect("there");
        workspaces.restore(new(n + 1, Soft), reader, &mut |_| true).expect("restored");
        workspaces.remove(id(n)).expect("removed");
    }
}

#[test]
fn kill_during_persistence_leaves_complete_workspaces_only() {
    let stage = Stage::plain();
    let workspaces = stage.open();
    workspaces.create(id(1), mb(64), Soft, 0).expect("made");
    let top = place(&stage, 1);
    for n in 0..40 {
        std::fs::create_dir(top.join(format!("{n}"))).expect("made");
        std::fs::write(top.join(format!("{n}/file")), vec![n; 20_000]).expect("written");
    }
    let expected = described(&top);
    drop(workspaces);
    let (mut copies, mut packed) = (0, 0);
    for round in 0..24_u64 {
        let mut worker = Command::new(std::env::current_exe().expect("ourselves"))
            .args(["--exact", "persistence::works_until_it_is_killed", "--ignored", "--nocapture"])
            .env(CRASH, stage.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut output = worker.stdout.take().expect("its output");
        let mut said = Vec::new();
        while !said.ends_with(b"ready\n") {
            let mut byte = [0];
            output.read_exact(&mut byte).expect("it says so");
            said.push(byte[0]);
        }
        std::thread::sleep(Duration::from_micros(round * round * 97 + round * 1_313));
        worker.kill().expect("killed");
        worker.wait().expect("over");
        let workspaces = stage.open();
        let archives = Archives::open(stage.path().join("archives")).expect("archives");
        let kept = archives.list();
        for one in workspaces.list().into_iter().filter(|one| *one != id(1)) {
            assert_eq!(described(&stage.workspaces().join(one.to_string())), expected, "{one}");
            copies += 1;
            workspaces.remove(one).expect("removed");
        }
        for one in kept.keys() {
            let reader = archives.read(*one).expect("opened").expect("there");
            workspaces.restore(new(2, Soft), reader, &mut |_| true).expect("restored");
            assert_eq!(described(&place(&stage, 2)), expected, "{one}");
            packed += 1;
            workspaces.remove(id(2)).expect("removed");
            archives.remove(*one).expect("removed");
        }
        assert!(workspaces.wait_until_removed(PATIENCE));
        for room in ["workspaces/new", "workspaces/trash", "archives/new"] {
            let left = std::fs::read_dir(stage.path().join(room)).expect("a room").count();
            assert_eq!(left, 0, "{room}");
        }
    }
    assert!(copies > 0 && packed > 0, "nothing was ever done: {copies} {packed}");
}

#[test]
fn gnu_tar_reads_our_archives() {
    let stage = Stage::plain();
    let workspaces = stage.open();
    workspaces.create(id(1), mb(64), Soft, 0).expect("made");
    plant(&place(&stage, 1));
    let mut bytes = Vec::new();
    workspaces.pack(id(1), &mut bytes, &mut |_| true).expect("packed");
    let path = stage.path().join("plain.tar");
    std::fs::write(&path, bytes).expect("written");
    let out = stage.path().join("out");
    std::fs::create_dir(&out).expect("made");
    ran(Command::new("tar").args(["--xattrs", "-xpf"]).arg(&path).arg("-C").arg(&out));
    assert_eq!(described(&out), described(&place(&stage, 1)));
}
