//! Every way in which a request could be read differently than it was checked, by name.

use super::*;

const HEAD: &str = "GET /v1 HTTP/1.1\r\nHost: http.shoal.test\r\n\r\n";

fn name(text: &str) -> HostName {
    HostName::parse(text).unwrap()
}

fn requests() -> Requests {
    Requests::new(name("http.shoal.test"), 80)
}

/// What passes to the host and what becomes of the rest, when the bytes come in pieces of this size.
fn relayed(mut requests: Requests, bytes: &[u8], piece: usize) -> (Vec<u8>, Step) {
    let mut pieces = bytes.chunks(piece);
    let (mut buffer, mut passed, mut body) = (Vec::new(), Vec::new(), 0_usize);
    loop {
        let now = body.min(buffer.len());
        passed.extend(buffer.drain(..now));
        body -= now;
        let step = if body > 0 { Step::NeedMore } else { requests.step(&buffer) };
        match step {
            Step::NeedMore => match pieces.next() {
                Some(piece) => buffer.extend_from_slice(piece),
                None => return (passed, Step::NeedMore),
            },
            Step::Head(head) => {
                passed.extend_from_slice(&head.bytes);
                buffer.drain(..head.consumed);
            }
            Step::Body(count) => body = usize::try_from(count).unwrap(),
            Step::Hold | Step::PassAll | Step::End | Step::Refused(_) => return (passed, step),
        }
    }
}

fn whole(bytes: &[u8]) -> (Vec<u8>, Step) {
    relayed(requests(), bytes, bytes.len().max(1))
}

/// All of it passes as it is, in whatever pieces.
fn passes(case: &str, text: &str) {
    for piece in [1, 2, 7, text.len()] {
        let (passed, end) = relayed(requests(), text.as_bytes(), piece);
        assert_eq!(end, Step::NeedMore, "{case}, in pieces of {piece}");
        assert_eq!(String::from_utf8_lossy(&passed), text, "{case}, in pieces of {piece}");
    }
}

/// It is refused, and nothing of it passes, in whatever pieces.
fn refused(case: &str, bytes: &[u8]) -> Refusal {
    let mut refusals = Vec::new();
    for piece in [1, 3, bytes.len()] {
        let (passed, end) = relayed(requests(), bytes, piece);
        let Step::Refused(refusal) = end else { panic!("{case}, in pieces of {piece}: {end:?}") };
        assert!(passed.is_empty(), "{case}: {}", String::from_utf8_lossy(&passed));
        refusals.push(refusal);
    }
    assert!(refusals.iter().all(|one| *one == refusals[0]), "{case}: {refusals:?}");
    refusals[0]
}

#[test]
fn plain_requests_pass_as_they_are() {
    for (case, text) in [
        ("a simple request", HEAD),
        ("two requests", &HEAD.repeat(2)),
        ("the port of the connection", "GET / HTTP/1.1\r\nHost: http.shoal.test:80\r\n\r\n"),
        ("capitals", "GET / HTTP/1.1\r\nhOST: HTTP.Shoal.Test\r\n\r\n"),
        ("a final dot", "GET / HTTP/1.1\r\nHost: http.shoal.test.\r\n\r\n"),
        ("HTTP/1.0", "GET / HTTP/1.0\r\nHost: http.shoal.test\r\n\r\n"),
        ("all of the server", "OPTIONS * HTTP/1.1\r\nHost: http.shoal.test\r\n\r\n"),
        ("a query", "GET /a?b=http://evil.test/%00 HTTP/1.1\r\nHost: http.shoal.test\r\n\r\n"),
        ("bytes of another script", "GET /ü HTTP/1.1\r\nHost: http.shoal.test\r\nX: ü\r\n\r\n"),
        ("an empty value", "GET / HTTP/1.1\r\nHost: http.shoal.test\r\nX: \r\n\r\n"),
        ("a value with tabs", "GET / HTTP/1.1\r\nHost: http.shoal.test\r\nX: a\tb\r\n\r\n"),
        (
            "words of the connection",
            "GET / HTTP/1.1\r\nHost: http.shoal.test\r\nConnection: keep-alive, TE\r\nTE: trailers\r\n\r\n",
        ),
        ("an empty body", "GET / HTTP/1.1\r\nHost: http.shoal.test\r\nContent-Length: 0\r\n\r\n"),
        (
            "a body, and another request",
            &format!(
                "POST / HTTP/1.1\r\nHost: http.shoal.test\r\nContent-Length: 5\r\n\r\nGET /{HEAD}"
            ),
        ),
        (
            "a body that looks like a request",
            &format!(
                "PUT / HTTP/1.1\r\nHost: http.shoal.test\r\nContent-Length: {}\r\n\r\n{HEAD}",
                HEAD.len()
            ),
        ),
        (
            "chunks, and another request",
            &format!(
                "POST / HTTP/1.1\r\nHost: http.shoal.test\r\nTransfer-Encoding: Chunked\r\n\r\n\
                 5\r\nGET /\r\n00A\r\n0123456789\r\n0\r\n\r\n{HEAD}"
            ),
        ),
        (
            "chunks with trailers",
            &format!(
                "POST / HTTP/1.1\r\nHost: http.shoal.test\r\ntransfer-encoding: chunked\r\n\r\n\
                 1\r\nx\r\n000\r\nX-Sum: 1\r\nY: 2\r\n\r\n{HEAD}"
            ),
        ),
        (
            "a request that waits for the host",
            "PUT / HTTP/1.1\r\nHost: http.shoal.test\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
        ),
    ] {
        passes(case, text);
    }
}

#[test]
fn what_was_understood_is_written_anew() {
    let text = "GET / HTTP/1.1\r\nHost:http.shoal.test\t \r\nX:   y  \r\n\r\n";
    let expected = "GET / HTTP/1.1\r\nHost: http.shoal.test\r\nX: y\r\n\r\n";
    assert_eq!(whole(text.as_bytes()).0, expected.as_bytes());
    for url in ["http://http.shoal.test", "HTTP://Http.Shoal.Test:80/", "http://http.shoal.test:80"]
    {
        let text = format!("GET {url} HTTP/1.1\r\nHost: http.shoal.test\r\n\r\n");
        let expected = "GET / HTTP/1.1\r\nHost: http.shoal.test\r\n\r\n";
        assert_eq!(whole(text.as_bytes()).0, expected.as_bytes(), "{url}");
    }
    let text = "OPTIONS http://http.shoal.test HTTP/1.1\r\nHost: http.shoal.test\r\n\r\n";
    assert!(whole(text.as_bytes()).0.starts_with(b"OPTIONS * HTTP/1.1\r\n"));
    let text = "GET http://http.shoal.test?q HTTP/1.1\r\nHost: http.shoal.test\r\n\r\n";
    assert!(whole(text.as_bytes()).0.starts_with(b"GET /?q HTTP/1.1\r\n"));
}

#[test]
fn the_head_says_what_events_need() {
    let Step::Head(head) = requests().step(HEAD.as_bytes()) else { panic!("a head") };
    assert_eq!((head.method.as_str(), head.path.as_str()), ("GET", "/v1"));
    assert_eq!((head.consumed, head.upgrade), (HEAD.len(), false));
}

#[test]
fn a_host_other_than_the_name_is_refused() {
    for (case, host) in [
        ("another name", "Host: evil.test"),
        ("a name below", "Host: x.http.shoal.test"),
        ("a name above", "Host: shoal.test"),
        ("a name that ends alike", "Host: evilhttp.shoal.test"),
        ("another port", "Host: http.shoal.test:8080"),
        ("an address", "Host: 169.254.169.254"),
        ("an address of IPv6", "Host: [::1]"),
        ("loopback", "Host: 127.0.0.1:80"),
    ] {
        let bytes = format!("GET / HTTP/1.1\r\n{host}\r\n\r\n");
        assert_eq!(refused(case, bytes.as_bytes()).status, 403, "{case}");
    }
}

#[test]
fn a_host_that_could_be_read_differently_is_refused() {
    for (case, headers) in [
        ("no host", "X: y"),
        ("an empty host", "Host:"),
        ("two hosts", "Host: http.shoal.test\r\nHost: evil.test"),
        ("the same host twice", "Host: http.shoal.test\r\nX: y\r\nhost: http.shoal.test"),
        ("a list of hosts", "Host: http.shoal.test, evil.test"),
        ("two hosts in one", "Host: http.shoal.test evil.test"),
        ("a space before the colon", "Host : http.shoal.test"),
        ("a tab before the colon", "Host\t: http.shoal.test"),
        ("a second one, with a space", "Host: http.shoal.test\r\nHost : evil.test"),
        ("a folded line", "Host: http.shoal.test\r\n evil.test"),
        ("a folded first line", "X: y\r\n\tHost: evil.test\r\nHost: http.shoal.test"),
        ("a space before the first name", " Host: http.shoal.test"),
        ("a user", "Host: user@http.shoal.test"),
        ("a user that looks like a host", "Host: http.shoal.test@evil.test"),
        ("two dots at the end", "Host: http.shoal.test.."),
        ("brackets around a name", "Host: [http.shoal.test]"),
        ("a percent form", "Host: http%2eshoal.test"),
        ("a null in percents", "Host: evil.test%00http.shoal.test"),
        ("port 0", "Host: http.shoal.test:0"),
        ("port 65536", "Host: http.shoal.test:65536"),
        ("a port with letters", "Host: http.shoal.test:80x"),
        ("a port with zeros", "Host: http.shoal.test:080"),
        ("no port after the colon", "Host: http.shoal.test:"),
        ("a port with a sign", "Host: http.shoal.test:+80"),
        ("two ports", "Host: http.shoal.test:80:80"),
        ("a path", "Host: http.shoal.test/evil"),
        ("a backslash", "Host: http.shoal.test\\@evil.test"),
        ("letters of another script", "Host: httр.shoal.test"),
        ("a wide dot", "Host: http。shoal.test"),
        ("a number", "Host: 2130706433"),
        ("a hexadecimal number", "Host: 0x7f000001"),
        ("an octal number", "Host: 0177.0.0.1"),
        ("a short number", "Host: 127.1"),
        ("an address with a scope", "Host: [fe80::1%lo]"),
        ("underscores that become dashes", "Host: http.shoal.test\r\nHTTP2_Settings: x"),
        ("`Connection` removes the host", "Host: http.shoal.test\r\nConnection: close, Host"),
    ] {
        let bytes = format!("GET / HTTP/1.1\r\n{headers}\r\n\r\n");
        assert_eq!(refused(case, bytes.as_bytes()).status, 400, "{case}");
    }
}

#[test]
fn control_characters_and_bare_line_ends_are_refused() {
    for (case, text) in [
        ("bare LF everywhere", "GET / HTTP/1.1\nHost: http.shoal.test\n\n"),
        ("bare LF after the request line", "GET / HTTP/1.1\nHost: http.shoal.test\r\n\r\n"),
        ("bare LF after a header", "GET / HTTP/1.1\r\nHost: http.shoal.test\nX: y\r\n\r\n"),
        ("bare LF at the end", "GET / HTTP/1.1\r\nHost: http.shoal.test\r\n\n"),
        (
            "bare LF in a value",
            "GET / HTTP/1.1\r\nHost: http.shoal.test\r\nX: a\nHost: evil\r\n\r\n",
        ),
        (
            "bare CR in a value",
            "GET / HTTP/1.1\r\nHost: http.shoal.test\r\nX: a\rHost: evil\r\n\r\n",
        ),
        ("bare CR in the host", "GET / HTTP/1.1\r\nHost: http.shoal.test\r.evil\r\n\r\n"),
        ("two CR", "GET / HTTP/1.1\r\nHost: http.shoal.test\r\r\n\r\n"),
        ("bare CR in the request line", "GET /\rx HTTP/1.1\r\nHost: http.shoal.test\r\n\r\n"),
        ("a null in the host", "GET / HTTP/1.1\r\nHost: http.shoal.test\0.evil\r\n\r\n"),
        ("a null in a value", "GET / HTTP/1.1\r\nHost: http.shoal.test\r\nX: \0\r\n\r\n"),
        ("a null in the path", "GET /\0 HTTP/1.1\r\nHost: http.shoal.test\r\n\r\n"),
        ("a vertical tab", "GET / HTTP/1.1\r\nHost: http.shoal.test\r\nX: \x0b\r\n\r\n"),
        ("a delete", "GET / HTTP/1.1\r\nHost: http.shoal.test\r\nX: \x7f\r\n\r\n"),
        ("an empty line first", "\r\nGET / HTTP/1.1\r\nHost: http.shoal.test\r\n\r\n"),
        ("a bare LF first", "\nGET / HTTP/1.1\r\nHost: http.shoal.test\r\n\r\n"),
    ] {
        assert_eq!(refused(case, text.as_bytes()).status, 400, "{case}");
    }
}

#[test]
fn request_lines_that_could_be_read_differently_are_refused() {
    for (case, line) in [
        ("two spaces", "GET  / HTTP/1.1"),
        ("two spaces before the version", "GET /  HTTP/1.1"),
        ("a space at the end", "GET / HTTP/1.1 "),
        ("a space first", " GET / HTTP/1.1"),
        ("a space in the path", "GET /a b HTTP/1.1"),
        ("a tab for a space", "GET\t/ HTTP/1.1"),
        ("a tab in the path", "GET /a\tb HTTP/1.1"),
        ("no version", "GET /"),
        ("two versions", "GET / HTTP/1.1 HTTP/1.1"),
        ("HTTP/0.9", "GET / HTTP/0.9"),
        ("HTTP/1.2", "GET / HTTP/1.2"),
        ("HTTP/2.0", "GET / HTTP/2.0"),
        ("a small version", "GET / http/1.1"),
        ("the preface of HTTP/2", "PRI * HTTP/2.0"),
        ("the preface as HTTP/1.1", "PRI * HTTP/1.1"),
        ("CONNECT", "CONNECT http.shoal.test:80 HTTP/1.1"),
        ("CONNECT to another", "CONNECT evil.test:443 HTTP/1.1"),
        ("CONNECT with a path", "CONNECT / HTTP/1.1"),
        ("connect", "connect / HTTP/1.1"),
        ("a star for GET", "GET * HTTP/1.1"),
        ("no slash", "GET index.html HTTP/1.1"),
        ("only an authority", "GET http.shoal.test HTTP/1.1"),
        ("another host in the URL", "GET http://evil.test/ HTTP/1.1"),
        ("another port in the URL", "GET http://http.shoal.test:8080/ HTTP/1.1"),
        ("https", "GET https://http.shoal.test/ HTTP/1.1"),
        ("ftp", "GET ftp://http.shoal.test/ HTTP/1.1"),
        ("gopher", "GET gopher://http.shoal.test/ HTTP/1.1"),
        ("no scheme", "GET ://http.shoal.test/ HTTP/1.1"),
        ("no host in the URL", "GET http:/// HTTP/1.1"),
        ("one slash", "GET http:/http.shoal.test/ HTTP/1.1"),
        ("a user in the URL", "GET http://http.shoal.test@evil.test/ HTTP/1.1"),
        ("a user before the host", "GET http://evil@http.shoal.test/ HTTP/1.1"),
        ("a backslash and a user", "GET http://evil.test\\@http.shoal.test/ HTTP/1.1"),
        ("a fragment", "GET /#x HTTP/1.1"),
        ("a fragment in the URL", "GET http://http.shoal.test#@evil.test/ HTTP/1.1"),
        ("a header in the URL", "GET http://http.shoal.test:80\r\nX: y HTTP/1.1"),
        ("a method of odd letters", "G(T / HTTP/1.1"),
        ("a method with a colon", "GET: / HTTP/1.1"),
        ("a long method", "ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFG / HTTP/1.1"),
    ] {
        let text = format!("{line}\r\nHost: http.shoal.test\r\n\r\n");
        refused(case, text.as_bytes());
    }
    // In the absolute form both must name the host.
    let text = "GET http://http.shoal.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    assert_eq!(refused("another `Host` than in the URL", text.as_bytes()).status, 403);
}

#[test]
fn framings_that_could_be_read_differently_are_refused() {
    for (case, headers) in [
        ("both", "Content-Length: 5\r\nTransfer-Encoding: chunked"),
        ("both, the other way", "Transfer-Encoding: chunked\r\nContent-Length: 5"),
        ("a space before the colon", "Transfer-Encoding : chunked"),
        ("a tab before the colon", "Transfer-Encoding\t: chunked"),
        ("a length and a space", "Content-Length: 5\r\nTransfer-Encoding : chunked"),
        ("a folded coding", "Transfer-Encoding:\r\n chunked"),
        ("a list", "Transfer-Encoding: x, chunked"),
        ("chunked twice", "Transfer-Encoding: chunked, chunked"),
        ("two codings", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
        ("another coding after", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"),
        ("identity", "Transfer-Encoding: identity"),
        ("gzip", "Transfer-Encoding: gzip, chunked"),
        ("an empty coding", "Transfer-Encoding:"),
        ("a comma after", "Transfer-Encoding: chunked,"),
        ("a parameter", "Transfer-Encoding: chunked;x=y"),
        ("in quotes", "Transfer-Encoding: \"chunked\""),
        ("xchunked", "Transfer-Encoding: xchunked"),
        ("letters of another script", "Transfer-Encoding: сhunked"),
        ("a vertical tab", "Transfer-Encoding: \x0bchunked"),
        ("underscores", "Transfer_Encoding: chunked"),
        ("an underscore in the length", "Content_Length: 5"),
        ("a length with an underscore besides", "Content-Length: 5\r\ncontent_length: 6"),
        ("two lengths", "Content-Length: 5\r\nContent-Length: 6"),
        ("the same length twice", "Content-Length: 5\r\nContent-Length: 5"),
        ("a list of lengths", "Content-Length: 5, 5"),
        ("a sign", "Content-Length: +5"),
        ("a negative length", "Content-Length: -1"),
        ("a hexadecimal length", "Content-Length: 0x5"),
        ("zeros before", "Content-Length: 05"),
        ("two zeros", "Content-Length: 00"),
        ("a fraction", "Content-Length: 5.0"),
        ("a space inside", "Content-Length: 5 5"),
        ("no length", "Content-Length:"),
        ("letters", "Content-Length: five"),
        ("more than 64 bits", "Content-Length: 18446744073709551617"),
        ("a little less", "Content-Length: 9999999999999999999"),
        ("digits of another script", "Content-Length: ٥"),
        ("`Connection` removes the length", "Content-Length: 5\r\nConnection: content-length"),
        (
            "`Connection` removes the coding",
            "Transfer-Encoding: chunked\r\nConnection: Transfer-Encoding",
        ),
    ] {
        let text =
            format!("POST / HTTP/1.1\r\nHost: http.shoal.test\r\n{headers}\r\n\r\n0\r\n\r\n");
        assert_eq!(refused(case, text.as_bytes()).status, 400, "{case}");
    }
    let old =
        "POST / HTTP/1.0\r\nHost: http.shoal.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    refused("chunks in HTTP/1.0", old.as_bytes());
    for method in ["GET", "HEAD", "TRACE", "get"] {
        for framing in ["Content-Length: 5", "Transfer-Encoding: chunked"] {
            let text = format!("{method} / HTTP/1.1\r\nHost: http.shoal.test\r\n{framing}\r\n\r\n");
            refused("a body where servers expect none", text.as_bytes());
        }
    }
}

#[test]
fn chunks_that_could_be_read_differently_are_refused() {
    let head = "POST / HTTP/1.1\r\nHost: http.shoal.test\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (case, good, bad) in [
        ("an extension", "", "5;x=y\r\nhello\r\n"),
        ("an empty extension", "", "5;\r\nhello\r\n"),
        ("a space after the size", "", "5 \r\nhello\r\n"),
        ("a space before the size", "", " 5\r\nhello\r\n"),
        ("bare LF after the size", "", "5\nhello\r\n"),
        ("bare CR after the size", "", "5\rhello\r\n"),
        ("no size", "", "\r\nhello"),
        ("a prefix", "", "0x5\r\nhello\r\n"),
        ("a sign", "", "+5\r\nhello\r\n"),
        ("a negative size", "", "-1\r\n"),
        ("a size of 16 digits", "", "0000000000000005\r\nhello"),
        ("the largest size", "", "ffffffffffffffff\r\n"),
        ("a letter", "", "5g\r\nhello"),
        ("longer than it says", "5\r\nhello", "world\r\n"),
        ("bare LF after the chunk", "5\r\nhello", "\n5\r\nhello"),
        ("bare CR after the chunk", "5\r\nhello", "\r5\r\nhello"),
        ("no line end after the chunk", "5\r\nhello", "0\r\n\r\n"),
        ("bare LF after the last", "0\r\n", "\n"),
        ("a request for a trailer", "0\r\n", "GET /evil HTTP/1.1\r\nX: y\r\n\r\n"),
        ("a host in trailers", "0\r\n", "Host: evil.test\r\n\r\n"),
        ("a length in trailers", "0\r\n", "Content-Length: 5\r\n\r\n"),
        ("a coding in trailers", "0\r\n", "transfer_encoding: chunked\r\n\r\n"),
        ("a folded trailer", "0\r\n", "X: y\r\n z\r\n\r\n"),
        ("a trailer with a space", "0\r\n", "X : y\r\n\r\n"),
        ("a trailer with bare LF", "0\r\n", "X: y\n\r\n\r\n"),
    ] {
        let bytes = [head, good, bad].concat();
        for piece in [1, 3, bytes.len()] {
            let (passed, end) = relayed(requests(), bytes.as_bytes(), piece);
            assert!(matches!(end, Step::Refused(_)), "{case}: {end:?}");
            let expected = [head, good].concat();
            assert_eq!(String::from_utf8_lossy(&passed), expected, "{case}");
        }
    }
}

#[test]
fn many_small_chunks_pass_at_once() {
    let head = "POST / HTTP/1.1\r\nHost: http.shoal.test\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunks = "1\r\nx\r\n".repeat(1000);
    let mut requests = requests();
    assert!(matches!(requests.step(head.as_bytes()), Step::Head(_)));
    // All of them, and the last beyond the buffer.
    let bytes = format!("{chunks}ff\r\nthe beginning");
    assert_eq!(requests.step(bytes.as_bytes()), Step::Body(6 * 1000 + 4 + 255));
    let end = format!("\r\n{chunks}0\r\n\r\n");
    let rest = format!("{end}GET");
    assert_eq!(requests.step(rest.as_bytes()), Step::Body(end.len() as u64));
    assert_eq!(requests.step(b"GET"), Step::NeedMore);
}

#[test]
fn a_later_request_is_checked_like_the_first() {
    let post = "POST / HTTP/1.1\r\nHost: http.shoal.test\r\nContent-Length: 2\r\n\r\nab";
    let chunked = "POST / HTTP/1.1\r\nHost: http.shoal.test\r\nTransfer-Encoding: chunked\r\n\r\n\
                   2\r\nab\r\n0\r\n\r\n";
    let evil = "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    for before in [HEAD, post, chunked, &[HEAD, post, chunked].concat()] {
        let bytes = [before, evil].concat();
        for piece in [1, 5, bytes.len()] {
            let (passed, end) = relayed(requests(), bytes.as_bytes(), piece);
            assert!(matches!(end, Step::Refused(Refusal { status: 403, .. })), "{end:?}");
            assert_eq!(String::from_utf8_lossy(&passed), before);
        }
    }
    // Once refused, it stays so.
    let mut requests = requests();
    assert!(matches!(requests.step(evil.as_bytes()), Step::Refused(_)));
    assert!(matches!(requests.step(HEAD.as_bytes()), Step::Refused(_)));
    assert!(requests.is_first());
}

#[test]
fn only_the_first_request_may_be_answered_with_a_refusal() {
    let mut requests = requests();
    assert!(requests.is_first());
    assert!(matches!(requests.step(HEAD.as_bytes()), Step::Head(_)));
    assert!(!requests.is_first());
    let answer = String::from_utf8(Refusal::forbidden("no").answer()).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 "));
    assert!(answer.ends_with("Content-Length: 3\r\nConnection: close\r\n\r\nno\n"));
}

#[test]
fn other_protocols_are_refused_at_their_first_bytes() {
    for (case, bytes) in [
        ("TLS", &b"\x16"[..]),
        ("a null", b"\0"),
        ("SOCKS5", b"\x05"),
        ("a line end", b"\r"),
        ("a digit", b"2"),
        ("SSH with its dot", b"SSH-2"),
        ("a long word", &[b'A'; 33]),
    ] {
        assert!(matches!(requests().step(bytes), Step::Refused(_)), "{case}");
    }
    assert_eq!(requests().step(b""), Step::NeedMore);
}

#[test]
fn long_heads_are_refused() {
    let head = "GET / HTTP/1.1\r\nHost: http.shoal.test\r\nX: ";
    let whole_head = |length: usize| {
        let value = "x".repeat(length - head.len() - 4);
        format!("{head}{value}\r\n\r\n")
    };
    let mut all = requests();
    assert!(matches!(all.step(whole_head(HEAD_BYTES_MAX).as_bytes()), Step::Head(_)));
    let long = whole_head(HEAD_BYTES_MAX + 1);
    assert_eq!(refused("a long head", long.as_bytes()).status, 431);
    let many = format!("GET / HTTP/1.1\r\nHost: http.shoal.test\r\n{}\r\n", "X: y\r\n".repeat(128));
    assert_eq!(refused("many headers", many.as_bytes()).status, 431);
}

const WEBSOCKET: &str = "GET /chat HTTP/1.1\r\nHost: http.shoal.test\r\nUpgrade: websocket\r\n\
                         Connection: keep-alive, Upgrade\r\nSec-WebSocket-Key: x\r\n\r\n";

#[test]
fn a_websocket_passes_once_the_host_switched() {
    let mut requests = requests();
    let Step::Head(head) = requests.step(WEBSOCKET.as_bytes()) else { panic!("a head") };
    assert!(head.upgrade);
    assert_eq!(head.bytes, WEBSOCKET.as_bytes());
    assert_eq!(requests.step(b"\x81\x05hello"), Step::Hold);
    requests.upgrade_answered(true);
    assert_eq!(requests.step(b"\x81\x05hello"), Step::PassAll);
    // No later answer changes that.
    requests.upgrade_answered(false);
    assert_eq!(requests.step(b""), Step::PassAll);
}

#[test]
fn a_websocket_that_the_host_refused_is_followed_by_checked_requests() {
    let mut requests = requests();
    assert!(matches!(requests.step(WEBSOCKET.as_bytes()), Step::Head(_)));
    requests.upgrade_answered(false);
    let evil = "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    assert!(matches!(requests.step(evil.as_bytes()), Step::Refused(_)));
    // And nothing switches that did not ask.
    let mut others = Requests::new(name("http.shoal.test"), 80);
    others.upgrade_answered(true);
    assert!(matches!(others.step(evil.as_bytes()), Step::Refused(_)));
}

#[test]
fn websockets_that_could_hide_a_request_are_refused() {
    let (passed, end) = whole([HEAD, WEBSOCKET].concat().as_bytes());
    assert!(matches!(end, Step::Refused(_)) && passed == HEAD.as_bytes());
    for (case, text) in [
        ("by POST", WEBSOCKET.replace("GET", "POST")),
        ("in HTTP/1.0", WEBSOCKET.replace("HTTP/1.1", "HTTP/1.0")),
        ("with a body", WEBSOCKET.replace("Sec-", "Content-Length: 5\r\nSec-")),
        ("two protocols", WEBSOCKET.replace("Sec-", "Upgrade: h2c\r\nSec-")),
        ("the same twice", WEBSOCKET.replace("Sec-", "Upgrade: websocket\r\nSec-")),
        ("an underscore", WEBSOCKET.replace("Sec-", "Http2_Settings: x\r\nSec-")),
    ] {
        refused(case, text.as_bytes());
    }
}

#[test]
fn other_protocols_are_not_asked_for() {
    for (case, headers, expected) in [
        (
            "as Java asks for HTTP/2",
            "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
            "",
        ),
        (
            "with another word",
            "Upgrade: h2c\r\nConnection: upgrade, keep-alive\r\n",
            "Connection: keep-alive\r\n",
        ),
        ("TLS", "Upgrade: TLS/1.0\r\nConnection: Upgrade\r\n", ""),
        ("a list", "Upgrade: websocket, h2c\r\nConnection: Upgrade\r\n", ""),
        ("settings alone", "HTTP2-Settings: AAMAAABk\r\n", ""),
        ("a wish that is not one", "Upgrade: websocket\r\n", ""),
    ] {
        let text = format!("GET / HTTP/1.1\r\nHost: http.shoal.test\r\n{headers}X: y\r\n\r\n");
        let Step::Head(head) = requests().step(text.as_bytes()) else { panic!("{case}") };
        assert!(!head.upgrade, "{case}");
        let lines = String::from_utf8(head.bytes).unwrap().to_lowercase();
        let mut left: Vec<&str> = lines.trim_end().split("\r\n").skip(2).collect();
        left.retain(|line| *line != "x: y");
        let expected = expected.to_lowercase();
        assert_eq!(left, expected.lines().collect::<Vec<_>>(), "{case}");
    }
}

#[test]
fn the_answer_to_an_upgrade_is_read_in_any_pieces() {
    for (case, bytes, expected) in [
        (
            "switched",
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
            Answered::Switched,
        ),
        ("stays", "HTTP/1.1 200 OK\r\n\r\n", Answered::Stays),
        ("refused", "HTTP/1.1 403 Forbidden\r\n\r\nHTTP/1.1 101 no\r\n\r\n", Answered::Stays),
        (
            "something before",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </101>\r\n\r\nHTTP/1.1 101 x\r\n\r\n",
            Answered::Switched,
        ),
        (
            "something before a refusal",
            "HTTP/1.1 102 x\r\n\r\nHTTP/1.1 500 x\r\n\r\n",
            Answered::Stays,
        ),
        (
            "a status within a head",
            "HTTP/1.1 103 x\r\nHTTP/1.1 101 x\r\n\r\nHTTP/1.1 200 x",
            Answered::Stays,
        ),
        (
            "a body that looks like one",
            "HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 101 x\r\n\r\n",
            Answered::Stays,
        ),
    ] {
        for piece in [1, 4, 12, bytes.len()] {
            let mut answer = UpgradeAnswer::default();
            let mut answers = bytes.as_bytes().chunks(piece).map(|piece| answer.read(piece));
            let decided = answers.find(|answered| *answered != Answered::NeedMore);
            assert_eq!(decided, Some(expected), "{case}, in pieces of {piece}");
        }
    }
    for bytes in [
        "HTTP/2 101 xxxxx",
        "SSH-2.0-OpenSSH",
        "HTTP/1.1 1 1 x",
        "HTTP/1.1 099 x",
        "http/1.1 101 x",
    ] {
        let answered = UpgradeAnswer::default().read(bytes.as_bytes());
        assert!(matches!(answered, Answered::Refused(_)), "{bytes}");
    }
    let mut endless = UpgradeAnswer::default();
    let hints = "HTTP/1.1 103 x\r\n\r\n".repeat(100);
    let decided =
        (0..100).map(|_| endless.read(hints.as_bytes())).find(|a| *a != Answered::NeedMore);
    assert!(matches!(decided, Some(Answered::Refused(_))));
}
