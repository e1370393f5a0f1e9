# Cases 34 to 45: what a connection on port 443 greets with.


def sized(count, content):
    return len(content).to_bytes(count, "big") + content


def extension(kind, content=b""):
    return struct.pack(">H", kind) + sized(2, content)


def server_name(*names):
    names = [name.encode() if isinstance(name, str) else name for name in names]
    return extension(0, sized(2, b"".join(b"\0" + sized(2, name) for name in names)))


VERSIONS = extension(43, sized(1, b"\x0a\x0a\3\4\3\3"))
GREASE = extension(0x0A0A)
SHARE = extension(51, sized(2, b"\0\x1d" + sized(2, b"\7" * 32)))


def message(*extensions, version=b"\3\3"):
    body = version + b"\x09" * 32 + sized(1, b"\x08" * 32) + sized(2, b"\x1a\x1a\x13\1\x13\2") + sized(1, b"\0")
    return b"\1" + sized(3, body + sized(2, b"".join(extensions)))


def record(content, kind=22, version=b"\3\1"):
    return bytes([kind]) + version + sized(2, content)


def hello(name=API, *more):
    named = [server_name(name)] if name is not None else []
    return record(message(GREASE, *named, VERSIONS, SHARE, *more))


def greets(what, greeting, log, only=("closed",)):
    """Directly and through both proxies, which refuse it alike."""
    refused(what, lambda: by_name(API, 443, greeting), log, only)
    refused(f"{what}, CONNECT", lambda: tunnel(f"{API}:443", greeting), log, only)
    refused(f"{what}, SOCKS", lambda: socks_name(API, 443, greeting), log, only)


def real_hello(name):
    """What the library of this machine says."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    made = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        made.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


@case(34)
def _():
    greets("another name", hello(EVIL), f"names {EVIL} and not {API}")
    greets("another allowed name", hello(WILD), f"names {WILD} and not {API}")
    refused("a name below a wildcard, another below it", lambda: by_name(WILD, 443, hello("y.wild.test")), "names y.wild.test and not x.wild.test", ["closed"])
    reaches("the name", lambda: tunnel(f"{API}:443", real_hello(API)), "45.0.0.1:443")
    reaches("through SOCKS", lambda: socks_name(API, 443, real_hello(API)), "45.0.0.1:443")
    greets("another name, as a library says it", real_hello(EVIL), f"names {EVIL} and not {API}")


@case(35)
def _():
    greets("no name", hello(None), "names no host")
    greets("no extensions", record(b"\1" + sized(3, b"\3\3" + b"\x09" * 32 + b"\0" + sized(2, b"\x13\1") + b"\1\0")), "names no host")


@case(36)
def _():
    for name in ("1.2.3.4", "45.0.0.1", "::1", "[::1]", "2130706433"):
        greets(f"the name {name}", hello(name), "not a host")


@case(37)
def _():
    greets("two extensions", record(message(server_name(API), server_name(EVIL))), "extension twice")
    greets("two extensions, the other way round", record(message(server_name(EVIL), server_name(API))), "extension twice")
    greets("two names in one", record(message(server_name(API, EVIL))), "exactly one host")
    greets("a name of another kind", record(message(extension(0, sized(2, b"\1" + sized(2, API.encode()))))), "exactly one host")
    greets("bytes after the list", record(message(extension(0, sized(2, b"\0" + sized(2, API.encode())) + b"x"))), "exactly one host")


@case(38)
def _():
    whole = message(GREASE, server_name(API), VERSIONS, SHARE)
    evil = message(GREASE, server_name(EVIL), VERSIONS, SHARE)
    def in_bytes(data):
        with socket.create_connection((address_of(API), 443), PATIENCE) as it:
            it.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in data:
                it.sendall(bytes([byte]))
            return answer(it)
    reaches("two records", lambda: by_name(API, 443, record(whole[:9]) + record(whole[9:])), "45.0.0.1:443")
    reaches("a record for each byte", lambda: by_name(API, 443, b"".join(record(whole[at:at + 1]) for at in range(len(whole)))), "45.0.0.1:443")
    reaches("segments of a byte", lambda: in_bytes(record(whole)), "45.0.0.1:443")
    reaches("unknown extensions", lambda: by_name(API, 443, hello(API, extension(0xFAFA, b"x" * 9))), "45.0.0.1:443")
    greets("two records, another name", record(evil[:9]) + record(evil[9:]), f"names {EVIL}")
    greets("a record for each byte, another name", b"".join(record(evil[at:at + 1]) for at in range(len(evil))), f"names {EVIL}")
    long = message(server_name(API), extension(21, b"\0" * 65000))
    greets("longer than any greeting", b"".join(record((long + b"\0" * 3000)[at:at + 16000]) for at in range(0, 68000, 16000)), "")
    greets("a greeting that says it is longer", record(b"\1\1\0\0" + b"\0" * 9000), "too long")
    greets("a second greeting in the record", record(whole + evil), "another TLS message")
    greets("something before the greeting", record(b"\0\0\0\0" + whole), "not a greeting")


@case(39)
def _():
    outer = b"\0\0\1\0\1\7" + sized(2, b"\5" * 32) + sized(2, b"\6" * 208)
    greets("an encrypted greeting", hello(API, extension(0xFE0D, outer)), "hides the name")
    for kind in (0xFE08, 0xFE09, 0xFE0A, 0xFE0B, 0xFFCE):
        greets(f"the draft {kind:x}", hello(API, extension(kind, outer)), "hides the name")
    # No program learns from the resolver how to make one that a host could read.
    refused("its configuration", lambda: asks(API, 65), None, ["code 0"])


@case(40)
def _():
    greets("SSL 2", b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10" + b"\0" * 37, "does not begin with a TLS greeting")
    greets("SSL 3", record(message(server_name(API), version=b"\3\0")), "not one of TLS 1.2")
    greets("TLS 1.0", record(message(server_name(API), version=b"\3\1")), "not one of TLS 1.2")
    greets("TLS 1.1", record(message(server_name(API), version=b"\3\2")), "not one of TLS 1.2")


@case(41)
def _():
    greets("SSH", b"SSH-2.0-x\r\n", "does not begin with a TLS greeting")
    greets("HTTP", request(API), "does not begin with a TLS greeting")
    greets("SMTP", b"EHLO x\r\nSTARTTLS\r\n", "does not begin with a TLS greeting")
    greets("PostgreSQL", b"\0\0\0\x08\x04\xd2\x16\x2f", "does not begin with a TLS greeting")
    greets("an alert first", record(b"\1\0", 21) + hello(API), "does not begin with a TLS greeting")
    greets("data first", record(b"x" * 9, 23) + hello(API), "does not begin with a TLS greeting")
    for port in (22, 25, 465, 587, 993):
        refused(f"port {port}", lambda: tunnel(f"{API}:{port}"), f"no rule allows {API}:{port}", ["403"])


EARLY = extension(42)
TICKET = extension(41, sized(2, sized(2, b"\3" * 32) + b"\0\0\0\1") + sized(2, sized(1, b"\4" * 32)))


@case(42)
def _():
    greets("a ticket for another name", hello(EVIL, EARLY, TICKET) + record(b"\5" * 99, 23, b"\3\3"), f"names {EVIL}")
    name = "retry.wild.test"
    def again(first, between, second):
        """A host that asks for another greeting."""
        with socket.create_connection((address_of(name), 443), PATIENCE) as it:
            it.settimeout(PATIENCE)
            it.sendall(first)
            retry = b""
            while len(retry) < 5 or len(retry) < 5 + int.from_bytes(retry[3:5], "big"):
                piece = it.recv(4096)
                if not piece:
                    return "closed"
                retry += piece
            it.sendall(between + second)
            return answer(it)
    changed = record(b"\1", 20, b"\3\3")
    early = record(b"\5" * 99, 23, b"\3\3")
    reaches("the same name again", lambda: again(hello(name), changed, hello(name)), "45.0.0.7:443")
    reaches("after early data", lambda: again(hello(name, EARLY, TICKET) + early, changed, hello(name)), "45.0.0.7:443")
    refused("another name the second time", lambda: again(hello(name), b"", hello(EVIL)), f"names {EVIL}", ["closed"])
    refused("after a change of ciphers", lambda: again(hello(name), changed, hello(EVIL)), f"names {EVIL}", ["closed"])
    refused("after early data", lambda: again(hello(name, EARLY, TICKET) + early, early, hello(EVIL)), f"names {EVIL}", ["closed"])
    refused("no name the second time", lambda: again(hello(name), changed, hello(None)), "names no host", ["closed"])
    refused("a hidden name the second time", lambda: again(hello(name), changed, hello(name, extension(0xFE0D, b"\0" * 40))), "hides the name", ["closed"])
    refused("both at once", lambda: by_name(name, 443, hello(name) + hello(EVIL)), f"names {EVIL}")
    reaches("data after a host that answers at once", lambda: by_name(API, 443, hello(API, EARLY, TICKET) + early), "45.0.0.1:443")


@case(45)
def _():
    refused("QUIC to an allowed name", lambda: send(address_of(API), 443), None, ["EPERM"])
    refused("QUIC to an address", lambda: send("1.2.3.4", 443), None, ["EPERM"])
    refused("QUIC to the proxy", lambda: send("127.0.0.1", 443), None, ["ECONNREFUSED"])
