//! A page about each error code, made from the table of codes. The server serves it at the `type`
//! of a problem, and `docs/errors.md` has the same text.

use std::fmt::Write as _;

use model::error::Retry;
use model::{ErrorCode, Refusal};
use wire::Problem;

/// The page of one code.
pub(crate) fn page(code: ErrorCode) -> String {
    format!("# {code}\n\n{}", section(code))
}

fn section(code: ErrorCode) -> String {
    let retry = match code.retry() {
        Retry::Never => "The same request will fail again.",
        Retry::Later => {
            "The same request may work later; if the answer has a `Retry-After` header, after that many seconds."
        }
    };
    format!(
        "{}\n\nStatus {}. {retry}\n\nWhat to do: {}.\n",
        code.meaning(),
        code.status(),
        code.remedy(),
    )
}

/// All pages as one document.
pub fn document() -> String {
    let example = Problem::new(
        &Refusal::new(ErrorCode::QueueFull, "1024 callers already wait for the pool")
            .retry_after(1000),
        None,
        "8f2c1a07-1b",
    );
    let example = serde_json::to_string_pretty(&example).unwrap_or_default();
    let mut text = format!(
        "# Error codes\n\n\
         Every refusal is an `application/problem+json`:\n\n\
         ```json\n{example}\n```\n\n\
         Branch on `code`: it never changes its meaning. `detail` is for people, `remedy` says what to do, `retryable`\n\
         whether the same request may work later and `retry_after_ms` when; `field` names the field, parameter or header\n\
         that is wrong, `request_id` finds the request in the server's log. A server also serves the section of each code\n\
         at its `type`, `/docs/errors/CODE`.\n\n\
         This page is generated from the table in `crates/model/src/error.rs`; a test says how to generate it again.\n"
    );
    for &code in ErrorCode::ALL {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n## {code}\n\n{}", section(code));
    }
    text
}
