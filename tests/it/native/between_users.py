"""Leaves something behind in every place a program can reach, or looks for it.

`plant` leaves; `look` prints the name of each place where something was found. The same eyes look
before and after, so a place that is not looked at properly is noticed.
"""
import ctypes
import os
import socket
import struct
import subprocess
import sys

libc = ctypes.CDLL(None, use_errno=True)
MARK = b"left-behind"
SYSV_KEY = 0x5348
IPC_CREAT = 0o1000
FILES = ["/workspace/mark", "/workspace/.hidden/mark", "/tmp/mark", "/var/tmp/mark2", "/dev/shm/mark"]
MQ_NAME = b"/mark"


def plant():
    os.makedirs("/workspace/.hidden", exist_ok=True)
    for path in FILES:
        with open(path, "wb") as file:
            file.write(MARK)
    assert libc.shmget(SYSV_KEY, 4096, IPC_CREAT | 0o600) >= 0
    assert libc.semget(SYSV_KEY, 1, IPC_CREAT | 0o600) >= 0
    assert libc.msgget(SYSV_KEY, IPC_CREAT | 0o600) >= 0
    assert libc.mq_open(MQ_NAME, os.O_CREAT | os.O_RDWR, 0o600, None) >= 0
    # A process in a session of its own that keeps a socket without a file, and its own directory.
    listener = (
        "import os,socket,time\n"
        "s=socket.socket(socket.AF_UNIX); s.bind('\\0mark'); s.listen()\n"
        "t=socket.socket(); t.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); t.bind(('127.0.0.1', 4242)); t.listen()\n"
        "os.makedirs('/tmp/where', exist_ok=True); os.chdir('/tmp/where')\n"
        "open('/tmp/listening','w').close(); time.sleep(600)\n"
    )
    subprocess.Popen(
        [sys.executable, "-c", listener, "mark-process"],
        start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    while not os.path.exists("/tmp/listening"):
        pass


def look():
    found = []
    for path in FILES:
        if os.path.exists(path):
            found.append("file " + path)
    if libc.shmget(SYSV_KEY, 0, 0) >= 0:
        found.append("sysv shared memory")
    if libc.semget(SYSV_KEY, 0, 0) >= 0:
        found.append("sysv semaphore")
    if libc.msgget(SYSV_KEY, 0) >= 0:
        found.append("sysv message queue")
    if libc.mq_open(MQ_NAME, os.O_RDONLY) >= 0:
        found.append("posix message queue")
    try:
        socket.socket(socket.AF_UNIX).connect("\0mark")
        found.append("abstract socket")
    except OSError:
        pass
    try:
        socket.create_connection(("127.0.0.1", 4242), timeout=2)
        found.append("tcp listener")
    except OSError:
        pass
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                # The text of this program has the word in it too.
                if file.read().split(b"\0")[-2:-1] == [b"mark-process"]:
                    found.append("process")
            if os.readlink(f"/proc/{pid}/cwd") == "/tmp/where":
                found.append("cwd")
        except OSError:
            pass
    if "LEFT_BEHIND" in os.environ:
        found.append("environment")
    # Everything writable, wherever it is.
    for base in ("/workspace", "/tmp", "/dev/shm", "/dev/pts", "/var", "/run", "/home", "/root", "/srv", "/opt"):
        for directory, _, names in os.walk(base):
            for name in names:
                path = os.path.join(directory, name)
                try:
                    if os.stat(path).st_uid == os.getuid() and path not in ALLOWED:
                        found.append("owned " + path)
                except OSError:
                    pass
    print("\n".join(sorted(set(found))))


ALLOWED = {os.path.abspath(__file__)} if "__file__" in globals() else set()

if __name__ == "__main__":
    {"plant": plant, "look": look}[sys.argv[1]]()
