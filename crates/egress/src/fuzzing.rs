//! Feeds arbitrary bytes to everything that reads bytes of sandboxes, for fuzzing. No server contains
//! this, and it must never do more with them than a connection does.

use std::net::Ipv4Addr;

use model::HostName;

use crate::boundary;
use crate::control::{self, FromEgress, ToEgress};
use crate::dns::{self, Framed, Outcome};
use crate::greeting::{GREETING_BYTES_MAX, GreetingReader, Progress};
use crate::http_head::{HEAD_BYTES_MAX, ProxyRequest, ProxyStep, Requests, Step, UpgradeAnswer};
use crate::second_greeting::{Asks, asks_again, second_begins};
use crate::socks::{Socks, SocksStep};
use crate::target::{Host, Target};

const NAME: &str = "a.test";

fn name() -> HostName {
    HostName::parse(NAME).expect("a name")
}

/// Answers a message and a stream of messages.
///
/// # Panics
///
/// If an answer is not one to its question.
pub fn answer_names(bytes: &[u8]) {
    let address = Ipv4Addr::new(198, 18, 1, 2);
    let decide = |name: &HostName| name.as_str().ends_with("a.test").then_some(address);
    if let Some((answer, asked)) = dns::answer(bytes, decide) {
        assert!(answer.len() <= 512, "it fits into a datagram");
        assert_eq!(answer[..2], bytes[..2], "it has the id of the question");
        assert!(answer[2] & 0x80 != 0 && answer[2] & 2 == 0, "it is an answer, and whole");
        let named = asked.name.is_some_and(|name| decide(&name).is_some());
        match asked.outcome {
            Outcome::Address(given) => assert!(named && given == address && asked.kind == 1),
            Outcome::Empty => assert!(named && asked.kind != 1),
            Outcome::Refused => assert!(matches!(answer[3] & 15, 0 | 3)),
            Outcome::Malformed => assert_eq!(answer.len(), 12),
        }
    }
    let mut stream = bytes;
    while let Framed::Message { message, consumed } = dns::next_of_stream(stream) {
        assert_eq!(message.len() + 2, consumed);
        stream = &stream[consumed..];
    }
}

/// Reads a TLS greeting in pieces of this size.
///
/// # Panics
///
/// If the pieces make a difference, or it is longer than allowed.
pub fn read_greeting(bytes: &[u8], piece_bytes: usize) {
    let whole = GreetingReader::default().read(bytes);
    let mut reader = GreetingReader::default();
    let ends = (1..).map(|count| bytes.len().min(count * piece_bytes.max(1)));
    let mut read = Progress::NeedMore;
    for end in ends {
        read = reader.read(&bytes[..end]);
        if read != Progress::NeedMore || end == bytes.len() {
            break;
        }
    }
    // A refusal may come before what makes another one.
    match (&read, &whole) {
        (Progress::Refused(_), Progress::Refused(_)) => {}
        _ => assert_eq!(read, whole),
    }
    assert!(whole != Progress::NeedMore || bytes.len() <= GREETING_BYTES_MAX);
}

/// Reads what may come between two TLS greetings, from a host and from a sandbox, in pieces of this
/// size.
///
/// # Panics
///
/// If more bytes change what was decided, or a greeting would begin where there is nothing.
pub fn read_second_greeting(bytes: &[u8], piece_bytes: usize) {
    let (asks, begins) = (asks_again(bytes), second_begins(bytes));
    for end in (0..bytes.len()).step_by(piece_bytes.max(1)) {
        let (asked, begun) = (asks_again(&bytes[..end]), second_begins(&bytes[..end]));
        assert!(asked == Asks::NeedMore || asked == asks, "{asked:?} became {asks:?}");
        assert!(begun == Ok(None) || begun == begins, "{begun:?} became {begins:?}");
    }
    assert!(!matches!(begins, Ok(Some(at)) if at >= bytes.len()));
}

/// Reads the requests of a connection to one host, in pieces of this size.
///
/// # Panics
///
/// If the pieces make a difference, or what passes is not all that would be read from it.
pub fn read_requests(bytes: &[u8], piece_bytes: usize) {
    let (passed, end) = relayed(bytes, bytes.len().max(1));
    let (in_pieces, end_of_pieces) = relayed(bytes, piece_bytes.max(1));
    assert_eq!(passed, in_pieces);
    assert_eq!(matches!(end, Step::Refused(_)), matches!(end_of_pieces, Step::Refused(_)));
    // The host reads the same from what passes: heads were written anew.
    let (again, _) = relayed(&passed, passed.len().max(1));
    assert_eq!(again, passed);
}

fn relayed(bytes: &[u8], piece_bytes: usize) -> (Vec<u8>, Step) {
    let mut requests = Requests::new(name(), 80);
    let mut pieces = bytes.chunks(piece_bytes);
    let (mut buffer, mut passed, mut body) = (Vec::new(), Vec::new(), 0_u64);
    loop {
        let now = usize::try_from(body).unwrap_or(usize::MAX).min(buffer.len());
        passed.extend(buffer.drain(..now));
        body -= now as u64;
        let step = if body > 0 { Step::NeedMore } else { requests.step(&buffer) };
        match step {
            Step::NeedMore => {
                let Some(piece) = pieces.next() else {
                    assert!(buffer.len() <= HEAD_BYTES_MAX);
                    return (passed, Step::NeedMore);
                };
                buffer.extend_from_slice(piece);
            }
            Step::Head(head) => {
                passed.extend_from_slice(&head.bytes);
                buffer.drain(..head.consumed);
            }
            Step::Body(count) => {
                assert!(count > 0);
                body = count;
            }
            Step::Hold => requests.upgrade_answered(false),
            Step::PassAll => unreachable!("no host has switched"),
            Step::End | Step::Refused(_) => return (passed, step),
        }
    }
}

/// Reads what a program asks of the proxy, in HTTP and in SOCKS, and the answer of a host.
///
/// # Panics
///
/// If a target is not one.
pub fn ask_proxy(bytes: &[u8], piece_bytes: usize) {
    let piece_bytes = piece_bytes.max(1);
    match ProxyRequest::default().step(bytes) {
        ProxyStep::NeedMore => assert!(bytes.len() < HEAD_BYTES_MAX),
        ProxyStep::Refused(_) => {}
        ProxyStep::Connect { consumed, target } => {
            assert!(consumed <= bytes.len());
            check_target(&target);
        }
        ProxyStep::Plain { target, head, mut requests } => {
            check_target(&target);
            let _ = requests.step(&bytes[head.consumed..]);
            if let Host::Name(name) = target.host {
                // What goes to the host is a request that a connection to it would let pass.
                let step = Requests::new(name, target.port).step(&head.bytes);
                let passes = matches!(&step, Step::Head(again) if again.bytes == head.bytes);
                assert!(passes, "{step:?}");
            }
        }
    }
    let mut answer = UpgradeAnswer::default();
    for piece in bytes.chunks(piece_bytes) {
        let _ = answer.read(piece);
    }
    let mut socks = Socks::default();
    let mut rest = bytes;
    while let SocksStep::Reply { consumed, .. } = socks.step(rest) {
        rest = &rest[consumed..];
    }
    if let SocksStep::Request { consumed, target } = socks.step(rest) {
        assert!(consumed <= rest.len() && matches!(target.host, Host::Name(_)));
        check_target(&target);
    }
}

/// Opens a packet of the socket between the server and the process, at both of its ends.
///
/// # Panics
///
/// If a message is another one after it was written anew.
pub fn read_control(packet: &[u8]) {
    control::reopen::<ToEgress>(packet);
    control::reopen::<FromEgress>(packet);
}

/// Sends made-up headers through the boundary, to a host and back.
///
/// # Panics
///
/// If a value is where it must not be.
pub fn pass_headers(lines: &[u8]) {
    boundary::fuzzing::headers(lines);
}

fn check_target(target: &Target) {
    assert!(target.port > 0);
    if let Host::Name(name) = &target.host {
        assert!(HostName::parse(name.as_str()).is_ok_and(|again| again == *name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that look random and are the same each time, of a small alphabet or of all.
    fn made_up(seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut roll = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as u8
        };
        let (length, few) = (usize::from(roll()), roll() % 2 == 0);
        let alphabet = b"\0\x01\x02\x03\x04\x05\x06\x07\x16\n\r :/.-,;=aA5Z\xff";
        let byte = |roll: u8| {
            if few { alphabet[usize::from(roll) % alphabet.len()] } else { roll }
        };
        (0..length).map(|_| byte(roll())).collect()
    }

    /// A little of what `fuzz/run.sh` does for long, so that it works when it is run.
    #[test]
    fn made_up_bytes_are_survived_by_every_reader() {
        for seed in 0..4000 {
            let bytes = made_up(seed);
            let piece_bytes = 1 + usize::from(made_up(seed + 1).len() as u8 % 9);
            answer_names(&bytes);
            read_greeting(&bytes, piece_bytes);
            read_second_greeting(&bytes, piece_bytes);
            read_second_greeting(&[&[22, 3, 3, 0, 200, 2][..], &bytes].concat(), piece_bytes);
            read_second_greeting(&[&[23, 3, 3, 0, 4][..], &bytes].concat(), piece_bytes);
            read_requests(&bytes, piece_bytes);
            ask_proxy(&bytes, piece_bytes);
            for kind in 0..6 {
                read_control(&[&[0, kind][..], &bytes].concat());
            }
            pass_headers(&bytes);
        }
    }
}
