//! The bytes of every kind of frame, written and read.

use guest_protocol::frame::{Header, Kind};
use guest_protocol::message::{Reply, Request, lane};
use guest_protocol::{Endpoint, Incoming, ProtocolError, decode};

/// Returns the bytes an endpoint has queued, and marks them as sent.
fn drained(endpoint: &mut Endpoint) -> Vec<u8> {
    let bytes = endpoint.outgoing().to_vec();
    endpoint.sent(bytes.len());
    bytes
}

#[test]
fn every_kind_of_frame_has_its_bytes() {
    let mut host = Endpoint::new();
    let mut guest = Endpoint::accepting();

    host.send(0x0102, &Request::Ports).unwrap();
    let message = drained(&mut host);
    assert_eq!(message, [7, 0, 0, 0, 2, 1, 0, 0, 0, 0, 13]);
    guest.feed(&message).unwrap();
    let Some(Incoming::Message { channel: 0x0102, payload }) = guest.next() else { panic!() };
    assert_eq!(decode(&payload), Ok(Request::Ports));

    assert_eq!(host.send_data(0x0102, lane::MAIN, b"abc"), 3);
    let data = drained(&mut host);
    assert_eq!(data, [9, 0, 0, 0, 2, 1, 0, 0, 1, 0, b'a', b'b', b'c']);
    guest.feed(&data).unwrap();
    let expected = Incoming::Data { channel: 0x0102, lane: lane::MAIN, bytes: b"abc".to_vec() };
    assert_eq!(guest.next(), Some(expected));

    host.end(0x0102, lane::MAIN);
    let end = drained(&mut host);
    assert_eq!(end, [6, 0, 0, 0, 2, 1, 0, 0, 3, 0]);
    guest.feed(&end).unwrap();
    assert_eq!(guest.next(), Some(Incoming::End { channel: 0x0102, lane: lane::MAIN }));

    guest.reset(0x0102, lane::STDERR);
    let reset = drained(&mut guest);
    assert_eq!(reset, [6, 0, 0, 0, 2, 1, 0, 0, 4, 2]);
    host.feed(&reset).unwrap();
    assert_eq!(host.next(), Some(Incoming::Reset { channel: 0x0102, lane: lane::STDERR }));

    guest.send_data(0x0102, lane::STDOUT, &vec![0; 256 * 1024]);
    host.feed(&drained(&mut guest)).unwrap();
    while host.next().is_some() {}
    host.consumed(0x0102, lane::STDOUT, 128 * 1024);
    let credit = drained(&mut host);
    assert_eq!(credit, [10, 0, 0, 0, 2, 1, 0, 0, 2, 1, 0, 0, 2, 0]);
    guest.feed(&credit).unwrap();
    assert_eq!(guest.next(), Some(Incoming::Writable { channel: 0x0102, lane: lane::STDOUT }));

    guest.send(0, &Reply::Ready { version: 1 }).unwrap();
    let ready = drained(&mut guest);
    assert_eq!(ready, [8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    host.feed(&ready).unwrap();
    let Some(Incoming::Message { channel: 0, payload }) = host.next() else { panic!() };
    assert_eq!(decode(&payload), Ok(Reply::Ready { version: 1 }));
    assert_eq!(host.next(), None);
    assert_eq!(guest.next(), None);
}

#[test]
fn invalid_frame_headers_are_refused() {
    let read = |length: u32, kind: u8| {
        let mut bytes = [0; 10];
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[8] = kind;
        Header::from_bytes(&bytes)
    };
    for length_bytes in 0..6 {
        assert_eq!(read(length_bytes, 0), Err(ProtocolError::ShortFrame { length_bytes }));
    }
    for kind in 5..=255 {
        assert_eq!(read(6, kind), Err(ProtocolError::UnknownKind { kind }));
    }
    let payload = |kind, payload_bytes: u32| read(payload_bytes + 6, kind).map(|h| h.kind);
    let refused = |kind, payload_bytes: u32| {
        let expected =
            ProtocolError::BadPayloadSize { kind, payload_bytes: payload_bytes as usize };
        assert_eq!(payload(kind, payload_bytes), Err(expected));
    };
    assert_eq!(payload(0, 0), Ok(Kind::Message));
    assert_eq!(payload(0, 1 << 20), Ok(Kind::Message));
    refused(0, (1 << 20) + 1);
    refused(0, u32::MAX - 6);
    refused(1, 0);
    assert_eq!(payload(1, 1), Ok(Kind::Data));
    assert_eq!(payload(1, 1 << 16), Ok(Kind::Data));
    refused(1, (1 << 16) + 1);
    assert_eq!(payload(2, 4), Ok(Kind::Credit));
    for size in [0, 3, 5] {
        refused(2, size);
    }
    assert_eq!(payload(3, 0), Ok(Kind::End));
    refused(3, 1);
    assert_eq!(payload(4, 0), Ok(Kind::Reset));
    refused(4, 1);
}
