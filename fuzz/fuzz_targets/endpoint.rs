//! Whatever arrives, in whatever pieces, an endpoint neither panics nor holds more memory than
//! allowed, and the pieces make no difference.
#![no_main]

use guest_protocol::endpoint::Endpoint;
use guest_protocol::frame::{HEADER_BYTES, MAX_MESSAGE_BYTES};
use guest_protocol::message::Request;
use guest_protocol::{Incoming, ProtocolError};
use libfuzzer_sys::fuzz_target;

/// Feeds everything in pieces of this size, and returns the result.
fn fed(
    mut endpoint: Endpoint,
    bytes: &[u8],
    piece_bytes: usize,
) -> (Vec<Incoming>, Result<(), ProtocolError>) {
    endpoint.send(1, &Request::Ping).expect("a ping is short");
    let mut incoming = Vec::new();
    for piece in bytes.chunks(piece_bytes) {
        let result = endpoint.feed(piece);
        let bound = HEADER_BYTES + MAX_MESSAGE_BYTES + 64 * (bytes.len() + 64);
        assert!(endpoint.held_bytes() <= bound);
        while let Some(one) = endpoint.next() {
            incoming.push(one);
        }
        if result.is_err() {
            return (incoming, result);
        }
    }
    (incoming, Ok(()))
}

fuzz_target!(|input: (bool, u8, &[u8])| {
    let (is_host, piece_bytes, bytes) = input;
    let side = || if is_host { Endpoint::new() } else { Endpoint::accepting() };
    let pieces = fed(side(), bytes, usize::from(piece_bytes).max(1));
    let whole = fed(side(), bytes, bytes.len().max(1));
    assert_eq!(pieces, whole);
});
