//! Free memory of the C library's allocator. Thousands of guests are idle at once, and a server
//! holds large bodies for a moment: what they do not need must go back to the kernel, not stay in a
//! free list.

/// Blocks of at least so many bytes are not taken from the heap.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 128 * 1024;

/// From now on, large blocks go back to the kernel as soon as they are freed. By default, the
/// library puts blocks of a size that was freed once onto its heap, which shrinks only at its end.
pub fn give_back_large_blocks() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: changes a number of the allocator, under its own lock.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES) };
    }
}

/// Gives free memory back. It walks through all free memory, so not while busy.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: touches free memory only, to which nothing refers.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(test)]
#[cfg(target_env = "gnu")]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_that_are_freed_do_not_stay() {
        give_back_large_blocks();
        // Without the call above, later blocks of up to this size come from the heap.
        drop(std::hint::black_box(vec![1_u8; 1 << 20]));
        let resident_bytes = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
        };
        let before = resident_bytes();
        let mut kept = Vec::new();
        let blocks: Vec<_> = (0..64)
            .map(|_| {
                let block = std::hint::black_box(vec![1_u8; 512 << 10]);
                // What stays between them keeps the heap from shrinking.
                kept.push(std::hint::black_box(vec![1_u8; 4096]));
                block
            })
            .collect();
        assert!(resident_bytes() > before + (24 << 20));
        drop(blocks);
        let left = resident_bytes().saturating_sub(before);
        assert!(left < 8 << 20, "{left}");
        assert_eq!(kept.len(), 64);
    }
}
