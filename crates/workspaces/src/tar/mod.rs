//! The format of archives: tar as everything reads it, written with extended headers only where
//! something has to be said that does not fit. Names are bytes. It knows no files.

mod header;
mod reader;

pub use header::{Attribute, Written, end, padding};
pub use reader::{Entries, Entry, Kind, Records};

/// Everything in an archive comes in blocks of this size.
pub const BLOCK: usize = 512;

/// What extended headers call the attributes of users.
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";
