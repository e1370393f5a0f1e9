# Tries what is asked on the command line and says what happened, one line each.
import errno, os, socket, struct, sys, time

def name(error):
    return errno.errorcode.get(error.errno, str(error)) if isinstance(error, OSError) else str(error)

def dial(address, port, family=socket.AF_INET):
    with socket.socket(family) as it:
        it.settimeout(20)
        it.connect((address, port))
        return it.recv(100).decode()

def attempt(label, act):
    before = time.monotonic()
    try:
        said = act()
    except OSError as error:
        said = name(error)
    slow = " slowly" if time.monotonic() - before > 2 else ""
    print(f"{label} {said}{slow}", flush=True)

def ask(kind):
    with socket.socket(socket.AF_INET, kind) as it:
        it.settimeout(20)
        it.connect(("127.0.0.1", 53))
        it.send(b"question")
        return it.recv(100).decode()

def send(address, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it:
        it.sendto(b"x", (address, port))
        return "sent"

def listen(address, port):
    with socket.socket() as it:
        it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        it.bind((address, port))
        it.listen()
        return "listens"

def served(bind_to, port, address):
    with socket.socket() as it:
        it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        it.bind((bind_to, port))
        it.listen()
        child = os.fork()
        if child == 0:
            taken, _ = it.accept()
            taken.sendall(b"inside")
            os._exit(0)
        try:
            return dial(address, port)
        finally:
            os.kill(child, 9)
            os.wait()

def ping(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as it:
        it.settimeout(1)
        it.sendto(struct.pack("!BBHHH", 8, 0, 0, 0, 1), (address, 0))
        try:
            return "answered" if it.recv(100) else "nothing"
        except TimeoutError:
            return "nothing"

def option(level, number, value=1):
    with socket.socket() as it:
        it.setsockopt(level, number, value)
        return "set"

def family(number, kind, protocol):
    with socket.socket(number, kind, protocol):
        return "made"

def route_change():
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as it:
        # Remove the local route to everything.
        body = struct.pack("=8BI", 2, 0, 0, 0, 255, 3, 254, 2, 0) + struct.pack("=HHI", 8, 4, 1)
        it.send(struct.pack("=IHHII", 16 + len(body), 25, 5, 1, 0) + body)
        answer = it.recv(4096)
        return errno.errorcode.get(-struct.unpack_from("=i", answer, 16)[0], "changed")

for word in sys.argv[1:]:
    what, *rest = word.split(",")
    if what == "dial":
        attempt(word, lambda: dial(rest[0], int(rest[1])))
    elif what == "dial6":
        attempt(word, lambda: dial(rest[0], int(rest[1]), socket.AF_INET6))
    elif what == "ask":
        attempt(word, lambda: ask({"udp": socket.SOCK_DGRAM, "tcp": socket.SOCK_STREAM}[rest[0]]))
    elif what == "send":
        attempt(word, lambda: send(rest[0], int(rest[1])))
    elif what == "listen":
        attempt(word, lambda: listen(rest[0], int(rest[1])))
    elif what == "served":
        attempt(word, lambda: served(rest[0], int(rest[1]), rest[2]))
    elif what == "ping":
        attempt(word, lambda: ping(rest[0]))
    elif what == "option":
        attempt(word, lambda: option(int(rest[0]), int(rest[1])))
    elif what == "family":
        attempt(word, lambda: family(*[int(one) for one in rest]))
    elif what == "route":
        attempt(word, route_change)
