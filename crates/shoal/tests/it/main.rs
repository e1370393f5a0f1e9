//! The command line as its users see it: the built program, on real sandboxes where this machine
//! can run them. Where it cannot, a test says so and passes: `shoal doctor` is the one to complain.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that panics has done its work"
)]

mod acceptance;
mod ash;
mod at_rest;
mod attached;
mod backup;
mod blaxel;
mod clock;
mod conversations;
mod damaged;
mod disk;
mod doctor;
mod full_disk;
mod images;
mod kept;
mod mounts;
mod processes;
mod processes_kept;
mod rootless;
mod run;
mod served;
mod server;
mod sessions;
mod shell;
mod storm;
mod terminal;
mod verbs;
