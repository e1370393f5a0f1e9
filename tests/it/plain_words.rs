//! Words that make a reader guess who did what. Each has plain words beside it. They may not come
//! back: the bound below is for those that are left, and may only become lower.

use anyhow::Result;

use crate::repo::{self, File};
use crate::rust_text::has_token;

/// How many lines in 1,000 may have such a word.
const LINES_PER_1000_MAX: usize = 2;
/// How many lines a failure shows.
const SHOWN_MAX: usize = 40;

const WORDS_AT: &[&str] = &["crates", "docs", "sdk", "tests", "README.md"];
const WORDS_IN: &[&str] = &[".rs", ".md", ".py", ".toml", ".ts", ".mjs", ".sh"];
/// This list itself.
const LIST: &str = "tests/it/plain_words.rs";

/// A word, and what to write in its place.
const WORDS: &[(&str, &str)] = &[
    ("whoever", "the caller, the client, the process"),
    ("nobody", "no caller, no client, no process"),
    ("somebody", "a caller, a client, another user"),
    ("is told", "gets, receives; or who reports, sends or logs it"),
    ("are told", "get, receive; or who reports, sends or logs it"),
    ("was told", "got, received; or who reported, sent or logged it"),
    ("were told", "got, received; or who reported, sent or logged it"),
    ("written down", "journalled, recorded, stored"),
    ("is over", "has ended, has expired"),
    ("no more", "none, no longer, at most"),
    ("mistake of the server", "internal error"),
];

#[test]
fn plain_words_are_used() -> Result<()> {
    let files = repo::files(WORDS_AT, WORDS_IN)?;
    let lines: usize = files.iter().map(|file| file.text.lines().count()).sum();
    assert!(lines > 0, "found no text: has the layout of the checkout changed?");
    let findings: Vec<String> = files.iter().flat_map(findings).collect();
    let may = lines * LINES_PER_1000_MAX / 1000;
    assert!(
        findings.len() <= may,
        "{} lines of {lines} have words that make a reader guess, and at most {may} may \
         ({LINES_PER_1000_MAX} in 1,000): name who does what. The first {SHOWN_MAX}:\n{}",
        findings.len(),
        findings[..findings.len().min(SHOWN_MAX)].join("\n")
    );
    Ok(())
}

/// The lines of a file that have such a word, each once.
fn findings(file: &File) -> Vec<String> {
    if file.path == LIST {
        return Vec::new();
    }
    let lines = file.text.lines().enumerate();
    lines
        .filter_map(|(n, line)| {
            let line = line.to_ascii_lowercase();
            let (word, plain) = WORDS.iter().find(|(word, _)| has_token(&line, word))?;
            Some(format!("{}:{}: `{word}`: write {plain}", file.path, n + 1))
        })
        .collect()
}

#[test]
fn plain_words_are_suggested_for_each_word() {
    for (word, plain) in WORDS {
        let text = format!("fine\n// A line with {}.\n", word.to_uppercase());
        let found = findings(&File { path: "crates/a/src/b.rs".to_owned(), text });
        assert_eq!(found, [format!("crates/a/src/b.rs:2: `{word}`: write {plain}")]);
    }
    let fine = "nobodys, the_whoever, this told, overall, this over\n".to_owned();
    assert!(findings(&File { path: "docs/a.md".to_owned(), text: fine }).is_empty());
    let own = WORDS[0].0.to_owned();
    assert!(findings(&File { path: LIST.to_owned(), text: own }).is_empty());
}
