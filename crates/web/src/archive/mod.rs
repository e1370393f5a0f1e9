//! Compresses and decompresses archives as they pass. The engine and the guest read and write their
//! contents.

pub mod pack;
pub mod source;
