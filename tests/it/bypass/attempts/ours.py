# Cases 57, 60, 62, 63 and 64: our own parts, other sandboxes, limits, and sockets of other kinds.


@case(57)
def _():
    port = GIVEN["port"]
    refused("the server", lambda: dial("127.0.0.1", port), None, ["ECONNREFUSED"])
    refused("the server over IPv6", lambda: dial6("::1", port), None, ["ECONNREFUSED", "EADDRNOTAVAIL"])
    refused("the server through the proxy", lambda: tunnel(f"127.0.0.1:{port}"), "no rule allows", ["403"])
    refused("the server by name", lambda: tunnel(f"localhost:{port}"), "no rule allows", ["403"])
    def processes():
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    with open(f"/proc/{entry}/cmdline", "rb") as line:
                        found += [entry] if b"egress" in line.read().split(b"\0")[0] else []
                except OSError:
                    pass
        return f"reached process {found}" if found else "nothing"
    refused("the process outside", processes, None, ["nothing"])
    for name in GIVEN["abstract"]:
        def abstract():
            with socket.socket(socket.AF_UNIX) as it:
                it.settimeout(PATIENCE)
                it.connect("\0" + name)
                return "reached it"
        refused("a socket without a file", abstract, None, ["ECONNREFUSED"])
    # Our listener has an address only inside, and every sandbox has one of its own.
    refused("our listener", lambda: dial("127.0.0.1", 1), None)
    refused("our listener by another address", lambda: dial("198.18.0.1", 1), None, ["ECONNREFUSED"])


@case(60)
def _():
    refused("a name that another sandbox may reach", lambda: asks("other.shoal.test"), "name:other.shoal.test", ["code 3"])
    refused("through the proxy", lambda: tunnel("other.shoal.test:443", hello("other.shoal.test")), "no rule allows other.shoal.test:443", ["403"])
    refused("its greeting to an allowed host", lambda: by_name(API, 443, hello("other.shoal.test")), "names other.shoal.test", ["closed"])


@case(62)
def _():
    # Half a request, and no reader: as many as this sandbox may have, and more.
    address, open_ = address_of(WEB), []
    for number in range(300):
        it = socket.socket()
        it.setblocking(False)
        try:
            it.connect((address, 80))
        except BlockingIOError:
            pass
        open_.append(it)
    for it in open_[:50]:
        try:
            it.send(b"GET / HTTP/1.1\r\n")
        except OSError:
            pass
    tell("300 connections", f"{len(open_)} begun", True, None)
    # Meanwhile another sandbox tries what it may.
    time.sleep(GIVEN.get("hold_s", 0))


def family(number, kind, protocol=0):
    with socket.socket(number, kind, protocol):
        return "reached a socket"


@case(63)
def _():
    stream, datagram, raw = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW
    for what, numbers in [
        ("raw IPv4", (2, raw, 255)), ("raw TCP", (2, raw, 6)), ("raw ICMP", (2, raw, 1)), ("raw IPv6", (10, raw, 255)),
        ("packets", (17, raw, 768)), ("packets of one kind", (17, datagram, 8)),
        ("SCTP", (2, stream, 132)), ("SCTP of another kind", (2, socket.SOCK_SEQPACKET, 132)), ("MPTCP", (2, stream, 262)),
        ("DCCP", (2, 6, 33)), ("UDP-Lite", (2, datagram, 136)), ("vsock", (40, stream)), ("vsock datagrams", (40, datagram)),
        ("Bluetooth", (31, raw, 1)), ("CAN", (29, raw, 1)), ("TIPC", (30, stream)), ("RDS", (21, socket.SOCK_SEQPACKET)),
        ("SMC", (43, stream)), ("XDP", (44, raw)), ("QIPCRTR", (42, datagram)), ("AX.25", (3, socket.SOCK_SEQPACKET)),
        ("ALG", (38, socket.SOCK_SEQPACKET)), ("KCM", (41, datagram)), ("PPPoX", (24, stream)), ("NFC", (39, raw)),
        *((f"netlink {number}", (16, raw, number)) for number in (1, 2, 3, 4, 5, 6, 9, 11, 12, 15, 16, 20, 21)),
    ]:
        refused(what, lambda: family(*numbers))
    def ping():
        with socket.socket(2, datagram, 1) as it:
            it.settimeout(1)
            it.sendto(b"\x08\0\xf7\xff\0\0\0\0", ("1.2.3.4", 0))
            it.recv(99)
            return "reached it"
    refused("ping", ping)
    def changed(kind, body, flags=5):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as it:
            it.settimeout(PATIENCE)
            it.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
            code = -struct.unpack_from("=i", it.recv(4096), 16)[0]
            return errno.errorcode.get(code, "reached the table")
    route = struct.pack("=8BI", 2, 0, 0, 0, 254, 3, 0, 1, 0) + struct.pack("=HHI", 8, 4, 1)
    address = struct.pack("=BBBBI", 2, 24, 0, 0, 1) + struct.pack("=HH4s", 8, 2, b"\x0a\0\0\1")
    link = struct.pack("=BxHiII", 0, 0, 0, 0, 0) + struct.pack("=HH8s", 12, 3, b"dummy0\0\0")
    rule = struct.pack("=8BI", 2, 0, 0, 0, 254, 0, 0, 1, 0)
    for what, kind, body, flags in [("a route", 24, route, 0x605), ("no route", 25, route, 5), ("an address", 20, address, 0x605), ("an interface", 16, link, 0x605), ("a rule", 32, rule, 0x605)]:
        refused(f"{what} by netlink", lambda: changed(kind, body, flags))


@case(64)
def _():
    def with_option(level, number, value, address=("1.2.3.4", 443), bind=None, first=b"x\n"):
        with socket.socket() as it:
            it.settimeout(3)
            it.setsockopt(level, number, value)
            if bind:
                it.bind(bind)
            it.connect(address)
            it.sendall(first)
            return answer(it)
    ip, base = socket.IPPROTO_IP, socket.SOL_SOCKET
    refused("IP_TRANSPARENT", lambda: with_option(ip, 19, 1), None, ["EPERM"])
    refused("SO_MARK", lambda: with_option(base, 36, 1), None, ["EPERM"])
    refused("SO_RCVMARK", lambda: with_option(base, 75, 1))
    refused("SO_BINDTODEVICE", lambda: with_option(base, 25, b"lo\0"))
    refused("IP_FREEBIND", lambda: with_option(ip, 15, 1, bind=("9.9.9.9", 0)))
    refused("IP_FREEBIND as the proxy", lambda: with_option(ip, 15, 1, bind=("127.0.0.1", 0)))
    refused("IP_FREEBIND to an allowed one, greeting another", lambda: with_option(ip, 15, 1, (address_of(API), 443), ("9.9.9.9", 0), hello(EVIL)), f"names {EVIL}")
    # Source routes, loose and strict: by an allowed address to another, and the other way round.
    allowed, other = address_of(API), "1.2.3.4"
    for kind in (131, 137):
        for by, to in ((allowed, other), (other, allowed), ("127.0.0.1", other), ("198.18.0.1", other)):
            options = bytes([kind, 7, 4]) + socket.inet_aton(by) + b"\0"
            refused(f"a source route {kind} by {by} to {to}", lambda: with_option(ip, 4, options, (to, 443), first=hello(EVIL)))
            refused(f"a source route {kind} by {by} to {to}, over UDP", lambda: routed_datagram(options, to))
    def fast_open(name, first):
        with socket.socket() as it:
            it.sendto(first, socket.MSG_FASTOPEN, (address_of(name), 443))
            return answer(it)
    refused("Fast Open to an allowed one, greeting another", lambda: fast_open(API, hello(EVIL)), f"names {EVIL}", ["closed"])
    reaches("Fast Open to an allowed one", lambda: fast_open(API, hello(API)), "45.0.0.1:443")
    def repaired():
        with socket.socket() as it:
            it.setsockopt(socket.IPPROTO_TCP, 19, 1)
            it.connect(("1.2.3.4", 443))
            return "reached it"
    refused("TCP_REPAIR", repaired, None, ["EPERM"])
    def upper_protocol():
        with socket.socket() as it:
            it.setsockopt(socket.IPPROTO_TCP, 31, b"smc\0")
            return "reached it"
    refused("TCP_ULP", upper_protocol)
    def listens(address, port):
        with socket.socket() as it:
            it.setsockopt(base, socket.SO_REUSEADDR, 1)
            it.setsockopt(base, socket.SO_REUSEPORT, 1)
            it.setsockopt(ip, 15, 1)
            it.bind((address, port))
            it.listen()
            return "reached the port"
    for address, port in (("127.0.0.1", 1), ("127.0.0.1", 53), ("0.0.0.0", 443), (allowed, 443)):
        refused(f"taking {address}:{port}", lambda: listens(address, port), None, ["EACCES", "EADDRINUSE"])
    # A server inside takes no connection that is meant for a name.
    def stolen():
        with socket.socket() as own:
            own.setsockopt(base, socket.SO_REUSEADDR, 1)
            own.setsockopt(ip, 15, 1)
            own.bind((allowed, 8443))
            own.listen()
            own.settimeout(0.5)
            with socket.socket() as it:
                it.settimeout(PATIENCE)
                it.connect((allowed, 8443))
                own.accept()
                return "reached own"
    refused("a server on the address of a name", stolen, f"no rule allows {API}:8443")


def routed_datagram(options, to):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it:
        it.settimeout(0.2)
        it.setsockopt(socket.IPPROTO_IP, 4, options)
        it.sendto(b"x", (to, 53))
        it.recv(99)
        return "reached it"

