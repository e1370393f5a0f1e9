//! Archives of directories in a sandbox: taken apart and put together here, byte by byte as they
//! arrive and leave, while every file is written and read by the guest. Nothing is ever unpacked on
//! the host.

mod pack;
mod pieces;
mod sandbox_files;
mod unpack;

pub use pack::{Lost, Packing};
pub use pieces::Pieces;
pub use sandbox_files::{Files, WithoutUse};
pub use unpack::{Bounds, UnpackError, Unpacked, Unpacking, Unusual};
