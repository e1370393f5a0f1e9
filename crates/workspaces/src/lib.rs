//! Workspaces on disk: where they are, what limits each, how they are saved, copied, restored and
//! removed; archives and seed archives. Untrusted programs write the contents of a workspace:
//! nothing here may follow a link in one, trust a name or a permission, or need more memory for a
//! larger one. Everything blocks, and knows no tokio.
//!
//! What is not covered: removed files that are in transit in a socket between programs count for
//! nothing, and neither do removed files that are mapped but not open if the server is not root.
//! The usage of btrfs subvolumes is not read, so each counts with all of its reserved space.
//! Reserved space is protected against other workspaces only: anything else that fills the disk
//! below the floor takes it, and the journal's space, too.

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
pub use error::{WorkspaceError, WorkspaceErrorKind};
pub use hard_limits::{HardBy, HardLimit, probe};
pub use lost_found::{Lost, LostFound, PutAside};
pub use persistence::{NewWorkspace, ProgressCheck};
pub use scan::{DEPTH_MAX, Scan, Usage};
pub use seed_archives::{NamedFiles, SeedBounds, SeedFile, Seeds};
