# Cases 46 to 56: HTTP, on port 80 and through the proxy.


def web(*lines, body=b""):
    text = "\r\n".join([*lines, "", ""])
    return text.encode("latin-1") + body


def on_web(what, data, log, only=("400", "403")):
    refused(what, lambda: by_name(WEB, 80, data), log, only)


@case(46)
def _():
    reaches("the host", lambda: by_name(WEB, 80, request()), "45.0.0.2:80")
    reaches("with its port", lambda: by_name(WEB, 80, request(f"{WEB}:80")), "45.0.0.2:80")
    reaches("in full", lambda: by_name(WEB, 80, request(WEB, f"GET http://{WEB}/ HTTP/1.1")), "45.0.0.2:80")
    for host in (EVIL, API, f"{WEB}:8080", f"{WEB}.{EVIL}", f"{EVIL}, {WEB}", f"{WEB} {EVIL}", "45.0.0.2", "", f"{WEB}@{EVIL}"):
        on_web(f"Host {host!r}", web("GET / HTTP/1.1", f"Host: {host}"), "")
    on_web("none", web("GET / HTTP/1.1", "X: y"), "no `Host`")
    on_web("none in HTTP/1.0", web("GET / HTTP/1.0"), "no `Host`")
    on_web("two", web("GET / HTTP/1.1", f"Host: {WEB}", f"Host: {EVIL}"), "twice")
    on_web("the same twice", web("GET / HTTP/1.1", f"Host: {WEB}", f"Host: {WEB}"), "twice")
    on_web("in full, another", web(f"GET http://{EVIL}/ HTTP/1.1", f"Host: {WEB}"), "URL names another host")
    on_web("in full, another Host", web(f"GET http://{WEB}/ HTTP/1.1", f"Host: {EVIL}"), "`Host` is another")
    on_web("Host_", web("GET / HTTP/1.1", f"Host: {WEB}", f"X_Y: z", f"Content_Length: 5"), "almost like")


@case(47)
def _():
    def second(host):
        with socket.create_connection((address_of(WEB), 80), PATIENCE) as it:
            it.sendall(request())
            if answer(it) != "reached 45.0.0.2:80":
                return "the first was refused"
            it.sendall(request(host, "GET /smuggled HTTP/1.1" if host != WEB else "GET / HTTP/1.1"))
            return answer(it)
    reaches("a second request", lambda: second(WEB), "45.0.0.2:80")
    for host in (EVIL, API, None):
        refused(f"a second request to {host}", lambda: second(host), "", ["closed"])
    # Both in one piece: the second does not arrive.
    refused("both at once", lambda: "code " + str(arrived(request() + request(EVIL, "GET /smuggled HTTP/1.1"))), "`Host` is another")


def arrived(data):
    """How many answers come."""
    with socket.create_connection((address_of(WEB), 80), PATIENCE) as it:
        it.settimeout(PATIENCE)
        it.sendall(data)
        it.shutdown(socket.SHUT_WR)
        data = b""
        try:
            while piece := it.recv(65536):
                data += piece
        except ConnectionResetError:
            pass
        return data.count(b"HTTP/1.1 200")


@case(48)
def _():
    inner = request(EVIL, "GET /smuggled HTTP/1.1")
    chunked = b"5\r\nabcde\r\n0\r\n\r\n"
    for what, headers, body in [
        ("both lengths", ["Content-Length: 5", "Transfer-Encoding: chunked"], chunked + inner),
        ("both, the other way round", ["Transfer-Encoding: chunked", "Content-Length: 5"], chunked + inner),
        ("two lengths", ["Content-Length: 5", "Content-Length: 6"], b"abcdef" + inner),
        ("the same length twice", ["Content-Length: 5", "Content-Length: 5"], b"abcde" + inner),
        ("a list of lengths", ["Content-Length: 5, 5"], b"abcde" + inner),
        ("a length with a sign", ["Content-Length: +5"], b"abcde" + inner),
        ("a length in hexadecimal", ["Content-Length: 0x5"], b"abcde" + inner),
        ("a negative length", ["Content-Length: -1"], inner),
        ("a long length", ["Content-Length: 18446744073709551621"], inner),
        ("a space before the colon", ["Transfer-Encoding : chunked"], chunked + inner),
        ("a tab before the colon", ["Transfer-Encoding\t: chunked"], chunked + inner),
        ("two codings", ["Transfer-Encoding: x, chunked"], chunked + inner),
        ("chunked twice", ["Transfer-Encoding: chunked, chunked"], chunked + inner),
        ("two headers", ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"], chunked + inner),
        ("identity", ["Transfer-Encoding: identity"], inner),
        ("quoted", ['Transfer-Encoding: "chunked"'], chunked + inner),
        ("a vertical tab", ["Transfer-Encoding: \x0bchunked"], chunked + inner),
        ("an underscore", ["Transfer_Encoding: chunked"], chunked + inner),
        ("a folded line", ["X: y", " Transfer-Encoding: chunked"], chunked + inner),
        ("a folded coding", ["Transfer-Encoding:", " chunked"], chunked + inner),
        ("a carriage return", ["X: y\rTransfer-Encoding: chunked"], chunked + inner),
        ("a bare line feed", ["X: y\nTransfer-Encoding: chunked"], chunked + inner),
        ("a null", ["X: y\0z"], inner),
        ("a line without a colon", ["Transfer-Encoding"], inner),
        ("no name", [": x"], inner),
        ("Connection hides the length", ["Connection: content-length", "Content-Length: 5"], b"abcde" + inner),
        ("Connection hides the host", ["Connection: host, close"], inner),
    ]:
        on_web(what, web("POST / HTTP/1.1", f"Host: {WEB}", *headers, body=body), "")
    on_web("HTTP/1.0 with chunks", web("POST / HTTP/1.0", f"Host: {WEB}", "Transfer-Encoding: chunked", body=chunked), "HTTP/1.0 has no chunks")
    on_web("GET with a body", web("GET / HTTP/1.1", f"Host: {WEB}", "Content-Length: 5", body=b"abcde" + inner), "no body")
    on_web("lines that end with a line feed", request().replace(b"\r\n", b"\n") + inner, "control character")
    on_web("one such line", b"GET / HTTP/1.1\r\nHost: " + WEB.encode() + b"\n\r\n" + inner, "control character")
    # The head is right, the chunks are not: what is in doubt does not arrive, and nothing after it.
    for what, body in [
        ("an extension", b"5;x=y\r\nabcde\r\n0\r\n\r\n"),
        ("a size with a sign", b"+5\r\nabcde\r\n0\r\n\r\n"),
        ("a size with 0x", b"0x5\r\nabcde\r\n0\r\n\r\n"),
        ("a size with a space", b"5 \r\nabcde\r\n0\r\n\r\n"),
        ("a size that overflows", b"10000000000000005\r\nabcde\r\n0\r\n\r\n"),
        ("a line feed alone", b"5\nabcde\r\n0\r\n\r\n"),
        ("too few bytes", b"6\r\nabcde\r\n0\r\n\r\n"),
        ("a trailer that decides", b"0\r\nContent-Length: 5\r\n\r\n"),
        ("a trailer with another host", b"0\r\nHost: evil.test\r\n\r\n"),
    ]:
        data = web("POST / HTTP/1.1", f"Host: {WEB}", "Transfer-Encoding: chunked", body=body + inner)
        refused(f"chunks: {what}", lambda: f"{arrived(data)} answers", "", ["0 answers", "1 answers"])
    reaches("a body as it should be", lambda: by_name(WEB, 80, web("POST / HTTP/1.1", f"Host: {WEB}", "Transfer-Encoding: chunked", body=chunked)), "45.0.0.2:80")


@case(49)
def _():
    refused("a tunnel for TLS, then plain", lambda: tunnel(f"{API}:443", request(API)), "does not begin with a TLS greeting", ["closed"])
    refused("a tunnel to port 80, another host", lambda: tunnel(f"{WEB}:80", request(EVIL)), "`Host` is another", ["403", "closed"])
    reaches("a tunnel to port 80", lambda: tunnel(f"{WEB}:80", request()), "45.0.0.2:80")
    for target in ("127.0.0.1:3128", "localhost:3128", "127.0.0.1:53", "[::1]:3128", "198.18.0.1:3128", "127.0.0.1:1"):
        refused(f"a tunnel to {target}", lambda: tunnel(target, b"CONNECT evil.test:443 HTTP/1.1\r\n\r\n"), "no rule allows", ["403"])
    for port in (1, 22, 80, 8443, 8080, 3128, 444):
        refused(f"port {port} of the name", lambda: tunnel(f"{API}:{port}"), f"no rule allows {API}:{port}", ["403"])
    refused("a tunnel in a tunnel", lambda: tunnel(f"{WEB}:80", b"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n"), "", ["400", "403", "closed"])
    refused("CONNECT to a host", lambda: by_name(WEB, 80, b"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n"), "", ["400", "403"])
    # A relay inside passes on to the same proxy.
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen()
        child = os.fork()
        if child == 0:
            taken, _ = own.accept()
            taken.sendall(tunnel(taken.recv(999).split()[1], hello(EVIL)).encode())
            os._exit(0)
        def relayed():
            with socket.create_connection(own.getsockname(), PATIENCE) as it:
                it.sendall(b"CONNECT evil.test:443 HTTP/1.1\r\n\r\n")
                it.settimeout(PATIENCE)
                return it.recv(99).decode()
        refused("through a relay inside", relayed, "no rule allows evil.test:443", ["403"])
        os.waitpid(child, 0)


@case(50)
def _():
    def plain(host, line, *more):
        return proxied(web(line, f"Host: {host}", *more))
    reaches("a plain request", lambda: plain(WEB, f"GET http://{WEB}/ HTTP/1.1"), "45.0.0.2:80")
    for host in (EVIL, "1.2.3.4", "169.254.169.254", "127.0.0.1", f"{WEB}:81", f"{WILD}", API):
        refused(f"a plain request to {host}", lambda: plain(host, f"GET http://{host}/ HTTP/1.1"), "no rule allows", ["403"])
    refused("plain to a host of TLS", lambda: plain(f"{API}:443", f"GET http://{API}:443/ HTTP/1.1"), "the rule wants TLS", ["403"])
    refused("another Host", lambda: plain(EVIL, f"GET http://{WEB}/ HTTP/1.1"), "", ["400", "403"])
    refused("not in full", lambda: plain(WEB, "GET / HTTP/1.1"), "", ["400", "403"])
    def second():
        with socket.create_connection(("127.0.0.1", 3128), PATIENCE) as it:
            it.sendall(web(f"GET http://{WEB}/ HTTP/1.1", f"Host: {WEB}"))
            if answer(it) != "reached 45.0.0.2:80":
                return "the first was refused"
            it.sendall(web("GET http://evil.test/smuggled HTTP/1.1", "Host: evil.test"))
            return answer(it)
    refused("a second request on the connection", second, None, ["closed"])


@case(51)
def _():
    # The wish to change does not arrive, so the connection stays HTTP/1.
    settings = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    reaches("h2c is asked for in vain", lambda: by_name(WEB, 80, request(WEB, "GET /no-upgrade HTTP/1.1", *settings)), "45.0.0.2:80")
    on_web("HTTP/2 without asking", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 9, "", ("400", "403", "505"))
    refused("HTTP/2 to the proxy", lambda: proxied(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "", ["400", "403", "505"])
    on_web("HTTP/0.9", b"GET /\r\n\r\n", "", ("400", "505"))
    on_web("a version beyond", request(WEB, "GET / HTTP/1.2"), "", ("400", "505"))


@case(52)
def _():
    import urllib.request
    open_ = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    def follow(where):
        try:
            return open_(f"http://{WEB}/redirect-to-{where}", timeout=PATIENCE).read().decode()
        except urllib.error.HTTPError as error:
            return f"{error.code}"
        except urllib.error.URLError as error:
            return f"{error.reason}"
    reaches("a host that answers", lambda: open_(f"http://{WEB}/", timeout=PATIENCE).read().decode().strip(), "45.0.0.2:80")
    refused("to metadata", lambda: follow("metadata"), "kernel:169.254.169.254:80")
    refused("to a name", lambda: follow("name"), f"name:{EVIL}")


@case(53)
def _():
    asks_for = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
    on_web("another Host", request(EVIL, "GET / HTTP/1.1", *asks_for), "`Host` is another")
    refused("through the proxy", lambda: proxied(web(f"GET http://{EVIL}/ HTTP/1.1", f"Host: {EVIL}", *asks_for)), f"no rule allows {EVIL}:80", ["403"])
    # The host does not change, so what follows is a request like any other.
    after = request(WEB, "GET / HTTP/1.1", *asks_for) + request(EVIL, "GET /smuggled HTTP/1.1")
    refused("a host that does not change, then another Host", lambda: f"{arrived(after)} answers", "`Host` is another", ["0 answers", "1 answers"])


@case(54)
def _():
    for target in ("api.shoal.test:443\r\nX: y", "api.shoal.test:443 HTTP/1.1\r\nHost: evil.test", " api.shoal.test:443", "api.shoal.test:443\t", "api.shoal.test :443", "api.shoal.test:443 evil.test:443", "evil.test:443 HTTP/1.1\r\nX:"):
        refused(f"CONNECT {target!r}", lambda: proxied(f"CONNECT {target} HTTP/1.1\r\n\r\n", hello(EVIL)), "", ["400", "403", "505"])
    for line in ("GET  / HTTP/1.1", "GET / /evil HTTP/1.1", " GET / HTTP/1.1", "GET /\tx HTTP/1.1", "GET / HTTP/1.1 ", "GET\t/ HTTP/1.1", "G@T / HTTP/1.1", "GET /\x01 HTTP/1.1"):
        on_web(f"the line {line!r}", web(line, f"Host: {WEB}"), "", ("400", "403", "505"))


@case(55)
def _():
    for url in ("ftp://http.shoal.test/", "gopher://http.shoal.test/", "file:///etc/passwd", "https://api.shoal.test/", "ws://http.shoal.test/", "http.shoal.test/", "//http.shoal.test/", "http://http.shoal.test:0/", "http://http.shoal.test:65536/", "http://http.shoal.test:80x/", "http://http.shoal.test:/", "http://http.shoal.test:080/", "http://:80/", "javascript:x"):
        refused(f"URL {url}", lambda: proxied(web(f"GET {url} HTTP/1.1", f"Host: {WEB}")), "", ["400", "403"])
    for target in ("api.shoal.test:0", "api.shoal.test:65536", "api.shoal.test:443x", "api.shoal.test:", "api.shoal.test", ":443", "api.shoal.test:+443", "api.shoal.test:0443", "api.shoal.test:443:443", "http://api.shoal.test:443", "api.shoal.test:65979"):
        refused(f"CONNECT {target}", lambda: tunnel(target, hello(API)), "", ["400", "403"])
    for port in (0, 22):
        refused(f"SOCKS port {port}", lambda: socks_name(API, port), "", ["code 2"])
    for command in (2, 3):
        def other():
            with socket.create_connection(("127.0.0.1", 3128), PATIENCE) as it:
                it.sendall(b"\5\1\0")
                it.recv(2)
                it.sendall(bytes([5, command, 0, 3, len(API)]) + API.encode() + b"\1\xbb")
                return f"code {it.recv(10)[1]}"
        refused(f"SOCKS command {command}", other, "CONNECT only", ["code 7"])
    refused("SOCKS 4", lambda: proxied(b"\4\1\1\xbb\1\2\3\4\0"), "")


@case(56)
def _():
    import subprocess
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]
    def looked_up(name):
        return "reached " + socket.getaddrinfo(name, 443)[0][4][0]
    refused("without the variables, a name", lambda: looked_up(EVIL), f"name:{EVIL}")
    refused("without the variables, an address", lambda: dial("5.6.7.8", 443), "kernel:5.6.7.8:443")
    program = "import socket; socket.create_connection(('5.6.7.9', 443), 9); print('reached it')"
    refused("from another program", lambda: subprocess.run([sys.executable, "-c", program], env={}, capture_output=True, text=True).stdout.strip() or "nothing", "kernel:5.6.7.9:443")
    reaches("an allowed name", lambda: by_name(API, 443, hello(API)), "45.0.0.1:443")
