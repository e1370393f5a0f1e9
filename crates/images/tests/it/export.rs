//! Exported images: what was imported comes out as an archive that gives the same image again.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use images::{Digest, ImageErrorCode, Imported, Store};
use model::ImageId;
use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode};

use crate::archive::Archive;
use crate::same_as_tar::{self, Entry};
use crate::sources::{import, oci, root, shape, stream};
use crate::temp_directory::{TempDirectory, tree};

fn exported(store: &Store, id: ImageId) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.write_archive(id, "shoal/image:x", &mut bytes).unwrap();
    bytes
}

fn layer(store: &Store, digest: Digest) -> PathBuf {
    store.path().join("layers").join(digest.to_string())
}

/// Everything of a layer that is kept: also opaque directories and modification times of files.
fn all_of(path: &Path) -> Vec<String> {
    let mut lines = tree(path);
    let mut directories = vec![path.to_owned()];
    while let Some(directory) = directories.pop() {
        let mut value = [0; 8];
        let opaque = rustix::fs::getxattr(&directory, c"user.overlay.opaque", &mut value);
        let shown = directory.strip_prefix(path).unwrap().display();
        lines.extend(opaque.map(|length| format!("{shown} hides {:?}", &value[..length])));
        for entry in fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            let found = entry.metadata().unwrap();
            if found.is_dir() {
                directories.push(entry.path());
            } else if found.is_file() {
                let name = entry.file_name().as_encoded_bytes().escape_ascii().to_string();
                lines.push(format!("{shown}/{name} {}.{}", found.mtime(), found.mtime_nsec()));
            }
        }
    }
    lines.sort();
    lines
}

fn layers_of(store: &Store, image: &Imported) -> Vec<Vec<String>> {
    image.layers.iter().map(|known| all_of(&layer(store, known.digest))).collect()
}

/// An image with everything that a layer can have.
fn odd_layers() -> Vec<Vec<u8>> {
    let deep = format!("{}file", format!("{}/", "d".repeat(250)).repeat(12));
    let long_link = format!("{}/", "t".repeat(300));
    let lowest = root(b"sh")
        .raw(b'5', b"closed", b"", 0o700, b"")
        .raw(b'0', b"closed/file", b"", 0o600, b"secret")
        .raw(b'0', b"run", b"", 0o755, &[7; 513])
        .hardlink("bin/run", "run")
        .hardlink("run-too", "bin/run")
        .raw(b'0', b"odd \\ \n \"name\" \xff\xfe", b"", 0o644, b"bytes")
        .raw(b'2', b"odd-link", b"..//a/./\xff/", 0o777, b"")
        .file("-rf", b"")
        .file(&"n".repeat(100), b"fits")
        .file("gone", b"")
        .file("all/old", b"")
        .directory("replaced/below")
        .pax(&[("path", deep.as_bytes())])
        .raw(b'0', b"x", b"", 0o644, b"deep")
        .pax(&[("path", "e".repeat(255).as_bytes()), ("linkpath", deep.as_bytes())])
        .hardlink("x", "x")
        .pax(&[("linkpath", long_link.as_bytes())])
        .symlink("long-link", "x")
        .pax(&[("mtime", b"1234567890.123456789")])
        .file("fraction", b"")
        .pax(&[("mtime", b"-1.25")])
        .file("before-1970", b"");
    let middle = Archive::new()
        .file(".wh.gone", b"")
        .file(&format!("d/.wh.{}", "w".repeat(251)), b"")
        .file("all/.wh..wh..opq", b"")
        .file("all/new", b"")
        .file(".wh.replaced", b"")
        .directory("replaced");
    vec![lowest.end(), middle.end(), Archive::new().file("top/file", b"top").end()]
}

#[test]
fn an_exported_image_can_be_imported_again() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let image = import(&store, stream(oci(&odd_layers()).archive(&[])), "a").unwrap();
    let archive = exported(&store, image.id);
    let other = Store::open(&place.join("other")).unwrap();
    let again = import(&other, stream(archive.clone()), "a").unwrap();
    let expected = layers_of(&store, &image);
    assert_eq!(layers_of(&other, &again), expected);
    assert_eq!(again.layers.iter().map(|layer| layer.report.left_out).sum::<u64>(), 0);
    for wanted in ["gone special 0", "all hides [121]", "run file 755 links 3 513 "] {
        assert!(expected.iter().flatten().any(|line| line.starts_with(wanted)), "{wanted}");
    }
    let (before, after) = (store.get("a").unwrap(), other.get("a").unwrap());
    assert_eq!(before.config, after.config);
    assert_eq!(exported(&other, again.id).len(), archive.len());
    let third = Store::open(&place.join("third")).unwrap();
    assert_eq!(import(&third, stream(exported(&other, again.id)), "a").unwrap().id, again.id);
}

#[test]
fn an_exported_opaque_layer_stays_opaque() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let upper = Archive::new().file(".wh..wh..opq", b"").file("new", b"").end();
    let layers = [root(b"sh").end(), upper];
    let image = import(&store, stream(oci(&layers).archive(&[])), "a").unwrap();
    let again = import(&store, stream(exported(&store, image.id)), "b").unwrap();
    assert!(again.layers[0].report.hides_all_below);
    assert_eq!(layers_of(&store, &again), layers_of(&store, &image));
}

/// Another reader sees the same as ours.
#[test]
fn gnu_tar_reads_an_exported_image() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let image = import(&store, stream(oci(&odd_layers()).archive(&[])), "a").unwrap();
    fs::write(place.join("saved.tar"), exported(&store, image.id)).unwrap();
    let lowest = image.layers[0].digest;
    let theirs = place.directory("theirs");
    let script = format!(
        "set -e; mkdir saved; tar -xf saved.tar -C saved; umask 022
        tar -xpf saved/{lowest}/layer.tar --no-same-owner -C theirs
        tar -tvf saved/{lowest}/layer.tar --numeric-owner | grep -vc ' 0/0 ' || true"
    );
    let output = Command::new("sh").arg("-c").arg(script).current_dir(place.path()).output();
    let output = output.unwrap();
    let (said, wrong) = (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(output.status.success(), "{wrong}");
    assert_eq!(said, b"0\n", "all belongs to user 0");
    assert_eq!(all_of(&theirs), all_of(&layer(&store, lowest)));
}

#[test]
fn the_same_image_is_exported_as_the_same_bytes() {
    let place = TempDirectory::new();
    let source = || stream(oci(&odd_layers()).archive(&[]));
    let first = Store::open(&place.join("first")).unwrap();
    let id = import(&first, source(), "a").unwrap().id;
    let archive = exported(&first, id);
    assert!(exported(&first, id) == archive);
    // Names made in another order and at another time.
    let second = Store::open(&place.join("second")).unwrap();
    let image = import(&second, source(), "b").unwrap();
    let top = layer(&second, image.layers[2].digest).join("top");
    fs::rename(&top, top.with_extension("away")).unwrap();
    fs::create_dir(&top).unwrap();
    fs::rename(top.with_extension("away").join("file"), top.join("file")).unwrap();
    fs::remove_dir(top.with_extension("away")).unwrap();
    fs::set_permissions(&top, Permissions::from_mode(0o755)).unwrap();
    assert_eq!(image.id, id);
    assert!(exported(&second, id) == archive);
    let mut renamed = Vec::new();
    first.write_archive(id, "shoal/image:y", &mut renamed).unwrap();
    assert!(renamed != archive, "its name is in it");
}

/// Does something once, after this many bytes were written.
struct Once<F> {
    written: Vec<u8>,
    after: usize,
    act: F,
}

impl<F: FnMut() -> io::Result<()>> Write for Once<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_before = self.written.len() <= self.after;
        self.written.extend_from_slice(bytes);
        if is_before && self.written.len() > self.after {
            (self.act)()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_image_stays_while_it_is_exported() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let large = vec![7; 1 << 20];
    let image = import(&store, stream(root(&large).end()), "a").unwrap();
    let expected = exported(&store, image.id);
    let act = || {
        store.remove("a", true).unwrap();
        assert_eq!(store.collect_garbage().unwrap().in_use, [image.id]);
        Ok(())
    };
    let mut to = Once { written: Vec::new(), after: 1000, act };
    store.write_archive(image.id, "shoal/image:x", &mut to).unwrap();
    assert!(to.written == expected);
    assert_eq!(store.collect_garbage().unwrap().images, [image.id]);
    let mut nothing = Vec::new();
    let missed = store.write_archive(image.id, "x", &mut nothing).unwrap_err();
    assert_eq!(missed.code, ImageErrorCode::Unknown);
    assert!(missed.cause.contains(&image.id.to_string()), "{missed}");
    assert_eq!(nothing, b"");
}

#[test]
fn an_export_whose_receiver_stops_fails_and_leaves_nothing() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let large = vec![7; 1 << 20];
    let image = import(&store, stream(root(&large).end()), "a").unwrap();
    let before = shape(&store);
    let length = exported(&store, image.id).len();
    for after in [0, 1000, 600_000, length - 1] {
        let act = || Err(io::Error::other("the cable was pulled"));
        let mut to = Once { written: Vec::new(), after, act };
        let failed = store.write_archive(image.id, "x", &mut to).unwrap_err();
        assert_eq!(failed.code, ImageErrorCode::NotTaken, "{after}: {failed}");
        assert!(failed.cause.contains("the cable was pulled"), "{failed}");
        assert_eq!(shape(&store), before);
    }
    store.remove("a", false).unwrap();
    assert_eq!(store.collect_garbage().unwrap().images, [image.id], "it is not held");
}

#[test]
fn a_layer_that_is_not_as_it_was_imported_is_refused() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let large = vec![7; 1 << 20];
    let image = import(&store, stream(root(&large).end()), "a").unwrap();
    let path = layer(&store, image.layers[0].digest);
    let refused = |after: usize, act: &dyn Fn()| {
        let act = || {
            act();
            Ok(())
        };
        let mut to = Once { written: Vec::new(), after, act };
        let refused = store.write_archive(image.id, "x", &mut to).unwrap_err();
        assert_eq!(refused.code, ImageErrorCode::Store, "{refused}");
        refused.cause.into_owned()
    };
    let sh = path.join("bin/sh");
    let cause = refused(1000, &|| fs::write(&sh, "shorter").unwrap());
    assert!(cause.contains("changed"), "{cause}");
    fs::write(path.join(".wh.bin"), "").unwrap();
    let cause = refused(0, &|| {});
    assert!(cause.contains(".wh.bin"), "{cause}");
    fs::remove_file(path.join(".wh.bin")).unwrap();
    let (kind, mode) = (FileType::Fifo, Mode::RUSR);
    rustix::fs::mknodat(CWD, path.join("pipe"), kind, mode, 0).unwrap();
    let cause = refused(0, &|| {});
    assert!(cause.contains("pipe"), "{cause}");
    fs::remove_dir_all(&path).unwrap();
    let cause = refused(0, &|| {});
    assert!(cause.contains(&image.layers[0].digest.to_string()), "{cause}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_layer_is_exported_and_imported_again(
        entries in prop::collection::vec(same_as_tar::entry(), 1..12),
        hidden in prop::collection::vec((same_as_tar::path(), any::<bool>()), 0..4),
    ) {
        let whiteouts = hidden.into_iter().map(|(path, is_opaque)| {
            let (parent, name) = path.rsplit_once('/').unwrap_or((".", &path));
            let name = if is_opaque { ".wh..opq" } else { name };
            Entry::File(format!("{parent}/.wh.{name}"), Vec::new(), 0o644)
        });
        let entries: Vec<_> = entries.into_iter().chain(whiteouts).collect();
        let place = TempDirectory::new();
        let store = Store::open(&place.join("store")).unwrap();
        let other = Store::open(&place.join("other")).unwrap();
        if let Ok(image) = import(&store, stream(same_as_tar::archive(&entries)), "a") {
            let again = import(&other, stream(exported(&store, image.id)), "a").unwrap();
            prop_assert_eq!(layers_of(&other, &again), layers_of(&store, &image));
        }
    }
}
