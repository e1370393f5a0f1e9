//! Just enough of Rust's lexical rules to tell code from comments and literals.
//!
//! Checks that look for a word in code must not trip over a sentence that explains why the word is
//! forbidden. A parser would be a large dependency for that one question.

use std::collections::BTreeSet;

/// The source with every comment and literal replaced by blanks; lines stay where they are.
pub(crate) fn code_only(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(next) = rest.chars().next() {
        let after_word = code.chars().next_back().is_some_and(is_word);
        let length = prose_length(rest, after_word);
        if length == 0 {
            code.push(next);
            rest = &rest[next.len_utf8()..];
        } else {
            let (prose, after) = rest.split_at(length);
            code.extend(prose.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = after;
        }
    }
    code
}

/// Whether `token` occurs as a token of its own, not as a part of a longer word.
pub(crate) fn has_token(code: &str, token: &str) -> bool {
    code.match_indices(token).any(|(at, _)| {
        let before = code[..at].chars().next_back().is_some_and(is_word);
        let after = code[at + token.len()..].chars().next().is_some_and(is_word);
        !(before && token.starts_with(is_word) || after && token.ends_with(is_word))
    })
}

/// The names of all functions defined in `code`.
pub(crate) fn functions(code: &str) -> BTreeSet<String> {
    let words: Vec<&str> = code.split(|c| !is_word(c)).filter(|word| !word.is_empty()).collect();
    words.windows(2).filter(|pair| pair[0] == "fn").map(|pair| pair[1].to_owned()).collect()
}

pub(crate) fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// How many bytes at the start of `rest` are one comment or literal: 0 when it starts with code.
fn prose_length(rest: &str, after_word: bool) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment_length(rest);
    }
    if rest.starts_with('"') {
        return quoted_length(rest, '"');
    }
    if rest.starts_with('\'') {
        let mut chars = rest.chars().skip(1);
        let (first, second) = (chars.next(), chars.next());
        // Anything else is a lifetime: it has no closing quote.
        let is_char = first == Some('\\') || second == Some('\'');
        return if is_char { quoted_length(rest, '\'') } else { 0 };
    }
    let raw = ["r", "br", "cr"].iter().find_map(|prefix| rest.strip_prefix(prefix));
    match raw {
        Some(raw) if !after_word => {
            raw_string_length(raw).map_or(0, |n| rest.len() - raw.len() + n)
        }
        _ => 0,
    }
}

fn block_comment_length(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if here.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn quoted_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// The length of `#"..."#` with any number of `#`, or nothing when this is not a raw string.
fn raw_string_length(raw: &str) -> Option<usize> {
    let hashes = raw.len() - raw.trim_start_matches('#').len();
    let body = raw[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let closed = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(hashes + 1 + closed)
}

#[test]
fn code_only_removes_comments_and_literals() {
    for (source, expected) in [
        ("a // b\nc", "a     \nc"),
        ("a /* b /* c */ d */ e", "a                   e"),
        (r#"f("b\"c") g"#, "f(      ) g"),
        ("f(r#\"b\"c\"#) g", "f(        ) g"),
        ("f(br\"b\\\") g", "f(      ) g"),
        ("f('\"') g('\\'') h", "f(   ) g(    ) h"),
        ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
        ("bar\"x\"", "bar   "),
        ("r#type", "r#type"),
        ("\"a\nb\" c", "  \n   c"),
    ] {
        assert_eq!(code_only(source), expected, "{source}");
    }
}

#[test]
fn a_token_is_not_a_part_of_a_longer_word() {
    for (code, token, expected) in [
        ("use std::time::Duration;", "std::time", true),
        ("use std::timer::X;", "std::time", false),
        ("let operand = 1;", "rand", false),
        ("rand::random()", "rand", true),
        ("println!(x)", "println!", true),
        ("eprintln!(x)", "println!", false),
        ("use std::{fs, io};", "std::{", true),
    ] {
        assert_eq!(has_token(code, token), expected, "{token} in {code}");
    }
}

#[test]
fn functions_are_found_by_name() {
    let found = functions("pub async fn one() {} impl X { fn two<T>(f: fn(u8)) {} }");
    assert!(found.contains("one") && found.contains("two") && !found.contains("three"));
}
