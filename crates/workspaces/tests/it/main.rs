//! Workspaces on the file systems that this machine has.

mod hostile;
mod lifecycle;
mod limits;
mod persistence;
mod seed_archives;
mod stage;
