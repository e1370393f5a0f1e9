//! The map of modules: every source file of every crate with the first sentence of its own
//! documentation, in one page that newcomers can search. The page is generated, so it cannot be wrong.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};

use crate::repo::{self, File};

const PAGE: &str = "docs/modules.md";
const HEAD: &str = "# Map of modules

Every module with the first sentence of its own documentation, one table per crate. What each crate is for, and which may use
which, is in the [architecture](architecture.md#crates). `UPDATE_DOCS=1 cargo test -p integration-tests --test it module_map`
writes this page.
";

#[test]
fn module_map_names_every_module() -> Result<()> {
    let files = repo::files(&["crates"], &[".rs"])?;
    let map = map(&files);
    let path = repo::root().join(PAGE);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &map).with_context(|| format!("write {PAGE}"))?;
    }
    let written = std::fs::read_to_string(&path).with_context(|| format!("read {PAGE}"))?;
    ensure!(
        written == map,
        "{PAGE} does not name the modules that exist: run \
         UPDATE_DOCS=1 cargo test -p integration-tests --test it module_map"
    );
    Ok(())
}

fn map(files: &[File]) -> String {
    let mut crates: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
    for file in files {
        if let Some((name, module)) = module(&file.path) {
            crates.entry(name).or_default().insert(module, first_sentence(&file.text));
        }
    }
    let mut page = HEAD.to_owned();
    for (name, modules) in crates {
        let _ = write!(page, "\n## {name}\n\n| module | what it is for |\n|---|---|\n");
        for (module, sentence) in modules {
            let _ = writeln!(page, "| [`{module}`](../crates/{name}/src/{module}) | {sentence} |");
        }
    }
    page
}

/// The crate and the path within its sources; none for tests.
fn module(path: &str) -> Option<(&str, &str)> {
    let (name, rest) = path.strip_prefix("crates/")?.split_once('/')?;
    let module = rest.strip_prefix("src/")?;
    let is_test = module.split('/').any(|part| part == "tests" || part.ends_with("tests.rs"));
    (!is_test).then_some((name, module))
}

/// The first sentence of a module's documentation, fit for a cell of a table.
fn first_sentence(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let paragraph: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let paragraph = paragraph.join(" ");
    let end = paragraph.find(". ").map_or(paragraph.len(), |at| at + 1);
    paragraph[..end].replace('|', "\\|")
}

#[test]
fn module_map_leaves_out_tests_and_keeps_one_sentence() {
    assert_eq!(module("crates/kernel/src/entry/phase.rs"), Some(("kernel", "entry/phase.rs")));
    assert_eq!(module("crates/kernel/src/tests/rig.rs"), None);
    assert_eq!(module("crates/kernel/benches/kernel.rs"), None);
    let text = "//! Decides a|b: one\n//! thing. And more.\n//!\n//! Other.\n\nuse x;\n";
    assert_eq!(first_sentence(text), "Decides a\\|b: one thing.");
}
