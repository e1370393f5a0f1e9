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
        Retry::Never => "Do not retry automatically.",
        Retry::Later if code == ErrorCode::QuotaExceeded => {
            "A retry may succeed if there is a `retry_after_ms`; otherwise the limit stays reached \
             until something is freed, and `retryable` is false."
        }
        Retry::Later => "A retry may succeed.",
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
         | field | meaning |\n\
         |---|---|\n\
         | `code` | what to branch on: a code never changes its meaning |\n\
         | `status` | the HTTP status |\n\
         | `detail` | the cause, in a sentence for people |\n\
         | `remedy` | what to do |\n\
         | `retryable` | whether the same request may succeed later |\n\
         | `retry_after_ms` | when a retry is likely to succeed, if known; the header `Retry-After` has the same in seconds |\n\
         | `field` | the field, parameter or header that is wrong, if there is one |\n\
         | `reason` | why the sandbox ended, if that is the cause |\n\
         | `request_id` | finds the request in the server's log |\n\
         | `type` | the address of the section below for this code, on every server |\n\n\
         This page is generated from the table in `crates/model/src/error.rs`; a test says how to generate it again.\n"
    );
    for &code in ErrorCode::ALL {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n## {code}\n\n{}", section(code));
    }
    text
}
