//! No function in `crates/*/src` is longer than a reader can keep in mind. Functions that were
//! longer when the rule came are listed with a reason; the list may only become shorter.

use anyhow::Result;

use crate::repo::{self, File};
use crate::rust_text::{code_only, is_word};

/// Lines from `fn` to the closing brace, both included.
const LINES_MAX: usize = 80;

/// A function that may be longer.
struct Exception {
    path: &'static str,
    function: &'static str,
    reason: &'static str,
}

const fn exception(path: &'static str, function: &'static str, reason: &'static str) -> Exception {
    Exception { path, function, reason }
}

const EXCEPTIONS: &[Exception] = &[
    exception("crates/ash/src/errors.rs", "from", "one match with an arm per error code"),
    exception("crates/jail/src/carry_out.rs", "one", "one match with a system call per step"),
    exception("crates/kernel/src/lib.rs", "handle", "one match with an arm per event"),
    exception("crates/kernel/src/tests/storm.rs", "blow", "one match with an arm per event"),
    exception("crates/sim/src/checks/effects.rs", "judge", "one match with an arm per effect"),
    exception("crates/sim/src/checks/refusals.rs", "answer", "one match with an arm per code"),
    exception("crates/sim/src/checks/terminations.rs", "judge", "one match with an arm per cause"),
    exception("crates/sim/src/interpreter/perform.rs", "perform", "one match, an arm per effect"),
    exception("crates/sim/src/scenario.rs", "draw", "one list of random choices, in their order"),
];

/// A function and where it is.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    /// The line of its `fn`, from 1.
    line: usize,
    lines: usize,
}

#[test]
fn functions_are_short_enough_to_read() -> Result<()> {
    let files = repo::files(&["crates"], &[".rs"])?;
    let sources: Vec<_> = files.iter().filter(|file| file.path.contains("/src/")).collect();
    assert!(!sources.is_empty(), "found no sources: has the layout of the checkout changed?");
    let mut findings: Vec<String> = sources.iter().flat_map(|file| too_long(file)).collect();
    findings.extend(EXCEPTIONS.iter().filter_map(|exception| unneeded(exception, &sources)));
    repo::assert_none(&findings);
    Ok(())
}

fn too_long(file: &File) -> Vec<String> {
    let path = &file.path;
    let is_excepted = |function: &Function| {
        EXCEPTIONS.iter().any(|one| one.path == path && one.function == function.name)
    };
    let long = functions(&file.text).into_iter().filter(|function| function.lines > LINES_MAX);
    long.filter(|function| !is_excepted(function))
        .map(|Function { name, line, lines }| {
            format!(
                "{path}:{line}: fn {name} has {lines} lines, over {LINES_MAX}: move a part that has a \
                 name of its own into a function"
            )
        })
        .collect()
}

/// An exception for a function that is short by now, or does not exist.
fn unneeded(exception: &Exception, sources: &[&File]) -> Option<String> {
    let Exception { path, function, reason } = exception;
    let file = sources.iter().find(|file| file.path == *path);
    let needed = file.is_some_and(|file| {
        functions(&file.text).iter().any(|one| one.name == *function && one.lines > LINES_MAX)
    });
    (!needed).then(|| {
        format!(
            "{path}: fn {function} ({reason}) is not over {LINES_MAX} lines: remove the exception"
        )
    })
}

/// All functions with a body.
fn functions(source: &str) -> Vec<Function> {
    let code = code_only(source);
    let starts = code.match_indices("fn ").filter(|(at, _)| {
        // `fn` as a word of its own, and not a type such as `fn(u8)`.
        !code[..*at].chars().next_back().is_some_and(is_word)
    });
    starts.filter_map(|(at, _)| function(&code, at)).collect()
}

fn function(code: &str, start: usize) -> Option<Function> {
    let rest = &code[start..];
    let name: String =
        rest["fn ".len()..].trim_start().chars().take_while(|c| is_word(*c)).collect();
    let body = body_start(rest)?;
    let end = body + block_length(&rest[body..])?;
    let line = code[..start].matches('\n').count() + 1;
    let lines = rest[..end].matches('\n').count() + 1;
    (!name.is_empty()).then_some(Function { name, line, lines })
}

/// Where the block of a function begins; none for a declaration without one.
fn body_start(signature: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in signature.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.checked_sub(1)?,
            '{' if depth == 0 => return Some(at),
            ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// The length of the block at the start of `code`, with its braces.
fn block_length(code: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return Some(at + 1),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

#[test]
fn function_lengths_are_counted_from_fn_to_the_closing_brace() {
    let found = functions(
        "trait T { fn declared(&self, a: [u8; 4]); }\n\
         fn one() -> [u8; 2] { [0; 2] }\n\
         pub async fn three<F: Fn(u8)>(f: F)\nwhere F: Send {\n    let text = \"}\"; }\n\
         type P = fn(u8) -> u8;\n",
    );
    let expected = [("one", 2, 1), ("three", 3, 3)];
    let expected: Vec<_> = expected
        .map(|(name, line, lines)| Function { name: name.to_owned(), line, lines })
        .into_iter()
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn function_over_the_limit_is_found() {
    let body = "    step();\n".repeat(LINES_MAX - 1);
    let file = |text: String| File { path: "crates/a/src/b.rs".to_owned(), text };
    let long = too_long(&file(format!("//! Doc.\nfn long() {{\n{body}}}\n"))).join("\n");
    assert!(long.contains("b.rs:2: fn long has 81 lines"), "{long}");
    let body = "    step();\n".repeat(LINES_MAX - 2);
    assert_eq!(too_long(&file(format!("fn fits() {{\n{body}}}\n"))), Vec::<String>::new());
    let gone = exception("crates/a/src/b.rs", "gone", "one match");
    assert!(unneeded(&gone, &[]).is_some_and(|finding| finding.contains("remove the exception")));
}
