//! Workspaces on disk: a directory of them, what limits each, and how they go. Whatever is in a
//! workspace was put there by a stranger: nothing here follows a link in one, trusts a name or
//! a permission, or needs more memory for a larger one. Everything blocks, and knows no tokio.

mod directory;
mod error;
mod hard;
mod nameless;
mod numbers;
mod places;
mod promises;
mod removal;
mod scan;
mod spares;
mod trash;

pub use directory::{Size, Workspaces};
pub use error::{Trouble, WorkspaceError};
pub use hard::{HardBy, HardLimit, probe};
pub use scan::{DEPTH_MAX, Scan, Usage};
