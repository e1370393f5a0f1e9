//! How workspaces come, are found again, and go.

use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::Duration;

use model::template::WorkspaceLimit::{Hard, Soft};
use workspaces::WorkspaceErrorKind;

use crate::stage::{Stage, id, mb, usage};

pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

#[test]
fn a_workspace_exists_until_it_is_removed() {
    let stage = Stage::plain();
    let workspaces = stage.open();
    workspaces.create(id(1), mb(16), Soft, 0).expect("made");
    let place = stage.workspaces().join(id(1).to_string());
    let found = std::fs::metadata(&place).expect("there");
    assert_eq!(found.mode() & 0o7777, 0o755);
    let owner = if rustix::process::geteuid().is_root() { 1000 } else { found.uid() };
    assert_eq!(found.uid(), owner);
    let top = std::fs::metadata(stage.workspaces()).expect("there");
    assert_eq!(top.mode() & 0o777, 0o700, "only the owner can enter");
    assert_eq!(
        workspaces.create(id(1), mb(16), Soft, 0).expect_err("there").kind,
        WorkspaceErrorKind::Id
    );
    assert_eq!(workspaces.list(), [id(1)]);
    workspaces.remove(id(1)).expect("removed");
    workspaces.remove(id(1)).expect("removed again");
    assert!(!place.exists());
    assert!(workspaces.list().is_empty());
    assert!(workspaces.wait_until_removed(PATIENCE));
    assert!(is_empty(&stage, "trash"));
}

#[test]
fn workspaces_after_a_crash_are_found_or_removed() {
    let stage = Stage::plain();
    let workspaces = stage.open();
    workspaces.create(id(1), mb(16), Soft, 0).expect("made");
    if workspaces.hard().by.is_some() {
        workspaces.create(id(2), mb(16), Hard, 0).expect("made");
    }
    let known = workspaces.list();
    // As if nothing had come to an end: what was being made, what was ready, what was going.
    drop(workspaces);
    for room in ["new", "spares", "trash"] {
        let left = stage.workspaces().join(room).join("left/over");
        std::fs::create_dir_all(&left).expect("left");
        std::fs::write(left.join("file"), "bytes").expect("left");
    }
    std::fs::write(stage.workspaces().join("stranger"), "not ours").expect("written");
    let workspaces = stage.open();
    assert_eq!(workspaces.list(), known);
    assert!(workspaces.wait_until_removed(PATIENCE), "{:?}", workspaces.stuck());
    for room in ["new", "trash"] {
        assert!(is_empty(&stage, room), "{room}");
    }
    assert!(stage.workspaces().join("stranger").exists(), "what is not ours is left alone");
    for workspace in known {
        workspaces.remove(workspace).expect("removed");
    }
    assert!(workspaces.wait_until_removed(PATIENCE));
    assert!(is_empty(&stage, "trash"));
}

#[test]
fn trash_names_of_earlier_runs_do_not_collide() {
    let stage = Stage::plain();
    drop(stage.open());
    let leave = |place: String| {
        std::fs::create_dir_all(stage.workspaces().join(place).join("in/it")).expect("left");
    };
    // What one run did not come to, and the next left again by the same name.
    for (room, name) in [("spares", "spare-1"), ("new", "probe"), ("new", "half")] {
        leave(format!("{room}/{name}"));
        for thrown in [name.to_owned(), format!("{room}-{name}")] {
            leave(format!("trash/{thrown}"));
        }
    }
    // As long as a name can be.
    leave(format!("new/{}", "n".repeat(255)));
    leave(format!("trash/{}", id(1)));
    let workspaces = stage.open();
    workspaces.create(id(1), mb(16), Soft, 0).expect("made");
    leave(format!("trash/{}", id(1)));
    workspaces.remove(id(1)).expect("removed");
    assert!(workspaces.wait_until_removed(PATIENCE), "{:?}", workspaces.stuck());
    for room in ["new", "trash"] {
        assert!(is_empty(&stage, room), "{room}");
    }
}

#[test]
fn spare_images_are_taken_once_each() {
    let stage = Stage::plain();
    let workspaces = Arc::new(stage.open());
    if workspaces.hard().by.is_none() {
        return crate::stage::skip("no hard limit here").unwrap_or_default();
    }
    let many: Vec<_> = (0..4)
        .map(|worker| {
            let workspaces = Arc::clone(&workspaces);
            std::thread::spawn(move || {
                for n in 0..25 {
                    workspaces.create(id(worker * 25 + n + 1), mb(8), Hard, 0).expect("made");
                }
            })
        })
        .collect();
    for worker in many {
        worker.join().expect("no panic");
    }
    assert_eq!(workspaces.list().len(), 100);
    for n in 1..=100 {
        assert!(usage(&workspaces, id(n), mb(8)).bytes < 8 << 20);
        workspaces.remove(id(n)).expect("removed");
    }
    assert!(workspaces.wait_until_removed(PATIENCE));
    assert!(is_empty(&stage, "trash"));
}

fn is_empty(stage: &Stage, room: &str) -> bool {
    std::fs::read_dir(stage.workspaces().join(room)).expect("a room").next().is_none()
}
