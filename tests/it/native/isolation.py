"""Tries what must not be possible from inside. Prints `name: refused ...` or `name: REACHED ...`."""
import ctypes
import errno
import os
import socket
import sys

libc = ctypes.CDLL(None, use_errno=True)
HOST_PORT, HOST_FILE, HOST_ABSTRACT, HOST_MARK = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
SYS = dict(
    ptrace=101, mount=165, umount2=166, pivot_root=155, chroot=161, unshare=272, setns=308, bpf=321, userfaultfd=323,
    perf_event_open=298, io_uring_setup=425, keyctl=250, add_key=248, request_key=249, kexec_load=246, init_module=175,
    finit_module=313, clock_settime=227, sethostname=170, reboot=169, swapon=167, process_vm_readv=310, pidfd_open=434,
    pidfd_getfd=438, open_by_handle_at=304, name_to_handle_at=303, mknod=133, setuid=105, setgid=106, setgroups=116,
    fsopen=430, open_tree=428, move_mount=429, mount_setattr=442, syslog=103, acct=163, iopl=172, quotactl=179,
    personality=135, kcmp=312, fanotify_init=300, modify_ldt=154, clone=56, clone3=435, adjtimex=159, memfd_secret=447, syncfs=306,
)


def call(name, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(SYS[name], *arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


ATTEMPTS = []


def attempt(function):
    ATTEMPTS.append(function)
    return function


def simple(name, *arguments):
    def run():
        return call(name, *arguments)
    run.__name__ = "syscall_" + name
    ATTEMPTS.append(run)


@attempt
def leaked_descriptors():
    strange = [(name, os.readlink("/proc/self/fd/" + name)) for name in os.listdir("/proc/self/fd") if int(name) > 2
               and os.path.exists("/proc/self/fd/" + name) and "/proc/" not in os.readlink("/proc/self/fd/" + name)]
    if strange:
        return strange
    raise OSError(errno.EBADF, "none")


NULL = None
simple("mount", b"none", b"/tmp", b"tmpfs", 0, NULL)
simple("umount2", b"/proc", 2)
simple("pivot_root", b"/tmp", b"/tmp")
simple("chroot", b"/tmp")
for flag in (0x10000000, 0x00020000, 0x40000000, 0x20000000):
    simple("unshare", flag)
simple("setns", 0, 0)
simple("bpf", 0, NULL, 0)
simple("userfaultfd", 0)
simple("perf_event_open", NULL, 0, -1, -1, 0)
simple("io_uring_setup", 1, NULL)
simple("keyctl", 0, -3, 1)
simple("add_key", b"user", b"x", b"y", 1, -3)
simple("request_key", b"user", b"x", NULL, -3)
simple("kexec_load", 0, 0, NULL, 0)
simple("init_module", NULL, 0, b"")
simple("finit_module", 0, b"", 0)
simple("clock_settime", 0, ctypes.create_string_buffer(16))
simple("adjtimex", ctypes.create_string_buffer(256))
simple("sethostname", b"x", 1)
simple("reboot", 0xFEE1DEAD, 672274793, 0x01234567, NULL)
simple("swapon", b"/tmp/x", 0)
simple("open_by_handle_at", -100, NULL, 0)
simple("name_to_handle_at", -100, b"/", NULL, NULL, 0)
simple("fsopen", b"tmpfs", 0)
simple("open_tree", -100, b"/", 1)
simple("mount_setattr", -100, b"/", 0, NULL, 0)
simple("syslog", 3, ctypes.create_string_buffer(64), 64)
simple("acct", NULL)
simple("syncfs", 0)
simple("iopl", 3)
simple("quotactl", 0, NULL, 0, NULL)
simple("kcmp", 1, 1, 0, 0, 0)
simple("fanotify_init", 0, 0)
simple("setuid", 0)
simple("setgid", 0)
simple("setgroups", 1, (ctypes.c_int * 1)(0))
simple("mknod", b"/tmp/disk", 0o060600, (254 << 8) | 0)
simple("mknod", b"/tmp/mem", 0o020600, (1 << 8) | 1)
simple("ptrace", 16, 1, 0, 0)
simple("process_vm_readv", 1, NULL, 0, NULL, 0, 0)
simple("clone", 0x10000000 | 17, 0, 0, 0, 0)
simple("clone3", ctypes.create_string_buffer(88), 88)


@attempt
def pidfd_getfd_of_guest():
    guest = call("pidfd_open", 1, 0)
    for number in range(16):
        try:
            return call("pidfd_getfd", guest, number, 0)
        except OSError as error:
            last = error
    raise last


@attempt
def signal_guest():
    os.kill(1, 9)


@attempt
def signal_guest_zero():
    os.kill(1, 0)


for name in ("mem", "environ", "maps", "io", "syscall", "stack", "auxv", "personality"):
    def read(name=name):
        with open(f"/proc/1/{name}", "rb") as file:
            return file.read(1)
    read.__name__ = "proc_1_" + name
    ATTEMPTS.append(read)
for name in ("fd", "map_files", "fdinfo", "ns"):
    def enumerate_(name=name):
        return [os.readlink(f"/proc/1/{name}/{entry}") for entry in os.listdir(f"/proc/1/{name}")] or 1 / 0
    enumerate_.__name__ = "proc_1_" + name
    ATTEMPTS.append(enumerate_)
for name in ("root", "cwd", "exe"):
    def follow(name=name):
        return os.readlink(f"/proc/1/{name}")
    follow.__name__ = "proc_1_" + name
    ATTEMPTS.append(follow)
for path in ("/etc/shadow", "/root/.ssh", "/proc/kcore", "/dev/mem", "/dev/vda", "/dev/sda", "/dev/kmsg", "/dev/fuse", "/dev/net/tun",
             "/sys/kernel", "/sys/fs/cgroup", "/boot", "/var/run/docker.sock", "/run/docker.sock", "/home/user", HOST_FILE):
    def see(path=path):
        return os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1) or 1 / 0
    see.__name__ = "see_" + path
    ATTEMPTS.append(see)
for path in ("/x", "/usr/x", "/etc/passwd", "/usr/bin/sh", "/dev/x", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches",
             "/proc/sysrq-trigger", "/proc/1/oom_score_adj", "/run/x", "/var/x", "/home/x", "/proc/sys/net/ipv4/ip_forward"):
    def write(path=path):
        with open(path, "ab") as file:
            return file.write(b"1")
    write.__name__ = "write_" + path
    ATTEMPTS.append(write)


@attempt
def host_loopback():
    return socket.create_connection(("127.0.0.1", HOST_PORT), timeout=2)


@attempt
def metadata_address():
    return socket.create_connection(("169.254.169.254", 80), timeout=2)


@attempt
def outside_v6():
    return socket.create_connection(("2001:db8::1", 80), timeout=2)


@attempt
def host_abstract_socket():
    client = socket.socket(socket.AF_UNIX)
    client.connect("\0" + HOST_ABSTRACT)


for family, kind, protocol in ((16, 3, 0), (17, 3, 768), (2, 3, 1), (10, 3, 58), (38, 5, 0), (40, 1, 0), (44, 3, 0), (29, 3, 1), (2, 6, 0), (2, 4, 0)):
    def open_socket(family=family, kind=kind, protocol=protocol):
        return socket.socket(family, kind, protocol)
    open_socket.__name__ = f"socket_family_{family}_type_{kind}"
    ATTEMPTS.append(open_socket)


@attempt
def inject_into_terminal():
    import fcntl
    import pty
    master, slave = pty.openpty()
    return fcntl.ioctl(slave, 0x5412, b"x")


@attempt
def host_processes():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if HOST_MARK.encode() in open(f"/proc/{pid}/cmdline", "rb").read() and int(pid) not in (os.getpid(), os.getppid()):
                return pid
        except OSError:
            pass
    raise OSError(errno.ESRCH, "none seen")


@attempt
def other_interfaces():
    names = [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]]
    if names == ["lo"]:
        raise OSError(errno.ENODEV, "only lo")
    return names


@attempt
def other_mounts():
    allowed = {"/", "/usr", "/dev", "/proc", "/tmp", "/dev/shm", "/dev/pts", "/workspace"}
    points = [line.split()[4] for line in open("/proc/self/mountinfo")]
    strange = [point for point in points if point not in allowed and not point.startswith("/proc/") and not point.startswith("/usr/")]
    if strange:
        return strange
    raise OSError(errno.ENOENT, "only ours")


@attempt
def privileges():
    status = dict(line.rstrip("\n").split(":\t", 1) for line in open("/proc/self/status") if ":\t" in line)
    wanted = {"CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": 0, "CapAmb": 0}
    wrong = {name: status[name] for name, value in wanted.items() if int(status[name], 16) != value}
    if status["NoNewPrivs"] != "1" or status["Seccomp"] != "2" or status["Uid"].split() != ["1000"] * 4 or status["Groups"].strip():
        wrong["status"] = (status["NoNewPrivs"], status["Seccomp"], status["Uid"], status["Groups"])
    if wrong:
        return wrong
    raise OSError(errno.EPERM, "none")


@attempt
def set_user_id_program():
    import subprocess
    done = subprocess.run(["/usr/bin/su", "-c", "id -u"], capture_output=True, stdin=subprocess.DEVNULL)
    if done.returncode == 0 and done.stdout.strip() == b"0":
        return done.stdout
    raise OSError(errno.EPERM, "stays what it is")


@attempt
def raise_limits():
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))


for function in ATTEMPTS:
    try:
        result = function()
        print(f"{function.__name__}: REACHED {result!r}")
    except (OSError, ValueError, ZeroDivisionError) as error:
        print(f"{function.__name__}: refused {error}")
print(f"tried: {len(ATTEMPTS)}")
