//! Images as users and attackers meet them: archives byte by byte, and stores on a disk.
#![expect(clippy::unwrap_used, reason = "a test that panics has done its work")]

mod archive;
mod engine;
mod evil;
mod export;
mod same_as_tar;
mod sources;
mod store;
mod temp_directory;
