//! Builds the guest as a static binary and compresses it for the library, so that a plain `cargo
//! build` of any crate that needs it is enough.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use flate2::Compression;
use flate2::write::DeflateEncoder;

/// The sources of the guest. Cargo does not tell a build script about a nested build's sources.
const SOURCES: &[&str] = &["crates/guest", "crates/jail", "crates/guest-protocol", "Cargo.lock"];

/// Settings of the outer build that would leak into the nested one and break or block it.
const NOT_INHERITED: &[&str] = &[
    "CARGO_MAKEFLAGS",
    "CARGO_TARGET_DIR",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_BUILD_TARGET",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_RUSTC_WRAPPER",
    "CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER",
    "RUSTFLAGS",
    "MAKEFLAGS",
    "LLVM_PROFILE_FILE",
];

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name} for build scripts"))
}

fn main() {
    let workspace = Path::new(&variable("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("this crate is two directories deep in the workspace")
        .to_owned();
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    let target = variable("TARGET");
    let out = PathBuf::from(variable("OUT_DIR"));
    let target_directory = out.join("guest");
    let mut build = Command::new(variable("CARGO"));
    for name in NOT_INHERITED {
        build.env_remove(name);
    }
    let status = build
        .current_dir(&workspace)
        // Static, at a fixed address: fewer pages are written when it starts, so each sandbox
        // shares more of them with the launcher.
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            "-Ctarget-feature=+crt-static\u{1f}-Crelocation-model=static",
        )
        .args(["build", "--locked", "--quiet", "--package", "guest", "--profile", "guest"])
        .args(["--target", &target])
        .arg("--target-dir")
        .arg(&target_directory)
        .status()
        .expect("cargo can be started again");
    assert!(status.success(), "building the guest failed: see above");
    let binary = target_directory.join(target).join("guest").join("guest");
    pack(&binary, &out.join("guest.deflate"));
}

/// Compresses the binary to less than half its size.
fn pack(binary: &Path, packed: &Path) {
    let bytes = fs::read(binary).expect("the guest was built");
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&bytes).expect("memory can be written to");
    let result = encoder.finish().expect("memory can be written to");
    fs::write(packed, result).expect("the build directory can be written to");
    println!("cargo::rustc-env=GUEST_BYTES={}", bytes.len());
}
