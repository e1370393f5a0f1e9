//! Whatever a harness says, in whatever pieces, it is understood or refused: nothing panics, what is
//! passed on is JSON in one line, and the pieces make no difference.
#![no_main]

use harness::made_up::{Language, heard};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, u8, &[u8])| {
    let (is_bridge, piece_bytes, bytes) = input;
    let language = if is_bridge { Language::Bridge } else { Language::Jsonl };
    let pieces = heard(language, bytes, usize::from(piece_bytes));
    assert_eq!(pieces, heard(language, bytes, bytes.len()));
});
