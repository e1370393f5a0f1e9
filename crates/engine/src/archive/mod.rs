//! Archives of directories in a sandbox: read and written here as a stream, while the guest writes
//! and reads every file. Nothing is ever unpacked on the host.

mod pack;
mod pieces;
mod sandbox_files;
mod unpack;

pub use pack::{Lost, Packing};
pub use pieces::Pieces;
pub use sandbox_files::{EngineFiles, Files};
pub use unpack::{Bounds, UnpackError, Unpacked, Unpacking, Unusual};
