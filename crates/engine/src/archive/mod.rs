//! Archives of directories in a sandbox: taken apart and put together here, byte by byte as they
//! arrive and leave, while every file is written and read by the guest. Nothing is ever unpacked on
//! the host.

mod inside;
mod pack;
mod pieces;
mod unpack;

pub use inside::{Files, WithoutUse};
pub use pack::{Lost, Packing};
pub use pieces::Pieces;
pub use unpack::{Bounds, UnpackError, Unpacked, Unpacking, Unusual};
