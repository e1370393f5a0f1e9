//! Packs the OpenAPI document of the repository for the library. The code that makes it from the routes
//! is larger than what it makes, so only tests have that code.

use std::io::Write as _;
use std::path::Path;
use std::{env, fs};

use flate2::Compression;
use flate2::write::DeflateEncoder;

fn main() {
    let variable = |name| env::var(name).expect("cargo sets it for build scripts");
    let document = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    println!("cargo::rerun-if-changed={}", document.display());
    // Where it was removed, a test makes it anew.
    let text = fs::read(&document).unwrap_or_default();
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&text).expect("memory can be written to");
    let packed = encoder.finish().expect("memory can be written to");
    let out = Path::new(&variable("OUT_DIR")).join("openapi.deflate");
    fs::write(out, packed).expect("the build directory can be written to");
}
