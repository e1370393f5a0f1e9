//! Loop devices: a file as a block device, as long as it is mounted.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;

/// The device releases its file when the last process closes it.
const LO_FLAGS_AUTOCLEAR: u32 = 4;

const BLOCK_BYTES: u32 = 4096;

#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// The number of a loop device that is free at this moment; the kernel makes one if there is none.
pub fn free_device(control: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: the call takes no argument.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    u32::try_from(number).map_err(|_| io::Error::last_os_error())
}

/// Puts a file behind a free device. `EBUSY` if it is not free any more.
pub fn configure(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: all zeroes is a valid configuration: it holds numbers only.
    let mut config: LoopConfig = unsafe { std::mem::zeroed() };
    config.fd = file.as_raw_fd().cast_unsigned();
    config.block_size = BLOCK_BYTES;
    // No direct I/O: the kernel would first wait until the whole file is on disk.
    config.info.flags = LO_FLAGS_AUTOCLEAR;
    // SAFETY: the kernel reads one configuration, which lives until the call returns.
    let answer = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_structures_of_this_size() {
        assert_eq!(size_of::<LoopInfo>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
    }
}
