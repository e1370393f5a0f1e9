"""Processes: the guest, others, and what a process may become."""
import fcntl
import resource
import signal
import struct

ONE = ctypes.c_long(1)
NULL = None

# Looking into the guest and holding it up.
for request, name in ((16, "attach"), (0x4206, "seize"), (2, "peek"), (5, "poke"), (12, "registers")):
    tries(f"ptrace {name} the guest", "EPERM", lambda request=request: call("ptrace", ctypes.c_long(request), ONE, 0, 0))
tries("ptrace oneself by the parent", "EPERM", lambda: call("ptrace", 0, 0, 0, 0))
system_call("EPERM", "process_vm_readv", 1, NULL, 0, NULL, 0, 0)
system_call("EPERM", "process_vm_writev", 1, NULL, 0, NULL, 0, 0)
system_call("EPERM", "process_madvise", -1, NULL, 0, 0, 0)
system_call("EPERM", "kcmp", 1, os.getpid(), 0, 0, 0)
system_call("EPERM", "move_pages", 1, 0, NULL, NULL, NULL, 0)
system_call("EPERM", "migrate_pages", 1, 0, NULL, NULL)
for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGCONT, signal.SIGCHLD, signal.SIGUSR1, 0):
    tries(f"signal {int(number)} to the guest", "EPERM", lambda number=number: os.kill(1, number))
tries("signal to the guest's thread", "EPERM", lambda: call("tgkill", 1, 1, 9))
tries("signal to the guest's group", "EPERM ESRCH", lambda: os.killpg(1, 9))


@attempt("EPERM")
def signal_with_a_forged_sender():
    information = ctypes.create_string_buffer(struct.pack("iii", 9, 0, -1) + bytes(116))
    return call("rt_sigqueueinfo", 1, 9, information)


@attempt("EPERM")
def signal_through_a_process_descriptor():
    guest = os.pidfd_open(1)
    return signal.pidfd_send_signal(guest, signal.SIGKILL)


@attempt("EPERM")
def descriptors_of_the_guest():
    guest = os.pidfd_open(1)
    for number in range(64):
        try:
            return call("pidfd_getfd", guest, number, 0)
        except OSError as error:
            last = error
    raise last


for number, name in enumerate(("cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "time_for_children", "user", "uts"), 1):
    # PIDFD_GET_..._NAMESPACE: a way to namespaces that does not go through /proc.
    tries(f"{name} namespace of the guest by its descriptor", "EPERM EACCES ENOTTY EOPNOTSUPP",
          lambda number=number: fcntl.ioctl(os.pidfd_open(1), 0xFF00 | number, 0))

for name in ("mem", "environ", "maps", "smaps", "io", "syscall", "stack", "auxv", "personality", "pagemap", "numa_maps"):
    tries(f"read /proc/1/{name}", "EACCES EPERM ENOENT", lambda name=name: read(f"/proc/1/{name}"))
for name in ("fd", "map_files", "fdinfo", "ns", "task/1/fd"):
    tries(f"list /proc/1/{name}", "EACCES EPERM",
          lambda name=name: [os.readlink(f"/proc/1/{name}/{entry}") for entry in os.listdir(f"/proc/1/{name}")])
for name in ("root", "cwd", "exe", "ns/mnt", "ns/user", "ns/pid", "fd/0", "fd/3"):
    tries(f"follow /proc/1/{name}", "EACCES EPERM", lambda name=name: os.readlink(f"/proc/1/{name}"))
for name in ("oom_score_adj", "mem", "uid_map", "gid_map", "setgroups", "comm", "clear_refs", "coredump_filter", "timerslack_ns", "sched", "autogroup"):
    tries(f"write /proc/1/{name}", "EACCES EPERM EROFS ENOENT EINVAL", lambda name=name: append(f"/proc/1/{name}"))

# Limits and priorities of the guest and of oneself.
for limit in ("NOFILE", "NPROC", "AS", "CORE", "FSIZE", "DATA", "STACK"):
    which = getattr(resource, "RLIMIT_" + limit)
    # Where it is known to work it must do no harm.
    value = resource.prlimit(1, which) if USERS == "alone" else (1, 1)
    tries(f"limit {limit} of the guest", "EPERM", lambda which=which, value=value: resource.prlimit(1, which, value))
    tries(f"read limit {limit} of the guest", "EPERM", lambda which=which: resource.prlimit(1, which))
tries("priority of the guest", "EPERM EACCES", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
tries("processors of the guest", "EPERM", lambda: os.sched_setaffinity(1, {0}))
tries("scheduling of the guest", "EPERM", lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)))
tries("disk priority of the guest", "EPERM ENOSYS", lambda: call("ioprio_set", 1, 1, 3 << 13))
tries("disk priority above others", "EPERM ENOSYS", lambda: call("ioprio_set", 1, 0, 1 << 13))
tries("a priority above others", "EPERM EACCES", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
tries("real-time scheduling", "EPERM", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
for limit in ("NOFILE", "CORE", "MEMLOCK", "MSGQUEUE", "SIGPENDING", "NICE", "RTPRIO"):
    def more(which=getattr(resource, "RLIMIT_" + limit)):
        hard = resource.getrlimit(which)[1]
        if hard == resource.RLIM_INFINITY:
            return "there is no limit"
        return call("prlimit64", 0, which, ctypes.create_string_buffer(struct.pack("QQ", hard + 1, hard + 1)), NULL)
    tries(f"more than the limit {limit}", "EPERM", more)


def write_of_oneself(name, text):
    descriptor = os.open("/proc/self/" + name, os.O_WRONLY)
    return os.write(descriptor, text)


tries("being spared when memory is short", "EACCES", lambda: write_of_oneself("oom_score_adj", b"-1000"))
for name in ("uid_map", "gid_map"):
    tries(f"another {name} of oneself", "EPERM", lambda name=name: write_of_oneself(name, b"0 0 1"))


# Others.
@attempt("absent")
def processes_of_the_host():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = open(f"/proc/{pid}/cmdline", "rb").read()
        except OSError:
            continue
        if GIVEN["host_mark"].encode() in command and int(pid) not in (os.getpid(), os.getppid()):
            return pid
    raise Absent("none is seen")


for what, pid in GIVEN["host_pids"].items():
    tries(f"signal to {what} by its number outside", "ESRCH EPERM", lambda pid=pid: os.kill(pid, 0))
    tries(f"{what} in /proc", "ENOENT absent", lambda pid=pid: None if os.stat(f"/proc/{pid}") is None else in_use_by_others(pid))


def in_use_by_others(pid):
    """The number may be that of a process of ours."""
    if open(f"/proc/{pid}/comm").read().strip() in ("python3", "sh"):
        raise Absent("one of ours has that number")
    return pid


# Becoming someone.
for name, arguments in {
    "setuid": (0,), "setgid": (0,), "setreuid": (0, 0), "setresuid": (0, 0, 0), "setresgid": (0, 0, 0),
}.items():
    system_call("EPERM EINVAL", name, *arguments)
system_call("EPERM", "setgroups", 1, (ctypes.c_int * 1)(0))


@attempt("absent")
def files_as_another():
    for name in ("setfsuid", "setfsgid"):
        libc.syscall(ctypes.c_long(CALLS[name]), 0)
        if libc.syscall(ctypes.c_long(CALLS[name]), ctypes.c_long(-1)) != 1000:
            return name
    raise Absent("it stays 1000")


@attempt("EPERM")
def capabilities():
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    return call("capset", header, ctypes.create_string_buffer(b"\xff" * 24))


def control(*arguments):
    return call("prctl", *[ctypes.c_ulong(argument) for argument in arguments])


tries("an ambient capability", "EPERM", lambda: control(47, 2, 7, 0, 0))
tries("keep capabilities of none", "EPERM", lambda: control(28, 1 << 4, 0, 0, 0))
tries("no filter any more", "EINVAL EACCES EFAULT", lambda: control(22, 0, 0, 0, 0))
tries("new privileges again", "EINVAL", lambda: control(38, 0, 0, 0, 0))
tries("another description of one's memory", "EPERM", lambda: control(35, 1, 4096, 0, 0))
tries("sharing a core with the guest", "EPERM", lambda: control(62, 1, 1, 0, 0))


@attempt("absent")
def privileges():
    status = dict(line.rstrip("\n").split(":\t", 1) for line in open("/proc/self/status") if ":\t" in line)
    # gVisor tells neither of ambient ones nor of new privileges.
    wrong = {name: status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(status.get(name, "0"), 16)}
    wanted = {"NoNewPrivs": "1", "Seccomp": "2"}
    wrong.update({name: status.get(name) for name, value in wanted.items() if status.get(name, value) != value})
    wrong.update({name: status[name] for name in ("Uid", "Gid") if status[name].split() != ["1000"] * 4})
    if set(status["Groups"].split()) - {"1000"}:
        wrong["Groups"] = status["Groups"]
    if wrong:
        return wrong
    raise Absent("none")


# The guest is who the programs are, so that only what needs more than that is refused; process 1 is
# spared by the kernel what it did not ask for. It is the guest of this sandbox and no other.
weaker(["alone"], [f"signal {number} to the guest" for number in (9, 15, 19, 18, 17, 10, 0)] + [
    "signal to the guest's thread", "signal_with_a_forged_sender", "signal_through_a_process_descriptor", "priority of the guest",
    "processors of the guest", "scheduling of the guest", "disk priority of the guest",
])
weaker(["alone"], [f"{which} {limit} of the guest" for which in ("limit", "read limit")
                   for limit in ("NOFILE", "NPROC", "AS", "CORE", "FSIZE", "DATA", "STACK")])
# Files in /proc of a process that may not be read belong to who is root where its program was
# started: for the guest that is where the launcher was, and there it is the user.
weaker(["alone", "subordinate"], [f"write /proc/1/{name}" for name in ("oom_score_adj", "clear_refs", "coredump_filter", "sched", "autogroup")])

report()
