//! A connection against a guest that does what the test says.

mod calls;
mod peer;
mod programs;
mod streams;
