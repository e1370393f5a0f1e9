//! Workspaces on disk: a directory of them, what limits each, how they are kept and how they go. Whatever is in a
//! workspace was put there by a stranger: nothing here follows a link in one, trusts a name or
//! a permission, or needs more memory for a larger one. Everything blocks, and knows no tokio.
//!
//! What is not covered: removed files that are in a socket between programs while somebody looks,
//! and, for a server that is not root, removed files that are mapped and not open, count for
//! nothing. What subvolumes of btrfs hold is not asked for, so each counts with all it was promised
//! when another hard limit is. Promises are kept against each other only: whatever else fills the
//! disk below the floor takes what workspaces with a hard limit were promised, and the journal too.

mod archives;
mod copy;
mod deleted_but_open;
mod directory;
mod error;
mod file_contents;
mod hard_limits;
mod layout;
mod lost_found;
mod pack;
mod persistence;
mod project_ids;
mod removal;
mod reserved_space;
mod scan;
mod seed_archive_builder;
mod seed_archives;
mod spare_images;
mod trash;
mod unpack;
mod walk;
mod write_once_dir;

pub use archives::{ArchiveReader, ArchiveWriter, Archived, Archives};
pub use directory::{Size, Workspaces};
pub use error::{Trouble, WorkspaceError};
pub use hard_limits::{HardBy, HardLimit, probe};
pub use lost_found::{Lost, LostFound, PutAside};
pub use persistence::{GoOn, New};
pub use scan::{DEPTH_MAX, Scan, Usage};
pub use seed_archives::{NamedFiles, SeedBounds, SeedFile, Seeds};
