"""The kernel: calls that change it, look past walls, or open its least tried code."""
import fcntl
import pty
import struct

NULL = None
BUFFER = ctypes.create_string_buffer(4096)

# Mounts and namespaces.
system_call("EPERM", "mount", b"none", b"/tmp", b"tmpfs", 0, NULL)
system_call("EPERM", "mount", b"/", b"/tmp", NULL, 4096, NULL, label="mount, binding")
system_call("EPERM", "mount", b"none", b"/", NULL, 0x20, NULL, label="mount, again and writable")
system_call("EPERM", "mount", b"proc", b"/tmp", b"proc", 0, NULL, label="mount, another proc")
system_call("EPERM", "umount2", b"/proc", 2)
system_call("EPERM", "umount2", b"/proc/sys", 2, label="umount2, a mask")
system_call("EPERM", "pivot_root", b"/tmp", b"/tmp")
system_call("EPERM", "chroot", b"/tmp")
system_call("EPERM", "fsopen", b"tmpfs", 0)
system_call("EPERM", "fsconfig", -1, 0, NULL, NULL, 0)
system_call("EPERM", "fsmount", -1, 0, 0)
system_call("EPERM", "fspick", -100, b"/", 0)
system_call("EPERM", "open_tree", -100, b"/", 1)
system_call("EPERM", "move_mount", -100, b"/tmp", -100, b"/", 0)
system_call("EPERM", "mount_setattr", -100, b"/", 0, NULL, 0)
KINDS = {"user": 0x10000000, "mount": 0x00020000, "pid": 0x20000000, "network": 0x40000000, "ipc": 0x08000000, "uts": 0x04000000,
         "cgroup": 0x02000000}
for name, flag in KINDS.items():
    system_call("EPERM", "unshare", flag, label=f"unshare {name}")
    system_call("EPERM", "clone", ctypes.c_ulong(flag | 17), 0, 0, 0, 0, label=f"clone into a new {name}")
system_call("EPERM", "unshare", 0x80, label="unshare time")
system_call("ENOSYS", "clone3", BUFFER, 88)
for name in ("user", "mnt", "pid", "net", "uts", "ipc", "cgroup"):
    tries(f"setns {name}", "EPERM", lambda name=name: call("setns", os.open(f"/proc/self/ns/{name}", os.O_RDONLY), 0))
for number, name in ((0xB701, "user namespace that owns"), (0xB702, "parent of")):
    for kind in ("pid", "user"):
        # NS_GET_USERNS, NS_GET_PARENT: what is above is not ours to open.
        if (number, kind) != (0xB701, "user"):
            tries(f"{name} the {kind} namespace", "EPERM",
                  lambda number=number, kind=kind: fcntl.ioctl(os.open(f"/proc/self/ns/{kind}", os.O_RDONLY), number))

# Code in the kernel, memory of others, events.
system_call("EPERM", "bpf", 0, NULL, 0)
system_call("EPERM", "bpf", 5, BUFFER, 128, label="bpf, load a program")
system_call("EPERM", "io_uring_setup", 1, BUFFER)
system_call("EPERM", "io_uring_enter", 0, 0, 0, 0, NULL)
system_call("EPERM", "io_uring_register", 0, 0, NULL, 0)
system_call("EPERM", "userfaultfd", 0)
system_call("EPERM", "userfaultfd", 1, label="userfaultfd, user mode only")
system_call("EPERM", "perf_event_open", BUFFER, 0, -1, -1, 0)
system_call("EPERM", "fanotify_init", 0, 0)
system_call("EPERM", "fanotify_mark", -1, 0, 0, -100, b"/")
system_call("EPERM", "open_by_handle_at", -100, BUFFER, 0)
system_call("EPERM", "name_to_handle_at", -100, b"/", BUFFER, BUFFER, 0)
system_call("EPERM", "keyctl", 0, -3, 1)
system_call("EPERM", "keyctl", 11, -4, BUFFER, 64, label="keyctl, read")
system_call("EPERM", "add_key", b"user", b"x", b"y", 1, -3)
system_call("EPERM", "request_key", b"user", b"x", NULL, -3)

# The kernel itself.
system_call("EPERM", "kexec_load", 0, 0, NULL, 0)
system_call("EPERM", "kexec_file_load", -1, -1, 0, NULL, 0)
system_call("EPERM", "init_module", NULL, 0, b"")
system_call("EPERM", "finit_module", -1, b"", 0)
system_call("EPERM", "delete_module", b"x", 0)
system_call("EPERM", "reboot", 0xFEE1DEAD, 672274793, 0, NULL)
system_call("EPERM", "iopl", 3)
system_call("EPERM", "ioperm", 0x80, 1, 1)
system_call("EPERM", "modify_ldt", 0, BUFFER, 16)
system_call("EPERM", "swapon", b"/tmp/x", 0)
system_call("EPERM", "swapoff", b"/tmp/x")
system_call("EPERM", "acct", NULL)
system_call("EPERM", "quotactl", 0, NULL, 0, NULL)
system_call("EPERM", "quotactl_fd", -1, 0, 0, NULL)
system_call("EPERM", "syslog", 3, BUFFER, 64)
system_call("EPERM", "syslog", 5, NULL, 0, label="syslog, clear")
system_call("EPERM", "vhangup")
system_call("EPERM", "sync")
system_call("EPERM", "syncfs", 0)
system_call("EPERM", "mbind", 0, 0, 0, NULL, 0, 0)
system_call("EPERM", "set_mempolicy", 0, NULL, 0)
system_call("EPERM", "lookup_dcookie", 0, BUFFER, 64)
system_call("EPERM", "nfsservctl", 0, NULL, NULL)
system_call("ENOSYS", "io_setup", 1, BUFFER)

# Clocks and names.
system_call("EPERM", "clock_settime", 0, BUFFER)
system_call("EPERM", "clock_adjtime", 0, BUFFER)
system_call("EPERM", "settimeofday", BUFFER, NULL)
system_call("EPERM", "adjtimex", BUFFER)
system_call("EPERM", "sethostname", b"x", 1)
system_call("EPERM", "setdomainname", b"x", 1)
for value, name in ((0x0400000, "data that runs"), (0x0100000, "a map at zero"), (0x0200000, "an old layout")):
    tries(f"personality, {name}", "EPERM", lambda value=value: call("personality", ctypes.c_ulong(value)))


@attempt("EPERM")
def memory_at_address_zero():
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    ctypes.set_errno(0)
    if libc.mmap(None, 4096, 3, 0x32, -1, 0) in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "refused")
    return "mapped"


# Sockets into seldom used code.
for family, kind, protocol, name, error in (
    (16, 3, 4, "netlink, sockets", "EAFNOSUPPORT"), (16, 3, 16, "netlink, generic", "EAFNOSUPPORT"), (16, 3, 12, "netlink, netfilter", "EAFNOSUPPORT"), (16, 3, 9, "netlink, audit", "EAFNOSUPPORT"),
    (16, 3, 15, "netlink, device events", "EAFNOSUPPORT"), (17, 3, 768, "packet", "EAFNOSUPPORT"), (17, 2, 768, "packet, cooked", "EAFNOSUPPORT"),
    (2, 3, 1, "raw", "EPERM"), (2, 3, 255, "raw, any protocol", "EPERM"), (10, 3, 58, "raw, version 6", "EPERM"), (2, 10, 0, "packet, old", "EPERM"),
    (38, 5, 0, "ciphers", "EAFNOSUPPORT"), (40, 1, 0, "virtual machines", "EAFNOSUPPORT"), (44, 3, 0, "express data path", "EAFNOSUPPORT"),
    (29, 3, 1, "can bus", "EAFNOSUPPORT"), (31, 3, 1, "bluetooth", "EAFNOSUPPORT"), (30, 1, 0, "tipc", "EAFNOSUPPORT"), (15, 3, 2, "key", "EAFNOSUPPORT"),
    (21, 5, 0, "rds", "EAFNOSUPPORT"), (41, 1, 0, "kcm", "EAFNOSUPPORT"), (43, 1, 0, "smc", "EAFNOSUPPORT"), (3, 2, 0, "ax25", "EAFNOSUPPORT"),
    (24, 1, 0, "ppp", "EAFNOSUPPORT"), (2, 6, 0, "dccp", "EPERM"), (2, 4, 0, "reliable datagrams", "EPERM"), (2, 1, 132, "sctp", "EPROTONOSUPPORT"),
    (2, 1, 262, "several paths", "EPROTONOSUPPORT"),
):
    tries(f"socket, {name}", error, lambda family=family, kind=kind, protocol=protocol: socket.socket(family, kind, protocol))
tries("socket pair, tipc", "EAFNOSUPPORT EOPNOTSUPP", lambda: socket.socketpair(30, 1, 0))


# Terminals and files by their controls.
def on_terminal(request, argument=b"x"):
    _, slave = pty.openpty()
    return fcntl.ioctl(slave, request, argument)


tries("typing into a terminal", "EPERM", lambda: on_terminal(0x5412))
tries("console of a terminal", "EPERM", lambda: on_terminal(0x541C, b"\x02"))
tries("discipline of a terminal", "EPERM", lambda: on_terminal(0x5423, struct.pack("i", 1)))
tries("output of the console", "EPERM", lambda: on_terminal(0x541D))


def on_file(path, request, argument=0):
    return fcntl.ioctl(os.open(path, os.O_RDONLY), request, argument)


def on_own_file(request, argument):
    with open("/workspace/flags", "w"):
        pass
    return on_file("/workspace/flags", request, argument)


tries("freeze a file system", "EPERM ENOTTY EOPNOTSUPP", lambda: on_file("/workspace", 0xC0045877))
tries("freeze the host's file system", "EPERM ENOTTY EOPNOTSUPP", lambda: on_file("/usr", 0xC0045877))
tries("trim a file system", "EPERM ENOTTY EOPNOTSUPP", lambda: on_file("/usr", 0xC0185879, bytes(24)))
tries("a file that cannot be changed", "EPERM ENOTTY EOPNOTSUPP", lambda: on_own_file(0x40086602, struct.pack("l", 0x10)))
tries("change a program of the host", "EPERM EROFS ENOTTY EOPNOTSUPP EACCES", lambda: on_file("/usr/bin/env", 0x40086602, struct.pack("l", 0x10)))

report()
