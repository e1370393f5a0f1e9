//! Whatever requests arrive, in whatever pieces, pass or are refused: nothing panics, the pieces make
//! no difference, and who reads what passed reads the same requests.
#![no_main]

use egress::fuzzing::read_requests;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (piece_bytes, bytes) = input;
    read_requests(bytes, usize::from(piece_bytes));
});
