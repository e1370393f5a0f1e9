//! Whatever TLS greeting arrives, in whatever pieces, is read or refused: nothing panics, and the
//! pieces make no difference. So is what stands before a second one.
#![no_main]

use egress::fuzzing::{read_greeting, read_second_greeting};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (piece_bytes, bytes) = input;
    read_greeting(bytes, usize::from(piece_bytes));
    read_second_greeting(bytes, usize::from(piece_bytes));
});
