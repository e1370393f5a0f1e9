//! Workspaces on the file systems that this machine has.

mod hostile;
mod life;
mod limits;
mod stage;
