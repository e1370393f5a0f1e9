# Ways around a policy, tried from inside. The other files of this directory follow this one in one program,
# which runs the cases that its first argument names. Its second argument says what only the outside knows.
#
# Every attempt prints a line: the case, what was tried, what came of it, whether that is as it should be,
# and what the log outside must have of it. Hosts outside answer everything with "reached" and who they are.
import errno, json, os, socket, ssl, struct, sys, time

CASES = {}
GIVEN = json.loads(sys.argv[2])
PATIENCE = 15
API, WILD, WEB = "api.shoal.test", "x.wild.test", "http.shoal.test"
# What must never arrive outside is in everything that must not pass.
EVIL = "evil.test"


def case(number):
    def add(function):
        CASES[number] = function
        return function
    return add


def tell(what, got, fine, log):
    line = {"case": CASE, "what": what, "got": got, "fine": fine, "log": log}
    print(json.dumps(line), flush=True)


def refused(what, act, log=None, only=None):
    """An attempt that must reach nothing. `log` is a part of the entry that there must be: of a connection, or
    `name:` of a question, or `kernel:` of an address that the kernel refused."""
    got = outcome(act)
    fine = not got.startswith("reached") and (only is None or got in only)
    tell(what, got, fine, log)


def reaches(what, act, where):
    """The same as it should be, which shows that the attempts beside it can fail."""
    got = outcome(act)
    tell(what, got, got == f"reached {where}", None)


def outcome(act):
    try:
        got = act()
        return "nothing" if got is None else str(got)
    except socket.timeout:
        return "silence"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))


def answer(it):
    """What the other side says, in a word."""
    it.settimeout(PATIENCE)
    data = b""
    while len(data) < 65536:
        try:
            piece = it.recv(4096)
        except (ConnectionResetError, BrokenPipeError):
            break
        if not piece:
            break
        data += piece
        if b"reached " in data and data.endswith(b"\n"):
            return "reached " + data.split(b"reached ")[-1].split()[0].decode()
        if data.startswith(b"HTTP/1.") and b"\r\n\r\n" in data and not data[9:].startswith((b"1", b"2", b"3")):
            return data[9:12].decode()
    return "closed" if not data else f"answered {data[:40]!r}"


def dial(address, port, first=b"x\n", family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_STREAM) as it:
        it.settimeout(PATIENCE)
        it.connect((address, port))
        if first:
            it.sendall(first)
        return answer(it)


def dial6(address, port, first=b"x\n"):
    return dial(address, port, first, socket.AF_INET6)


def send(address, port, family=socket.AF_INET, broadcast=False):
    with socket.socket(family, socket.SOCK_DGRAM) as it:
        it.settimeout(1)
        if broadcast:
            it.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        it.connect((address, port))
        it.send(b"x")
        it.recv(100)
        return "reached it"


def labels(name):
    name = name.encode() if isinstance(name, str) else name
    return b"".join(bytes([len(one)]) + one for one in name.split(b".")) + b"\0"


def question(name, kind=1, flags=0x0100, counts=(1, 0, 0, 0)):
    name = name if isinstance(name, bytes) else labels(name)
    return struct.pack(">HHHHHH", 0xABCD, flags, *counts) + name + struct.pack(">HH", kind, 1)


def ask(message, patience=PATIENCE):
    """The code of the answer, and its addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it:
        it.settimeout(patience)
        it.connect(("127.0.0.1", 53))
        it.send(message)
        return read_answer(it.recv(2048))


def read_answer(data):
    code, answers = data[3] & 15, struct.unpack_from(">H", data, 6)[0]
    # The resolver inside gives at most one address, at the end or before the options.
    at = data.find(b"\xc0\x0c\0\1\0\1") if answers else -1
    return code, socket.inet_ntoa(data[at + 12:at + 16]) if at > 0 else None


def address_of(name):
    code, address = ask(question(name))
    if address is None:
        raise OSError(f"{name} has no address: {code}")
    return address


def asks(name, kind=1):
    """`nothing` if the name does not exist or has no address."""
    code, address = ask(question(name, kind))
    return f"reached {address}" if address else f"code {code}"


def by_name(name, port, first):
    return dial(address_of(name), port, first)


def proxied(request, then=None):
    """What a request to the proxy gives, and what is said through a tunnel."""
    with socket.create_connection(("127.0.0.1", 3128), PATIENCE) as it:
        it.sendall(request if isinstance(request, bytes) else request.encode())
        if then is None:
            return answer(it)
        it.settimeout(PATIENCE)
        data = b""
        while b"\r\n\r\n" not in data:
            piece = it.recv(4096)
            if not piece:
                return "closed"
            data += piece
        if not data.startswith(b"HTTP/1.1 200"):
            return data[9:12].decode()
        it.sendall(then)
        return answer(it)


def tunnel(target, then=None):
    target = target if isinstance(target, bytes) else target.encode()
    return proxied(b"CONNECT " + target + b" HTTP/1.1\r\nHost: " + target + b"\r\n\r\n", then)


def socks(kind, host, port, then=b""):
    with socket.create_connection(("127.0.0.1", 3128), PATIENCE) as it:
        it.sendall(b"\x05\x01\x00")
        if it.recv(2) != b"\x05\x00":
            return "closed"
        it.sendall(bytes([5, 1, 0, kind]) + host + struct.pack(">H", port))
        reply = it.recv(10)
        if len(reply) < 2 or reply[1]:
            return f"code {reply[1] if len(reply) > 1 else 'none'}"
        it.sendall(then)
        return answer(it)


def socks_name(name, port, then=b""):
    name = name if isinstance(name, bytes) else name.encode()
    return socks(3, bytes([len(name)]) + name, port, then)


def request(host=WEB, line="GET / HTTP/1.1", *more):
    lines = [line, *([f"Host: {host}"] if host else []), *more, "", ""]
    return "\r\n".join(lines).encode()
