# A program that does all it can to be found by the next user of its sandbox. What the sandbox forbids it
# leaves; what it managed it prints, and then it neither ends nor listens. It gives up by itself after a
# minute, so that nothing runs for ever where it was not ended.
import ctypes
import os
import signal
import socket
import sys
import threading
import time

UNTIL = time.monotonic() + 60
KEY = 0x5E2E
managed = []


def attempt(name, act):
    try:
        if act() != -1:
            managed.append(name)
    except OSError as error:
        print(name, error, file=sys.stderr)


def ignore_signals():
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass


def plant(place):
    inner = place + "/deep/.hidden/down"
    os.makedirs(inner)
    for path in (inner + "/secret", place + "/.secret"):
        with open(path, "w") as file:
            file.write("mine")
    for number in range(200):
        open(f"{place}/many-{number}", "w").close()
    os.symlink("/etc", place + "/link")
    os.mkfifo(place + "/pipe")
    os.chmod(place + "/deep/.hidden", 0)


def busy():
    while time.monotonic() < UNTIL:
        pass


def hop():
    # Never the same process for long: a kill by process id comes too late.
    os.chdir("/workspace")
    held = open("/tmp/held", "w")
    while time.monotonic() < UNTIL:
        if os.fork():
            os._exit(0)
        time.sleep(0.005)
    held.close()


def twice_away(act):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (0, 1, 2):
                os.close(number)
            act()
        os._exit(0)


def listen():
    global sockets
    sockets = [socket.socket(), socket.socket(socket.AF_UNIX)]
    sockets[0].bind(("127.0.0.1", 4242))
    sockets[1].bind("\0mine")
    for one in sockets:
        one.listen()


def stay_awake():
    with open(os.environ["SHOAL_SCALE_FILE"], "w") as file:
        file.write("+\n")


libc = ctypes.CDLL(None, use_errno=True)
ignore_signals()
for place in ("/workspace", "/tmp", "/dev/shm"):
    attempt(place, lambda: plant(place))
attempt("shm", lambda: libc.shmget(KEY, 4096, 0o1600))
attempt("sem", lambda: libc.semget(KEY, 1, 0o1600))
attempt("msg", lambda: libc.msgget(KEY, 0o1600))
attempt("mqueue", lambda: libc.mq_open(b"/mine", os.O_CREAT | os.O_RDWR, 0o600, None))
attempt("sockets", listen)
attempt("scale", stay_awake)
attempt("nice", lambda: os.nice(5))
attempt("limit", lambda: libc.prlimit(1, 7, (ctypes.c_ulong * 2)(64, 64), None))
threading.Thread(target=busy, daemon=True).start()
twice_away(hop)
twice_away(busy)
print("managed", *managed, flush=True)
busy()
