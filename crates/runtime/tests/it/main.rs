//! The conformance suite over each runtime, the connection to a real guest, and real ends.

mod ends;
mod fake;
mod faults;
mod link;
mod native;
mod restarts;
