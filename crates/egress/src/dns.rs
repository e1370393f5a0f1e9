//! Answers questions for names, from the policy alone: allowed names get their synthetic address, all
//! others do not exist. It must never ask anybody else, and never panic whatever arrives.

use std::net::Ipv4Addr;

use model::HostName;

/// What was asked, for the events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The name; none if it is not one that a host can have.
    pub name: Option<HostName>,
    /// The type of record: 1 is an address of IPv4.
    pub kind: u16,
    pub outcome: Outcome,
}

/// How a question was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// With this address.
    Address(Ipv4Addr),
    /// The name is allowed, and has no record of this type.
    Empty,
    /// The name does not exist here.
    Refused,
    /// It was not a question that this resolver understands.
    Malformed,
}

const HEADER_BYTES: usize = 12;
const TYPE_A: u16 = 1;
const TYPE_OPT: u16 = 41;
const CLASS_IN: u16 = 1;
/// How long programs may keep an answer. Addresses stay the same, so this is only about hot changes.
const TTL_SECONDS: u32 = 60;
/// What an `OPT` record of ours offers. No answer is nearly as long.
const UDP_BYTES: u16 = 1232;

const NO_ERROR: u8 = 0;
const FORMAT_ERROR: u8 = 1;
const NO_SUCH_NAME: u8 = 3;
const NOT_IMPLEMENTED: u8 = 4;

/// A question that was understood.
struct Question<'a> {
    /// Name, type and class as they came, for the answer.
    bytes: &'a [u8],
    name: Option<HostName>,
    kind: u16,
    class: u16,
    options: Option<Options>,
}

/// What an `OPT` record says.
struct Options {
    version: u8,
    /// The bit for signatures, which the answer repeats.
    signatures: bool,
}

/// Answers one message: allowed names are those for which `decide` has an address. None: the message
/// deserves no answer, because it is too short or an answer itself.
///
/// A name that is refused does not exist (NXDOMAIN): C libraries try again for seconds after any other
/// refusal. An allowed name has no record but its address, and saying so is no error: else programs
/// would take the lack of an IPv6 address for the lack of the name.
pub(crate) fn answer(
    message: &[u8],
    mut decide: impl FnMut(&HostName) -> Option<Ipv4Addr>,
) -> Option<(Vec<u8>, Asked)> {
    let header = message.get(..HEADER_BYTES)?;
    let is_answer = header[2] & 0x80 != 0;
    if is_answer {
        return None;
    }
    let opcode = (header[2] >> 3) & 0x0f;
    if opcode != 0 {
        return Some(malformed(header, NOT_IMPLEMENTED));
    }
    let Some(question) = read_question(message) else {
        return Some(malformed(header, FORMAT_ERROR));
    };
    let allowed = match &question.name {
        Some(name) if question.class == CLASS_IN => decide(name),
        Some(_) | None => None,
    };
    let outcome = match allowed {
        Some(address) if question.kind == TYPE_A => Outcome::Address(address),
        Some(_) => Outcome::Empty,
        None => Outcome::Refused,
    };
    let bytes = written(header, &question, outcome);
    Some((bytes, Asked { name: question.name, kind: question.kind, outcome }))
}

fn malformed(header: &[u8], code: u8) -> (Vec<u8>, Asked) {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    write_header(&mut bytes, header, code, [0, 0, 0]);
    (bytes, Asked { name: None, kind: 0, outcome: Outcome::Malformed })
}

/// Reads a message with one question and at most an `OPT` record. A pointer, a second question, another
/// record or bytes left over make it unreadable.
fn read_question(message: &[u8]) -> Option<Question<'_>> {
    let counts = [4, 6, 8, 10].map(|at| u16_at(message, at));
    let has_options = match counts {
        [Some(1), Some(0), Some(0), Some(0)] => false,
        [Some(1), Some(0), Some(0), Some(1)] => true,
        _ => return None,
    };
    let (name, after_name) = read_name(message)?;
    let kind = u16_at(message, after_name)?;
    let class = u16_at(message, after_name + 2)?;
    let end = after_name + 4;
    let rest = message.get(end..)?;
    let options = if has_options { Some(read_options(rest)?) } else { None };
    if !has_options && !rest.is_empty() {
        return None;
    }
    Some(Question { bytes: message.get(HEADER_BYTES..end)?, name, kind, class, options })
}

/// The name of the question, if a host can have it, and where it ends.
fn read_name(message: &[u8]) -> Option<(Option<HostName>, usize)> {
    let mut text = String::new();
    let mut readable = true;
    let mut at = HEADER_BYTES;
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        // The two highest bits make a pointer, which has no place in a first name.
        if length > 63 {
            return None;
        }
        let label = message.get(at..at + length)?;
        at += length;
        // With the bytes of lengths, a name has at most 255.
        if at - HEADER_BYTES > 254 {
            return None;
        }
        // A dot or a null inside of a label would be read as another name.
        readable &= label.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte));
        if readable {
            text.extend(label.iter().map(|byte| char::from(*byte)));
            text.push('.');
        }
    }
    let name = if readable { HostName::parse(&text).ok() } else { None };
    Some((name, at))
}

/// Reads an `OPT` record, which must be all that is left.
fn read_options(rest: &[u8]) -> Option<Options> {
    let is_root = *rest.first()? == 0;
    let kind = u16_at(rest, 1)?;
    let version = *rest.get(6)?;
    let flags = u16_at(rest, 7)?;
    let length = usize::from(u16_at(rest, 9)?);
    let whole = is_root && kind == TYPE_OPT && rest.len() == 11 + length;
    whole.then_some(Options { version, signatures: flags & 0x8000 != 0 })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    match bytes.get(at..at.checked_add(2)?)? {
        [high, low] => Some(u16::from_be_bytes([*high, *low])),
        _ => None,
    }
}

fn written(header: &[u8], question: &Question<'_>, outcome: Outcome) -> Vec<u8> {
    let unknown_version = question.options.as_ref().is_some_and(|options| options.version != 0);
    let (code, address) = match outcome {
        // The code is longer than the header has room for: the `OPT` record says it.
        _ if unknown_version => (NO_ERROR, None),
        Outcome::Address(address) => (NO_ERROR, Some(address)),
        Outcome::Empty => (NO_ERROR, None),
        Outcome::Refused => (NO_SUCH_NAME, None),
        Outcome::Malformed => (FORMAT_ERROR, None),
    };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + question.bytes.len() + 27);
    let counts = [1, u16::from(address.is_some()), u16::from(question.options.is_some())];
    write_header(&mut bytes, header, code, counts);
    bytes.extend_from_slice(question.bytes);
    if let Some(address) = address {
        // The name is the one at byte 12.
        bytes.extend_from_slice(&[0xc0, 12]);
        bytes.extend_from_slice(&TYPE_A.to_be_bytes());
        bytes.extend_from_slice(&CLASS_IN.to_be_bytes());
        bytes.extend_from_slice(&TTL_SECONDS.to_be_bytes());
        bytes.extend_from_slice(&[0, 4]);
        bytes.extend_from_slice(&address.octets());
    }
    if let Some(options) = &question.options {
        bytes.push(0);
        bytes.extend_from_slice(&TYPE_OPT.to_be_bytes());
        bytes.extend_from_slice(&UDP_BYTES.to_be_bytes());
        bytes.extend_from_slice(&[u8::from(unknown_version), 0]);
        bytes.extend_from_slice(&[if options.signatures { 0x80 } else { 0 }, 0]);
        bytes.extend_from_slice(&[0, 0]);
    }
    bytes
}

/// Repeats the id and the wish for recursion. Recursion is said to be available: else resolvers take
/// an empty answer for a broken server.
fn write_header(bytes: &mut Vec<u8>, header: &[u8], code: u8, counts: [u16; 3]) {
    let [questions, answers, additional] = counts;
    bytes.extend_from_slice(&header[..2]);
    bytes.push(0x80 | (header[2] & 0x79));
    bytes.push(0x80 | code);
    for count in [questions, answers, 0, additional] {
        bytes.extend_from_slice(&count.to_be_bytes());
    }
}

/// The most bytes of one message over TCP.
pub(crate) const TCP_MESSAGE_MAX: usize = 1024;

/// What a stream of DNS over TCP begins with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Framed<'a> {
    NeedMore,
    /// A message; then `consumed` bytes of the stream are done with.
    Message {
        message: &'a [u8],
        consumed: usize,
    },
    /// Longer than any question: close.
    TooLong,
}

/// The first message of a stream. Keep the connection open after its answer: C libraries ask for both
/// families of addresses on one.
pub(crate) fn next_of_stream(stream: &[u8]) -> Framed<'_> {
    let Some(length) = u16_at(stream, 0).map(usize::from) else { return Framed::NeedMore };
    if length > TCP_MESSAGE_MAX {
        return Framed::TooLong;
    }
    match stream.get(2..2 + length) {
        Some(message) => Framed::Message { message, consumed: 2 + length },
        None => Framed::NeedMore,
    }
}

/// An answer, as it goes into a stream.
pub(crate) fn for_stream(answer: &[u8]) -> Vec<u8> {
    let length = u16::try_from(answer.len()).unwrap_or_default();
    [&length.to_be_bytes(), answer].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 7, 9);
    const NAME: &[u8] = b"\x03api\x05shoal\x04test\0";
    const OPT: &[u8] = b"\0\0\x29\x04\xd0\0\0\0\0\0\0";

    fn message(counts: [u16; 4], flags: [u8; 2], rest: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![0xab, 0xcd];
        bytes.extend_from_slice(&flags);
        bytes.extend(counts.iter().flat_map(|count| count.to_be_bytes()));
        bytes.extend(rest.concat());
        bytes
    }

    fn question(name: &[u8], kind: u16) -> Vec<u8> {
        message([1, 0, 0, 0], [1, 0], &[name, &kind.to_be_bytes(), &[0, 1]])
    }

    fn asked(message: &[u8]) -> Option<(Vec<u8>, Asked)> {
        answer(message, |name| (name.as_str() == "api.shoal.test").then_some(ADDRESS))
    }

    fn outcome(message: &[u8]) -> Option<Outcome> {
        asked(message).map(|(_, asked)| asked.outcome)
    }

    fn labels(of: &[&[u8]]) -> Vec<u8> {
        let mut name = Vec::new();
        for label in of {
            name.push(label.len() as u8);
            name.extend_from_slice(label);
        }
        name.push(0);
        name
    }

    #[test]
    fn an_allowed_name_has_its_address() {
        let (bytes, asked) = asked(&question(NAME, TYPE_A)).unwrap();
        let mut expected = message([1, 1, 0, 0], [0x81, 0x80], &[NAME, &[0, 1, 0, 1]]);
        expected.extend_from_slice(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc6\x12\x07\x09");
        assert_eq!(bytes, expected);
        let name = HostName::parse("api.shoal.test").ok();
        assert_eq!(asked, Asked { name, kind: TYPE_A, outcome: Outcome::Address(ADDRESS) });
    }

    #[test]
    fn the_question_is_repeated_with_its_letters() {
        let mixed = b"\x03aPi\x05SHOAL\x04tesT\0";
        let (bytes, asked) = asked(&question(mixed, TYPE_A)).unwrap();
        assert_eq!(asked.outcome, Outcome::Address(ADDRESS));
        assert_eq!(&bytes[12..12 + mixed.len()], mixed);
    }

    #[test]
    fn a_name_that_is_not_allowed_does_not_exist() {
        for name in [
            &b"\x04evil\x04test\0"[..],
            b"\x05shoal\x04test\0",
            b"\x01x\x03api\x05shoal\x04test\0",
            b"\x03api\x05shoal\x04test\x04evil\0",
            b"\0",
        ] {
            for kind in [TYPE_A, 28, 16, 255] {
                let (bytes, asked) = asked(&question(name, kind)).unwrap();
                assert_eq!(asked.outcome, Outcome::Refused, "{name:?}");
                assert_eq!(bytes, {
                    let kind = kind.to_be_bytes();
                    message([1, 0, 0, 0], [0x81, 0x83], &[name, &kind, &[0, 1]])
                });
            }
        }
    }

    #[test]
    fn an_allowed_name_has_no_record_of_another_type() {
        // NS, CNAME, NULL, PTR, MX, TXT, AAAA, SRV, SVCB, HTTPS, AXFR, ANY.
        for kind in [2, 5, 10, 12, 15, 16, 28, 33, 64, 65, 252, 255] {
            let (bytes, asked) = asked(&question(NAME, kind)).unwrap();
            assert_eq!(asked.outcome, Outcome::Empty, "{kind}");
            let kind = kind.to_be_bytes();
            assert_eq!(bytes, message([1, 0, 0, 0], [0x81, 0x80], &[NAME, &kind, &[0, 1]]));
        }
    }

    #[test]
    fn labels_that_hide_another_name_do_not_exist() {
        for (case, name) in [
            ("a null before the name", labels(&[b"evil\0", b"api", b"shoal", b"test"])),
            ("a null inside", labels(&[b"api", b"shoal", b"test\0", b"evil"])),
            ("dots inside of a label", labels(&[b"api.shoal.test"])),
            ("a dot at the end of a label", labels(&[b"api", b"shoal", b"test."])),
            ("a space", labels(&[b"api ", b"shoal", b"test"])),
            ("a percent form", labels(&[b"api%2eshoal", b"test"])),
            ("an at sign", labels(&[b"x@api", b"shoal", b"test"])),
            ("letters of another script", labels(&["аpi".as_bytes(), b"shoal", b"test"])),
            ("a wide dot", labels(&["api。shoal".as_bytes(), b"test"])),
            ("a dash at the end", labels(&[b"api-", b"shoal", b"test"])),
            ("a number", labels(&[b"127", b"0", b"0", b"1"])),
            ("one number", labels(&[b"2130706433"])),
        ] {
            let (_, asked) = asked(&question(&name, TYPE_A)).unwrap();
            assert_eq!((asked.name, asked.outcome), (None, Outcome::Refused), "{case}");
        }
    }

    #[test]
    fn the_longest_labels_and_names_are_read_and_longer_ones_are_not() {
        let long = [b'a'; 64];
        let of = |lengths: &[usize]| {
            labels(&lengths.iter().map(|length| &long[..*length]).collect::<Vec<_>>())
        };
        // 255 bytes with the lengths: 253 letters and dots.
        for (lengths, expected) in [
            (&[63, 63, 63, 61][..], Outcome::Refused),
            (&[63, 63, 63, 62], Outcome::Malformed),
            (&[63, 63, 63, 63, 63], Outcome::Malformed),
            (&[64], Outcome::Malformed),
        ] {
            assert_eq!(outcome(&question(&of(lengths), TYPE_A)), Some(expected), "{lengths:?}");
        }
        let name = of(&[63, 63, 63, 61]);
        let (_, asked) = answer(&question(&name, TYPE_A), |_| Some(ADDRESS)).unwrap();
        assert_eq!(asked.name.unwrap().as_str().len(), 253);
    }

    #[test]
    fn questions_that_could_be_read_differently_are_malformed() {
        let whole: &[&[u8]] = &[NAME, &[0, 1, 0, 1]];
        let after = |more: &[u8]| message([1, 0, 0, 0], [1, 0], &[NAME, &[0, 1, 0, 1], more]);
        let with_opt = |opt: &[u8]| message([1, 0, 0, 1], [1, 0], &[NAME, &[0, 1, 0, 1], opt]);
        for (case, bytes) in [
            ("a pointer to itself", question(b"\xc0\x0c", TYPE_A)),
            ("a pointer after a label", question(b"\x03api\xc0\x0c", TYPE_A)),
            ("a label of 0x40", question(b"\x40api\0", TYPE_A)),
            ("a label of 0x80", question(b"\x80api\0", TYPE_A)),
            ("no question", message([0, 0, 0, 0], [1, 0], &[])),
            (
                "two questions",
                message([2, 0, 0, 0], [1, 0], &[NAME, &[0, 1, 0, 1], NAME, &[0, 1, 0, 1]]),
            ),
            ("two questions, one there", message([2, 0, 0, 0], [1, 0], whole)),
            ("an answer besides", message([1, 1, 0, 0], [1, 0], whole)),
            ("an authority besides", message([1, 0, 1, 0], [1, 0], whole)),
            (
                "two additional records",
                message([1, 0, 0, 2], [1, 0], &[NAME, &[0, 1, 0, 1], OPT, OPT]),
            ),
            ("an additional record that is not there", with_opt(b"")),
            ("an additional record that is not OPT", with_opt(b"\0\0\x10\0\x01\0\0\0\0\0\0")),
            ("an OPT record with a name", with_opt(b"\x01a\0\0\x29\x04\xd0\0\0\0\0\0\0")),
            ("an OPT record that is cut", with_opt(&OPT[..10])),
            ("an OPT record longer than the rest", with_opt(b"\0\0\x29\x04\xd0\0\0\0\0\0\x01")),
            ("bytes after OPT", with_opt(b"\0\0\x29\x04\xd0\0\0\0\0\0\0x")),
            ("OPT that is not counted", after(OPT)),
            ("bytes left over", after(b"x")),
            ("no class", message([1, 0, 0, 0], [1, 0], &[NAME, &[0, 1]])),
            ("no end of the name", message([1, 0, 0, 0], [1, 0], &[b"\x03api"])),
        ] {
            let (answer, asked) = asked(&bytes).unwrap();
            assert_eq!(asked.outcome, Outcome::Malformed, "{case}");
            assert_eq!(answer, message([0; 4], [0x81, 0x81], &[]), "{case}");
        }
    }

    #[test]
    fn other_operations_are_not_implemented() {
        for opcode in 1..16 {
            let bytes = message([1, 0, 0, 0], [opcode << 3, 0], &[NAME, &[0, 1, 0, 1]]);
            let (answer, asked) = asked(&bytes).unwrap();
            assert_eq!(asked.outcome, Outcome::Malformed);
            assert_eq!(answer, message([0; 4], [0x80 | opcode << 3, 0x84], &[]));
        }
    }

    #[test]
    fn answers_and_fragments_are_not_answered() {
        let mut an_answer = question(NAME, TYPE_A);
        an_answer[2] |= 0x80;
        assert!(asked(&an_answer).is_none());
        for length in 0..12 {
            assert!(asked(&question(NAME, TYPE_A)[..length]).is_none());
        }
    }

    #[test]
    fn another_class_has_no_names() {
        for class in [0, 3, 4, 254, 255] {
            let bytes = message([1, 0, 0, 0], [1, 0], &[NAME, &[0, 1, 0, class]]);
            assert_eq!(outcome(&bytes), Some(Outcome::Refused));
        }
    }

    #[test]
    fn opt_is_answered_if_asked() {
        for (opt, flags) in [
            (OPT, [0, 0]),
            (b"\0\0\x29\xff\xff\0\0\x80\0\0\0", [0x80, 0]),
            // With a cookie.
            (b"\0\0\x29\x04\xd0\0\0\0\0\0\x0c\0\x0a\0\x0812345678", [0, 0]),
        ] {
            let bytes = message([1, 0, 0, 1], [1, 0x20], &[NAME, &[0, 28, 0, 1], opt]);
            let (answer, asked) = asked(&bytes).unwrap();
            assert_eq!(asked.outcome, Outcome::Empty);
            let ours = [0, 0, 41, 4, 0xd0, 0, 0, flags[0], flags[1], 0, 0];
            let expected = [NAME, &[0, 28, 0, 1], &ours];
            assert_eq!(answer, message([1, 0, 0, 1], [0x81, 0x80], &expected));
        }
    }

    #[test]
    fn a_later_version_of_opt_is_refused_by_version() {
        let opt = b"\0\0\x29\x04\xd0\0\x01\0\0\0\0";
        let bytes = message([1, 0, 0, 1], [1, 0], &[NAME, &[0, 1, 0, 1], opt]);
        let (answer, _) = asked(&bytes).unwrap();
        let ours = [0, 0, 41, 4, 0xd0, 1, 0, 0, 0, 0, 0];
        assert_eq!(answer, message([1, 0, 0, 1], [0x81, 0x80], &[NAME, &[0, 1, 0, 1], &ours]));
    }

    #[test]
    fn no_answer_is_longer_than_a_datagram_may_be() {
        let label = [b'a'; 63];
        let name = labels(&[&label, &label, &label, &label[..61]]);
        let bytes = message([1, 0, 0, 1], [1, 0], &[&name, &[0, 1, 0, 1], OPT]);
        let (bytes, _) = answer(&bytes, |_| Some(ADDRESS)).unwrap();
        assert!(bytes.len() <= 512, "{}", bytes.len());
    }

    #[test]
    fn every_beginning_and_every_changed_byte_is_survived() {
        let whole = message([1, 0, 0, 1], [1, 0], &[NAME, &[0, 1, 0, 1], OPT]);
        for length in 0..whole.len() {
            assert_eq!(asked(&whole[..length]).is_some(), length >= HEADER_BYTES);
        }
        for at in 0..whole.len() {
            for byte in 0..=255 {
                let mut changed = whole.clone();
                changed[at] = byte;
                let _ = asked(&changed);
            }
        }
    }

    #[test]
    fn messages_of_a_stream_are_taken_one_by_one() {
        let one = question(NAME, TYPE_A);
        let two = question(NAME, 28);
        let stream = [for_stream(&one), for_stream(&two)].concat();
        for length in 0..one.len() + 2 {
            assert_eq!(next_of_stream(&stream[..length]), Framed::NeedMore);
        }
        let Framed::Message { message, consumed } = next_of_stream(&stream) else {
            panic!("a message");
        };
        assert_eq!((message, consumed), (&one[..], one.len() + 2));
        let rest = &stream[consumed..];
        assert_eq!(next_of_stream(rest), Framed::Message { message: &two, consumed: rest.len() });
        assert_eq!(next_of_stream(&[]), Framed::NeedMore);
        assert_eq!(next_of_stream(&[4, 1]), Framed::TooLong);
        assert_eq!(next_of_stream(&[0xff, 0xff, 0]), Framed::TooLong);
        // An empty message deserves no answer, and ends.
        let empty = Framed::Message { message: &[], consumed: 2 };
        assert_eq!(next_of_stream(&[0, 0]), empty);
    }
}
