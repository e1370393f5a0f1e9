//! Images of users: into the store, into sandboxes, and out again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::shell::{CommandOutput, able, finish, skipped};
use crate::test_server::{Scratch, TestServer, isolated_command, output_of};

fn on(scratch: &Scratch, arguments: &[&str], input: &[u8]) -> CommandOutput {
    let mut command = isolated_command(arguments);
    command.env("SHOAL_DATA_DIR", scratch.0.join("data"));
    if !input.is_empty() {
        command.stdin(std::process::Stdio::piped());
    }
    output_of(finish(command.spawn().unwrap(), input))
}

fn tar(root: &Path) -> Vec<u8> {
    let output = Command::new("tar").arg("-C").arg(root).args(["-c", "."]).output().unwrap();
    assert!(output.status.success());
    output.stdout
}

/// A program that needs no library, with many names.
fn busybox() -> Option<PathBuf> {
    let found = ["/usr/bin/busybox", "/bin/busybox"].map(PathBuf::from);
    let is_static = |path: &PathBuf| {
        let output = Command::new("ldd").arg(path).output();
        output.is_ok_and(|output| !output.status.success())
    };
    let found = found.into_iter().find(|path| path.exists() && is_static(path));
    if found.is_none() {
        skipped("no static busybox");
    }
    found
}

/// A root without glibc.
fn small_root(at: &Path) -> Option<()> {
    let busybox = busybox()?;
    fs::create_dir_all(at.join("bin")).unwrap();
    fs::copy(busybox, at.join("bin/busybox")).unwrap();
    for name in ["sh", "echo", "cat", "id", "ls", "true"] {
        std::os::unix::fs::symlink("busybox", at.join("bin").join(name)).unwrap();
    }
    fs::write(at.join("marker"), "brought\n").unwrap();
    Some(())
}

/// A root with glibc as Debian lays it out: links at the top, libraries beneath `usr`.
fn debian_root(at: &Path) {
    for name in ["bin", "lib", "lib64"] {
        fs::create_dir_all(at.join("usr").join(name)).unwrap();
        std::os::unix::fs::symlink(format!("usr/{name}"), at.join(name)).unwrap();
    }
    for program in ["/usr/bin/bash", "/usr/bin/cat"] {
        let name = Path::new(program).file_name().unwrap();
        fs::copy(program, at.join("usr/bin").join(name)).unwrap();
        let needed = Command::new("ldd").arg(program).output().unwrap();
        let needed = String::from_utf8(needed.stdout).unwrap();
        for library in needed.split_whitespace().filter(|word| word.starts_with('/')) {
            let to = at.join(library.trim_start_matches('/'));
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(library, to).unwrap();
        }
    }
    fs::write(at.join("marker"), "brought\n").unwrap();
}

#[test]
fn images_come_and_go_without_a_server() {
    let scratch = Scratch::new();
    let empty = on(&scratch, &["image", "ls", "--json"], b"");
    assert_eq!((empty.code, empty.text()), (Some(0), "{\n  \"images\": []\n}\n"), "{empty:?}");
    assert!(!scratch.0.join("data").exists(), "looking makes nothing");
    assert_eq!(on(&scratch, &["image", "show", "a"], b"").code, Some(1));

    let root = scratch.0.join("root");
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::write(root.join("etc/file"), "x").unwrap();
    let path = root.to_str().unwrap();
    let imported = on(&scratch, &["image", "import", "a:1", path], b"");
    assert_eq!(imported.code, Some(0), "{imported:?}");
    let id = imported.text().trim_end().to_owned();
    let piped = on(&scratch, &["image", "import", "b", "-", "--json"], &tar(&root));
    let piped: serde_json::Value = serde_json::from_str(piped.text()).unwrap();
    assert_eq!(piped["names"], json!(["b"]));
    let shown = on(&scratch, &["image", "show", &id[..10], "--json"], b"");
    let shown: serde_json::Value = serde_json::from_str(shown.text()).unwrap();
    assert_eq!((&shown["names"], &shown["bytes"]), (&json!(["a:1"]), &json!(1)));
    let listed = on(&scratch, &["image"], b"");
    assert!(listed.text().contains("a:1") && listed.text().contains("LAYERS"), "{listed:?}");

    for (words, code, part) in [
        (&["image", "import", "A", path][..], 2, "image name"),
        (&["image", "import", "c", "/no/such"], 2, "source_unreadable"),
        (&["image", "import", "c", "/etc/hostname"], 2, "unrecognised"),
        (&["image", "rm", "c"], 1, "image_unknown"),
        (&["image", "gc", "--server", "http://127.0.0.1:1"], 2, "by itself"),
        (&["image", "ls", "--server", "http://127.0.0.1:1"], 3, "no server"),
    ] {
        let refused = on(&scratch, words, b"");
        assert!(
            refused.code == Some(code) && refused.stderr.contains(part),
            "{words:?} {refused:?}"
        );
    }
    let data_dir = scratch.0.join("data");
    let mut elsewhere =
        isolated_command(&["image", "ls", "--data-dir", data_dir.to_str().unwrap()]);
    elsewhere.env("SHOAL_URL", "http://127.0.0.1:1");
    let listed = output_of(finish(elsewhere.spawn().unwrap(), b""));
    assert!(listed.text().contains("a:1"), "what was typed counts: {listed:?}");
    let removed = on(&scratch, &["image", "rm", "a:1", "c", "b"], b"");
    assert_eq!((removed.code, removed.text()), (Some(1), "a:1\n"), "the removed name is printed");
    assert!(removed.stderr.contains("image_unknown"), "{removed:?}");
    let removed = on(&scratch, &["image", "rm", "b"], b"");
    assert_eq!((removed.code, removed.text()), (Some(0), "b\n"), "{removed:?}");
    let layers = fs::read_dir(scratch.0.join("data/images/layers")).unwrap().count();
    assert_eq!(layers, 0, "what nothing uses is gone");
    assert_eq!(on(&scratch, &["image", "gc"], b"").code, Some(0));
}

#[test]
fn programs_run_in_roots_of_every_kind() {
    if !able() {
        return;
    }
    let scratch = Scratch::new();
    let (small, debian, one) =
        (scratch.0.join("small"), scratch.0.join("debian"), scratch.0.join("one"));
    if small_root(&small).is_none() {
        return;
    }
    debian_root(&debian);
    fs::create_dir(&one).unwrap();
    fs::copy(small.join("bin/busybox"), one.join("busybox")).unwrap();
    for (name, root) in [("small", &small), ("debian", &debian), ("one", &one)] {
        let imported = on(&scratch, &["image", "import", name, root.to_str().unwrap()], b"");
        assert_eq!(imported.code, Some(0), "{name}: {imported:?}");
    }
    let run = |image: &str, argv: &[&str]| {
        let words = [&["run", "--image", image, "--stdin=no", "--"], argv].concat();
        on(&scratch, &words, b"")
    };
    for (image, argv) in [
        ("small", &["/bin/sh", "-c", "cat /marker; id -u"][..]),
        ("debian", &["bash", "-c", "cat /marker; echo $UID"]),
    ] {
        let said = run(image, argv);
        assert_eq!((said.code, said.text()), (Some(0), "brought\n1000\n"), "{image}: {said:?}");
    }
    let said = run("one", &["/busybox", "echo", "alone"]);
    assert_eq!((said.code, said.text()), (Some(0), "alone\n"), "{said:?}");
    let said = run("small", &["/bin/sh", "-c", "echo x > /marker; echo x > /new"]);
    assert_ne!(said.code, Some(0), "a root is read-only");
    let read_only = said.stderr.matches("Read-only file system").count();
    assert_eq!(read_only, 2, "{said:?}");
    let missing = run("nothing", &["true"]);
    assert!(missing.code == Some(125) && missing.stderr.contains("image_unknown"), "{missing:?}");
}

#[test]
fn a_server_serves_images_and_keeps_those_in_use() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let root = served.scratch.0.join("root");
    if small_root(&root).is_none() {
        return;
    }
    let url = fs::read_to_string(served.data().join("address")).unwrap();
    let url = url.trim();
    let words = ["image", "import", "small", root.to_str().unwrap(), "--server", url];
    let id = served.text(&words);
    let archive = served.scratch.0.join("root.tar");
    fs::write(&archive, tar(&root)).unwrap();
    served.text(&["image", "import", "again", archive.to_str().unwrap(), "--server", url]);

    let file = served.scratch.0.join("t.toml");
    fs::write(&file, "name = \"small\"\nroot = { image = \"small\" }\n").unwrap();
    served.text(&["templates", "put", file.to_str().unwrap()]);
    let exec = ["exec", "-T", "small", "--stdin=no", "--", "/bin/cat", "/marker"];
    assert_eq!(served.text(&exec), "brought");
    let refused = served.run(&["image", "rm", "small", "--server", url]);
    assert!(
        refused.code == Some(1) && refused.stderr.contains("template \"small\""),
        "{refused:?}"
    );
    let refused = served.run(&["image", "rm", "small"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("image_in_use"), "{refused:?}");
    let listed = served.json(&["image", "ls", "--json", "--server", url]);
    assert_eq!(listed, served.json(&["image", "ls", "--json"]), "the same store");
    assert!(listed["images"].as_array().unwrap().iter().any(|image| image["id"] == json!(id)));

    // Another image takes the name: what is made from now on is made of that.
    fs::write(root.join("marker"), "another\n").unwrap();
    served.text(&["image", "import", "small", root.to_str().unwrap()]);
    served.text(&["pools", "drain", "small"]);
    served.text(&["pools", "resume", "small"]);
    assert_eq!(served.text(&exec), "another");
    served.text(&["templates", "rm", "small"]);
    served.text(&["image", "rm", "again", "--server", url]);
    served.text(&["image", "rm", "small", "--server", url, "--force"]);
    let left = served.json(&["image", "ls", "--json"]);
    let named = |image: &serde_json::Value| image["names"] != json!([]);
    assert!(!left["images"].as_array().unwrap().iter().any(named), "{left}");
}
