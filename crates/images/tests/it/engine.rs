//! A Docker engine loads an exported image. Needs an engine (`DOCKER_HOST`), its client and
//! busybox.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use images::Store;

use crate::archive::Archive;
use crate::sources::{import, oci, stream};
use crate::temp_directory::TempDirectory;

const BUSYBOX: &str = "/bin/busybox";
/// The longest wait for the engine.
const PATIENCE_S: &str = "40";

/// Prints that something is not tested. In CI nothing is skipped.
#[expect(clippy::print_stderr, reason = "a reader of the test output must see it")]
fn skip(reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "{reason}: in CI nothing may be skipped");
    eprintln!("!!!! skipped: {reason} !!!!");
}

fn docker(args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.arg(PATIENCE_S).arg("docker").args(args).stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    let (out, wrong) = (&output.stdout, &output.stderr);
    let (out, wrong) = (String::from_utf8_lossy(out), String::from_utf8_lossy(wrong));
    assert!(output.status.success(), "{out}{wrong}");
    out.trim().to_owned()
}

/// An image at the engine, which is removed with the test.
struct AtEngine(String);

impl Drop for AtEngine {
    fn drop(&mut self) {
        let _ = docker(&["image", "rm", "--force", &self.0]).output();
    }
}

#[test]
fn a_docker_engine_runs_an_exported_image() {
    if std::env::var_os("DOCKER_HOST").is_none_or(|host| host.is_empty()) {
        return skip("no Docker engine (DOCKER_HOST)");
    }
    if !Path::new(BUSYBOX).exists() {
        return skip("no /bin/busybox");
    }
    let place = TempDirectory::new();
    let store = Store::open(&place.join("store")).unwrap();
    let lowest = Archive::new()
        .directory("bin")
        .raw(b'0', b"bin/busybox", b"", 0o755, &fs::read(BUSYBOX).unwrap())
        .hardlink("bin/sh", "bin/busybox")
        .symlink("link", "bin//busybox")
        .file("gone", b"")
        .file("all/old", b"")
        .file("some/old", b"")
        .raw(b'0', b"closed", b"", 0o600, b"")
        .pax(&[("path", format!("long/{}", "n".repeat(200)).as_bytes())])
        .file("x", b"long");
    let upper = Archive::new()
        .file(".wh.gone", b"")
        .file("all/.wh..wh..opq", b"")
        .file("all/new", b"")
        .file("some/new", b"");
    let image = import(&store, stream(oci(&[lowest.end(), upper.end()]).archive(&[])), "a");
    let image = image.unwrap();

    let tag = format!("shoal/export-test:{}", std::process::id());
    let mut client = docker(&["load", "--quiet"]);
    let client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = client.spawn().unwrap();
    let _at_engine = AtEngine(tag.clone());
    let mut input = client.stdin.take().unwrap();
    let written = store.write_archive(image.id, &tag, &mut input);
    drop(input);
    said(&client.wait_with_output().unwrap());
    assert_eq!(written, Ok(()));

    let script = "echo hello; pwd; echo $A; busybox cat /long/*; echo
        busybox find /all /some /gone -type f | busybox sort
        busybox stat -c '%n %a %u:%g %h' /bin/sh /closed /all
        busybox readlink /link; busybox cat /closed";
    let run = |command: &[&str]| {
        let flags = ["run", "--rm", "--network=none", "--read-only", "--user=1000:1000"];
        let args: Vec<_> = flags.iter().chain(&[tag.as_str()]).chain(command).copied().collect();
        docker(&args).output().unwrap()
    };
    let output = run(&["sh", "-c", &format!("{script}; true")]);
    let expected = "hello\n/w\nb\nlong\n/all/new\n/some/new\n/some/old\n\
        /bin/sh 755 0:0 2\n/closed 600 0:0 1\n/all 755 0:0 2\nbin//busybox";
    assert_eq!(said(&output), expected, "{}", String::from_utf8_lossy(&output.stderr));

    let id = said(&docker(&["image", "inspect", "--format={{.Id}}", &tag]).output().unwrap());
    let saved = docker(&["save", &tag]).output().unwrap().stdout;
    let again = import(&store, stream(saved), "b").unwrap();
    let other = AtEngine(format!("{tag}-again"));
    let mut client = docker(&["load", "--quiet"]);
    let mut client = client.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    store.write_archive(again.id, &other.0, &mut client.stdin.take().unwrap()).unwrap();
    assert!(client.wait().unwrap().success());
    let inspect = docker(&["image", "inspect", "--format={{.Id}}", &other.0]).output().unwrap();
    assert_eq!(said(&inspect), id, "what an engine saves is what it was given");
}
