//! Interfaces of the kernel through which many of its holes were reached: devices, settings,
//! namespaces and sockets.

use anyhow::Result;

use super::refused;

/// A namespace of users of one's own is how most of these begin.
const NO_NAMESPACES: &str = r#"
system_call("EPERM", "unshare", 0x10000000, label="unshare users")
system_call("EPERM", "unshare", 0x10000000 | 0x00020000, label="unshare users and mounts")
system_call("EPERM", "unshare", 0x10000000 | 0x40000000, label="unshare users and network")
system_call("EPERM", "clone", ctypes.c_ulong(0x10000000 | 17), 0, 0, 0, 0, label="clone into new users")
system_call("ENOSYS", "clone3", ctypes.create_string_buffer(88), 88)
"#;

fn refused_after_namespaces(script: &str) -> Result<()> {
    refused(&format!("{NO_NAMESPACES}\n{script}"))
}

/// A control group of version 1 ran a program of the container's choice, on the host, when its last
/// process left; a process that could mount the hierarchy in a user namespace could set it.
#[test]
fn cve_2022_0492_a_release_agent_cannot_be_set() -> Result<()> {
    refused_after_namespaces(
        r#"
for controller in (b"memory", b"rdma", b"cpu", b"pids", b"freezer"):
    system_call("EPERM", "mount", b"cgroup", b"/tmp", b"cgroup", 0, controller, label=f"mount group {controller.decode()}")
system_call("EPERM", "mount", b"cgroup2", b"/tmp", b"cgroup2", 0, None, label="mount groups of version 2")
for path in ("/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/rdma/release_agent", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/unified/cgroup.procs"):
    tries("write " + path, "ENOENT", lambda path=path: append(path))
"#,
    )
}

/// Rootless containers could write to the control groups of their user, which were mounted beneath
/// `/sys/fs/cgroup`.
#[test]
fn cve_2023_25809_control_groups_are_not_there_to_be_written() -> Result<()> {
    refused(
        r#"
@attempt("absent")
def mounts_of_groups():
    found = [line for line in open("/proc/self/mountinfo") if " - cgroup" in line]
    if found:
        return found
    raise Absent("none")

tries("list groups", "ENOENT", lambda: os.listdir("/sys/fs/cgroup"))
"#,
    )
}

/// What the kernel runs when a program crashes, a device appears, a module is wanted or a file has
/// a strange format: each was a way to have it run a program of one's own.
#[test]
fn core_pattern_uevent_helper_modprobe_and_binfmt_misc_cannot_be_set() -> Result<()> {
    refused(
        r#"
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/sys/kernel/uevent_helper",
             "/proc/sys/fs/binfmt_misc/register", "/proc/sys/fs/binfmt_misc/status", "/proc/sysrq-trigger", "/proc/sys/kernel/poweroff_cmd",
             "/sys/kernel/debug/x", "/sys/firmware/efi/efivars/x", "/proc/sys/kernel/usermodehelper/bset"):
    tries("write " + path, "EACCES EROFS ENOENT", lambda path=path: append(path))
for kind in (b"binfmt_misc", b"sysfs", b"debugfs", b"securityfs", b"tracefs", b"configfs", b"efivarfs", b"devtmpfs"):
    system_call("EPERM", "mount", kind, b"/tmp", kind, 0, None, label=f"mount {kind.decode()}")

@attempt("absent")
def a_core_of_a_crash():
    child = os.fork()
    if child == 0:
        os.chdir("/workspace")
        os.abort()
    _, status = os.waitpid(child, 0)
    found = [name for name in os.listdir("/workspace") if name.startswith("core")]
    if found or os.WCOREDUMP(status):
        return found, status
    raise Absent("none is written or piped")
"#,
    )
}

/// Memory, ports and disks of the host as files.
#[test]
fn dev_mem_and_disks_can_neither_be_found_nor_made() -> Result<()> {
    refused(
        r#"
for name in ("mem", "kmem", "port", "kcore", "vda", "vda1", "sda", "sda1", "nvme0n1", "dm-0", "loop0", "ram0", "sr0", "raw"):
    tries("open /dev/" + name, "ENOENT", lambda name=name: os.open("/dev/" + name, os.O_RDONLY))
for major, minor, kind in ((1, 1, 0o020000), (1, 2, 0o020000), (1, 4, 0o020000), (8, 0, 0o060000), (254, 0, 0o060000), (259, 0, 0o060000)):
    for place in ("/tmp", "/workspace", "/dev/shm"):
        tries(f"make {major}:{minor} in {place}", "EPERM",
              lambda major=major, minor=minor, kind=kind, place=place: os.mknod(f"{place}/made", kind | 0o666, os.makedev(major, minor)))
"#,
    )
}

/// A file handle opened any file of the disk, whatever was mounted ("shocker", 2014).
#[test]
fn shocker_2014_files_cannot_be_opened_by_handle() -> Result<()> {
    refused(
        r#"
import struct
handle = ctypes.create_string_buffer(struct.pack("Ii", 8, 1) + struct.pack("II", 2, 0))
for path in ("/", "/usr", "/etc/hosts", "/workspace"):
    tries(f"open by handle on {path}", "EPERM",
          lambda path=path: call("open_by_handle_at", os.open(path, os.O_RDONLY), handle, 0))
system_call("EPERM", "name_to_handle_at", -100, b"/usr", handle, handle, 0)
"#,
    )
}

/// A program typed into the terminal that it shared with its caller; once that call was forbidden,
/// the same call with a dirty upper half of its number was not, and then there was another call.
#[test]
fn cve_2017_5226_cve_2019_10063_cve_2023_1523_nothing_is_typed_into_a_terminal() -> Result<()> {
    refused(
        r#"
import pty
master, slave = pty.openpty()
for name, request in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541C), ("TIOCSETD", 0x5423)):
    for dirt in (0, 1 << 32, 0xFFFFFFFF << 32, 1 << 63):
        for descriptor in (slave, master, 0):
            tries(f"{name} with {dirt:#x} on {descriptor}", "EPERM",
                  lambda request=request, dirt=dirt, descriptor=descriptor:
                  call("ioctl", descriptor, ctypes.c_ulong(request | dirt), ctypes.c_char_p(b"\x03")))
"#,
    )
}

/// Processes of a container reached the socket of its supervisor, which had no file and was found
/// in the network namespace that they shared.
#[test]
fn cve_2020_15257_no_abstract_socket_of_the_host_is_found() -> Result<()> {
    refused(
        r#"
@attempt("absent")
def sockets_without_a_file():
    found = [line for line in open("/proc/net/unix").readlines()[1:]]
    if found:
        return found
    raise Absent("none")

for name in ("/containerd-shim/x.sock", "shoal", "shoal-launcher", "/tmp/dbus-x", "/org/kernel/linux/storage/multipathd"):
    tries("connect to " + name, "ECONNREFUSED", lambda name=name: socket.socket(socket.AF_UNIX).connect("\0" + name))
"#,
    )
}

/// Sockets that see whole packets had holes again and again (CVE-2016-8655, CVE-2017-7308,
/// CVE-2020-14386); they need a capability that a user namespace gives.
#[test]
fn cve_2020_14386_packet_sockets_are_refused() -> Result<()> {
    refused_after_namespaces(
        r#"
for kind in (1, 2, 3, 10):
    tries(f"packet socket of type {kind}", "EAFNOSUPPORT", lambda kind=kind: socket.socket(17, kind, 768))
tries("packet socket, old spelling", "EPERM", lambda: socket.socket(2, 10, 768))
tries("raw socket", "EPERM", lambda: socket.socket(2, 3, 255))
"#,
    )
}

/// The parser of mount options counted wrong; a user namespace was enough to reach it.
#[test]
fn cve_2022_0185_file_system_contexts_are_refused() -> Result<()> {
    refused_after_namespaces(
        r#"
for kind in (b"ext4", b"tmpfs", b"overlay", b"fuse", b"cgroup", b"nfs"):
    system_call("EPERM", "fsopen", kind, 0, label=f"fsopen {kind.decode()}")
system_call("EPERM", "fspick", -100, b"/", 0)
system_call("EPERM", "fsconfig", 0, 1, b"\0", b"\0", 0)
system_call("EPERM", "fsmount", 0, 0, 0)
"#,
    )
}

/// Tables of packets and of their filters (CVE-2021-22555, CVE-2022-2588, CVE-2023-32233,
/// CVE-2024-1086): reached by sockets and options that a user namespace allows.
#[test]
fn cve_2024_1086_packet_filters_are_out_of_reach() -> Result<()> {
    refused_after_namespaces(
        r#"
for protocol in (4, 6, 12):
    tries(f"netlink {protocol}", "EAFNOSUPPORT", lambda protocol=protocol: socket.socket(16, 3, protocol))
for level, family in ((0, socket.AF_INET), (41, socket.AF_INET6)):
    for number in (64, 65):
        tries(f"set tables {level} {number}", "EPERM ENOPROTOOPT",
              lambda level=level, family=family, number=number: socket.socket(family).setsockopt(level, number, bytes(96)))
    tries(f"get tables {level}", "EPERM ENOPROTOOPT", lambda level=level, family=family: socket.socket(family).getsockopt(level, 64, 84))
"#,
    )
}

/// An overlay in a user namespace copied capabilities or set-user-id bits up to where they counted
/// (CVE-2021-3493, CVE-2023-0386, CVE-2023-2640, CVE-2023-32629).
#[test]
fn cve_2023_2640_no_overlay_carries_privileges_out() -> Result<()> {
    refused_after_namespaces(
        r#"
system_call("EPERM", "mount", b"overlay", b"/tmp", b"overlay", 0, b"lowerdir=/usr,upperdir=/workspace,workdir=/tmp", label="mount an overlay")
open("/workspace/capable", "w").close()
for name in ("security.capability", "trusted.overlay.opaque", "trusted.overlay.metacopy"):
    tries("set " + name, "EPERM EOPNOTSUPP", lambda name=name: os.setxattr("/workspace/capable", name, b"\x01\x00\x00\x02" + b"\xff" * 16))

@attempt("absent")
def a_file_that_makes_its_caller_another():
    import shutil, subprocess
    shutil.copy("/usr/bin/id", "/workspace/id")
    os.chmod("/workspace/id", 0o6755)
    said = subprocess.run(["/workspace/id", "-u"], capture_output=True).stdout.strip()
    if said != b"1000":
        return said
    raise Absent("it is still 1000")
"#,
    )
}

/// A map of users with more than five ranges was sorted in one direction only.
#[test]
fn cve_2018_18955_maps_of_users_cannot_be_written() -> Result<()> {
    refused_after_namespaces(
        r#"
ranges = "".join(f"{n} {n} 1\n" for n in range(6)).encode()
for name in ("uid_map", "gid_map", "setgroups"):
    tries("write " + name, "EPERM EACCES", lambda name=name: os.write(os.open("/proc/self/" + name, os.O_WRONLY), ranges))
"#,
    )
}

/// A pipe kept a flag of the page that it had before, and what was written to it went into a file
/// that is only for reading. The kernel is mended; that nothing is written is shown all the same,
/// on a file that belongs to the sandbox alone.
#[test]
fn cve_2022_0847_splicing_does_not_write_into_what_is_read_only() -> Result<()> {
    refused(
        r#"
@attempt("absent")
def write_through_a_pipe():
    before = open("/etc/host.conf", "rb").read()
    reading, writing = os.pipe()
    size = 65536
    os.write(writing, bytes(size))
    os.read(reading, size)
    file = os.open("/etc/host.conf", os.O_RDONLY)
    os.splice(file, writing, 1, 0)
    os.write(writing, b"changed")
    after = open("/etc/host.conf", "rb").read()
    if after != before:
        return after
    raise Absent("it is as it was")

def into(function):
    file = os.open("/etc/host.conf", os.O_RDONLY)
    reading, writing = os.pipe()
    os.write(writing, b"x" * 16)
    return function(file, reading)

tries("splice into it", "EBADF", lambda: into(lambda file, pipe: os.splice(pipe, file, 8)))
tries("send into it", "EBADF", lambda: into(lambda file, pipe: os.sendfile(file, os.open("/etc/hosts", os.O_RDONLY), 0, 8)))
tries("copy into it", "EBADF", lambda: into(lambda file, pipe: os.copy_file_range(os.open("/etc/hosts", os.O_RDONLY), file, 8)))
"#,
    )
}

/// Containers were started with capabilities that any program could take up again.
#[test]
fn cve_2022_24769_cve_2022_29162_no_capability_is_inheritable() -> Result<()> {
    refused(
        r#"
@attempt("absent")
def capabilities():
    held = [line.split() for line in open("/proc/self/status") if line.startswith("Cap")]
    wrong = [pair for pair in held if int(pair[1], 16)]
    if wrong or len(held) != 5:
        return held
    raise Absent("none of the five sets has any")

tries("an ambient capability", "EPERM", lambda: call("prctl", 47, ctypes.c_ulong(2), ctypes.c_ulong(21), 0, 0))
"#,
    )
}

/// Services that listened on the host's loopback were reached from the neighbourhood.
#[test]
fn cve_2020_8558_loopback_is_ones_own() -> Result<()> {
    refused(
        r#"
for address in ("127.0.0.1", "127.0.0.53", "127.255.255.254", "0.0.0.0", "::1"):
    for port in (22, 53, 2375, 6443, 7600, 8080, 10250):
        tries(f"{address} {port}", "ECONNREFUSED", lambda address=address, port=port: socket.create_connection((address, port), timeout=2))
"#,
    )
}
