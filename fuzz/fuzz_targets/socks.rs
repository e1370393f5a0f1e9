//! Whatever a program asks of the proxy, in HTTP or SOCKS, is understood or refused: nothing panics,
//! and a host that is asked for is one.
#![no_main]

use egress::fuzzing::ask_proxy;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (piece_bytes, bytes) = input;
    ask_proxy(bytes, usize::from(piece_bytes));
});
