//! The guest binary as bytes, and as a file in memory that can be executed and never changed: the
//! program of every sandbox's first process cannot be overwritten through `/proc`.

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;

use flate2::read::DeflateDecoder;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// The compressed binary. Another binary has other bytes here.
pub static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest.deflate"));

/// The static binary, for any root filesystem.
pub fn bytes() -> io::Result<Vec<u8>> {
    let size: usize = env!("GUEST_BYTES").parse().map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(size);
    DeflateDecoder::new(PACKED).read_to_end(&mut bytes)?;
    if bytes.len() != size {
        return Err(io::Error::other("the guest in this program is damaged"));
    }
    Ok(bytes)
}

/// A sealed, executable file in memory with the binary.
pub fn memfd() -> io::Result<OwnedFd> {
    sealed("shoal-guest", &bytes()?)
}

/// A sealed file in memory with these contents, which no process can change.
pub fn sealed(name: &str, contents: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = std::fs::File::from(memfd_create(name, flags)?);
    file.write_all(contents)?;
    io::Seek::rewind(&mut file)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kind of segment that names a loader: a static binary has none.
    const INTERPRETER: u32 = 3;

    /// Reads the table of segments of a 64-bit ELF file.
    fn kinds_of_segments(bytes: &[u8]) -> Vec<u32> {
        let number = |at: usize, length: usize| {
            bytes[at..at + length]
                .iter()
                .rev()
                .fold(0, |value, byte| value << 8 | usize::from(*byte))
        };
        let (table, size, count) = (number(32, 8), number(54, 2), number(56, 2));
        (0..count).map(|index| number(table + index * size, 4) as u32).collect()
    }

    #[test]
    fn the_binary_is_static_small_and_cannot_be_changed() {
        let bytes = bytes().unwrap();
        assert_eq!(&bytes[..4], b"\x7fELF");
        assert!(bytes.len() < 3 << 20, "{} bytes", bytes.len());
        assert!(!kinds_of_segments(&bytes).contains(&INTERPRETER), "needs a loader to start");
        let mut file = std::fs::File::from(memfd().unwrap());
        assert!(file.write_all(b"x").is_err());
    }
}
