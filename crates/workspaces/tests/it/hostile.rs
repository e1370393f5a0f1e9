//! Trees that were made to be in the way.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use model::template::WorkspaceLimit::Soft;
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use workspaces::{DEPTH_MAX, Scan};

use crate::lifecycle::PATIENCE;
use crate::stage::{Stage, id, mb, usage};

/// Directories in directories, and a file at the bottom.
pub(crate) fn nest(place: &Path, depth: usize) {
    let open = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat(CWD, place, open, Mode::empty()).expect("open");
    for _ in 0..depth {
        mkdirat(&at, "d", Mode::RWXU).expect("made");
        at = openat(&at, "d", open, Mode::empty()).expect("open");
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    openat(&at, "bottom", flags, Mode::RUSR).expect("made");
}

#[test]
fn no_tree_is_too_hostile_to_be_removed() {
    let stage = Stage::plain();
    let outside = stage.path().join("outside");
    std::fs::create_dir(&outside).expect("made");
    std::fs::write(outside.join("precious"), "kept").expect("written");
    let workspaces = stage.open();
    workspaces.create(id(1), mb(64), Soft, 0).expect("made");
    let place = stage.workspaces().join(id(1).to_string());

    nest(&place, 20_000);
    symlink(&outside, place.join("away")).expect("linked");
    symlink("../../..", place.join("up")).expect("linked");
    std::fs::hard_link(outside.join("precious"), place.join("another-name")).expect("linked");
    for name in [&b"with\nnewline"[..], b"-rf", b"\xff\xfe", b" ", b"*", &[b'n'; 255]] {
        let name = std::ffi::OsStr::from_bytes(name);
        std::fs::create_dir(place.join(name)).expect("made");
        std::fs::write(place.join(name).join(name), "").expect("written");
    }
    let closed = place.join("closed");
    std::fs::create_dir_all(closed.join("within/deeper")).expect("made");
    std::fs::write(closed.join("within/file"), "").expect("written");
    for part in ["within/deeper", "within/file", "within", ""] {
        std::fs::set_permissions(closed.join(part), Permissions::from_mode(0o0)).expect("closed");
    }
    for n in 0..5_000 {
        std::fs::write(place.join(format!("file-{n}")), "").expect("written");
    }

    workspaces.remove(id(1)).expect("removed");
    assert!(!place.exists());
    assert!(workspaces.wait_until_removed(PATIENCE), "{:?}", workspaces.stuck());
    let left = std::fs::read_dir(stage.workspaces().join("trash")).expect("a room").count();
    assert_eq!((left, workspaces.stuck()), (0, None));
    assert_eq!(std::fs::read(outside.join("precious")).expect("there"), b"kept");
}

#[test]
fn removal_deletes_immutable_trees_too() {
    let stage = Stage::plain();
    let workspaces = stage.open();
    workspaces.create(id(1), mb(64), Soft, 0).expect("made");
    let place = stage.workspaces().join(id(1).to_string());
    std::fs::create_dir(place.join("fixed")).expect("made");
    std::fs::write(place.join("fixed/file"), "").expect("written");
    let mut forbid = std::process::Command::new("chattr");
    let forbade = forbid.arg("+i").arg(place.join("fixed/file")).arg(place.join("fixed")).output();
    if !forbade.is_ok_and(|output| output.status.success()) {
        return crate::stage::skip("no chattr here").unwrap_or_default();
    }
    workspaces.remove(id(1)).expect("removed");
    assert!(workspaces.wait_until_removed(PATIENCE), "{:?}", workspaces.stuck());
    assert_eq!(std::fs::read_dir(stage.workspaces().join("trash")).expect("a room").count(), 0);
}

#[test]
fn scan_counts_what_is_on_disk_once_and_nothing_else() {
    let stage = Stage::plain();
    let outside = stage.path().join("outside");
    std::fs::write(&outside, vec![1; 4 << 20]).expect("written");
    let workspaces = stage.open();
    workspaces.create(id(1), mb(64), Soft, 0).expect("made");
    let place = stage.workspaces().join(id(1).to_string());
    let empty = usage(&workspaces, id(1), mb(64));
    assert_eq!((empty.files, empty.hidden), (1, false));

    symlink(&outside, place.join("link")).expect("linked");
    symlink("/", place.join("root")).expect("linked");
    std::fs::File::create(place.join("sparse")).expect("made").set_len(1 << 40).expect("long");
    let before = usage(&workspaces, id(1), mb(64));
    assert!(before.bytes < 1 << 20, "{before:?}");
    assert_eq!(before.files, 4);

    std::fs::create_dir(place.join("d")).expect("made");
    std::fs::write(place.join("d/real"), vec![1; 3 << 20]).expect("written");
    let once = usage(&workspaces, id(1), mb(64));
    assert!(once.bytes >= before.bytes + (3 << 20), "{once:?}");
    for n in 0..10 {
        std::fs::hard_link(place.join("d/real"), place.join(format!("name-{n}"))).expect("linked");
    }
    assert_eq!(usage(&workspaces, id(1), mb(64)), once, "names are not files");
}

#[test]
fn deleted_files_count_while_programs_have_them_open() {
    if !rustix::process::geteuid().is_root() {
        return crate::stage::skip("no root").unwrap_or_default();
    }
    let stage = Stage::plain();
    let workspaces = stage.open();
    let there = stage.path().join("there");
    std::fs::create_dir(&there).expect("made");
    for n in [1, 2] {
        workspaces.create(id(n), mb(64), Soft, 0).expect("made");
    }
    let script = format!(
        "mount --bind {} {there} && cd {there} || exit 1
         exec 3>big; rm big; head -c 3000000 /dev/zero >&3
         sleep 60 & echo ready; read line; kill $!; wait",
        stage.workspaces().join(id(1).to_string()).display(),
        there = there.display()
    );
    let mut program = std::process::Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut ready = String::new();
    let output = program.stdout.take().expect("its output");
    BufReader::new(output).read_line(&mut ready).expect("it says so");
    assert_eq!(ready, "ready\n");
    let both = BTreeSet::from([id(1), id(2)]);
    let found = workspaces.deleted_but_open(&both, &mut |_| true).expect("looked");
    assert!(usage(&workspaces, id(1), mb(64)).bytes < 1 << 20, "no walk finds it");
    drop(program.stdin.take());
    program.wait().expect("it ends");
    let held: Vec<_> = found.iter().map(|(one, usage)| (*one, usage.files)).collect();
    assert_eq!(held, [(id(1), 1)], "once, although two processes have it open");
    assert!((3_000_000..4_000_000).contains(&found[&id(1)].bytes), "{found:?}");
    let after = workspaces.deleted_but_open(&both, &mut |_| true).expect("looked");
    assert!(after.is_empty(), "{after:?}");
}

#[test]
fn scan_stops_at_the_limit_at_the_depth_and_when_cancelled() {
    let stage = Stage::plain();
    let workspaces = stage.open();
    workspaces.create(id(1), mb(64), Soft, 0).expect("made");
    let place = stage.workspaces().join(id(1).to_string());
    for n in 0..1_000 {
        std::fs::write(place.join(format!("file-{n}")), "").expect("written");
    }
    let enough = mb(4);
    let found = usage(&workspaces, id(1), enough);
    assert_eq!(found.files, enough.files() + 1, "one more than enough is too much already");

    let mut asked = 0;
    let scan = Scan {
        enough: mb(64),
        go_on: &mut |entries| {
            asked += entries;
            asked < 600
        },
    };
    assert!(workspaces.usage(id(1), scan).is_err());
    assert_eq!(asked, 768);

    workspaces.create(id(2), mb(64), Soft, 0).expect("made");
    let place = stage.workspaces().join(id(2).to_string());
    nest(&place, DEPTH_MAX - 1);
    assert!(!usage(&workspaces, id(2), mb(64)).hidden);
    workspaces.create(id(3), mb(64), Soft, 0).expect("made");
    nest(&stage.workspaces().join(id(3).to_string()), 5_000);
    assert!(usage(&workspaces, id(3), mb(64)).hidden);
}
