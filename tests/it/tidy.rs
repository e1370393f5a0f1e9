//! Rules about the text of the sources, checked by a test so that no author has to remember them.

use anyhow::Result;

use crate::repo::{self, File};
use crate::rust_text::{code_only, has_token};

/// A rule looks at one file and says what to repair, by line where there is one.
type Rule = fn(&File) -> Vec<String>;

const RUST_RULES: &[Rule] = &[module_doc, length, markers, banned_tokens];
const TEXT_RULES: &[Rule] = &[whitespace];

const RUST_AT: &[&str] = &["crates", "tests", "fuzz"];
const TEXT_ENDINGS: &[&str] = &[".rs", ".toml", ".md", ".sh", ".ts", ".tsx", ".css", ".yml", "run"];

const LINES_MAX: usize = 600;

/// Words that mark unfinished work. Spelled in two halves, or this table would find itself.
const MARKERS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("db", "g!("),
];

/// A token that may not occur in code below `under`, except where `allowed` says so.
struct Ban {
    under: &'static str,
    tokens: &'static [&'static str],
    allowed: &'static [&'static str],
    remedy: &'static str,
}

const BANS: &[Ban] = &[
    Ban {
        under: "",
        tokens: &["unsafe"],
        allowed: &["crates/jail/src/sys"],
        remedy: "all unsafe code lives in crates/jail/src/sys, behind safe functions",
    },
    Ban {
        under: "crates/kernel/src/",
        tokens: &["std::time", "SystemTime", "Instant"],
        allowed: &[],
        remedy: "the kernel reads no clock: time arrives as `now`",
    },
    Ban {
        under: "crates/kernel/src/",
        tokens: &["rand", "getrandom", "RandomState"],
        allowed: &[],
        remedy: "the kernel has no randomness: ids and random numbers arrive in events and the random seed",
    },
    Ban {
        under: "crates/kernel/src/",
        tokens: &["HashMap", "HashSet"],
        allowed: &["crates/kernel/src/index.rs"],
        remedy: "hash order differs between runs: use BTreeMap, or IdIndex from index.rs",
    },
    Ban {
        under: "crates/kernel/src/",
        tokens: &["std::fs", "std::io", "std::net", "std::thread", "std::process", "std::env"],
        allowed: &[],
        remedy: "the kernel does no I/O: push an Effect",
    },
    Ban {
        under: "crates/kernel/src/",
        tokens: &["println!", "print!", "eprintln!", "eprint!"],
        allowed: &[],
        remedy: "the kernel does no I/O: push an Effect",
    },
    Ban {
        under: "crates/kernel/src/",
        tokens: &["std::{"],
        allowed: &[],
        remedy: "one `use std::module::...` per module, or the checks above could not see it",
    },
    Ban {
        under: "crates/engine/src/",
        tokens: &["runtime::native", "runtime::docker", "runtime::oci", "store::sqlite"],
        allowed: &[],
        remedy: "the engine knows the traits only: name the concrete type in crates/shoal",
    },
];

#[test]
fn sources_follow_the_rules() -> Result<()> {
    repo::assert_none(&findings(RUST_RULES, &repo::files(RUST_AT, &[".rs"])?));
    Ok(())
}

#[test]
fn text_has_no_stray_whitespace() -> Result<()> {
    repo::assert_none(&findings(TEXT_RULES, &repo::files(&["."], TEXT_ENDINGS)?));
    Ok(())
}

fn findings(rules: &[Rule], files: &[File]) -> Vec<String> {
    assert!(!files.is_empty(), "found no files to check: has the layout of the checkout changed?");
    files.iter().flat_map(|file| rules.iter().flat_map(move |rule| rule(file))).collect()
}

fn module_doc(file: &File) -> Vec<String> {
    let path = &file.path;
    if file.text.starts_with("//!") {
        return Vec::new();
    }
    vec![format!("{path}:1: begin with a `//!` line that says what the module is for")]
}

fn length(file: &File) -> Vec<String> {
    let (path, lines) = (&file.path, file.text.lines().count());
    let mut doc = file.text.lines().take_while(|line| line.starts_with("//!"));
    if lines <= LINES_MAX || doc.any(|line| line.starts_with("//! Length:")) {
        return Vec::new();
    }
    vec![format!(
        "{path}: {lines} lines, over {LINES_MAX}: split it, or say why not in a `//! Length:` line of \
         its module doc"
    )]
}

fn markers(file: &File) -> Vec<String> {
    by_line(file, &file.text, |line| {
        let found = MARKERS.iter().find(|marker| has_token(line, marker))?;
        Some(format!("`{found}`: finish it, or say in the docs what is not done and why"))
    })
}

fn banned_tokens(file: &File) -> Vec<String> {
    let code = code_only(&file.text);
    let applies = |ban: &&Ban| {
        let path = &file.path;
        path.starts_with(ban.under) && !ban.allowed.iter().any(|place| path.starts_with(place))
    };
    let bans: Vec<_> = BANS.iter().filter(applies).collect();
    by_line(file, &code, |line| {
        bans.iter().find_map(|ban| {
            let token = ban.tokens.iter().find(|token| has_token(line, token))?;
            Some(format!("`{token}` may not be used here: {}", ban.remedy))
        })
    })
}

fn whitespace(file: &File) -> Vec<String> {
    let mut found = by_line(file, &file.text, |line| {
        if line.contains('\t') {
            return Some("a tab: use spaces, or `\\t` in a literal".to_owned());
        }
        line.ends_with(char::is_whitespace).then(|| "whitespace at the end of the line".to_owned())
    });
    if !file.text.is_empty() && (!file.text.ends_with('\n') || file.text.ends_with("\n\n")) {
        found.push(format!("{}: end the file with exactly one line break", file.path));
    }
    found
}

/// Applies `check` to each line. Splits at `\n` only, so that a carriage return is seen.
fn by_line(file: &File, text: &str, check: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let lines = text.split('\n').enumerate();
    lines
        .filter_map(|(n, line)| Some(format!("{}:{}: {}", file.path, n + 1, check(line)?)))
        .collect()
}

#[test]
fn each_rule_can_fail() {
    let kernel = "crates/kernel/src/a.rs";
    let long = "//! Doc.\n".repeat(LINES_MAX + 1);
    let excused = format!("{long}//! Length: one table.\n");
    let unfinished = format!("//! Doc.\n// {} later\n", MARKERS[0]);
    let debugging = format!("    {}x);\n", MARKERS[5]);
    let cases: &[(Rule, &str, &str, Option<&str>)] = &[
        (module_doc, kernel, "//! Doc.\n", None),
        (module_doc, kernel, "use a;\n", Some("a.rs:1: begin with")),
        (length, kernel, &long, Some("601 lines")),
        (length, kernel, &excused, None),
        (markers, kernel, &unfinished, Some("a.rs:2: ")),
        (markers, kernel, &debugging, Some("a.rs:1: ")),
        (markers, kernel, "mktemp XXXXXX\n", None),
        (banned_tokens, kernel, "unsafe {}\n", Some("crates/jail/src/sys")),
        (banned_tokens, "crates/jail/src/sys/mount.rs", "unsafe {}\n", None),
        (banned_tokens, kernel, "// unsafe\n#![forbid(unsafe_code)]\n", None),
        (banned_tokens, kernel, "\nuse std::time::Duration;\n", Some("a.rs:2: `std::time`")),
        (banned_tokens, kernel, "use std::{fs, io};\n", Some("`std::{`")),
        (banned_tokens, kernel, "fn f(r: rand::Rng) {}\n", Some("has no randomness")),
        (banned_tokens, kernel, "type M = HashMap<u8, u8>;\n", Some("IdIndex")),
        (banned_tokens, "crates/kernel/src/index.rs", "type M = HashMap<u8, u8>;\n", None),
        (banned_tokens, "crates/sim/src/a.rs", "type M = HashMap<u8, u8>;\n", None),
        (banned_tokens, kernel, "//! Unlike `HashMap`.\nlet a = \"println!\";\n", None),
        (banned_tokens, kernel, "println!();\n", Some("push an Effect")),
        (banned_tokens, "crates/engine/src/a.rs", "runtime::native::New\n", Some("traits only")),
        (whitespace, kernel, "a\n", None),
        (whitespace, kernel, "a\tb\n", Some("a tab")),
        (whitespace, kernel, "a \n", Some("a.rs:1: whitespace")),
        (whitespace, kernel, "a\r\n", Some("a.rs:1: whitespace")),
        (whitespace, kernel, "a", Some("exactly one")),
        (whitespace, kernel, "a\n\n", Some("exactly one")),
    ];
    for (rule, path, text, expected) in cases {
        let found = rule(&File { path: (*path).to_owned(), text: (*text).to_owned() }).join("\n");
        match expected {
            None => assert_eq!(found, "", "{text}"),
            Some(part) => assert!(found.contains(part), "{text:?} gave {found:?}, not {part:?}"),
        }
    }
}
