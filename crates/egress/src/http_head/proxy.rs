//! What programs ask an HTTP proxy for: a tunnel, or one plain request. It must never decide whether
//! that is allowed: it says to which host and port, and the policy is asked.

use super::message::{Framing, Message, Scan};
use super::{Head, Refusal, Requests};
use crate::target::Target;

/// What a program asks of the proxy.
#[derive(Debug)]
pub(crate) enum ProxyStep {
    NeedMore,
    /// A tunnel: `consumed` bytes are done with; answer `CONNECTED` when the host is reached, and then
    /// treat the connection as one to the target.
    Connect {
        consumed: usize,
        target: Target,
    },
    /// One plain request. Send `head.bytes` to the target, and then read on with `requests` (for the
    /// body). The connection ends with this request.
    Plain {
        target: Target,
        head: Head,
        requests: Requests,
    },
    Refused(Refusal),
}

/// The answer to `CONNECT`.
pub(crate) const CONNECTED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// The first request of a connection to the proxy.
#[derive(Debug, Default)]
pub(crate) struct ProxyRequest {
    scan: Scan,
}

impl ProxyRequest {
    /// Reads on. `buffer` is everything that the client sent so far.
    pub(crate) fn step(&mut self, buffer: &[u8]) -> ProxyStep {
        let read = match self.scan.whole_request(buffer) {
            Ok(None) => return ProxyStep::NeedMore,
            Ok(Some(length)) => Message::read(&buffer[..length], |message| {
                let is_connect = message.method.eq_ignore_ascii_case("CONNECT");
                if is_connect { connect(message, length) } else { plain(message, length) }
            }),
            Err(refusal) => Err(refusal),
        };
        read.unwrap_or_else(ProxyStep::Refused)
    }
}

/// Some programs send no `Host` with `CONNECT`. One that is there is the same.
fn connect(message: &Message<'_>, consumed: usize) -> Result<ProxyStep, Refusal> {
    let target = Target::parse(message.target, None).map_err(Refusal::unclear)?;
    let is_other = message.host(target.port)?.is_some_and(|host| host != target);
    if is_other {
        return Err(Refusal::forbidden("`Host` is another than that of the tunnel"));
    }
    if message.framing()? != Framing::Length(0) {
        return Err(Refusal::unclear("a request for a tunnel has no body"));
    }
    Ok(ProxyStep::Connect { consumed, target })
}

fn plain(message: &Message<'_>, consumed: usize) -> Result<ProxyStep, Refusal> {
    let (target, path) = message.absolute_target()?;
    match message.host(80)? {
        Some(host) if host == target => {}
        Some(_) => return Err(Refusal::forbidden("`Host` is another than that of the URL")),
        None => return Err(Refusal::unclear("the request has no `Host`")),
    }
    let framing = message.framing()?;
    let head = message.for_host(&path, consumed);
    let requests = Requests::after_only_head(target.clone(), framing);
    Ok(ProxyStep::Plain { target, head, requests })
}

#[cfg(test)]
mod tests {
    use super::super::Step;
    use super::*;
    use crate::target::Host;

    fn asked(text: &str) -> ProxyStep {
        ProxyRequest::default().step(text.as_bytes())
    }

    fn target(text: &str) -> Target {
        Target::parse(text, None).unwrap()
    }

    fn tunnel(text: &str) -> Option<(Target, usize)> {
        match asked(text) {
            ProxyStep::Connect { consumed, target } => Some((target, consumed)),
            ProxyStep::NeedMore | ProxyStep::Plain { .. } | ProxyStep::Refused(_) => None,
        }
    }

    fn refused(case: &str, text: &str) -> Refusal {
        let step = asked(text);
        let ProxyStep::Refused(refusal) = step else { panic!("{case}: {step:?}") };
        refusal
    }

    #[test]
    fn a_tunnel_is_asked_for_in_any_pieces() {
        let text = "CONNECT Api.Shoal.test:443 HTTP/1.1\r\nHost: api.shoal.test:443\r\n\
                    Proxy-Connection: Keep-Alive\r\nUser-Agent: x\r\n\r\n";
        let mut proxy = ProxyRequest::default();
        for length in 0..text.len() {
            let step = proxy.step(&text.as_bytes()[..length]);
            assert!(matches!(step, ProxyStep::NeedMore), "{length}");
        }
        let early = format!("{text}\x16\x03\x01");
        let ProxyStep::Connect { consumed, target: asked } = proxy.step(early.as_bytes()) else {
            panic!("a tunnel");
        };
        assert_eq!((asked, consumed), (target("api.shoal.test:443"), text.len()));
    }

    #[test]
    fn tunnels_as_programs_ask_for_them_are_understood() {
        for (case, text, expected) in [
            ("no host", "CONNECT api.shoal.test:443 HTTP/1.0\r\n\r\n", "api.shoal.test:443"),
            (
                "a host without its port",
                "CONNECT api.shoal.test:443 HTTP/1.1\r\nHost: api.shoal.test\r\n\r\n",
                "api.shoal.test:443",
            ),
            (
                "an empty body",
                "CONNECT api.shoal.test:22 HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
                "api.shoal.test:22",
            ),
            ("a final dot", "CONNECT api.shoal.test.:443 HTTP/1.1\r\n\r\n", "api.shoal.test:443"),
            // Addresses are judged by address rules.
            ("an address", "CONNECT 1.2.3.4:443 HTTP/1.1\r\n\r\n", "1.2.3.4:443"),
            ("metadata", "CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n", "169.254.169.254:80"),
            ("an address of IPv6", "CONNECT [fd00::1]:443 HTTP/1.1\r\n\r\n", "[fd00::1]:443"),
            (
                "a mapped address",
                "CONNECT [::ffff:169.254.169.254]:80 HTTP/1.1\r\n\r\n",
                "[::ffff:a9fe:a9fe]:80",
            ),
        ] {
            assert_eq!(tunnel(text), Some((target(expected), text.len())), "{case}");
        }
    }

    #[test]
    fn tunnels_that_could_be_read_differently_are_refused() {
        for (case, asked) in [
            ("no port", "api.shoal.test"),
            ("port 0", "api.shoal.test:0"),
            ("port 65536", "api.shoal.test:65536"),
            ("a port with letters", "api.shoal.test:443x"),
            ("a port with zeros", "api.shoal.test:0443"),
            ("two ports", "api.shoal.test:443:80"),
            ("a user", "user@api.shoal.test:443"),
            ("a user and a password", "u:p@api.shoal.test:443"),
            ("a URL", "http://api.shoal.test:443"),
            ("a path", "api.shoal.test:443/x"),
            ("only a path", "/api.shoal.test:443"),
            ("brackets around a name", "[api.shoal.test]:443"),
            ("brackets around an address of IPv4", "[1.2.3.4]:443"),
            ("no brackets around IPv6", "::1:443"),
            ("a mapped address without brackets", "::ffff:0:a9fe:a9fe"),
            ("a scope", "[fe80::1%lo]:443"),
            ("a scope in percents", "[fe80::1%25lo]:443"),
            ("a number", "2130706433:443"),
            ("a hexadecimal number", "0x7f000001:443"),
            ("an octal number", "0177.0.0.1:443"),
            ("a short number", "127.1:443"),
            ("an address with a final dot", "1.2.3.4.:443"),
            ("an address of five parts", "1.2.3.4.5:443"),
            ("a percent form", "api%2eshoal.test:443"),
            ("a null in percents", "evil.test%00api.shoal.test:443"),
            ("a null", "api.shoal.test\0.evil:443"),
            ("a header", "api.shoal.test:443\r\nX: y"),
            ("a bare line end", "api.shoal.test:443\nX: y"),
            ("a space", "api.shoal.test :443"),
            ("two dots at the end", "api.shoal.test..:443"),
            ("letters of another script", "аpi.shoal.test:443"),
            ("a wide dot", "api。shoal.test:443"),
            ("a star", "*.shoal.test:443"),
            ("nothing", ""),
        ] {
            refused(case, &format!("CONNECT {asked} HTTP/1.1\r\n\r\n"));
        }
    }

    #[test]
    fn tunnels_with_more_than_a_head_are_refused() {
        for (case, headers) in [
            ("another host", "Host: evil.test:443"),
            ("another port", "Host: api.shoal.test:80"),
            ("two hosts", "Host: api.shoal.test:443\r\nHost: api.shoal.test:443"),
            ("a body", "Content-Length: 5"),
            ("chunks", "Transfer-Encoding: chunked"),
            ("chunks with a space", "Transfer-Encoding : chunked"),
        ] {
            let text = format!("CONNECT api.shoal.test:443 HTTP/1.1\r\n{headers}\r\n\r\n");
            refused(case, &text);
        }
    }

    #[test]
    fn a_plain_request_is_written_for_the_host() {
        let text = "POST http://Http.Shoal.test/a?b HTTP/1.1\r\nHost: http.shoal.test\r\n\
                    Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic secret\r\n\
                    PROXY-x: y\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: 5\r\nX-Hop: 1\r\n\
                    TE: trailers\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\nAccept: */*\r\n\
                    Content-Length: 5\r\n\r\nhello";
        let ProxyStep::Plain { target: asked, head, mut requests } = asked(text) else {
            panic!("a request");
        };
        assert_eq!(asked, target("http.shoal.test:80"));
        let expected = "POST /a?b HTTP/1.1\r\nHost: http.shoal.test\r\nAccept: */*\r\n\
                        Content-Length: 5\r\nConnection: close\r\n\r\n";
        assert_eq!(String::from_utf8(head.bytes).unwrap(), expected);
        assert!(!head.upgrade);
        assert_eq!((head.method.as_str(), head.path.as_str()), ("POST", "/a?b"));
        assert_eq!(head.consumed, text.len() - 5);
        assert!(!requests.is_first());
        assert_eq!(requests.step(b"hello"), Step::Body(5));
        // Whatever comes then may be for another host.
        assert_eq!(requests.step(b"GET http://evil.test/ HTTP/1.1\r\n\r\n"), Step::End);
        assert_eq!(requests.step(b""), Step::End);
    }

    #[test]
    fn a_plain_request_with_chunks_ends_with_them() {
        let text = "POST http://http.shoal.test:8000/ HTTP/1.1\r\nHost: http.shoal.test:8000\r\n\
                    Transfer-Encoding: chunked\r\n\r\n";
        let ProxyStep::Plain { target: asked, mut requests, .. } = asked(text) else {
            panic!("a request");
        };
        assert_eq!(asked, target("http.shoal.test:8000"));
        assert_eq!(requests.step(b"2\r"), Step::NeedMore);
        assert_eq!(requests.step(b"2\r\na"), Step::Body(5));
        assert_eq!(requests.step(b"\r\n0\r\n"), Step::Body(5));
        assert_eq!(requests.step(b"\r\nGET"), Step::Body(2));
        assert_eq!(requests.step(b"GET"), Step::End);
    }

    #[test]
    fn a_wish_for_a_websocket_is_not_passed_on_by_the_proxy() {
        let text = "GET http://http.shoal.test/ HTTP/1.1\r\nHost: http.shoal.test\r\n\
                    Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
        let ProxyStep::Plain { head, mut requests, .. } = asked(text) else { panic!("a request") };
        assert!(!head.upgrade);
        assert!(!String::from_utf8(head.bytes).unwrap().to_lowercase().contains("upgrade"));
        requests.upgrade_answered(true);
        assert_eq!(requests.step(b"bytes"), Step::End);
    }

    #[test]
    fn the_paths_of_plain_requests_are_their_own() {
        for (url, path) in [
            ("http://http.shoal.test", "/"),
            ("http://http.shoal.test/", "/"),
            ("http://http.shoal.test?a=http://evil.test/", "/?a=http://evil.test/"),
            ("http://http.shoal.test//evil.test/", "//evil.test/"),
            ("http://http.shoal.test/@evil.test/", "/@evil.test/"),
            ("HTTP://HTTP.SHOAL.TEST:80/x", "/x"),
        ] {
            let text = format!("GET {url} HTTP/1.1\r\nHost: http.shoal.test\r\n\r\n");
            let ProxyStep::Plain { target: asked, head, .. } = asked(&text) else {
                panic!("{url}")
            };
            assert_eq!((asked, head.path.as_str()), (target("http.shoal.test:80"), path), "{url}");
        }
    }

    #[test]
    fn plain_requests_that_could_be_read_differently_are_refused() {
        for (case, url, host) in [
            ("a path alone", "/", "http.shoal.test"),
            ("a star", "*", "http.shoal.test"),
            ("https", "https://http.shoal.test/", "http.shoal.test"),
            ("ftp", "ftp://http.shoal.test/", "http.shoal.test"),
            ("gopher", "gopher://http.shoal.test/", "http.shoal.test"),
            ("file", "file:///etc/passwd", "http.shoal.test"),
            ("ws", "ws://http.shoal.test/", "http.shoal.test"),
            ("no scheme", "//http.shoal.test/", "http.shoal.test"),
            ("another host", "http://http.shoal.test/", "evil.test"),
            ("another host in the URL", "http://evil.test/", "http.shoal.test"),
            ("another port", "http://http.shoal.test:8080/", "http.shoal.test"),
            ("port 0", "http://http.shoal.test:0/", "http.shoal.test:0"),
            ("port 65536", "http://http.shoal.test:65536/", "http.shoal.test:65536"),
            ("a port with letters", "http://http.shoal.test:443x/", "http.shoal.test:443x"),
            ("a user", "http://http.shoal.test@evil.test/", "evil.test"),
            ("a backslash", "http://evil.test\\@http.shoal.test/", "http.shoal.test"),
            ("a backslash for a slash", "http://http.shoal.test\\evil/", "http.shoal.test"),
            ("a percent form", "http://http%2eshoal.test/", "http.shoal.test"),
            ("brackets around a name", "http://[http.shoal.test]/", "http.shoal.test"),
            ("a number", "http://2130706433/", "2130706433"),
            ("a hexadecimal number", "http://0x7f000001/", "0x7f000001"),
            ("an octal number", "http://0177.0.0.1/", "0177.0.0.1"),
            ("a short number", "http://127.1/", "127.1"),
            ("a scope", "http://[fe80::1%25lo]/", "[fe80::1%25lo]"),
            ("a fragment", "http://http.shoal.test/#x", "http.shoal.test"),
            ("a fragment for a path", "http://http.shoal.test#@evil.test/", "http.shoal.test"),
            ("no host", "http:///", "http.shoal.test"),
            ("a port alone", "http://:80/", "http.shoal.test"),
        ] {
            let text = format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            refused(case, &text);
        }
        let none = "GET http://http.shoal.test/ HTTP/1.1\r\n\r\n";
        assert_eq!(refused("no `Host`", none).status, 400);
        let both = "POST http://http.shoal.test/ HTTP/1.1\r\nHost: http.shoal.test\r\n\
                    Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(refused("two lengths", both).status, 400);
        assert_eq!(
            refused("the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").status,
            505
        );
    }

    #[test]
    fn a_plain_request_to_an_address_says_which() {
        for (url, host) in [
            ("http://169.254.169.254/latest", "169.254.169.254"),
            ("http://[::1]:8080/", "[::1]:8080"),
        ] {
            let text = format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let ProxyStep::Plain { target: asked, .. } = asked(&text) else { panic!("{url}") };
            assert!(matches!(asked.host, Host::Address(_)), "{url}");
        }
    }
}
