//! Reads the greeting of a TLS client, as far as the name of the host. It must never let a greeting
//! pass that a server could read differently: two names, a hidden name, bytes left over.

use model::HostName;

/// The most bytes of a greeting, with the heads of its records.
pub(crate) const GREETING_BYTES_MAX: usize = 64 << 10;

/// What a greeting says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// The host it names.
    pub server_name: Option<HostName>,
}

/// How far the reader is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Progress {
    NeedMore,
    Hello(Greeting),
    Refused(&'static str),
}

const RECORD_HEAD: usize = 5;
const RECORD_BYTES_MAX: usize = 16 << 10;
const HANDSHAKE: u8 = 22;
const MESSAGE_HEAD: usize = 4;
const CLIENT_HELLO: u8 = 1;
/// TLS 1.2, which TLS 1.3 also calls itself here. Before it there are no names worth trusting.
const TLS_1_2: [u8; 2] = [3, 3];
const SERVER_NAME: u16 = 0;
const NAME_OF_A_HOST: u8 = 0;
/// Extensions that hide the name: the drafts of encrypted names and greetings, and what became of them.
const HIDDEN_NAMES: [u16; 6] = [0xfe08, 0xfe09, 0xfe0a, 0xfe0b, 0xfe0d, 0xffce];

const CUT: &str = "the TLS greeting is cut";
const NOT_TLS: &str = "the connection does not begin with a TLS greeting";
const TOO_LONG: &str = "the TLS greeting is too long";

/// Reads the greeting of one connection. It looks at each byte once, in whatever pieces they come.
#[derive(Debug, Default)]
pub(crate) struct GreetingReader {
    /// Where the next record begins.
    next_record: usize,
    /// The handshake message so far, without the heads of records.
    message: Vec<u8>,
}

impl GreetingReader {
    /// Reads on. `stream` is everything that the client sent so far, from its first byte.
    pub(crate) fn read(&mut self, stream: &[u8]) -> Progress {
        loop {
            if let Some(refused) = self.refusal_of_message() {
                return Progress::Refused(refused);
            }
            if let Some(length) = self.message_length()
                && self.message.len() >= length
            {
                return match read_hello(&self.message[MESSAGE_HEAD..]) {
                    Ok(greeting) => Progress::Hello(greeting),
                    Err(reason) => Progress::Refused(reason),
                };
            }
            let record = stream.get(self.next_record..).unwrap_or_default();
            let length = match record_length(record) {
                Ok(Some(length)) => length,
                Ok(None) => return Progress::NeedMore,
                Err(reason) => return Progress::Refused(reason),
            };
            if self.next_record + RECORD_HEAD + length > GREETING_BYTES_MAX {
                return Progress::Refused(TOO_LONG);
            }
            let Some(fragment) = record.get(RECORD_HEAD..RECORD_HEAD + length) else {
                return Progress::NeedMore;
            };
            self.message.extend_from_slice(fragment);
            self.next_record += RECORD_HEAD + length;
        }
    }

    /// How many bytes of the stream the greeting was.
    pub(crate) const fn consumed(&self) -> usize {
        self.next_record
    }

    /// The length of the message with its head, once that is there.
    fn message_length(&self) -> Option<usize> {
        let length = Reader(self.message.get(1..MESSAGE_HEAD)?).length(3)?;
        Some(MESSAGE_HEAD + length)
    }

    /// What is wrong with the message so far, as far as its head says it.
    fn refusal_of_message(&self) -> Option<&'static str> {
        if self.message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Some("the first TLS message is not a greeting");
        }
        let length = self.message_length()?;
        if length > GREETING_BYTES_MAX {
            return Some(TOO_LONG);
        }
        (self.message.len() > length).then_some("another TLS message stands beside the greeting")
    }
}

/// The length of what a record contains, once its head is there. Each byte of the head is judged at
/// once: a client that speaks something else may be waiting.
fn record_length(record: &[u8]) -> Result<Option<usize>, &'static str> {
    let expected = [HANDSHAKE, TLS_1_2[0]];
    if record.iter().zip(expected).any(|(byte, expected)| *byte != expected) {
        return Err(NOT_TLS);
    }
    // The first record of many clients says 1.0, for the sake of old servers.
    if record.get(2).is_some_and(|minor| !(1..=3).contains(minor)) {
        return Err(NOT_TLS);
    }
    let Some(length) = record.get(3..RECORD_HEAD) else { return Ok(None) };
    match Reader(length).length(2) {
        Some(length @ 1..=RECORD_BYTES_MAX) => Ok(Some(length)),
        Some(_) | None => Err("a TLS record is empty or too long"),
    }
}

/// Bytes, from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of so many bytes.
    fn length(&mut self, bytes: usize) -> Option<usize> {
        let taken = self.take(bytes)?;
        Some(taken.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    }

    fn number(&mut self) -> Option<u16> {
        self.length(2).and_then(|number| u16::try_from(number).ok())
    }

    /// A list that its length, a number of so many bytes, stands before.
    fn list(&mut self, bytes: usize) -> Option<Reader<'a>> {
        let length = self.length(bytes)?;
        self.take(length).map(Reader)
    }

    const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reads a greeting without its head. Every byte must have its place.
fn read_hello(body: &[u8]) -> Result<Greeting, &'static str> {
    let mut body = Reader(body);
    if body.take(2).ok_or(CUT)? != TLS_1_2 {
        return Err("the TLS greeting is not one of TLS 1.2 or 1.3");
    }
    body.take(32).ok_or(CUT)?;
    let session = body.list(1).ok_or(CUT)?;
    let ciphers = body.list(2).ok_or(CUT)?;
    let compressions = body.list(1).ok_or(CUT)?;
    let odd = ciphers.0.len() % 2 != 0;
    if session.0.len() > 32 || ciphers.is_empty() || odd || compressions.is_empty() {
        return Err("the TLS greeting is not well formed");
    }
    if body.is_empty() {
        return Ok(Greeting { server_name: None });
    }
    let extensions = body.list(2).ok_or(CUT)?;
    if !body.is_empty() {
        return Err("bytes are left over in the TLS greeting");
    }
    let server_name = read_extensions(extensions)?;
    Ok(Greeting { server_name })
}

fn read_extensions(mut extensions: Reader<'_>) -> Result<Option<HostName>, &'static str> {
    let mut kinds = Vec::new();
    let mut server_name = None;
    while !extensions.is_empty() {
        let kind = extensions.number().ok_or(CUT)?;
        let content = extensions.list(2).ok_or(CUT)?;
        kinds.push(kind);
        if HIDDEN_NAMES.contains(&kind) {
            return Err("the TLS greeting hides the name of the host (ECH)");
        }
        if kind == SERVER_NAME {
            server_name = Some(read_server_name(content)?);
        }
    }
    let count = kinds.len();
    kinds.sort_unstable();
    kinds.dedup();
    if kinds.len() < count {
        return Err("the TLS greeting has an extension twice");
    }
    Ok(server_name)
}

/// Exactly one name of a host, without the final dot that servers treat differently.
fn read_server_name(mut content: Reader<'_>) -> Result<HostName, &'static str> {
    const UNCLEAR: &str = "the TLS greeting does not name exactly one host";
    let mut names = content.list(2).ok_or(UNCLEAR)?;
    let kind = names.take(1).ok_or(UNCLEAR)?;
    let name = names.list(2).ok_or(UNCLEAR)?;
    if !content.is_empty() || !names.is_empty() || kind != [NAME_OF_A_HOST] {
        return Err(UNCLEAR);
    }
    let name = std::str::from_utf8(name.0).ok().filter(|name| !name.ends_with('.'));
    name.and_then(|name| HostName::parse(name).ok())
        .ok_or("the TLS greeting names something that is not a host")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &[u8] = b"api.shoal.test";

    fn sized(bytes: usize, content: &[u8]) -> Vec<u8> {
        [&content.len().to_be_bytes()[size_of::<usize>() - bytes..], content].concat()
    }

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &sized(2, content)].concat()
    }

    fn entry(kind: u8, name: &[u8]) -> Vec<u8> {
        [&[kind][..], &sized(2, name)].concat()
    }

    fn server_name(name: &[u8]) -> Vec<u8> {
        extension(0, &sized(2, &entry(0, name)))
    }

    /// GREASE, supported versions, ALPN, and a key share of 1,216 bytes as clients send it today.
    fn usual() -> Vec<u8> {
        let alpn = sized(2, &[sized(1, b"h2"), sized(1, b"http/1.1")].concat());
        [
            extension(0x0a0a, b""),
            extension(43, &sized(1, &[0x0a, 0x0a, 3, 4, 3, 3])),
            extension(16, &alpn),
            extension(51, &vec![7; 1216]),
            extension(0xfafa, b"\0"),
        ]
        .concat()
    }

    fn hello_with(version: [u8; 2], extensions: Option<&[u8]>) -> Vec<u8> {
        let mut body = version.to_vec();
        body.extend_from_slice(&[9; 32]);
        body.extend(sized(1, &[8; 32]));
        body.extend(sized(2, &[0x1a, 0x1a, 0x13, 1, 0x13, 2]));
        body.extend(sized(1, &[0]));
        body.extend(extensions.map(|extensions| sized(2, extensions)).unwrap_or_default());
        [&[1][..], &sized(3, &body)].concat()
    }

    fn hello(extensions: &[&[u8]]) -> Vec<u8> {
        hello_with([3, 3], Some(&extensions.concat()))
    }

    fn record(content: &[u8]) -> Vec<u8> {
        [&[22, 3, 1][..], &sized(2, content)].concat()
    }

    fn read(stream: &[u8]) -> Progress {
        GreetingReader::default().read(stream)
    }

    fn names(name: &str) -> Progress {
        Progress::Hello(Greeting { server_name: HostName::parse(name).ok() })
    }

    #[test]
    fn the_name_is_read() {
        let named = hello(&[&usual(), &server_name(NAME)]);
        assert_eq!(read(&record(&named)), names("api.shoal.test"));
        let first = hello(&[&server_name(NAME), &usual()]);
        assert_eq!(read(&record(&first)), names("api.shoal.test"));
        let mixed = hello(&[&server_name(b"Api.SHOAL.test")]);
        assert_eq!(read(&record(&mixed)), names("api.shoal.test"));
        // A name that is not allowed is for the caller to compare.
        let other = hello(&[&server_name(b"evil.test")]);
        assert_eq!(read(&record(&other)), names("evil.test"));
    }

    #[test]
    fn a_greeting_without_a_name_says_so() {
        let none = Progress::Hello(Greeting { server_name: None });
        assert_eq!(read(&record(&hello(&[&usual()]))), none);
        assert_eq!(read(&record(&hello(&[]))), none);
        assert_eq!(read(&record(&hello_with([3, 3], None))), none);
    }

    #[test]
    fn a_greeting_is_read_byte_by_byte() {
        let stream = record(&hello(&[&usual(), &server_name(NAME)]));
        let mut reader = GreetingReader::default();
        for length in 0..stream.len() {
            assert_eq!(reader.read(&stream[..length]), Progress::NeedMore, "{length}");
        }
        assert_eq!(reader.read(&stream), names("api.shoal.test"));
    }

    #[test]
    fn a_greeting_is_read_from_any_two_records() {
        let message = hello(&[&server_name(NAME), &usual()]);
        for at in 1..message.len() {
            let stream = [record(&message[..at]), record(&message[at..])].concat();
            assert_eq!(read(&stream), names("api.shoal.test"), "{at}");
        }
    }

    #[test]
    fn a_greeting_is_read_from_records_of_one_byte() {
        let message = hello(&[&usual(), &server_name(NAME)]);
        let stream: Vec<u8> = message.chunks(1).flat_map(record).collect();
        let mut reader = GreetingReader::default();
        for length in 0..stream.len() {
            assert_eq!(reader.read(&stream[..length]), Progress::NeedMore, "{length}");
        }
        assert_eq!(reader.read(&stream), names("api.shoal.test"));
    }

    #[test]
    fn later_records_are_not_part_of_the_greeting() {
        // A change of ciphers and early data, as TLS 1.3 sends them with the greeting.
        let mut stream = record(&hello(&[&server_name(NAME)]));
        stream.extend_from_slice(b"\x14\x03\x03\0\x01\x01\x17\x03\x03\0\x02xy");
        assert_eq!(read(&stream), names("api.shoal.test"));
    }

    #[test]
    fn greetings_that_servers_read_differently_are_refused() {
        let listed = |names: &[u8]| extension(0, &sized(2, names));
        let good = server_name(NAME);
        for (case, extensions) in [
            ("two server_name extensions", [good.clone(), server_name(b"evil.test")].concat()),
            ("the same name twice", [good.clone(), usual(), good.clone()].concat()),
            ("two names in one", listed(&[entry(0, NAME), entry(0, b"evil.test")].concat())),
            ("a name of another kind", listed(&entry(1, NAME))),
            ("another kind besides", listed(&[entry(0, NAME), entry(1, b"x")].concat())),
            ("no name in the list", listed(b"")),
            ("an empty extension", extension(0, b"")),
            ("an empty name", listed(&entry(0, b""))),
            ("a name that is cut", extension(0, b"\0\x05\0\0\x09ap")),
            ("bytes after the list", extension(0, &[sized(2, &entry(0, NAME)), vec![0]].concat())),
            ("bytes after the name", listed(&[entry(0, NAME), vec![0]].concat())),
            ("an encrypted greeting", [good.clone(), extension(0xfe0d, &[0; 40])].concat()),
            ("an encrypted greeting first", [extension(0xfe0d, b"\x01"), good.clone()].concat()),
            ("an encrypted name", [extension(0xffce, &[0; 40]), good.clone()].concat()),
            ("an early draft", [extension(0xfe08, &[0; 40]), good.clone()].concat()),
            ("another extension twice", [usual(), good.clone(), extension(43, b"")].concat()),
            ("an extension that is cut", [good.clone(), vec![0, 43, 0, 9, 1]].concat()),
            ("an extension without a length", [good, vec![0, 43]].concat()),
        ] {
            let step = read(&record(&hello(&[&extensions])));
            assert!(matches!(step, Progress::Refused(_)), "{case}: {step:?}");
        }
    }

    #[test]
    fn names_that_are_not_hosts_are_refused() {
        for name in [
            &b"1.2.3.4"[..],
            b"::1",
            b"[::1]",
            b"2130706433",
            b"0x7f000001",
            b"127.1",
            b"api.shoal.test.",
            b"api.shoal.test..",
            b".",
            b"api.shoal.test\0.evil.test",
            b"evil.test\0.shoal.test",
            b"api.shoal.test:443",
            b"user@api.shoal.test",
            b"api%2eshoal.test",
            b"[api.shoal.test]",
            b"*.shoal.test",
            b"api.shoal.test ",
            "аpi.shoal.test".as_bytes(),
            "api。shoal.test".as_bytes(),
            b"\xff.test",
        ] {
            let step = read(&record(&hello(&[&server_name(name)])));
            assert!(matches!(step, Progress::Refused(_)), "{name:?}: {step:?}");
        }
    }

    #[test]
    fn other_protocols_are_refused_at_their_first_bytes() {
        for (case, bytes) in [
            ("HTTP", &b"G"[..]),
            ("SSH", b"SSH-2.0-x\r\n"),
            ("SMTP with STARTTLS", b"EHLO x\r\n"),
            ("SSLv2", b"\x80\x2e\x01\x03\x01"),
            ("SSLv3 records", b"\x16\x03\x00"),
            ("records of a later version", b"\x16\x03\x04"),
            ("another major version", b"\x16\x02"),
            ("an alert", b"\x15"),
            ("data", b"\x17\x03\x03"),
            ("a change of ciphers", b"\x14\x03\x03"),
            ("an empty record", b"\x16\x03\x01\0\0"),
            ("a record that is too long", b"\x16\x03\x01\x40\x01"),
            ("the greeting of a server", b"\x16\x03\x03\0\x01\x02"),
            ("a request to begin anew", b"\x16\x03\x03\0\x04\0\0\0\0"),
        ] {
            assert!(matches!(read(bytes), Progress::Refused(_)), "{case}");
        }
    }

    #[test]
    fn old_and_unknown_versions_are_refused() {
        for version in [[2, 0], [3, 0], [3, 1], [3, 2], [3, 4], [0x7f, 0x1c], [254, 253]] {
            let message = hello_with(version, Some(&server_name(NAME)));
            assert!(matches!(read(&record(&message)), Progress::Refused(_)), "{version:?}");
        }
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let message = hello(&[&server_name(NAME)]);
        let body = &message[4..];
        let resized = |body: &[u8]| record(&[&[1][..], &sized(3, body)].concat());
        let mut session = body.to_vec();
        session[34] = 33;
        let mut ciphers = body.to_vec();
        ciphers[68] = 5;
        for (case, stream) in [
            ("a byte left over", resized(&[body, &[0]].concat())),
            ("a byte less", resized(&body[..body.len() - 1])),
            ("an empty message", resized(b"")),
            ("a long session id", resized(&session)),
            ("half a cipher", resized(&ciphers)),
            ("a second greeting in the record", record(&[&message[..], &message].concat())),
            ("a byte after the message", record(&[&message[..], &[22]].concat())),
        ] {
            assert!(matches!(read(&stream), Progress::Refused(_)), "{case}");
        }
    }

    #[test]
    fn every_cut_of_the_body_is_refused() {
        let message = hello(&[&usual(), &server_name(NAME)]);
        for length in 0..message.len() - 4 {
            // Without extensions a greeting is whole, and names no host.
            let whole = read_hello(&message[4..4 + length]);
            let nameless = Ok(Greeting { server_name: None });
            assert!(whole.is_err() || whole == nameless && length == 77, "{length}: {whole:?}");
        }
    }

    #[test]
    fn long_greetings_are_read_and_longer_ones_are_refused() {
        let of = |padding: usize| {
            let padding = extension(21, &vec![0; padding]);
            let message = hello(&[&padding, &server_name(NAME)]);
            message.chunks(RECORD_BYTES_MAX).flat_map(record).collect::<Vec<u8>>()
        };
        let long = of(65_000);
        assert!(long.len() <= GREETING_BYTES_MAX);
        assert_eq!(read(&long), names("api.shoal.test"));
        // Its length is enough to refuse it.
        let head = b"\x16\x03\x01\x40\x00\x01\x01\0\0";
        let first = [&head[..], &[0; RECORD_BYTES_MAX - 4]].concat();
        assert!(matches!(read(&first), Progress::Refused(_)));
        // Heads of records count too.
        let tiny: Vec<u8> =
            hello(&[&extension(21, &[0; 12_000])]).chunks(1).flat_map(record).collect();
        assert!(matches!(read(&tiny), Progress::Refused(_)));
    }

    #[test]
    fn every_changed_byte_is_survived() {
        let stream = record(&hello(&[&server_name(NAME), &extension(43, &[2, 3, 4])]));
        for at in 0..stream.len() {
            for byte in 0..=255 {
                let mut changed = stream.clone();
                changed[at] = byte;
                let _ = read(&changed);
            }
        }
    }
}
