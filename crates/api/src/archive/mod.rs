//! Archives of directories: taken apart and put together here, byte by byte as they arrive and
//! leave, while every file is written and read by the guest. Nothing is ever unpacked on the host.

pub(crate) mod header;
pub(crate) mod pack;
pub(crate) mod source;
pub(crate) mod unpack;

/// Everything in an archive comes in blocks of this size.
pub(crate) const BLOCK: usize = 512;

/// How many bytes fill up the last block of `size` bytes.
pub(crate) const fn padding(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}
