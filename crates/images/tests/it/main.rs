//! Images as their users and their enemies meet them: archives byte by byte, and stores on a disk.
#![expect(clippy::unwrap_used, reason = "a test that panics has done its work")]

mod archive;
mod engine;
mod evil;
mod export;
mod place;
mod same_as_tar;
mod sources;
mod store;
