//! Tests of Shoal as a whole, in one binary.

mod architecture;
mod bypass;
mod contained;
mod docs;
mod function_length;
mod module_map;
mod native;
mod plain_words;
mod repo;
mod rust_text;
mod tidy;
