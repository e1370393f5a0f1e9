"""Files: paths of the host, ways out through /proc and /sys, devices, mounts, what is read-only."""
import mmap
import subprocess

HOST_FILE = GIVEN["host_file"]
# An ordinary user cannot make device files: each is a mount of the host's.
DEVICES = set() if USERS == "ranges" else {"/dev/" + name for name in ("null", "zero", "full", "random", "urandom", "tty")}


@attempt("absent")
def open_descriptors():
    mine = {"0", "1", "2"}
    strange = {}
    for name in set(os.listdir("/proc/self/fd")) - mine:
        try:
            strange[name] = os.readlink("/proc/self/fd/" + name)
        except FileNotFoundError:
            pass
    kinds = {os.readlink("/proc/self/fd/" + name).split(":")[0] for name in mine}
    if not strange and kinds <= {"pipe", "/dev/null"}:
        raise Absent("three, and no others")
    return strange, kinds


# Of the host nothing exists inside but its /usr.
for path in ("/etc/shadow", "/etc/gshadow", "/etc/ssh", "/etc/machine-id", "/root/.ssh", "/boot", "/home/user", "/var/lib/dpkg", "/var/log",
             "/var/run/docker.sock", "/run/docker.sock", "/run/systemd", "/run/user", "/mnt", "/media", "/lost+found", HOST_FILE):
    tries("read " + path, "ENOENT absent", lambda path=path: read(path))
for path in ("/sys/kernel", "/sys/fs/cgroup", "/sys/class", "/sys/firmware", "/sys/module", "/sys/kernel/debug", "/sys/kernel/uevent_helper"):
    tries("read " + path, "ENOENT", lambda path=path: read(path))

# Links and dots lead to the same place.
for base in ("/..", "/../../../../..", "/proc/self/root", "/proc/self/root/../..", "/proc/self/cwd/../../../..", "/proc/thread-self/root",
             "/proc/self/task/../root/.."):
    tries(f"host file through {base}", "ENOENT", lambda base=base: read(base + HOST_FILE))
for name in ("root", "cwd"):
    tries(f"host file through /proc/1/{name}", "EACCES", lambda name=name: os.stat(f"/proc/1/{name}{HOST_FILE}"))


@attempt("absent")
def above_the_root():
    if os.path.samestat(os.stat("/"), os.stat("/..")):
        raise Absent("it is its own parent")
    return os.listdir("/..")


@attempt("ENOENT")
def host_file_through_a_link():
    os.symlink(HOST_FILE, "/workspace/link-out")
    return read("/workspace/link-out")


@attempt("ENOENT")
def host_file_through_a_descriptor_of_the_root():
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    return os.open("../../.." + HOST_FILE, os.O_RDONLY, dir_fd=root)


@attempt("ENOENT")
def host_file_through_the_link_of_a_descriptor():
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    return read(f"/proc/self/fd/{root}/..{HOST_FILE}")


@attempt("EPERM")
def chroot_and_climb():
    root = os.open("/", os.O_RDONLY)
    os.makedirs("/tmp/inner", exist_ok=True)
    call("chroot", b"/tmp/inner")
    os.fchdir(root)
    os.chdir("../../../../..")
    return os.listdir(".")


@attempt("absent")
def a_working_directory_elsewhere():
    here = os.getcwd()
    if here == "/workspace" and os.readlink("/proc/self/cwd") == here:
        raise Absent("it begins in /workspace")
    return here


# What is masked or for reading only.
for path in ("/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/cmdline", "/proc/interrupts", "/proc/timer_list", "/proc/sched_debug",
             "/proc/latency_stats", "/proc/locks", "/proc/key-users", "/proc/bootconfig", "/proc/acpi", "/proc/asound", "/proc/scsi"):
    tries("read " + path, "absent ENOENT", lambda path=path: read(path))
for path in ("/proc/sysrq-trigger", "/proc/kcore", "/proc/kmsg"):
    tries("write " + path, "EACCES EROFS ENOENT", lambda path=path: append(path))
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches",
             "/proc/sys/vm/overcommit_memory", "/proc/sys/fs/file-max", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/user/max_user_namespaces",
             "/proc/sys/fs/binfmt_misc/register", "/proc/irq/default_smp_affinity", "/proc/bus/input/devices", "/proc/fs/nfsd/x"):
    tries("write " + path, "EACCES EROFS ENOENT", lambda path=path: append(path))

# The root and everything beneath it is read-only.
for path in ("/x", "/usr/x", "/usr/bin/x", "/etc/x", "/dev/x", "/run/x", "/var/x", "/var/lib/x", "/home/x", "/root/x", "/srv/x", "/opt/x",
             "/sys/x", "/usr/lib/x"):
    tries("create " + path, "EROFS EACCES", lambda path=path: create(path))
tries("create /proc/x", "ENOENT", lambda: create("/proc/x"))
for path in ("/etc/passwd", "/etc/hosts", "/etc/resolv.conf", "/usr/bin/env", "/bin/sh", "/lib/x86_64-linux-gnu/libc.so.6"):
    tries("write " + path, "EROFS EACCES ENOENT", lambda path=path: append(path))
for name, change in {
    "chmod": lambda path: os.chmod(path, 0o777),
    "chown": lambda path: os.chown(path, 1000, 1000),
    "unlink": os.unlink,
    "truncate": lambda path: os.truncate(path, 0),
    "utime": lambda path: os.utime(path, (0, 0)),
    "rename": lambda path: os.rename(path, path + "2"),
    "setxattr": lambda path: os.setxattr(path, "user.x", b"x"),
    "hard link": lambda path: os.link(path, "/workspace/linked"),
}.items():
    for path in ("/usr/bin/env", "/etc/passwd", "/dev/null"):
        tries(f"{name} {path}", "EROFS EPERM EACCES EXDEV EINVAL", lambda change=change, path=path: change(path))
for path in ("/workspace", "/tmp", "/proc", "/dev/shm", "/dev/pts"):
    tries(f"rename {path}", "EBUSY EROFS EXDEV EACCES", lambda path=path: os.rename(path, path + "-moved"))
    tries(f"remove {path}", "EBUSY EROFS EACCES ENOTEMPTY", lambda path=path: os.rmdir(path))


@attempt("EACCES")
def map_a_program_for_writing():
    with open("/usr/bin/env", "rb") as file:
        return mmap.mmap(file.fileno(), 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


@attempt("EROFS EACCES")
def open_a_read_only_descriptor_again_for_writing():
    reading = os.open("/usr/bin/env", os.O_RDONLY)
    return os.open(f"/proc/self/fd/{reading}", os.O_WRONLY)


@attempt("EROFS EACCES")
def a_file_without_a_name_in_usr():
    return os.open("/usr/bin", os.O_TMPFILE | os.O_RDWR)


@attempt("EBADF")
def copy_into_a_read_only_descriptor():
    source, target = os.open("/etc/hosts", os.O_RDONLY), os.open("/usr/bin/env", os.O_RDONLY)
    return os.copy_file_range(source, target, 16)


# Devices.
for name in ("mem", "kmem", "port", "kmsg", "vda", "sda", "nvme0n1", "loop0", "loop-control", "fuse", "net/tun", "kvm", "vhost-net", "dri",
             "mapper", "snd", "input", "uinput", "rtc0", "watchdog", "userfaultfd", "cuse", "btrfs-control", "console", "tty0", "hwrng", "vsock"):
    tries(f"open /dev/{name}", "ENOENT", lambda name=name: os.open("/dev/" + name, os.O_RDONLY))
for name, kind, device in (("disk", 0o060600, (254, 0)), ("mem", 0o020600, (1, 1)), ("whiteout", 0o020000, (0, 0)), ("tty", 0o020600, (4, 0))):
    for place in ("/tmp", "/workspace", "/dev/shm"):
        tries(f"make device {name} in {place}", "EPERM",
              lambda name=name, kind=kind, device=device, place=place: os.mknod(f"{place}/{name}", kind, os.makedev(*device)))


@attempt("absent")
def other_devices():
    known = {"null", "zero", "full", "random", "urandom", "tty", "pts", "shm", "ptmx", "fd", "stdin", "stdout", "stderr"}
    strange = set(os.listdir("/dev")) - known
    if strange:
        return strange
    raise Absent("only those that are harmless")


# Programs that would change users, and marks for them.
@attempt("absent")
def programs_that_become_another_user():
    ways = (["/usr/bin/su", "-c", "id -u"], ["/usr/bin/sudo", "-n", "id", "-u"], ["/usr/bin/newgrp"], ["/usr/bin/pkexec", "id", "-u"])
    for way in ways:
        if os.path.exists(way[0]):
            done = subprocess.run(way, capture_output=True, stdin=subprocess.DEVNULL, timeout=10)
            if b"0" in done.stdout.split():
                return way
    raise Absent("they stay who they are")


@attempt("absent")
def mounts_on_which_programs_change_users():
    allowing = {line.split()[4] for line in open("/proc/self/mountinfo") if "nosuid" not in line.split()[5].split(",")} - DEVICES
    if allowing:
        return allowing
    raise Absent("nosuid everywhere")


@attempt("absent")
def mounts_with_devices():
    allowing = [line.split()[4] for line in open("/proc/self/mountinfo") if "nodev" not in line.split()[5].split(",")]
    strange = [path for path in allowing if path != "/dev" and not path.startswith("/dev/")]
    if strange:
        return strange
    raise Absent("nodev but for ours")


@attempt("EPERM EINVAL")
def give_a_file_away():
    with open("/workspace/mine", "w"):
        pass
    return os.chown("/workspace/mine", 0, 0)


@attempt("EPERM EOPNOTSUPP")
def give_a_file_capabilities():
    with open("/workspace/capable", "w"):
        pass
    return os.setxattr("/workspace/capable", "security.capability", b"\x01\x00\x00\x02" + b"\xff" * 16)


for name in ("trusted.overlay.opaque", "trusted.overlay.redirect", "trusted.x"):
    tries("setxattr " + name, "EPERM EOPNOTSUPP", lambda name=name: os.setxattr("/tmp", name, b"y"))


# What the lists of mounts tell.
for name in ("mountinfo", "mounts", "mountstats"):
    def tells(name=name):
        text = open("/proc/self/" + name).read()
        said = [word for word in GIVEN["words_of_the_host"] if word in text]
        if said:
            return said
        raise Absent("nothing of the host")
    tries(f"the host in {name}", "absent", tells)


@attempt("absent")
def other_mounts():
    ours = {"/", "/usr", "/proc", "/run/shoal", "/run/secrets", "/tmp", "/dev", "/dev/shm", "/dev/pts", "/workspace"}
    points = [line.split()[4] for line in open("/proc/self/mountinfo")]
    strange = [point for point in points if point not in ours and not point.startswith(("/proc/", "/usr/", "/dev/"))]
    if strange:
        return strange
    raise Absent("only ours")


@attempt("absent")
def writable_mounts():
    ours = {"/run/shoal", "/run/secrets", "/tmp", "/dev/shm", "/dev/pts", "/workspace", "/proc"} | DEVICES
    writable = {line.split()[4] for line in open("/proc/self/mountinfo") if "rw" in line.split()[5].split(",")}
    if writable - ours:
        return writable - ours
    raise Absent("only ours")


report()
