//! Builds the commit into the version of the program, if it is known.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    // Sources without a history may lie inside another repository.
    let ours = Path::new("../..").canonicalize().ok();
    let top = git(&["rev-parse", "--show-toplevel"]).map(PathBuf::from);
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).filter(|_| top == ours);
    let version = match commit {
        Some(commit) => format!("{version} ({commit})"),
        None => version,
    };
    println!("cargo::rustc-env=SHOAL_VERSION={version}");
    // The second changes with every commit, also where a branch is packed.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--path-format=absolute", "--git-path", file]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
}

/// The output of git; none without git or without a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| said.trim().to_owned()).filter(|said| !said.is_empty())
}
