# Cases 15 to 33: names and the questions for them.


@case(15)
def _():
    for name in ("loopback.wild.test", "private.wild.test", "metadata.wild.test", "shared.wild.test"):
        refused(f"{name}", lambda: by_name(name, 443, hello(name)), f"{name} leads to", ["closed"])
        refused(f"CONNECT {name}", lambda: tunnel(f"{name}:443", hello(name)), f"{name} leads to", ["403"])
        refused(f"SOCKS {name}", lambda: socks_name(name, 443, hello(name)), f"{name} leads to", ["code 2"])
    reaches("one that leads to a public one", lambda: by_name(WILD, 443, hello(WILD)), "45.0.0.9:443")


@case(16)
def _():
    name = "rebind.wild.test"
    reaches("the first answer", lambda: by_name(name, 443, hello(name)), "45.0.0.4:443")
    # Every answer is kept for a second at least.
    time.sleep(1.3)
    refused("the second answer", lambda: by_name(name, 443, hello(name)), f"{name} leads to 10.0.0.4", ["closed"])


@case(17)
def _():
    name = "mixed.wild.test"
    for _ in range(3):
        reaches("only the public one", lambda: by_name(name, 443, hello(name)), "45.0.0.3:443")
    name = "dead.wild.test"
    refused("no fall to the private one", lambda: by_name(name, 443, hello(name)), f"{name} was not reached", ["closed"])


@case(18)
def _():
    name = "alias.wild.test"
    refused("another name of a private one", lambda: by_name(name, 443, hello(name)), f"{name} leads to", ["closed"])
    # Where the owner of an allowed name leads to is the owner's business; it stays one connection to it.
    name = "public-alias.wild.test"
    refused("the other name is not allowed for that", lambda: asks("alias.other.test"), "name:alias.other.test", ["code 3"])
    reaches("another name of a public one", lambda: by_name(name, 443, hello(name)), "45.0.0.8:443")


@case(19)
def _():
    reaches("a final dot", lambda: tunnel(f"{API}.:443", hello(API)), "45.0.0.1:443")
    for name in (f"{API}..", f".{API}", "api..shoal.test"):
        refused(f"CONNECT {name}", lambda: tunnel(f"{name}:443", hello(API)), "neither a name", ["400"])
    refused("a final dot in TLS", lambda: by_name(API, 443, hello(f"{API}.")), "not a host", ["closed"])
    refused("an empty label", lambda: asks(b"\3api\0\5shoal\4test\0"))
    refused("a dot within a label", lambda: asks(b"\x09api.shoal\4test\0"), "name:", ["code 3"])


@case(20)
def _():
    for name in ("API.shoal.TEST", "aPi.ShOaL.tEsT"):
        reaches(name, lambda: by_name(name, 443, hello(name)), "45.0.0.1:443")
    for name in ("EVIL.TEST", "eViL.tEsT"):
        refused(name, lambda: asks(name), "name:evil.test", ["code 3"])


@case(21)
def _():
    for name in (b"api.shoal.test\0.evil.test", b"evil\0.wild.test", b"\0api.shoal.test", b"api.shoal.test\0"):
        refused(f"DNS {name}", lambda: asks(labels(name)), "name:", ["code 3"])
        refused(f"SOCKS {name}", lambda: socks_name(name, 443, hello(API)), "does not name a host", ["code 2"])
        refused(f"CONNECT {name}", lambda: tunnel(name + b":443", hello(API)), "control character", ["400"])
        refused(f"SNI {name}", lambda: by_name(API, 443, hello(name)), "not a host", ["closed"])
        web = b"GET / HTTP/1.1\r\nHost: " + name + b"\r\n\r\n"
        refused(f"Host {name}", lambda: by_name(WEB, 80, web), "control character", ["400"])


@case(22)
def _():
    for target in (f"[{API}]:443", f"[{API}", f"{API}]:443", f"[[{API}]]:443"):
        refused(f"CONNECT {target}", lambda: tunnel(target, hello(API)), "", ["400"])
    refused("in TLS", lambda: by_name(API, 443, hello(f"[{API}]")), "not a host", ["closed"])


@case(23)
def _():
    for name in ("evil.test.", "evil.test.."):
        refused(f"CONNECT {name}", lambda: tunnel(f"{name}:443"), "", ["400", "403"])
    refused("an address with a dot", lambda: tunnel("1.2.3.4.:443"), "neither a name", ["400"])
    refused("SOCKS", lambda: socks_name("evil.test.", 443), "no rule allows evil.test:443", ["code 2"])


@case(24)
def _():
    for name in ("api%2eshoal.test", "evil.test%00api.shoal.test", "evil.test%2f.wild.test", "%61pi.shoal.test"):
        refused(f"CONNECT {name}", lambda: tunnel(f"{name}:443", hello(API)), "neither a name", ["400"])
        refused(f"URL {name}", lambda: proxied(f"GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n"), "neither a name", ["400"])
        refused(f"DNS {name}", lambda: asks(name), "name:", ["code 3"])


@case(25)
def _():
    for name in ("evilwild.test", "wild.test.evil", "wild.test", "x.wild.test.evil", "x-wild.test", "wild.test.x.wild.test.evil", "shoal.test", "x.api.shoal.test"):
        refused(f"DNS {name}", lambda: asks(name), f"name:{name}", ["code 3"])
        refused(f"CONNECT {name}", lambda: tunnel(f"{name}:443", hello(name)), f"no rule allows {name}:443", ["403"])
    refused("a star", lambda: asks("*.wild.test"), "name:", ["code 3"])
    refused("another port of a wildcard", lambda: tunnel(f"{WILD}:8443"), "no rule allows", ["403"])
    reaches("one below", lambda: by_name("a.b.c.wild.test", 443, hello("a.b.c.wild.test")), "45.0.0.9:443")


@case(26)
def _():
    for name in ("аpi.shoal.test", "api。shoal。test", "ａｐｉ.shoal.test", "api.shoal．test", "ⓐpi.shoal.test"):
        raw = name.encode()
        refused(f"DNS {name}", lambda: asks(labels(raw)), "name:", ["code 3"])
        refused(f"CONNECT {name}", lambda: tunnel(raw + b":443", hello(API)), "", ["400"])
        refused(f"SOCKS {name}", lambda: socks_name(raw, 443), "does not name a host", ["code 2"])
        refused(f"SNI {name}", lambda: by_name(API, 443, hello(raw)), "not a host", ["closed"])
    refused("the encoded form of a look-alike", lambda: asks("xn--pi-7kc.shoal.test"), "name:xn--pi-7kc.shoal.test", ["code 3"])


@case(27)
def _():
    for url in ("http://api.shoal.test@evil.test/", "http://http.shoal.test:80@evil.test/", "http://evil.test\\@http.shoal.test/", "http://evil.test#@http.shoal.test/", "http:///evil.test/", "http:evil.test/", "http://http.shoal.test\\.evil.test/"):
        asked = f"GET {url} HTTP/1.1\r\nHost: http.shoal.test\r\n\r\n"
        refused(f"URL {url}", lambda: proxied(asked), "", ["400", "403"])
        refused(f"the same at the host {url}", lambda: by_name(WEB, 80, asked.encode()), "", ["400", "403"])
    refused("CONNECT", lambda: tunnel("api.shoal.test@evil.test:443"), "neither a name", ["400"])


@case(28)
def _():
    long = b"\x3f" + b"a" * 63
    for what, message, only in [
        ("a pointer", question(b"\xc0\x0c"), ["(1, None)"]),
        ("a pointer after a label", question(b"\3api\xc0\x0c"), ["(1, None)"]),
        ("two questions", question(labels(API) + b"\0\1\0\1" + labels(EVIL), counts=(2, 0, 0, 0)), ["(1, None)"]),
        ("a long label", question(b"\x40" + b"a" * 64 + b"\0"), ["(1, None)"]),
        ("a long name", question(long * 4 + b"\0"), ["(1, None)"]),
        ("another operation", question(API, flags=0x2900), ["(4, None)"]),
        ("a question too few", question(API, counts=(0, 0, 0, 0)), ["(1, None)"]),
        ("an answer within", question(API, counts=(1, 1, 0, 0)), ["(1, None)"]),
        ("bytes left over", question(API) + b"x", ["(1, None)"]),
    ]:
        refused(what, lambda: ask(message), "name:malformed", only)
    refused("an answer", lambda: ask(question(API, flags=0x8100), 0.5), None, ["silence"])
    refused("too short", lambda: ask(b"\0" * 11, 0.5), None, ["silence"])


@case(29)
def _():
    # An allowed zone: answered inside, and no packet leaves for a question alone.
    for number in range(150):
        label = f"{number:03}" + "a" * 60
        code, address = ask(question(f"{label}.{label[:50]}.question-only.wild.test"))
        if not address:
            tell("a name below a wildcard", f"code {code}", False, None)
    # Any other zone: no such name, and no packet.
    for number in range(50):
        label = f"{number:03}" + "b" * 60
        refused("data in a question", lambda: asks(f"{label}.{label}.{EVIL}"), f"name:{number:03}b", ["code 3"])


@case(30)
def _():
    for kind in (2, 5, 6, 10, 12, 15, 16, 28, 33, 64, 65, 251, 252, 255, 256):
        refused(f"type {kind} of an allowed name", lambda: asks(API, kind), None, ["code 0"])
        refused(f"type {kind} of another", lambda: asks(EVIL, kind), f"name:{EVIL}", ["code 3"])


@case(31)
def _():
    refused("another resolver", lambda: send("8.8.8.8", 53), None, ["EPERM"])
    refused("over TCP", lambda: dial("8.8.8.8", 53, struct.pack(">H", 29) + question(EVIL)), "kernel:8.8.8.8:53")
    refused("over TLS", lambda: dial("8.8.8.8", 853, hello("dns.google")), "kernel:8.8.8.8:853")
    refused("over HTTPS", lambda: tunnel("dns.google:443"), "no rule allows dns.google:443", ["403"])
    refused("an allowed host, the port of a resolver", lambda: tunnel(f"{API}:853"), "no rule allows", ["403"])
    refused("multicast", lambda: send("224.0.0.251", 5353))
    refused("a question to a synthetic address", lambda: send(address_of(API), 53), None, ["EPERM"])
    refused("from the port of the host", lambda: send(GIVEN["node"][0], 53), None, ["EPERM"])


@case(32)
def _():
    message = question(API)
    framed = struct.pack(">H", len(message)) + message
    with socket.create_connection(("127.0.0.1", 53), PATIENCE) as it:
        def sent():
            it.sendall(framed * 300)
            it.settimeout(PATIENCE)
            data = b""
            while data.count(b"\xab\xcd") < 300:
                piece = it.recv(65536)
                if not piece:
                    return "closed"
                data += piece
            return "300 answers"
        refused("many questions on one connection", sent, None, ["300 answers"])
    with socket.create_connection(("127.0.0.1", 53), PATIENCE) as it:
        for byte in framed[:20]:
            it.sendall(bytes([byte]))
            time.sleep(0.01)
        refused("one that never ends does not hinder others", lambda: asks(EVIL), f"name:{EVIL}", ["code 3"])
    with socket.create_connection(("127.0.0.1", 53), PATIENCE) as it:
        it.sendall(b"\xff\xff")
        refused("a message longer than any question", lambda: answer(it), None, ["closed"])


@case(33)
def _():
    # Between these two runs of this program the policy became narrower.
    if "kept" not in GIVEN:
        tell("before", "reached " + address_of(API), True, None)
        reaches("before", lambda: by_name(API, 443, hello(API)), "45.0.0.1:443")
        return
    refused("an address that was kept", lambda: dial(GIVEN["kept"], 443, hello(API)), f"no rule allows {API}:443", ["closed"])
    refused("its name", lambda: asks(API), f"name:{API}", ["code 3"])
    refused("through the proxy", lambda: tunnel(f"{API}:443"), f"no rule allows {API}:443", ["403"])
