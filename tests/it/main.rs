//! Tests of Shoal as a whole, in one binary.

mod architecture;
mod contained;
mod docs;
mod native;
mod repo;
mod rust_text;
mod tidy;
