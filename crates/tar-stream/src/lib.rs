//! The tar format, for foreign archives and our own: ustar, GNU and pax, with long names, large
//! sizes and sparse files. It makes no files.
//!
//! [`Decoder`] takes an archive block by block and does no I/O, so that async and blocking code
//! read archives alike. [`Entries`] reads from a reader. [`NewEntry`] is one entry to write.
//!
//! Whatever an archive claims, memory stays bounded, sums do not overflow, and names stay bytes.

mod decoder;
mod entries;
mod error;
mod header;
mod pax;
mod sparse;
#[cfg(test)]
mod tests;
mod writer;

pub use decoder::{Bounds, Decoder, Step};
pub use entries::Entries;
pub use error::TarError;
pub use sparse::{Region, Sparse};
pub use writer::{NewEntry, end};

/// Everything in an archive comes in blocks of this size.
pub const BLOCK: usize = 512;

/// The prefix of user attributes in extended headers.
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";

/// An extended attribute: its name and its value.
pub type Attribute = (Box<[u8]>, Box<[u8]>);

/// The padding after `size` bytes.
pub const fn padding(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A hard link to an earlier file.
    Hardlink,
    /// A device of either kind.
    Device,
    /// A named pipe.
    Fifo,
    /// Anything else, by its type byte.
    Other(u8),
}

impl Kind {
    fn of_letter(letter: u8) -> Self {
        match letter {
            0 | b'0' | b'7' | b'S' => Self::File,
            b'1' => Self::Hardlink,
            b'2' => Self::Symlink,
            b'3' | b'4' => Self::Device,
            b'5' | b'D' => Self::Directory,
            b'6' => Self::Fifo,
            other => Self::Other(other),
        }
    }

    fn letter(self) -> u8 {
        match self {
            Self::File => b'0',
            Self::Hardlink => b'1',
            Self::Symlink => b'2',
            Self::Device => b'3',
            Self::Directory => b'5',
            Self::Fifo => b'6',
            Self::Other(letter) => letter,
        }
    }
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// Its path, as stored in the archive.
    pub path: Vec<u8>,
    /// The target of a link; empty without one.
    pub target: Vec<u8>,
    /// Its permissions, with their special bits.
    pub mode: u32,
    /// User and group. An invalid id is `u32::MAX`.
    pub owner: (u32, u32),
    /// How many bytes of contents follow.
    pub size: u64,
    /// When it was last written, in seconds since 1970 and nanoseconds.
    pub modified: (i64, u32),
    /// Where the contents belong, if the file is sparse.
    pub sparse: Option<Sparse>,
    /// The extended attributes that archives keep by name.
    pub attributes: Vec<Attribute>,
    /// Whether it has attributes or access lists, in any form.
    pub has_attributes: bool,
}

/// How much of a path is shown.
const SHOWN_BYTES_MAX: usize = 256;

impl Entry {
    /// The beginning of its path, for error messages.
    pub fn shown(&self) -> String {
        self.path[..self.path.len().min(SHOWN_BYTES_MAX)].escape_ascii().to_string()
    }
}
