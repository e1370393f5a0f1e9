"""Our own interfaces from the inside: the guest's connection, the server, what travels between."""
import glob
import time


@attempt("absent")
def sockets_of_the_guest_in_the_tables():
    listed = [line.split() for line in open("/proc/net/unix").readlines()[1:]]
    if listed:
        return listed
    raise Absent("none is listed")


@attempt("absent")
def sockets_among_ones_descriptors():
    found = [name for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)
             and os.readlink("/proc/self/fd/" + name).startswith("socket:")]
    if found:
        return found
    raise Absent("none")


for number in range(3, 24):
    frame = bytes.fromhex(GIVEN["frame"])
    tries(f"a frame to descriptor {number}", "EBADF", lambda number=number, frame=frame: os.write(number, frame))


def opened_for_good(number):
    # For a moment after the start the guest has the ends of this program's own pipes.
    for _ in range(20):
        os.close(os.open(f"/proc/1/fd/{number}", os.O_RDWR))
        time.sleep(0.1)
    return number


for number in range(0, 12):
    tries(f"open descriptor {number} of the guest", "EACCES EPERM" + (" ENOENT" if USERS != "ranges" else ""), lambda number=number: opened_for_good(number))

for path in ("/run/shoal/run", "/run/shoal.sock", "/var/lib/shoal", "/tmp/shoal", "/workspace/.shoal", GIVEN["run_directory"], GIVEN["run_directory"] + "/workspaces"):
    tries(f"files of the server: {path}", "ENOENT", lambda path=path: os.stat(path))
tries("key of the server", "absent", lambda: glob.glob("/**/admin.key") or no("no such file"))


def no(why):
    raise Absent(why)


@attempt("absent")
def settings_of_the_server_in_the_environment():
    known = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_CTYPE", "TERM", "TMPDIR", "PWD", "SHLVL", "_", "OLDPWD", "HOSTNAME", "SHOAL_PROCESS", "SHOAL_SCALE_FILE", "BLAXEL_SCALE_FILE"}
    strange = {name for name in os.environ if name not in known}
    if strange:
        return strange
    raise Absent("only what programs need")


@attempt("absent")
def names_of_the_host_in_what_is_told():
    seen = " ".join([os.uname().nodename, open("/etc/passwd").read(), open("/etc/hosts").read(), open("/proc/self/cgroup").read(),
                     open("/proc/self/mountinfo").read()])
    said = [word for word in GIVEN["words_of_the_host"] if word in seen]
    if said:
        return said
    raise Absent("none")


@attempt("absent")
def control_groups_above_ones_own():
    strange = [line for line in open("/proc/self/cgroup").read().split() if not line.endswith(":/")]
    if strange:
        return strange
    raise Absent("each is its own root")


@attempt("EACCES EPERM")
def the_program_of_the_guest_for_writing():
    return os.open("/proc/1/exe", os.O_RDWR)


@attempt("EACCES EPERM")
def the_program_of_the_guest_for_reading():
    return os.open("/proc/1/exe", os.O_RDONLY)


@attempt("absent")
def taking_the_place_of_the_guest():
    # An orphan belongs to process 1, and no other process can be that.
    if os.getpid() != 1 and os.stat("/proc/1").st_uid != os.getuid():
        raise Absent("it is another user's")
    return os.stat("/proc/1").st_uid


weaker(["alone"], ["taking_the_place_of_the_guest"])
report()
