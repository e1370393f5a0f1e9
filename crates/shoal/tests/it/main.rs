//! The command line as its users see it: the built program, on real sandboxes where this machine
//! can run them. Where it cannot, a test says so and passes: `shoal doctor` is the one to complain.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that panics has done its work"
)]

mod acceptance;
mod ash;
mod attach_harness;
mod backup;
mod blaxel;
mod clock;
mod conversations;
mod damaged_data_dir;
mod disk;
mod doctor;
mod encryption_at_rest;
mod full_disk;
mod guides;
mod images;
mod mounts;
mod policies;
mod process_retention;
mod processes;
mod rootless;
mod run;
mod secrets;
mod server;
mod session_files;
mod sessions;
mod shell;
mod storm;
mod terminal;
mod test_server;
mod verbs;
