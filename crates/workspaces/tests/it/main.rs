//! Workspaces on the file systems that this machine has.

mod hostile;
mod keeping;
mod life;
mod limits;
mod seeds;
mod stage;
