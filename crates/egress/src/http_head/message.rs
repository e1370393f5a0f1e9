//! One head of a request: found, taken apart, judged, and written anew. It must never forgive: a line
//! that does not end as it should, a header that is there twice, a name that is spelled otherwise.

use httparse::Header;

use super::{HEAD_BYTES_MAX, Head, Refusal};
use crate::target::Target;

const HEADERS_MAX: usize = 128;
const METHOD_BYTES_MAX: usize = 32;

/// Headers that decide where a request goes and where it ends.
const DECISIVE: [&str; 6] =
    ["host", "content-length", "transfer-encoding", "connection", "upgrade", "http2-settings"];

/// Whether a header decides where a request goes or ends. Many servers take `_` for `-`.
pub(super) fn decides_framing(name: &str) -> bool {
    DECISIVE.iter().any(|one| is_spelled_like(name, one))
}

fn is_spelled_like(name: &str, one: &str) -> bool {
    let plain = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    name.len() == one.len() && name.bytes().map(plain).eq(one.bytes())
}

/// How a body is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    Length(u64),
    Chunked,
}

/// Looks for the end of a head, at each byte once.
#[derive(Debug, Default)]
pub(super) struct Scan {
    at: usize,
}

impl Scan {
    /// The end of a head of a request, if it is there.
    pub(super) fn whole_request(&mut self, buffer: &[u8]) -> Result<Option<usize>, Refusal> {
        // Something else than HTTP is refused at its first bytes: the client may be waiting.
        let is_part_of_word = |byte: &&u8| **byte != b' ';
        let method = buffer.iter().take(METHOD_BYTES_MAX + 1).take_while(is_part_of_word);
        let mut length = 0;
        for byte in method {
            length += 1;
            if !byte.is_ascii_alphabetic() && !b"-_".contains(byte) {
                return Err(Refusal::unclear("the connection does not begin with a request"));
            }
        }
        if length > METHOD_BYTES_MAX || buffer.first() == Some(&b' ') {
            return Err(Refusal::unclear("the method of the request is not one"));
        }
        self.end(buffer)
    }

    /// The end of the lines that end with an empty one. Each line ends with CR and LF, which stand
    /// nowhere else.
    pub(super) fn end(&mut self, buffer: &[u8]) -> Result<Option<usize>, Refusal> {
        let buffer = buffer.get(..HEAD_BYTES_MAX).unwrap_or(buffer);
        while let Some(byte) = buffer.get(self.at) {
            match (byte, buffer.get(self.at + 1)) {
                (b'\r', None) => break,
                (b'\r', Some(b'\n')) => {
                    let is_empty = self.at == 0 || buffer[..self.at].ends_with(b"\r\n");
                    self.at += 2;
                    if is_empty {
                        return Ok(Some(self.at));
                    }
                }
                (b'\t' | b' '..=b'~' | 0x80.., _) => self.at += 1,
                (_, _) => {
                    return Err(Refusal::unclear(
                        "the head of the request has a control character",
                    ));
                }
            }
        }
        if buffer.len() == HEAD_BYTES_MAX {
            return Err(Refusal { status: 431, reason: "the head of the request is too long" });
        }
        Ok(None)
    }
}

/// The head of a request.
pub(super) struct Message<'a> {
    pub(super) method: &'a str,
    pub(super) target: &'a str,
    minor: u8,
    headers: &'a [Header<'a>],
}

impl Message<'_> {
    /// Takes a whole head apart.
    pub(super) fn read<T>(
        bytes: &[u8],
        judge: impl FnOnce(&Message<'_>) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        const UNCLEAR: Refusal = Refusal::unclear("the head of the request is not well formed");
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(bytes) {
            Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
            Err(httparse::Error::Version) => {
                return Err(Refusal { status: 505, reason: "the request is not HTTP/1" });
            }
            Err(httparse::Error::TooManyHeaders) => {
                return Err(Refusal { status: 431, reason: "the request has too many headers" });
            }
            Ok(_) | Err(_) => return Err(UNCLEAR),
        }
        let (Some(method), Some(target), Some(minor)) =
            (request.method, request.path, request.version)
        else {
            return Err(UNCLEAR);
        };
        let message = Message { method, target, minor, headers: request.headers };
        message.check_names()?;
        judge(&message)
    }

    /// Headers that some servers would take for one that decides.
    fn check_names(&self) -> Result<(), Refusal> {
        let lookalike = |header: &Header<'_>| {
            header.name.contains('_') && decides_framing(header.name) || header.name.is_empty()
        };
        if self.headers.iter().any(lookalike) {
            return Err(Refusal::unclear("a header is spelled almost like one that decides"));
        }
        let decisive = |token: &str| {
            ["host", "content-length", "transfer-encoding"]
                .iter()
                .any(|one| is_spelled_like(token, one))
        };
        if self.connection_words().any(decisive) {
            return Err(Refusal::unclear("`Connection` names a header that must stay"));
        }
        Ok(())
    }

    fn values(&self, name: &'static str) -> impl Iterator<Item = &[u8]> {
        let named = move |header: &&Header<'_>| header.name.eq_ignore_ascii_case(name);
        self.headers.iter().filter(named).map(|header| header.value)
    }

    /// The value of a header that must not be there twice.
    fn only(&self, name: &'static str) -> Result<Option<&str>, Refusal> {
        let mut values = self.values(name);
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(Refusal::unclear("a header that decides is there twice"));
        }
        match std::str::from_utf8(value) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(Refusal::unclear("a header that decides is not plain text")),
        }
    }

    /// The words of `Connection`.
    fn connection_words(&self) -> impl Iterator<Item = &str> {
        self.values("connection")
            .filter_map(|value| std::str::from_utf8(value).ok())
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .filter(|word| !word.is_empty())
    }

    /// How the body is framed. What proxies and servers ever read differently is refused.
    pub(super) fn framing(&self) -> Result<Framing, Refusal> {
        let coding = self.only("transfer-encoding")?;
        let length = self.only("content-length")?;
        let framing = match (coding, length) {
            (None, None) => return Ok(Framing::Length(0)),
            (Some(_), Some(_)) => {
                return Err(Refusal::unclear("the length of the request is given twice"));
            }
            (Some(_), None) if self.minor == 0 => {
                return Err(Refusal::unclear("HTTP/1.0 has no chunks"));
            }
            (Some(coding), None) if coding.eq_ignore_ascii_case("chunked") => Framing::Chunked,
            (Some(_), None) => {
                return Err(Refusal::unclear("the only transfer encoding is `chunked`"));
            }
            (None, Some(length)) => Framing::Length(content_length(length)?),
        };
        // Servers that expect no body here take it for the next request.
        let has_no_body = ["GET", "HEAD", "TRACE", "CONNECT"]
            .iter()
            .any(|method| self.method.eq_ignore_ascii_case(method));
        if has_no_body && framing != Framing::Length(0) {
            return Err(Refusal::unclear("a request of this method has no body"));
        }
        Ok(framing)
    }

    /// The path of a request on a connection to a host.
    pub(super) fn path_at(&self, expected: &Target) -> Result<String, Refusal> {
        if ["CONNECT", "PRI"].iter().any(|method| self.method.eq_ignore_ascii_case(method)) {
            return Err(Refusal::forbidden("the method is not one for this connection"));
        }
        if self.target.contains('#') {
            return Err(Refusal::unclear("the URL has a fragment"));
        }
        if self.target.starts_with('/') || (self.target == "*" && self.method == "OPTIONS") {
            return Ok(self.target.to_owned());
        }
        let (target, path) = self.absolute_target()?;
        if target == *expected {
            Ok(path)
        } else {
            Err(Refusal::forbidden("the URL names another host than the connection"))
        }
    }

    /// The host and the path of `http://host/path`.
    pub(super) fn absolute_target(&self) -> Result<(Target, String), Refusal> {
        const SCHEME: &str = "http://";
        let scheme = self.target.get(..SCHEME.len()).filter(|s| s.eq_ignore_ascii_case(SCHEME));
        if scheme.is_none() {
            return Err(Refusal::unclear("the URL is neither a path nor one of http://"));
        }
        let rest = &self.target[SCHEME.len()..];
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let target = Target::parse(authority, Some(80)).map_err(Refusal::unclear)?;
        let path = match path.chars().next() {
            Some('/') => path.to_owned(),
            Some('?') => format!("/{path}"),
            Some(_) => return Err(Refusal::unclear("the URL has a fragment")),
            None if self.method == "OPTIONS" => "*".to_owned(),
            None => "/".to_owned(),
        };
        if path.contains('#') {
            return Err(Refusal::unclear("the URL has a fragment"));
        }
        Ok((target, path))
    }

    /// The `Host`, if there is one, with the port that it implies.
    pub(super) fn host(&self, implied: u16) -> Result<Option<Target>, Refusal> {
        let Some(host) = self.only("host")? else { return Ok(None) };
        Target::parse(host, Some(implied)).map(Some).map_err(Refusal::unclear)
    }

    /// Whether there is exactly one `Host`, and it is this one.
    pub(super) fn names_only(&self, expected: &Target) -> Result<(), Refusal> {
        match self.host(expected.port)? {
            Some(host) if host == *expected => Ok(()),
            Some(_) => Err(Refusal::forbidden("`Host` is another than that of the connection")),
            None => Err(Refusal::unclear("the request has no `Host`")),
        }
    }

    /// Whether it asks for a WebSocket. Other protocols are not asked for: the host gets a request
    /// without that wish, as it may ignore it anyway.
    pub(super) fn asks_for_websocket(&self) -> Result<bool, Refusal> {
        let Some(protocol) = self.only("upgrade")? else { return Ok(false) };
        let wished = self.connection_words().any(|word| word.eq_ignore_ascii_case("upgrade"));
        if !wished || !protocol.eq_ignore_ascii_case("websocket") {
            return Ok(false);
        }
        if self.method != "GET" || self.minor == 0 {
            return Err(Refusal::unclear("a WebSocket is asked for by GET"));
        }
        Ok(true)
    }

    /// The head as it goes to a host that the program reached itself.
    pub(super) fn passed_on(&self, path: &str, upgrade: bool, consumed: usize) -> Head {
        let asks_otherwise = !upgrade && self.values("upgrade").next().is_some();
        let mut bytes = self.first_line(path, consumed);
        for header in self.headers {
            let name = header.name;
            let is = |one: &str| name.eq_ignore_ascii_case(one);
            if is("http2-settings") || asks_otherwise && (is("upgrade") || is("connection")) {
                continue;
            }
            write_header(&mut bytes, name, header.value);
        }
        if asks_otherwise {
            let stays = |word: &&str| {
                !["upgrade", "http2-settings"].iter().any(|one| word.eq_ignore_ascii_case(one))
            };
            let words: Vec<&str> = self.connection_words().filter(stays).collect();
            if !words.is_empty() {
                write_header(&mut bytes, "Connection", words.join(", ").as_bytes());
            }
        }
        self.ended(bytes, path, upgrade, consumed)
    }

    /// The head as it goes to a host for which the program asked a proxy: without what was meant for
    /// the proxy, and as the last request of the connection, because the next one may be for another
    /// host.
    pub(super) fn for_host(&self, path: &str, consumed: usize) -> Head {
        const FOR_PROXY: [&str; 5] =
            ["connection", "keep-alive", "te", "upgrade", "http2-settings"];
        let mut bytes = self.first_line(path, consumed);
        for header in self.headers {
            let name = header.name;
            let is = |one: &str| name.eq_ignore_ascii_case(one);
            let begins = name.get(..6).is_some_and(|begin| begin.eq_ignore_ascii_case("proxy-"));
            if begins || FOR_PROXY.iter().any(|one| is(one)) || self.connection_words().any(is) {
                continue;
            }
            write_header(&mut bytes, name, header.value);
        }
        write_header(&mut bytes, "Connection", b"close");
        self.ended(bytes, path, false, consumed)
    }

    fn first_line(&self, path: &str, room: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(room + 32);
        bytes.extend_from_slice(self.method.as_bytes());
        bytes.push(b' ');
        bytes.extend_from_slice(path.as_bytes());
        bytes.extend_from_slice(if self.minor == 0 { b" HTTP/1.0\r\n" } else { b" HTTP/1.1\r\n" });
        bytes
    }

    fn ended(&self, mut bytes: Vec<u8>, path: &str, upgrade: bool, consumed: usize) -> Head {
        bytes.extend_from_slice(b"\r\n");
        let (method, path) = (self.method.to_owned(), path.to_owned());
        Head { consumed, bytes, method, path, upgrade }
    }
}

/// A length as plain digits, without a sign, a list or zeros before it.
fn content_length(text: &str) -> Result<u64, Refusal> {
    let plain = (1..=18).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'));
    let length = if plain { text.parse().ok() } else { None };
    length.ok_or(Refusal::unclear("`Content-Length` is not a plain number"))
}

fn write_header(bytes: &mut Vec<u8>, name: &str, value: &[u8]) {
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(b": ");
    bytes.extend_from_slice(value);
    bytes.extend_from_slice(b"\r\n");
}
