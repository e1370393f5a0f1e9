"""The network: what the host and the neighbours have, what is beyond, and what is ours to configure."""
import fcntl
import struct

PORT, PORT_6, ABSTRACT, UNIX_PATH = GIVEN["host_port"], GIVEN["host_port_6"], GIVEN["host_abstract"], GIVEN["host_socket"]
NEIGHBOUR = GIVEN["neighbour_port"]


def connect(address, port):
    return socket.create_connection((address, port), timeout=2).getpeername()


def send(address, port, family=socket.AF_INET):
    return socket.socket(family, socket.SOCK_DGRAM).sendto(b"x", (address, port))


for address in ("127.0.0.1", "127.0.0.2", "127.1.2.3", "0.0.0.0", "localhost"):
    tries(f"the host's port at {address}", "ECONNREFUSED", lambda address=address: connect(address, PORT))
    tries(f"the control port at {address}", "ECONNREFUSED", lambda address=address: connect(address, GIVEN["control_port"]))
for address in ("::1", "::ffff:127.0.0.1", "::"):
    tries(f"the host's port at {address}", "ECONNREFUSED EADDRNOTAVAIL ENETUNREACH", lambda address=address: connect(address, PORT_6))
for number, address in enumerate(GIVEN["host_addresses"]):
    tries(f"an address of the host, {number}", "ENETUNREACH EADDRNOTAVAIL", lambda address=address: connect(address, PORT))
tries("a neighbour's port", "ECONNREFUSED", lambda: connect("127.0.0.1", NEIGHBOUR))
for address in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "192.168.0.1", "10.0.0.1", "172.17.0.1", "1.1.1.1"):
    tries(f"connect to {address}", "ENETUNREACH", lambda address=address: connect(address, 80))
for address in ("2001:db8::1", "fd00:ec2::254", "fe80::1", "ff02::1"):
    tries(f"connect to {address}", "ENETUNREACH EADDRNOTAVAIL EINVAL", lambda address=address: connect(address, 80))
for address in ("8.8.8.8", "224.0.0.251", "169.254.169.253"):
    tries(f"send to {address}", "ENETUNREACH", lambda address=address: send(address, 53))
tries("send to everyone", "EACCES ENETUNREACH", lambda: send("255.255.255.255", 67))
tries("send to every router", "ENETUNREACH EADDRNOTAVAIL", lambda: send("ff02::2", 53, socket.AF_INET6))
for name in ("example.com", "metadata.google.internal", "host.docker.internal"):
    def resolve(name=name):
        try:
            return socket.getaddrinfo(name, 80)
        except socket.gaierror as error:
            raise Absent(str(error)) from None
    tries(f"resolve {name}", "absent", resolve)


# Sockets of the host that have no port.
def local(address):
    client = socket.socket(socket.AF_UNIX)
    return client.connect(address)


tries("a socket of the host without a file", "ECONNREFUSED", lambda: local("\0" + ABSTRACT))
tries("a socket of the host with a file", "ENOENT", lambda: local(UNIX_PATH))
tries("the bus of the host", "ENOENT ECONNREFUSED", lambda: local("/run/dbus/system_bus_socket"))

for table, words in {
    "tcp": GIVEN["ports_in_tables"], "tcp6": GIVEN["ports_in_tables"], "udp": [], "unix": [ABSTRACT, UNIX_PATH], "raw": [], "packet": [],
}.items():
    def rows(table=table, words=words):
        text = open("/proc/net/" + table).read()
        said = [word for word in words if word in text]
        if said:
            return said
        if table != "unix" and len(text.splitlines()) > 1 + 4 * (table in ("tcp", "tcp6")):
            return text
        raise Absent("nothing of the host")
    tries(f"the host in /proc/net/{table}", "absent ENOENT", rows)


@attempt("absent")
def netlink_sockets_of_others():
    rows_of_others = [row for row in open("/proc/net/netlink").readlines()[1:] if row.split()[2] != "0"]
    if rows_of_others:
        return rows_of_others
    raise Absent("only the kernel's own")


@attempt("absent")
def other_interfaces():
    names = [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]]
    if names == ["lo"]:
        raise Absent("only lo")
    return names


@attempt("absent")
def routes():
    ways = open("/proc/net/route").readlines()[1:]
    if ways:
        return ways
    raise Absent("none")


# Configuring it.
def interface(request, rest=b""):
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    return fcntl.ioctl(client, request, struct.pack("16s24s", b"lo", rest))


for number, name, expected in ((0x8914, "down", "EPERM"), (0x8916, "address", "EPERM"), (0x891C, "mask", "EPERM"), (0x8922, "size", "EPERM"),
                               (0x8924, "hardware address", "EPERM"), (0x890B, "route", "EPERM"), (0x8923, "name", "EPERM"),
                               (0x89A0, "bridge", "EPERM ENOPKG ENOTTY EOPNOTSUPP"), (0x8983, "vlan", "EPERM ENOPKG ENOTTY EOPNOTSUPP")):
    tries(f"configure: {name}", expected, lambda number=number: interface(number))


def netlink(kind, body, flags=0x5):
    """Sends one request to the kernel and returns what it answers, or raises the error it answers with."""
    with socket.socket(16, socket.SOCK_RAW, 0) as asked:
        asked.settimeout(5)
        asked.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
        answer = asked.recv(65536)
    if struct.unpack_from("=H", answer, 4)[0] == 2:
        error = -struct.unpack_from("=i", answer, 16)[0]
        if error:
            raise OSError(error, os.strerror(error))
    return answer


def attribute(kind, value):
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def link(flags=0, change=0, number=1):
    return struct.pack("=BxHiII", 0, 0, number, flags, change)


def kind_of_link(name):
    return attribute(18, attribute(1, name))


ADDRESS = struct.pack("=BBBBI", socket.AF_INET, 24, 0, 0, 1) + attribute(2, b"\n\0\0\1") + attribute(1, b"\n\0\0\1")
ROUTE = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, 254, 3, 0, 1, 0) + attribute(4, struct.pack("=I", 1))
QUEUE = struct.pack("=BxHiIII", 0, 0, 1, 0, 0xFFFFFFFF, 0) + attribute(1, b"pfifo\0")
# Create the object, and answer.
CREATE = 0x405
for name, kind, body, flags in (
    ("add an address", 20, ADDRESS, CREATE), ("remove an address", 21, ADDRESS, 0x5),
    ("bring loopback down", 16, link(0, 1), 0x5), ("bring loopback down, old", 19, link(0, 1), 0x5),
    ("add a pair of interfaces", 16, link(number=0) + kind_of_link(b"veth"), CREATE),
    ("add a bridge", 16, link(number=0) + kind_of_link(b"bridge"), CREATE),
    ("remove loopback", 17, link(), 0x5), ("move loopback to another", 16, link() + attribute(19, struct.pack("=I", 1)), 0x5),
    ("add a route", 24, ROUTE, CREATE), ("remove a route", 25, ROUTE, 0x5),
    ("add a neighbour", 28, struct.pack("=BxHiHBB", 2, 0, 1, 0x80, 0, 0) + attribute(1, b"\n\0\0\2"), CREATE),
    ("add a rule", 32, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 0, 0, 1, 0), CREATE),
    ("add a queue", 36, QUEUE, CREATE), ("add a filter", 44, QUEUE[:20], CREATE),
    ("name a namespace", 88, struct.pack("=Bxxx", 0) + attribute(2, struct.pack("=I", 1)), 0x5),
    ("look into another namespace", 18, link(number=0) + attribute(46, struct.pack("=i", 0)), 0x1),
):
    # gVisor knows some of them not at all.
    tries(f"netlink: {name}", "EPERM EINVAL EOPNOTSUPP" if "look" in name else "EPERM EOPNOTSUPP",
          lambda kind=kind, body=body, flags=flags: netlink(kind, body, flags))


@attempt("EPERM ENOPROTOOPT")
def netlink_of_all_namespaces():
    with socket.socket(16, socket.SOCK_RAW, 0) as asked:
        return asked.setsockopt(270, 8, 1)


def option(level, name, value, kind=socket.SOCK_STREAM):
    return socket.socket(socket.AF_INET, kind).setsockopt(level, name, value)


for name, level, number, value in (
    ("mark", 1, 36, 1), ("larger buffers than allowed", 1, 33, 1 << 20), ("larger input than allowed", 1, 32, 1 << 20), ("debug", 1, 1, 1),
    ("transparent", 0, 19, 1), ("a priority above others", 1, 12, 7),
):
    tries(f"option: {name}", "EPERM EACCES", lambda level=level, number=number, value=value: option(level, number, value))
# What tables of packets are replaced by: the door of several holes in the kernel.
tries("option: tables of packets", "EPERM ENOPROTOOPT", lambda: option(0, 64, bytes(96)))
tries("option: tables of packets, version 6", "EPERM ENOPROTOOPT",
      lambda: socket.socket(socket.AF_INET6).setsockopt(41, 64, bytes(96)))
tries("a port below 1024", "EACCES", lambda: socket.socket().bind(("127.0.0.1", 80)))
tries("an address of others", "EADDRNOTAVAIL", lambda: socket.socket().bind(("10.0.0.1", 8080)))


@attempt("EPERM EINVAL")
def credentials_of_others():
    one, _ = socket.socketpair()
    return one.sendmsg([b"x"], [(socket.SOL_SOCKET, 2, struct.pack("iii", 1, 0, 0))])


report()
