//! Every kind of source, valid and invalid, imported into a store.

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use images::{Digest, ImageError, ImageErrorCode, ImportOptions, Imported, Source, Store};
use model::ImageName;
use serde_json::{Value, json};

use crate::archive::{Archive, gzip, zstd};
use crate::temp_directory::{TempDirectory, tree};

pub(crate) fn name(text: &str) -> ImageName {
    ImageName::new(text).unwrap()
}

pub(crate) fn import(store: &Store, source: Source<'_>, to: &str) -> Result<Imported, ImageError> {
    let mut watch = |_: &_| ControlFlow::Continue(());
    store.import(source, &name(to), &ImportOptions::default(), &mut watch)
}

pub(crate) fn stream(bytes: Vec<u8>) -> Source<'static> {
    Source::Stream(Box::new(Cursor::new(bytes)))
}

pub(crate) fn root(contents: &[u8]) -> Archive {
    Archive::new().directory("./").directory("./bin").file("./bin/sh", contents)
}

/// Names beneath the store, without the contents of layers.
pub(crate) fn shape(store: &Store) -> Vec<String> {
    let mut names: Vec<String> = ["layers", "images", "names", "tmp"]
        .iter()
        .flat_map(|part| fs::read_dir(store.path().join(part)).unwrap())
        .map(|entry| {
            entry.unwrap().path().strip_prefix(store.path()).unwrap().display().to_string()
        })
        .collect();
    names.sort();
    names
}

/// An image as files: paths and contents.
#[derive(Clone, Default)]
pub(crate) struct Files(pub(crate) BTreeMap<String, Vec<u8>>);

impl Files {
    fn put(&mut self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.0.insert(path.to_owned(), bytes.into());
    }

    fn json(&mut self, path: &str, value: &Value) {
        self.put(path, value.to_string());
    }

    /// Adds a blob, and describes it.
    fn blob(&mut self, kind: &str, bytes: &[u8]) -> Value {
        let digest = Digest::of(bytes);
        self.put(&format!("blobs/sha256/{digest}"), bytes);
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{digest}"),
            "size": bytes.len(),
        })
    }

    pub(crate) fn archive(&self, first: &[&str]) -> Vec<u8> {
        let mut archive = Archive::new();
        let rest = self.0.keys().map(String::as_str).filter(|path| !first.contains(path));
        for path in first.iter().copied().chain(rest) {
            archive = archive.file(path, &self.0[path]);
        }
        archive.end()
    }

    fn directory(&self, at: &Path) -> PathBuf {
        for (path, bytes) in &self.0 {
            let path = at.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        at.to_owned()
    }
}

fn here() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

fn config(architecture: &str, layers: &[Vec<u8>]) -> Value {
    let diff_ids: Vec<_> =
        layers.iter().map(|layer| format!("sha256:{}", Digest::of(layer))).collect();
    json!({
        "architecture": architecture,
        "os": "linux",
        "config": { "Env": ["A=b"], "Cmd": ["sh"], "Entrypoint": null, "WorkingDir": "/w" },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    })
}

fn two_layers() -> Vec<Vec<u8>> {
    vec![root(b"one").end(), Archive::new().file("bin/.wh.sh", b"").file("new", b"two").end()]
}

/// An image in OCI form: a manifest and the blobs it names.
fn manifest(files: &mut Files, architecture: &str, layers: &[Vec<u8>]) -> Value {
    let config = files.blob("config.v1+json", config(architecture, layers).to_string().as_bytes());
    let mut described = Vec::new();
    for (n, layer) in layers.iter().enumerate() {
        described.push(match n % 3 {
            0 => files.blob("layer.v1.tar+gzip", &gzip(layer)),
            1 => files.blob("layer.v1.tar+zstd", &zstd(layer)),
            _ => files.blob("layer.v1.tar", layer),
        });
    }
    let text = json!({ "schemaVersion": 2, "config": config, "layers": described }).to_string();
    files.blob("manifest.v1+json", text.as_bytes())
}

fn layout(manifests: &[Value], mut files: Files) -> Files {
    files.json("index.json", &json!({ "schemaVersion": 2, "manifests": manifests }));
    files.json("oci-layout", &json!({ "imageLayoutVersion": "1.0.0" }));
    files
}

pub(crate) fn oci(layers: &[Vec<u8>]) -> Files {
    let mut files = Files::default();
    let manifest = manifest(&mut files, here(), layers);
    layout(&[manifest], files)
}

/// What older versions of Docker wrote.
fn docker(layers: &[Vec<u8>], tags: &[&str]) -> Files {
    let mut files = Files::default();
    let config = config(here(), layers).to_string();
    let config_path = format!("{}.json", Digest::of(config.as_bytes()));
    files.put(&config_path, config);
    let mut paths = Vec::new();
    for layer in layers {
        let path = format!("{}/layer.tar", Digest::of(&[layer.as_slice(), b"id"].concat()));
        files.put(&path, layer.as_slice());
        paths.push(path);
    }
    files.json(
        "manifest.json",
        &json!([{ "Config": config_path, "RepoTags": tags, "Layers": paths }]),
    );
    files
}

#[test]
fn one_root_in_every_form_is_one_image() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let bytes = root(b"contents").end();
    let mut ids = Vec::new();
    for bytes in [bytes.clone(), gzip(&bytes), zstd(&bytes)] {
        fs::write(place.join("file"), &bytes).unwrap();
        ids.push(import(&store, Source::Path(place.join("file")), "a").unwrap().id);
        ids.push(import(&store, stream(bytes), "b").unwrap().id);
    }
    ids.dedup();
    assert_eq!(ids.len(), 1);
    let layers =
        fs::read_to_string(store.path().join(format!("images/{}/layers", ids[0]))).unwrap();
    assert_eq!(layers, format!("{}\n", Digest::of(&bytes)));
    assert_eq!(
        tree(&store.path().join("layers").join(layers.trim_end())),
        ["bin directory 755", "bin/sh file 644 links 1 8 4012 contents"]
    );
}

#[test]
fn a_directory_is_imported_as_it_is() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("root/var/store")).unwrap();
    let path = place.directory("root");
    fs::write(path.join("one"), "x").unwrap();
    fs::hard_link(path.join("one"), path.join("two")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", path.join("link")).unwrap();
    fs::create_dir_all(path.join("n".repeat(200)).join("m".repeat(200))).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(path.join("socket")).unwrap();
    let first = import(&store, Source::Path(path.clone()), "a").unwrap();
    let second = import(&store, Source::Path(path.clone()), "b").unwrap();
    assert_eq!((first.id, second.shared), (second.id, 1), "the same contents are the same image");
    assert_eq!(first.layers[0].report.left_out, 1, "the socket");
    drop(socket);
    fs::remove_file(path.join("socket")).unwrap();
    let layer = store.path().join("layers").join(first.layers[0].digest.to_string());
    let unpacked = tree(&layer);
    assert!(!unpacked.iter().any(|line| line.starts_with("var/store")), "never itself");
    let expected: Vec<_> =
        tree(&path).into_iter().filter(|line| !line.starts_with("var/store")).collect();
    assert_eq!(unpacked, expected);
}

#[test]
fn one_image_in_every_form_is_one_image() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let layers = two_layers();
    let saved = docker(&layers, &["x:latest"]);
    let config_path = saved.0.keys().find(|path| path.len() == 64 + 5).unwrap().as_str();
    let both = Files(oci(&layers).0.into_iter().chain(saved.0.clone()).collect());
    let sources: Vec<(&str, Source<'_>)> = vec![
        ("an OCI directory", Source::Path(oci(&layers).directory(&place.join("oci")))),
        ("an OCI archive", stream(oci(&layers).archive(&[]))),
        ("an OCI archive, compressed", stream(gzip(&oci(&layers).archive(&["oci-layout"])))),
        ("a saved directory", Source::Path(saved.directory(&place.join("saved")))),
        ("a saved archive with its manifest last", stream(saved.archive(&[config_path]))),
        ("a saved archive, compressed", stream(zstd(&saved.archive(&["manifest.json"])))),
        ("an archive that is both", stream(both.archive(&["index.json"]))),
    ];
    let mut ids = Vec::new();
    for (what, source) in sources {
        let imported =
            import(&store, source, "a").unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(imported.layers.len(), 2, "{what}");
        assert_eq!(imported.shared, if ids.is_empty() { 0 } else { 2 }, "{what}");
        ids.push(imported.id);
        ids.dedup();
        assert_eq!(ids.len(), 1, "{what}");
    }
    let path = place.join("file.tar");
    fs::write(&path, saved.archive(&["manifest.json"])).unwrap();
    assert_eq!(import(&store, Source::Path(path), "a").unwrap().id, ids[0], "a file");
    let image = store.get("a").unwrap();
    assert_eq!(image.config.env, ["A=b"]);
    assert_eq!((image.config.working_directory.as_str(), image.bytes()), ("/w", 6));
    assert_eq!(image.config.architecture, here());
    assert_eq!(image.layers[0].digest, Digest::of(&layers[0]), "lowest first");
}

#[test]
fn images_of_other_tools_are_recognised_by_their_file_names() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let layer = root(b"x").end();
    let text = config(here(), std::slice::from_ref(&layer)).to_string();
    let (digest, packed) = (Digest::of(&layer), gzip(&layer));
    let config_digest = Digest::of(text.as_bytes());
    let cases = [
        (format!("{digest}.tar"), &layer, format!("{config_digest}.json"), true),
        (format!("{}.tar.gz", Digest::of(&packed)), &packed, "config".to_owned(), true),
        (format!("sha256:{digest}"), &layer, format!("sha256:{config_digest}"), true),
        ("layer-of-mine".to_owned(), &layer, "c".to_owned(), false),
    ];
    for (path, bytes, config_path, is_known) in cases {
        let manifest = json!([{ "Config": config_path, "Layers": [path] }]).to_string();
        let archive = Archive::new()
            .file(&path, bytes)
            .file(&config_path, text.as_bytes())
            .file("manifest.json", manifest.as_bytes())
            .end();
        fs::write(place.join("file"), &archive).unwrap();
        let by_file = import(&store, Source::Path(place.join("file")), "a").unwrap();
        assert_eq!(by_file.layers[0].digest, digest, "{path}: all of a file is looked at");
        let streamed = import(&store, stream(archive), "b").unwrap();
        assert_eq!(streamed.layers[0].digest == digest, is_known, "{path}");
    }
}

#[test]
fn recursive_image_lists_are_bounded() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let nested = |times: usize, mut files: Files, innermost: &Value| {
        let mut inner = innermost.clone();
        for _ in 0..3 {
            let list = json!({ "manifests": vec![inner; times] }).to_string();
            inner = files.blob("index.v1+json", list.as_bytes());
        }
        layout(&[inner], files).archive(&[])
    };
    let mut files = Files::default();
    let ours = manifest(&mut files, here(), &two_layers());
    let imported = import(&store, stream(nested(300, files.clone(), &ours)), "a").unwrap();
    assert_eq!(imported.layers.len(), 2, "each list is gone through once");
    let mut about = ours;
    about["annotations"] = json!({ "vnd.docker.reference.type": "attestation-manifest" });
    let refused = import(&store, stream(nested(2000, files, &about)), "b").unwrap_err();
    assert_eq!(refused.code, ImageErrorCode::TooLarge, "{refused}");
}

#[test]
fn an_import_can_be_cancelled_at_any_point() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let options = ImportOptions::default();
    options.called_off.store(true, Ordering::Relaxed);
    let path = place.join("file");
    fs::write(&path, oci(&two_layers()).archive(&[])).unwrap();
    for (what, source) in [
        ("a root", stream(root(b"x").end())),
        ("an image that is kept aside first", stream(oci(&two_layers()).archive(&[]))),
        ("a layer of an image", Source::Path(path)),
    ] {
        let mut watch = |_: &_| ControlFlow::Continue(());
        let outcome = store.import(source, &name("a"), &options, &mut watch);
        assert_eq!(outcome.unwrap_err().code, ImageErrorCode::Cancelled, "{what}");
        assert_eq!(shape(&store), [""; 0], "{what}");
    }
}

#[test]
fn an_image_with_a_too_long_description_is_refused() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let layer = root(b"x").end();
    let mut written = config(here(), std::slice::from_ref(&layer));
    written["config"]["Env"] = json!(vec![""; 200_000]);
    let manifest = json!([{ "Config": "c.json", "Layers": ["a/layer.tar"] }]);
    let archive = Archive::new()
        .file("manifest.json", manifest.to_string().as_bytes())
        .file("c.json", written.to_string().as_bytes())
        .file("a/layer.tar", &layer)
        .end();
    let refused = import(&store, stream(archive), "a").unwrap_err();
    assert_eq!(refused.code, ImageErrorCode::TooLarge, "{refused}");
    assert_eq!(shape(&store), [""; 0]);
}

#[test]
fn a_layer_that_links_to_another_is_that_one() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let layer = root(b"x").end();
    let config = config(here(), &[layer.clone(), layer.clone()]).to_string();
    let manifest = json!([{ "Config": "c.json", "Layers": ["a/layer.tar", "b/layer.tar"] }]);
    let archive = Archive::new()
        .file("manifest.json", manifest.to_string().as_bytes())
        .file("c.json", config.as_bytes())
        .file("a/layer.tar", &layer)
        .symlink("b/layer.tar", "../a/layer.tar")
        .end();
    let imported = import(&store, stream(archive), "a").unwrap();
    assert_eq!(imported.layers.len(), 1, "what comes twice is mounted once");
    assert_eq!(imported.shared, 0);
}

#[test]
fn the_image_for_this_machine_is_chosen_from_lists_in_lists() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let mut files = Files::default();
    let for_platform = |mut manifest: Value, architecture: &str| {
        manifest["platform"] = json!({ "os": "linux", "architecture": architecture });
        manifest
    };
    let ours = for_platform(manifest(&mut files, here(), &two_layers()), here());
    let mut theirs = for_platform(ours.clone(), "s390x");
    theirs["digest"] = json!(format!("sha256:{}", Digest::of(b"is not here")));
    let mut about = for_platform(ours.clone(), "unknown");
    about["annotations"] = json!({ "vnd.docker.reference.type": "attestation-manifest" });
    let list = json!({ "manifests": [theirs, about, ours] }).to_string();
    let mut inner = files.blob("index.v1+json", list.as_bytes());
    inner["annotations"] = json!({ "org.opencontainers.image.ref.name": "one" });
    let other = for_platform(manifest(&mut files, here(), &[root(b"other").end()]), here());
    let only_theirs = layout(&[theirs.clone()], files.clone());
    let both = layout(&[inner.clone(), other], files.clone());
    let one = layout(&[inner], files);
    assert_eq!(import(&store, stream(one.archive(&[])), "a").unwrap().layers.len(), 2);
    let refused = import(&store, stream(both.archive(&[])), "b").unwrap_err();
    assert_eq!(refused.code, ImageErrorCode::Ambiguous, "{refused}");
    assert!(refused.cause.contains("one"), "{refused}");
    let options = ImportOptions { reference: Some("one".to_owned()), ..ImportOptions::default() };
    let mut watch = |_: &_| ControlFlow::Continue(());
    let chosen = store.import(stream(both.archive(&[])), &name("b"), &options, &mut watch).unwrap();
    assert_eq!(chosen.id, store.resolve("a").unwrap());
    let refused = import(&store, stream(only_theirs.archive(&[])), "c").unwrap_err();
    assert_eq!(refused.code, ImageErrorCode::WrongPlatform, "{refused}");
    assert!(refused.cause.contains("s390x"), "{refused}");
}

#[test]
fn several_saved_images_are_selected_by_their_tags() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let (one, two) =
        (docker(&[root(b"1").end()], &["one:latest"]), docker(&[root(b"2").end()], &["two:1"]));
    let list = |files: &Files| -> Vec<Value> {
        serde_json::from_slice(&files.0["manifest.json"]).unwrap()
    };
    let manifests = [list(&one), list(&two)].concat();
    let mut both = Files(one.0.into_iter().chain(two.0).collect());
    both.json("manifest.json", &json!(manifests));
    let chosen = |reference: Option<&str>| {
        let reference = reference.map(str::to_owned);
        let options = ImportOptions { reference, ..ImportOptions::default() };
        let mut watch = |_: &_| ControlFlow::Continue(());
        let archive = both.archive(&["manifest.json"]);
        let imported = store.import(stream(archive), &name("a"), &options, &mut watch);
        imported.map(|imported| imported.layers[0].digest).map_err(|error| error.code)
    };
    assert_eq!(chosen(None), Err(ImageErrorCode::Ambiguous));
    assert_eq!(chosen(Some("three")), Err(ImageErrorCode::Ambiguous));
    assert_eq!(chosen(Some("one")), Ok(Digest::of(&root(b"1").end())));
    assert_eq!(chosen(Some("two:1")), Ok(Digest::of(&root(b"2").end())));
}

#[test]
fn images_with_wrong_digests_are_refused_and_leave_nothing() {
    let layers = two_layers();
    let path_of = |files: &Files, part: &str| {
        let found = files.0.iter().find(|(path, bytes)| {
            path.starts_with("blobs/") && String::from_utf8_lossy(bytes).contains(part)
        });
        found.unwrap().0.clone()
    };
    let changed = |change: &dyn Fn(&mut Files)| {
        let mut files = oci(&layers);
        change(&mut files);
        files.archive(&["oci-layout"])
    };
    let layer_path = format!("blobs/sha256/{}", Digest::of(&gzip(&layers[0])));
    let many: Vec<_> = (0..65_u32).map(|n| root(&n.to_le_bytes()).end()).collect();
    let evil = vec![Archive::new().file("../x", b"").end()];
    let foreign = {
        let mut files = Files::default();
        let manifest = manifest(&mut files, "vax", &layers);
        layout(&[manifest], files)
    };
    let not_listed = {
        let mut files = docker(&layers, &[]);
        let config = config(here(), &layers[..1]).to_string();
        files.put("c.json", config);
        let text = String::from_utf8(files.0["manifest.json"].clone()).unwrap();
        let mut value: Value = serde_json::from_str(&text).unwrap();
        value[0]["Config"] = json!("c.json");
        files.json("manifest.json", &value);
        files
    };
    let swapped = {
        let mut files = docker(&layers, &[]);
        let paths: Vec<_> =
            files.0.keys().filter(|path| path.ends_with("layer.tar")).cloned().collect();
        let (a, b) = (files.0[&paths[0]].clone(), files.0[&paths[1]].clone());
        files.put(&paths[0], b);
        files.put(&paths[1], a);
        files
    };
    let cases: Vec<(&str, Vec<u8>, ImageErrorCode)> = vec![
        (
            "a layer with other bytes of the same length",
            changed(&|files| {
                let at = files.0.get_mut(&layer_path).unwrap();
                at[4] ^= 1;
            }),
            ImageErrorCode::DigestMismatch,
        ),
        (
            "a layer of another length",
            changed(&|files| files.0.get_mut(&layer_path).unwrap().push(0)),
            ImageErrorCode::DigestMismatch,
        ),
        (
            "a layer that is missing",
            changed(&|files| {
                files.0.remove(&layer_path);
            }),
            ImageErrorCode::Broken,
        ),
        (
            "another configuration",
            changed(&|files| {
                let path = path_of(files, "diff_ids");
                files.put(&path, "{}");
            }),
            ImageErrorCode::DigestMismatch,
        ),
        (
            "another manifest",
            changed(&|files| {
                let path = path_of(files, "schemaVersion");
                files.put(&path, "{}");
            }),
            ImageErrorCode::DigestMismatch,
        ),
        (
            "an index that is none",
            changed(&|files| files.put("index.json", "7")),
            ImageErrorCode::Broken,
        ),
        (
            "a digest of another kind",
            changed(&|files| {
                files.json("index.json", &json!({ "manifests": [{ "digest": "sha512:00" }] }));
            }),
            ImageErrorCode::Unsupported,
        ),
        (
            "a digest that is a path",
            changed(&|files| {
                files.json(
                    "index.json",
                    &json!({ "manifests": [{ "digest": "sha256:../../../../etc/passwd" }] }),
                );
            }),
            ImageErrorCode::Unsupported,
        ),
        (
            "nothing",
            changed(&|files| files.json("index.json", &json!({}))),
            ImageErrorCode::Ambiguous,
        ),
        ("another machine", foreign.archive(&[]), ImageErrorCode::WrongPlatform),
        ("too many layers", oci(&many).archive(&[]), ImageErrorCode::TooManyLayers),
        ("a layer that wants out", oci(&evil).archive(&[]), ImageErrorCode::Unsafe),
        (
            "a layer more than it says",
            not_listed.archive(&["manifest.json"]),
            ImageErrorCode::Broken,
        ),
        (
            "layers in another order",
            swapped.archive(&["manifest.json"]),
            ImageErrorCode::DigestMismatch,
        ),
        (
            "an archive that is cut",
            {
                let mut bytes = oci(&layers).archive(&[]);
                bytes.truncate(3000);
                bytes
            },
            ImageErrorCode::Broken,
        ),
        (
            "a text",
            b"hello world, this is no archive at all\n".repeat(50),
            ImageErrorCode::Unrecognised,
        ),
        ("nothing at all", Vec::new(), ImageErrorCode::Unrecognised),
        ("a few bytes", b"x".to_vec(), ImageErrorCode::Unrecognised),
        ("a compressed text", gzip(&b"hello".repeat(500)), ImageErrorCode::Unrecognised),
        ("xz", b"\xfd7zXZ\0aaaa".to_vec(), ImageErrorCode::Unsupported),
    ];
    for (what, bytes, expected) in cases {
        let place = TempDirectory::new();
        let store = Store::open(&place.join("store")).unwrap();
        fs::write(place.join("file"), &bytes).unwrap();
        for source in [stream(bytes), Source::Path(place.join("file"))] {
            let refused = import(&store, source, "a").unwrap_err();
            assert_eq!(refused.code, expected, "{what}: {refused}");
            assert_eq!(shape(&store), [""; 0], "{what}");
        }
    }
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let refused = import(&store, Source::Path(place.join("nothing")), "a").unwrap_err();
    assert_eq!(refused.code, ImageErrorCode::SourceUnreadable, "{refused}");
}

#[test]
fn a_root_that_only_looks_like_an_image_is_a_root() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let bytes = Archive::new().file("manifest.json", b"{}").file("bin/sh", b"x").end();
    fs::write(place.join("file"), &bytes).unwrap();
    for source in [stream(bytes.clone()), Source::Path(place.join("file"))] {
        let imported = import(&store, source, "a").unwrap();
        assert_eq!(imported.layers[0].digest, Digest::of(&bytes));
    }
}

#[test]
fn layers_that_add_nothing_or_are_hidden_are_dropped() {
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let (a, b) = (root(b"a").end(), root(b"b").end());
    let (empty, hides) =
        (Archive::new().end(), Archive::new().file(".wh..wh..opq", b"").file("n", b"").end());
    let cases = [
        ("empty ones", vec![a.clone(), empty.clone(), b.clone()], vec![&a, &b]),
        ("only an empty one", vec![empty.clone()], vec![&empty]),
        ("one that comes twice", vec![a.clone(), b.clone(), a.clone()], vec![&b, &a]),
        ("what is hidden", vec![a.clone(), hides.clone(), b.clone()], vec![&hides, &b]),
    ];
    for (what, layers, expected) in cases {
        let imported = import(&store, stream(oci(&layers).archive(&[])), "a").unwrap();
        let digests: Vec<_> = imported.layers.iter().map(|layer| layer.digest).collect();
        let expected: Vec<_> = expected.into_iter().map(|layer| Digest::of(layer)).collect();
        assert_eq!(digests, expected, "{what}");
    }
}
