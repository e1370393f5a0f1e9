//! Whatever a harness sends, in whatever pieces, is understood or refused: nothing panics, what is
//! passed on is JSON in one line, and the pieces make no difference.
#![no_main]

use harness::fuzzing::{Protocols, interpret};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, u8, &[u8])| {
    let (is_bridge, piece_bytes, bytes) = input;
    let protocol = if is_bridge { Protocols::Bridge } else { Protocols::Jsonl };
    let pieces = interpret(protocol, bytes, usize::from(piece_bytes));
    assert_eq!(pieces, interpret(protocol, bytes, bytes.len()));
});
