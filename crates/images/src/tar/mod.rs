//! Reading tar archives as bytes pass: ustar, GNU and pax, with long names, large sizes and sparse
//! files. Written for archives of strangers: whatever an archive claims, memory stays bounded, and
//! names stay bytes. It knows no files; `unpack` makes those.

mod entries;
mod header;
mod pax;
mod sparse;

pub(crate) use entries::{Entries, Entry, Kind};
pub(crate) use header::BLOCK;
pub(crate) use sparse::Region;
