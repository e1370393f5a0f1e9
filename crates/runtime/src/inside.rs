//! Queries about the inside of a sandbox beyond single files: finding files, searching text,
//! watching changes, listing sockets. The guest answers with the rights of the programs inside, so
//! that no link leads out and nothing is seen that they may not see.

use std::future::Future;
use std::pin::Pin;

use guest_protocol::message::EntryKind;

use crate::error::RuntimeError;

/// The most results of one question, whatever it asks for. Where they are long, there are fewer:
/// all of them have 8 MiB at most.
pub const MAX_RESULTS: u32 = 100_000;

/// Which files to look for beneath a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FindQuery {
    /// The directory. A last link is followed, those beneath it are not.
    pub path: String,
    /// Only these kinds; all if empty.
    pub kinds: Vec<EntryKind>,
    /// Only files whose last name is like one of these: `*`, `?` and `[...]` as in a shell. All if
    /// empty.
    pub names: Vec<String>,
    /// Directories of these names are neither entered nor reported.
    pub exclude_directories: Vec<String>,
    /// What begins with a dot is neither reported nor entered.
    pub exclude_hidden: bool,
    /// How far down: 1 is what is in the directory itself. Any depth if not given.
    pub max_depth: Option<u32>,
    /// At most so many, and [`MAX_RESULTS`].
    pub max_results: u32,
}

/// What was found, in the order of names, a directory before what is in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// The files.
    pub entries: Vec<FoundEntry>,
    /// Whether there is more.
    pub truncated: bool,
    /// Directories that could not be read.
    pub unreadable: u64,
}

/// One file that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundEntry {
    /// From the directory that was looked in. Bytes, because file names are.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
    /// Its size.
    pub size: u64,
    /// Its permissions.
    pub mode: u32,
    /// When it was last written, in milliseconds since 1970.
    pub modified_ms: i64,
}

/// A text to look for in files beneath a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SearchQuery {
    /// The directory, or one file.
    pub path: String,
    /// The text, as it is.
    pub text: String,
    /// Whether `A` and `a` differ. Only ASCII letters have two sizes here.
    pub case_sensitive: bool,
    /// As with [`FindQuery::names`].
    pub names: Vec<String>,
    /// As with [`FindQuery::exclude_directories`].
    pub exclude_directories: Vec<String>,
    /// As with [`FindQuery::exclude_hidden`].
    pub exclude_hidden: bool,
    /// At most so many.
    pub max_results: u32,
}

/// Where a text was found, in the order of names and lines. Files with zero bytes in their first
/// kilobytes are passed over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Searched {
    /// The matches.
    pub matches: Vec<TextMatch>,
    /// Whether there may be more: the search stops at enough results, or after too long.
    pub truncated: bool,
    /// Files that were looked into.
    pub files: u64,
}

/// One match. At most one per line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextMatch {
    /// The file, from the directory that was looked in; empty if that is the file.
    pub path: Vec<u8>,
    /// From 1.
    pub line: u64,
    /// In bytes, from 1.
    pub column: u64,
    /// The line; of a long one a part with the text in it.
    pub text: Vec<u8>,
}

/// What to watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchQuery {
    /// A directory.
    pub path: String,
    /// Everything beneath it too, also what comes later.
    pub recursive: bool,
}

/// Something about a file changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// What.
    pub kind: ChangeKind,
    /// The whole path.
    pub path: Vec<u8>,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// What changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is there now.
    Created,
    /// Its contents.
    Written,
    /// It is gone.
    Removed,
    /// It has another name, or is somewhere else. Where that is watched too, it follows as created.
    Renamed,
    /// Its permissions, or when it was written.
    About,
    /// Changes came faster than they were taken: some are missing.
    Lost,
}

/// A stream of changes. A dropped call loses no change.
pub trait Changes: Send {
    /// The next change; none when the watched directory is gone.
    fn next(
        &mut self,
    ) -> Pin<Box<dyn Future<Output = Result<Option<FileChange>, RuntimeError>> + Send + '_>>;
}

/// An armed watch: it reports every change from now on. Dropped, it ends.
pub type FileWatch = Box<dyn Changes>;

/// A socket of a program inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// Whose, inside.
    pub pid: u32,
    /// The name of that program.
    pub program: String,
    /// `tcp`, `tcp6`, `udp` or `udp6`.
    pub protocol: String,
    /// Its own address.
    pub local_address: String,
    /// Its own port.
    pub local_port: u16,
    /// The other end's address.
    pub remote_address: String,
    /// The other end's port; 0 if there is none.
    pub remote_port: u16,
    /// `LISTEN`, `ESTABLISHED` and so on.
    pub state: String,
}

/// What the programs of a sandbox wrote to its scale file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaleNote {
    /// Counts the notes of this sandbox, from 1.
    pub seq: u64,
    /// The keep-alive count now.
    pub scale: u32,
    /// Whether they dropped all other keep-alives as well (`=N`).
    pub drops: bool,
}
