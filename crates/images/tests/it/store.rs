//! A store over its life: names, use, garbage, concurrent imports, and imports that did not finish.

use std::fs::{self, File};
use std::io::{self, Cursor, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use images::{Digest, ImageErrorCode, ImportOptions, Source, Store};
use rustix::fs::{FlockOperation, flock};

use crate::archive::{Archive, gzip};
use crate::sources::{import, name, oci, root, shape, stream};
use crate::temp_directory::TempDirectory;

fn code<T>(outcome: Result<T, images::ImageError>) -> Result<T, ImageErrorCode> {
    outcome.map_err(|error| error.code)
}

#[test]
fn images_are_found_by_name_and_by_id() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    assert_eq!(store.list(), Ok(vec![]));
    let one = import(&store, stream(root(b"1").end()), "one").unwrap();
    let two = import(&store, stream(root(b"22").end()), "two:1").unwrap();
    import(&store, stream(root(b"22").end()), "again").unwrap();
    let listed = store.list().unwrap();
    let names: Vec<_> = listed.iter().map(|image| image.names.clone()).collect();
    assert_eq!(names, [vec![name("again"), name("two:1")], vec![name("one")]]);
    assert_eq!((listed[0].id, listed[0].bytes()), (two.id, 2));
    for reference in ["one", &one.id.to_string(), &one.id.to_string()[..8]] {
        assert_eq!(store.get(reference).map(|image| image.id), Ok(one.id), "{reference}");
    }
    for reference in ["", "three", &one.id.to_string()[..7], "../one", &"0".repeat(64)] {
        assert_eq!(code(store.get(reference)), Err(ImageErrorCode::Unknown), "{reference}");
    }
    let other = Store::open(&place.join("store")).unwrap();
    assert_eq!(other.list(), Ok(listed), "another process sees the same");
}

#[test]
fn only_the_owner_enters_an_image_store() {
    let place = TempDirectory::new();
    let data = place.directory("data");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    for (made, before) in [(false, 0), (true, 0o755), (true, 0o777)] {
        let path = data.join(format!("images-{before:o}"));
        if made {
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(before)).unwrap();
        }
        let store = Store::open(&path).unwrap();
        assert_eq!(mode(store.path()), 0o700, "made before: {made}");
    }
}

#[test]
fn an_image_name_wins_over_an_id_prefix() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let image = import(&store, stream(root(b"x").end()), "kept").unwrap();
    let id = image.id.to_string();
    for digits in [1, 8, 63] {
        let like_an_id = &id[..digits];
        import(&store, stream(root(b"x").end()), like_an_id).unwrap();
        let removed = store.remove(like_an_id, false).unwrap();
        assert_eq!(removed.names, [name(like_an_id)]);
        assert_eq!(store.collect_garbage().unwrap().images, []);
        assert_eq!(store.get("kept").map(|image| image.id), Ok(image.id));
    }
    // The name of one may be the id of another.
    let other = import(&store, stream(root(b"y").end()), &id[..8]).unwrap();
    assert_eq!(store.remove(&id[..8], false).unwrap().id, other.id);
    assert_eq!(store.remove(&id[..8], false).unwrap().names, [name("kept")]);
}

#[test]
fn image_garbage_has_no_name_and_no_user() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let old = import(&store, stream(root(b"old").end()), "a").unwrap();
    import(&store, stream(root(b"new").end()), "a").unwrap();
    import(&store, stream(root(b"kept").end()), "b").unwrap();
    let used = store.hold(old.id).unwrap();
    let collected = store.collect_garbage().unwrap();
    assert_eq!((collected.images.len(), collected.layers), (0, 0));
    assert_eq!(collected.in_use, [old.id]);
    drop(used);
    let late = File::open(store.path().join(format!("images/{}/layers", old.id))).unwrap();
    let collected = store.collect_garbage().unwrap();
    flock(&late, FlockOperation::NonBlockingLockShared).unwrap();
    assert_eq!(rustix::fs::fstat(&late).unwrap().st_nlink, 0, "who locks it too late can tell");
    assert_eq!((collected.images, collected.layers, collected.bytes), (vec![old.id], 1, 3));
    assert_eq!(code(store.hold(old.id).map(|_| ())), Err(ImageErrorCode::Unknown));
    assert_eq!(store.list().unwrap().len(), 2);
    assert_eq!(shape(&store).len(), 2 + 2 * 2 + 2, "names, layers with their reports, images");
    assert_eq!(store.collect_garbage().unwrap(), images::Collected::default());
    fs::create_dir(store.path().join("layers/what-is-this")).unwrap();
    fs::create_dir(store.path().join("images").join("0".repeat(64))).unwrap();
    store.collect_garbage().unwrap();
    assert_eq!(shape(&store).len(), 8, "what is damaged or foreign goes");
}

#[test]
fn one_damaged_image_does_not_spoil_the_others() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let damaged = import(&store, stream(root(b"damaged").end()), "damaged").unwrap();
    let good = import(&store, stream(root(b"good").end()), "good").unwrap();
    let image = store.path().join(format!("images/{}", damaged.id));
    let listed = || store.list().unwrap().iter().map(|image| image.id).collect::<Vec<_>>();
    let layers = || fs::read_dir(store.path().join("layers")).unwrap().count();
    fs::write(image.join("image.json"), "{").unwrap();
    assert_eq!(listed(), [good.id]);
    import(&store, stream(root(b"old").end()), "other").unwrap();
    import(&store, stream(root(b"good").end()), "other").unwrap();
    assert_eq!(store.collect_garbage().unwrap().layers, 1);
    assert_eq!(layers(), 4, "it still says which layers it has");
    fs::write(image.join("layers"), "what?\n").unwrap();
    import(&store, stream(root(b"old").end()), "other").unwrap();
    import(&store, stream(root(b"good").end()), "other").unwrap();
    let collected = store.collect_garbage().unwrap();
    assert_eq!((collected.images.len(), collected.layers), (1, 0));
    assert_eq!(layers(), 6, "its layers are unknown");
    store.remove("damaged", false).unwrap();
    assert_eq!(store.collect_garbage().unwrap().layers, 2);
    assert_eq!((listed(), layers()), (vec![good.id], 2));
}

#[test]
fn all_layers_of_an_image_count_together() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let layers: Vec<_> = (0..3_u8).map(|n| root(&[n]).end()).collect();
    for (max_entries, expected) in [(9, Ok(3)), (8, Err(ImageErrorCode::TooLarge))] {
        let limits = images::Limits { max_entries, ..images::Limits::default() };
        let options = ImportOptions { limits, ..ImportOptions::default() };
        let mut watch = |_: &images::Progress| ControlFlow::Continue(());
        let source = stream(oci(&layers).archive(&[]));
        let imported = store.import(source, &name("a"), &options, &mut watch);
        assert_eq!(code(imported.map(|imported| imported.layers.len())), expected);
        let _ = store.remove("a", false);
        store.collect_garbage().unwrap();
    }
    let many = oci(&vec![root(b"x").end(); 1001]);
    let refused = import(&store, stream(many.archive(&[])), "a").unwrap_err();
    assert_eq!(refused.code, ImageErrorCode::TooManyLayers, "{refused}");
}

#[test]
fn knowing_the_digest_of_a_layer_does_not_give_it() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let layer = root(b"secret").end();
    import(&store, stream(oci(std::slice::from_ref(&layer)).archive(&[])), "theirs").unwrap();
    let path = format!("blobs/sha256/{}", Digest::of(&gzip(&layer)));
    let mut without = oci(std::slice::from_ref(&layer));
    without.0.remove(&path);
    let mut other = oci(std::slice::from_ref(&layer));
    other.0.get_mut(&path).unwrap()[4] ^= 1;
    for (what, files, expected) in [
        ("a layer that is missing", without, ImageErrorCode::Broken),
        ("a layer with other bytes", other, ImageErrorCode::DigestMismatch),
    ] {
        let refused = import(&store, stream(files.archive(&[])), "mine").unwrap_err();
        assert_eq!(refused.code, expected, "{what}: {refused}");
    }
}

#[test]
fn the_last_name_of_a_used_image_is_removed_by_force_only() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let image = import(&store, stream(root(b"x").end()), "a").unwrap();
    import(&store, stream(root(b"x").end()), "b").unwrap();
    assert_eq!(code(store.remove("c", false)), Err(ImageErrorCode::Unknown));
    let used = File::open(store.path().join(format!("images/{}/layers", image.id))).unwrap();
    flock(&used, FlockOperation::LockShared).unwrap();
    assert_eq!(store.remove("a", false).unwrap().names, [name("a")], "it has another");
    assert_eq!(code(store.remove("b", false)), Err(ImageErrorCode::InUse));
    assert_eq!(store.remove("b", true).unwrap().names, [name("b")]);
    assert_eq!(store.collect_garbage().unwrap().in_use, [image.id]);
    assert!(store.get(&image.id.to_string()).is_ok(), "who uses it keeps it");
    drop(used);
    import(&store, stream(root(b"x").end()), "a").unwrap();
    import(&store, stream(root(b"x").end()), "b").unwrap();
    let removed = store.remove(&image.id.to_string(), false).unwrap();
    assert_eq!(removed.names, [name("a"), name("b")], "by its id: all of them");
    store.collect_garbage().unwrap();
    assert_eq!(shape(&store), [""; 0]);
}

/// A source that fails, or ends, after this many bytes.
struct Failing(Cursor<Vec<u8>>, u64);

impl Read for Failing {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.1.saturating_sub(self.0.position());
        if left == 0 {
            return Err(io::Error::other("the cable was pulled"));
        }
        let wanted = into.len().min(left as usize);
        self.0.read(&mut into[..wanted])
    }
}

#[test]
fn an_unfinished_import_leaves_nothing() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let bytes = root(&vec![7; 3 << 20]).file("more", &vec![8; 1 << 20]).end();
    for after in [0, 1000, 100_000, 2 << 20] {
        let source = Source::Stream(Box::new(Failing(Cursor::new(bytes.clone()), after)));
        let failed = import(&store, source, "a").unwrap_err();
        assert_eq!(failed.code, ImageErrorCode::SourceUnreadable, "{failed}");
        assert_eq!(shape(&store), [""; 0]);
    }
    let mut calls = 0;
    let mut watch = |progress: &images::Progress| {
        calls += 1;
        assert_eq!((progress.layer, progress.layers), (1, 1));
        if progress.entries == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let source = stream(bytes.clone());
    let outcome = store.import(source, &name("a"), &ImportOptions::default(), &mut watch);
    assert_eq!(code(outcome), Err(ImageErrorCode::Cancelled));
    assert_eq!(shape(&store), [""; 0]);
    assert_eq!(calls, 3);

    let mut watch = |_: &images::Progress| {
        fs::create_dir_all(store.path().join("tmp/1-0/layer-1/of/a/killed/one")).unwrap();
        let beside = Store::open(store.path()).unwrap();
        let left: Vec<_> =
            shape(&beside).into_iter().filter(|name| name.starts_with("tmp")).collect();
        assert_eq!(left.len(), 1, "{left:?}");
        assert_ne!(left, ["tmp/1-0"], "a directory in use stays, and no other");
        assert_eq!(beside.collect_garbage_if_idle(), Ok(None));
        ControlFlow::Continue(())
    };
    store.import(stream(bytes), &name("a"), &ImportOptions::default(), &mut watch).unwrap();
    assert!(!shape(&store).iter().any(|name| name.starts_with("tmp")), "it is removed");
    assert!(store.get("a").is_ok());
}

#[test]
fn many_imports_run_at_once() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    std::thread::scope(|scope| {
        for n in 0..8 {
            let path = store.path().to_owned();
            scope.spawn(move || {
                let store = Store::open(&path).unwrap();
                for round in 0..4 {
                    let contents = format!("{}", (n + round) % 3);
                    import(&store, stream(root(contents.as_bytes()).end()), &format!("i{n}"))
                        .unwrap();
                    if n == 0 {
                        store.collect_garbage().unwrap();
                    }
                }
            });
        }
    });
    let images = store.list().unwrap();
    assert_eq!(images.len(), 3);
    assert_eq!(images.iter().map(|image| image.names.len()).sum::<usize>(), 8);
    for image in images {
        for layer in image.layers {
            assert!(store.path().join(format!("layers/{}/bin/sh", layer.digest)).is_file());
        }
    }
    assert!(!shape(&store).iter().any(|name| name.starts_with("tmp")));
}

/// Set where a test runs again as another user.
const AS_ORDINARY_USER_IN: &str = "IMAGES_TEST_AS_ORDINARY_USER_IN";

#[test]
fn an_ordinary_user_can_use_an_image_store() {
    if let Some(place) = std::env::var_os(AS_ORDINARY_USER_IN) {
        let store = Store::open(&Path::new(&place).join("store")).unwrap();
        let archive = Archive::new()
            .raw(b'5', b"closed", b"", 0, b"")
            .raw(b'0', b"closed/file", b"", 0, b"x")
            .raw(b'3', b"device", b"", 0o666, b"")
            .file(".wh.gone", b"")
            .file("all/.wh..wh..opq", b"")
            .directory("replaced")
            .raw(b'5', b"replaced/closed", b"", 0, b"")
            .symlink("replaced", "x")
            .end();
        let imported = import(&store, stream(archive), "a").unwrap();
        assert_eq!(imported.layers[0].report.whiteouts, 2);
        assert_eq!(store.list().unwrap().len(), 1);
        store.remove("a", false).unwrap();
        assert_eq!(store.collect_garbage().unwrap().layers, 1);
        assert_eq!(shape(&store), [""; 0]);
        return;
    }
    if !rustix::process::getuid().is_root() {
        return;
    }
    let place = TempDirectory::new();
    std::os::unix::fs::chown(place.path(), Some(65_534), Some(65_534)).unwrap();
    // The program may lie where only root can go: then it is copied to a directory that all users
    // can reach.
    let program = place.join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new(&program)
        .args(["--exact", "store::an_ordinary_user_can_use_an_image_store", "--nocapture"])
        .env(AS_ORDINARY_USER_IN, place.path())
        .uid(65_534)
        .gid(65_534)
        .current_dir("/")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed"), "{said}");
}
