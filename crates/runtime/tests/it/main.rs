//! The conformance suite over each runtime.

mod fake;
mod native;
