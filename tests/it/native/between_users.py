"""Leaves something behind in every place a program can reach, or looks for it.

`plant` leaves; `look` prints the name of each channel on which something was found. The same eyes
look before and after, so a channel that is not looked at properly is noticed.
"""
import ctypes
import os
import socket
import subprocess
import sys

libc = ctypes.CDLL(None, use_errno=True)
MARK = b"left-behind"
SYSV_KEY = 0x5348
IPC_CREAT = 0o1000
FILES = ["/workspace/mark", "/workspace/.hidden/mark", "/tmp/mark", "/var/tmp/mark2", "/dev/shm/mark", "/run/secrets/mark"]
WRITABLE = ["/workspace", "/tmp", "/dev/shm", "/run/secrets"]
MQ_NAME = b"/mark"
# A file that all sandboxes have; none may see what others do with it.
COMMON = "/usr/bin/env"
# More than an idle sandbox ever used.
MANY = 300

# A process in a session of its own that keeps what has no file.
KEEPER = r"""
import ctypes, fcntl, os, pty, signal, socket, struct, time
libc = ctypes.CDLL(None)
unnamed = socket.socket(socket.AF_UNIX); unnamed.bind('\0mark'); unnamed.listen()
datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); datagram.bind('\0mark-datagram')
named = socket.socket(socket.AF_UNIX); named.bind('/tmp/socket'); named.listen()
one, other = socket.socketpair()
socket.send_fds(one, [b'x'], [os.open('/tmp/mark', os.O_RDONLY)])
held = []
for family, kind, address in ((2, 1, '127.0.0.1'), (10, 1, '::1'), (2, 2, '127.0.0.1')):
    s = socket.socket(family, kind); s.setsockopt(1, 2, 1); s.bind((address, 4242 + (family == 10)))
    if kind == 1: s.listen()
    held.append(s)
talk = socket.create_connection(('127.0.0.1', 4242)); talk.send(b'x' * 10000)
memory = os.memfd_create('mark-memory'); os.write(memory, b'left-behind')
master, slave = pty.openpty(); os.write(slave, b'left-behind'); os.write(master, b'left-behind\n')
lock = os.open('/usr/bin/env', os.O_RDONLY); fcntl.flock(lock, fcntl.LOCK_EX)
record = os.open('/tmp/mark', os.O_RDWR); fcntl.lockf(record, fcntl.LOCK_EX)
lease = os.open('/tmp/mark', os.O_RDONLY)
message = os.open('/dev/shm/mark', os.O_RDWR); fcntl.fcntl(message, 37, struct.pack('hhqqi', fcntl.F_WRLCK, 0, 0x6d61, 0x726b, 0))
watches = []
while len(watches) < 5000:
    watch = libc.inotify_init1(0)
    if watch < 0: break
    watches.append(watch)
os.makedirs('/tmp/where', exist_ok=True); os.chdir('/tmp/where')
os.environ['LEFT_IN_PROCESS'] = 'secret'
open('/tmp/listening', 'w').close()
time.sleep(600)
"""


def plant():
    os.makedirs("/workspace/.hidden", exist_ok=True)
    for path in FILES:
        with open(path, "wb") as file:
            file.write(MARK)
    for path in WRITABLE:
        os.makedirs(path + "/empty/deeper", exist_ok=True)
        os.symlink("/etc/hosts", path + "/link")
        os.mkfifo(path + "/pipe")
    os.setxattr("/workspace", "user.mark", MARK)
    os.chmod("/workspace", 0o700)
    os.utime("/workspace", (1, 1))
    assert libc.shmget(SYSV_KEY, 4096, IPC_CREAT | 0o600) >= 0
    assert libc.semget(SYSV_KEY, 1, IPC_CREAT | 0o600) >= 0
    assert libc.msgget(SYSV_KEY, IPC_CREAT | 0o600) >= 0
    assert libc.mq_open(MQ_NAME, os.O_CREAT | os.O_RDWR, 0o600, None) >= 0
    for _ in range(MANY):
        if os.fork() == 0:
            os._exit(0)
        os.wait()
    # It ends by a signal that leaves a core, where cores are left.
    crash = "import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2); os.abort()"
    subprocess.run([sys.executable, "-c", crash, "left-behind"], cwd="/tmp", stderr=subprocess.DEVNULL)
    subprocess.Popen(
        [sys.executable, "-c", KEEPER, "mark-process"], start_new_session=True, env=dict(os.environ, LEFT_IN_PROCESS="secret"),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=open("/tmp/complaints", "wb"),
    )
    for _ in range(2000):
        if os.path.exists("/tmp/listening"):
            return
        libc.usleep(10000)
    sys.exit("the keeper did not start: " + open("/tmp/complaints").read())


def connects(family, kind, address):
    try:
        client = socket.socket(family, kind)
        client.settimeout(2)
        client.connect(address)
        return True
    except OSError:
        return False


def counters_of_loopback():
    for line in open("/proc/net/dev"):
        if line.strip().startswith("lo:"):
            return int(line.split()[1])
    return 0


def look():
    found = []

    def see(name, there):
        if there:
            found.append(name)

    # First what this look itself would change.
    see("counters of the network", counters_of_loopback() > 0)
    see("numbers of processes", os.getpid() > MANY)
    see("table of sockets", any("mark" in line for line in open("/proc/net/unix")))
    see("table of connections", any(":1092 " in line for line in open("/proc/net/tcp")))
    # The kernel shows locks that belong to no process to everyone, so nothing at all may be in there.
    for table in ("/proc/locks", "/proc/key-users"):
        see("table " + table, os.path.exists(table) and open(table).read())
    see("uses counted by user", libc.inotify_init1(0) < 0)
    for path in FILES:
        see("file " + path, os.path.exists(path))
    for path in WRITABLE:
        see("anything in " + path, os.listdir(path))
        see("attributes of " + path, any(name.startswith("user.") for name in os.listxattr(path)))
    see("permissions of a place", os.stat("/workspace").st_mode & 0o777 != 0o755)
    see("time of a place", os.stat("/workspace").st_mtime == 1)
    see("sysv shared memory", libc.shmget(SYSV_KEY, 0, 0) >= 0)
    see("sysv semaphore", libc.semget(SYSV_KEY, 0, 0) >= 0)
    see("sysv message queue", libc.msgget(SYSV_KEY, 0) >= 0)
    # gVisor has no such tables.
    tables = ("shm", "sem", "msg") if os.path.exists("/proc/sysvipc") else ()
    for table in tables:
        see("table of sysv " + table, len(open("/proc/sysvipc/" + table).readlines()) > 1)
    see("posix message queue", libc.mq_open(MQ_NAME, os.O_RDONLY) >= 0)
    see("abstract socket", connects(socket.AF_UNIX, socket.SOCK_STREAM, "\0mark"))
    see("abstract datagram socket", connects(socket.AF_UNIX, socket.SOCK_DGRAM, "\0mark-datagram"))
    see("named socket", connects(socket.AF_UNIX, socket.SOCK_STREAM, "/tmp/socket"))
    see("tcp listener", connects(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 4242)))
    see("tcp listener, version 6", connects(socket.AF_INET6, socket.SOCK_STREAM, ("::1", 4243)))
    see("terminals", [name for name in os.listdir("/dev/pts") if name != "ptmx"])
    see("lock on a common file", subprocess.run(["flock", "-n", COMMON, "true"]).returncode)
    see("host name", not os.uname().nodename.startswith("shoal-"))
    see("environment", "LEFT_BEHIND" in os.environ)
    see("keys", os.path.exists("/proc/keys") and "mark" in open("/proc/keys").read())
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            # The text of this program has the words in it too.
            see("process", open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")[-2:-1] == [b"mark-process"])
            see("directory of a process", os.readlink(f"/proc/{pid}/cwd") == "/tmp/where")
            see("environment of a process", b"LEFT_IN_PROCESS=secret" in open(f"/proc/{pid}/environ", "rb").read())
            for name in os.listdir(f"/proc/{pid}/fd"):
                see("file in memory", "mark-memory" in os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            pass
    # Everything of ours, wherever it is, cores included.
    for base in ("/workspace", "/tmp", "/dev", "/var", "/run", "/home", "/root", "/srv", "/opt", "/mnt", "/sys"):
        for directory, directories, names in os.walk(base):
            for name in names + directories:
                path = os.path.join(directory, name)
                try:
                    mine = os.lstat(path).st_uid == os.getuid() and path not in PLACES
                    # Without root all that the sandbox is made of is the user's, and for reading only.
                    see("owned by the user", mine and not os.statvfs(directory).f_flag & os.ST_RDONLY)
                    see("core", name.startswith("core"))
                except OSError:
                    pass
    print("\n".join(sorted(set(found))))


# Those are the user's own in every sandbox.
PLACES = {*WRITABLE, "/dev/pts/ptmx", *("/run/shoal" + name for name in ("", "/scale", "/hosts", "/trusted.pem", "/trusted.jks"))}

if __name__ == "__main__":
    {"plant": plant, "look": look}[sys.argv[1]]()
