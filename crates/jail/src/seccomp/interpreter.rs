//! Runs a filter as the kernel would, for tests: only the instructions that the compiler may use;
//! it panics on any other.

use libc::sock_filter;

/// What a filter is given: `struct seccomp_data`, without the instruction pointer's value.
pub(super) struct Data {
    pub(super) number: u32,
    pub(super) architecture: u32,
    pub(super) arguments: [u64; 6],
}

impl Data {
    fn word(&self, offset: u32) -> u32 {
        match offset {
            0 => self.number,
            4 => self.architecture,
            16..64 if offset.is_multiple_of(4) => {
                let argument = self.arguments[(offset as usize - 16) / 8];
                if offset.is_multiple_of(8) { argument as u32 } else { (argument >> 32) as u32 }
            }
            other => panic!("no word at {other}"),
        }
    }
}

/// The answer, and how many instructions it took.
pub(super) fn run(program: &[sock_filter], data: &Data) -> (u32, usize) {
    let (mut at, mut accumulator, mut steps) = (0, 0_u32, 0);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        steps += 1;
        let branch = |holds: bool| usize::from(if holds { jt } else { jf });
        match code {
            0x20 => accumulator = data.word(k),
            0x54 => accumulator &= k,
            0x05 => at += k as usize,
            0x15 => at += branch(accumulator == k),
            0x35 => at += branch(accumulator >= k),
            0x45 => at += branch(accumulator & k != 0),
            0x06 => return (k, steps),
            other => panic!("instruction {other:#x} is not for us"),
        }
    }
}
