//! What the documents claim about the checkout is true: links resolve, decisions are numbered,
//! every promise names its proof, and CI runs the command that the README gives.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::repo::{self, File};
use crate::rust_text::{code_only, functions};

/// Pages that promise something, each promise with its proof.
const PROMISING: &[&str] = &["docs/specification.md", "docs/security.md", "docs/bypasses.md"];
const TEST_COMMAND: &str = "./scripts/test.sh";

/// Written in a proof cell when there is no proof yet; what follows says what is missing.
const PENDING: &str = "pending:";

#[test]
fn document_links_resolve() -> Result<()> {
    let files = repo::files(&["."], &[".md"])?;
    let pages =
        files.iter().filter(|file| !file.path.contains('/') || file.path.starts_with("docs/"));
    repo::assert_none(&pages.flat_map(broken_links).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn decisions_are_numbered_without_gaps() -> Result<()> {
    let files = repo::files(&["docs/decisions"], &[""])?;
    let names: Vec<&str> = files.iter().filter_map(|file| file.path.rsplit('/').next()).collect();
    repo::assert_none(&misnumbered(&names));
    Ok(())
}

#[test]
fn every_promise_names_its_proof() -> Result<()> {
    let sources = repo::files(&["crates", "tests", "fuzz"], &[".rs"])?;
    let known = sources.iter().flat_map(|file| functions(&code_only(&file.text))).collect();
    for page in PROMISING {
        let text = std::fs::read_to_string(repo::root().join(page))
            .with_context(|| format!("read {page}: it lists each promise with its proof"))?;
        repo::assert_none(&unproven(page, &text, &known));
    }
    Ok(())
}

#[test]
fn ci_runs_the_command_of_the_readme() -> Result<()> {
    for path in ["README.md", ".ci/run"] {
        let text = std::fs::read_to_string(repo::root().join(path)).context(path)?;
        let named =
            text.lines().any(|line| line.trim().trim_start_matches("exec ") == TEST_COMMAND);
        assert!(
            named,
            "{path} must have a line `{TEST_COMMAND}`: there is one way to run the tests"
        );
    }
    Ok(())
}

fn broken_links(file: &File) -> Vec<String> {
    let problem = |target: &str| {
        let path = target.split('#').next().unwrap_or_default();
        // An anchor within the page, or a place outside the checkout: a scheme has a colon.
        if path.is_empty() || path.contains(':') {
            return None;
        }
        if path.starts_with('/') {
            return Some("is absolute: write it relative to this file");
        }
        let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
        match within_root(&folder.join(path)) {
            None => Some("leads out of the checkout"),
            Some(path) if !repo::root().join(&path).exists() => Some("does not exist"),
            Some(_) => None,
        }
    };
    let links = links(&file.text).into_iter();
    links
        .filter_map(|(line, target)| {
            Some(format!("{}:{line}: the link `{target}` {}", file.path, problem(&target)?))
        })
        .collect()
}

/// The targets of all Markdown links, with their lines; code blocks and code spans hold none.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (n, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        // What stands between backticks is every second part.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        let inline = prose.split("](").skip(1).filter_map(|after| after.split(')').next());
        let reference = prose.split_once("]: ").filter(|_| prose.starts_with('['));
        let targets = inline.chain(reference.map(|(_, target)| target));
        // A title may follow the target after a space.
        let targets = targets.filter_map(|target| target.split_whitespace().next());
        found.extend(targets.map(|t| (n + 1, t.trim_matches(['<', '>']).to_owned())));
    }
    found
}

/// The path without `.` and `..`, or nothing when it leads above where it starts.
fn within_root(path: &Path) -> Option<PathBuf> {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => clean.push(part),
            Component::ParentDir if clean.pop() => {}
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(clean)
}

fn misnumbered(names: &[&str]) -> Vec<String> {
    let (mut found, mut expected) = (Vec::new(), 1_u32);
    for name in names.iter().filter(|name| **name != "README.md") {
        let number: Option<u32> =
            name.split('-').next().filter(|n| n.len() == 4).and_then(|n| n.parse().ok());
        match number {
            Some(number) if number == expected => expected += 1,
            Some(number) => {
                found.push(format!("docs/decisions/{name}: expected number {expected:04}"));
                expected = number + 1;
            }
            None => found.push(format!("docs/decisions/{name}: name it NNNN-what-was-decided.md")),
        }
    }
    found
}

/// Rows of tables whose last column is `proof` must name a function that exists, as `fn:NAME` in
/// backticks, or say `pending:` and what is missing. A name is checked wherever it stands.
fn unproven(page: &str, text: &str, known: &BTreeSet<String>) -> Vec<String> {
    let (mut found, mut in_proofs, mut rows) = (Vec::new(), false, 0);
    for (n, line) in text.lines().enumerate() {
        let place = format!("{page}:{}", n + 1);
        let names = line.split('`').skip(1).step_by(2).filter_map(|code| code.strip_prefix("fn:"));
        let names: Vec<&str> = names.collect();
        for name in names.iter().filter(|name| !known.contains(**name)) {
            found
                .push(format!("{place}: no function `{name}` in the sources: renamed or removed?"));
        }
        let Some(last) = line.trim_end().strip_suffix('|').and_then(|row| row.rsplit('|').next())
        else {
            in_proofs = false;
            continue;
        };
        let last = last.trim();
        if last.eq_ignore_ascii_case("proof") {
            in_proofs = true;
        } else if in_proofs && !last.starts_with("--") && !last.starts_with(":-") {
            rows += 1;
            if names.is_empty() && !last.starts_with(PENDING) {
                found.push(format!(
                    "{place}: name the proof as `fn:NAME` in backticks, or write `{PENDING} why`"
                ));
            }
        }
    }
    if rows == 0 {
        found.push(format!("{page}: no row found: the last column must be `proof`"));
    }
    found
}

#[test]
fn a_broken_link_is_found() {
    for (text, expected) in [
        ("[a](no-such-file.md)", Some("docs/a.md:1: the link `no-such-file.md` does not exist")),
        ("\n![a](no.svg \"title\")", Some("docs/a.md:2: the link `no.svg` does not exist")),
        ("[a]: no.md", Some("does not exist")),
        ("[a](../../etc/hosts)", Some("leads out of the checkout")),
        ("[a](/etc/hosts)", Some("is absolute")),
        ("[a](../Cargo.toml#x) [b](#x) [c](mailto:x)", None),
        ("`[a](no.md)`\n```\n[a](no.md)\n```", None),
    ] {
        let file = File { path: "docs/a.md".to_owned(), text: text.to_owned() };
        let found = broken_links(&file).join("\n");
        match expected {
            None => assert_eq!(found, "", "{text}"),
            Some(part) => assert!(found.contains(part), "{text:?} gave {found:?}"),
        }
    }
}

#[test]
fn a_misnumbered_decision_is_found() {
    assert!(misnumbered(&["0001-a.md", "0002-b.md", "README.md"]).is_empty());
    for names in
        [&["0002-a.md"][..], &["0001-a.md", "0003-b.md"], &["0001-a.md", "0001-b.md"], &["a.md"]]
    {
        assert_eq!(misnumbered(names).len(), 1, "{names:?}");
    }
}

#[test]
fn a_promise_without_proof_is_found() {
    let known = BTreeSet::from(["is_kept".to_owned()]);
    let table =
        |row: &str| unproven("a.md", &format!("| promise | proof |\n|---|---|\n{row}\n"), &known);
    assert!(table("| a | `fn:is_kept` and more |").is_empty());
    assert!(table("| a | pending: needs the engine |").is_empty());
    for row in ["| a | |", "| a | trust us |", "| a | `fn:was_renamed` |", "| a | fn:is_kept |", ""]
    {
        assert_eq!(table(row).len(), 1, "{row}");
    }
    assert_eq!(unproven("a.md", "Also `fn:was_renamed`.", &known).len(), 2);
}
