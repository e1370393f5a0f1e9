//! Finds out whether a host of TLS asks for another greeting (`HelloRetryRequest`), and where the second
//! greeting begins. A host may choose whom it serves by the second, so it is read like the first. It
//! must never take an answer for harmless before it has seen enough of it.

/// What is known of the answer of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    NeedMore,
    /// For another greeting.
    Again,
    /// For no other.
    No,
}

const RECORD_HEAD: usize = 5;
const CHANGE_OF_CIPHERS: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
const SERVER_HELLO: u8 = 2;
/// The head of the message, and the version.
const BEFORE_RANDOM: usize = 6;
/// The random bytes of an answer that asks for another greeting (RFC 8446, 4.1.3).
const ASKS_AGAIN: [u8; 32] = [
    0xCF, 0x21, 0xAD, 0x74, 0xE5, 0x9A, 0x61, 0x11, 0xBE, 0x1D, 0x8C, 0x02, 0x1E, 0x65, 0xB8, 0x91,
    0xC2, 0xA2, 0x11, 0x16, 0x7A, 0xBB, 0x8C, 0x5E, 0x07, 0x9E, 0x09, 0xE2, 0xC8, 0xA8, 0x33, 0x9C,
];

/// The most bytes of a record, with what encryption adds.
const RECORD_BYTES_MAX: usize = (16 << 10) + 256;
/// The most bytes before a second greeting: what a client sent before it knew of it.
const BEFORE_MAX: usize = 64 << 10;

/// One record from the front: its kind, and its end.
fn record(stream: &[u8]) -> Option<(u8, usize)> {
    match stream.get(..RECORD_HEAD)? {
        [kind, _, _, high, low] => {
            Some((*kind, RECORD_HEAD + usize::from(u16::from_be_bytes([*high, *low]))))
        }
        _ => None,
    }
}

/// Judges the answer of a host so far, from its first byte.
pub(crate) fn asks_again(answer: &[u8]) -> Asks {
    let mut message = Vec::new();
    let mut rest = answer;
    loop {
        if rest.first().is_some_and(|kind| *kind != HANDSHAKE) {
            return Asks::No;
        }
        let end = record(rest).map(|(_, end)| end);
        let here = end.map_or(rest.len(), |end| end.min(rest.len()));
        message.extend_from_slice(rest.get(RECORD_HEAD..here).unwrap_or_default());
        let random = message.get(BEFORE_RANDOM..).unwrap_or_default();
        if message.first().is_some_and(|kind| *kind != SERVER_HELLO)
            || random.iter().zip(ASKS_AGAIN).any(|(byte, asks)| *byte != asks)
        {
            return Asks::No;
        }
        if random.len() >= ASKS_AGAIN.len() {
            return Asks::Again;
        }
        match end.and_then(|end| rest.get(end..)) {
            // An empty record says nothing, and a host does not send one here.
            _ if end == Some(RECORD_HEAD) => return Asks::No,
            Some(next) if !next.is_empty() => rest = next,
            Some(_) | None => return Asks::NeedMore,
        }
    }
}

/// Where the second greeting begins in what a client sent after the first; none yet if it is not there.
/// Before it may stand what a client sends early.
pub(crate) fn second_begins(stream: &[u8]) -> Result<Option<usize>, &'static str> {
    let mut at = 0;
    while let Some((kind, length)) = record(stream.get(at..).unwrap_or_default()) {
        match kind {
            HANDSHAKE => return Ok(Some(at)),
            CHANGE_OF_CIPHERS | ALERT | DATA => at += length,
            _ => return Err("something else stands in the place of the second TLS greeting"),
        }
        if length > RECORD_HEAD + RECORD_BYTES_MAX || at > BEFORE_MAX {
            return Err("too much stands before the second TLS greeting");
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(kind: u8, content: &[u8]) -> Vec<u8> {
        [&[kind, 3, 3][..], &(content.len() as u16).to_be_bytes(), content].concat()
    }

    fn server_hello(random: &[u8; 32]) -> Vec<u8> {
        [&[2, 0, 0, 40, 3, 3][..], random, &[0, 0x13, 1, 0, 0, 0]].concat()
    }

    #[test]
    fn a_host_that_asks_for_another_greeting_is_understood_in_any_pieces() {
        let message = server_hello(&ASKS_AGAIN);
        let in_bytes: Vec<u8> = message.chunks(1).flat_map(|one| framed(22, one)).collect();
        for stream in [framed(22, &message), in_bytes] {
            let steps: Vec<Asks> =
                (0..=stream.len()).map(|end| asks_again(&stream[..end])).collect();
            let first = steps.iter().position(|step| *step != Asks::NeedMore).unwrap();
            assert!(steps[first..].iter().all(|step| *step == Asks::Again), "{steps:?}");
        }
    }

    #[test]
    fn every_other_answer_passes() {
        let mut random = ASKS_AGAIN;
        random[31] ^= 1;
        for (case, answer) in [
            ("an ordinary answer", framed(22, &server_hello(&[7; 32]))),
            ("one that differs in a bit", framed(22, &server_hello(&random))),
            ("an alert", framed(21, &[2, 40])),
            ("an echo of the greeting", framed(22, &[1, 0, 0, 9])),
            ("no TLS", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
            ("an empty record", framed(22, b"")),
        ] {
            assert_eq!(asks_again(&answer), Asks::No, "{case}");
        }
        assert_eq!(asks_again(b""), Asks::NeedMore);
    }

    #[test]
    fn the_second_greeting_is_found_behind_what_was_sent_early() {
        let early = [framed(20, &[1]), framed(23, &[5; 99])].concat();
        let stream = [&early[..], &framed(22, b"x")].concat();
        for end in 0..early.len() + RECORD_HEAD {
            assert_eq!(second_begins(&stream[..end]), Ok(None), "{end}");
        }
        assert_eq!(second_begins(&stream), Ok(Some(early.len())));
        assert!(second_begins(&framed(80, b"x")).is_err());
        assert!(second_begins(&framed(23, &vec![0; 20_000])).is_err());
        assert!(second_begins(&framed(23, &[0; 16_000]).repeat(5)).is_err());
    }
}
