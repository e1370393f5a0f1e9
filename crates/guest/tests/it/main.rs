//! The guest as a host sees it: the built binary, outside any sandbox, driven through a socket.
#![expect(clippy::unwrap_used, reason = "a test that panics has done its work")]
#![expect(clippy::wildcard_enum_match_arm, reason = "any other reply is a failed test")]

mod channels;
mod connections;
mod contained;
mod container;
mod end_all;
mod families;
mod files;
mod host;
mod keeper;
mod lanes;
mod links;
mod listings;
mod ports;
mod process_one;
mod programs;
mod removals;
mod scale;
mod terminals;
