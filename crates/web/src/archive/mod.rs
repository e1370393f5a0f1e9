//! Archives of directories on their way: compressed and uncompressed as they pass. What is in them
//! is the engine's affair, and the guest's.

pub mod pack;
pub mod source;
