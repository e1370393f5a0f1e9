# Prints everything that a program can see of the last user of its sandbox, as one line that is the same
# in every unused sandbox.
import glob
import json
import os
import resource

PLACES = ("/workspace", "/tmp", "/dev/shm", "/run/shoal", "/dev/mqueue", "/var/tmp")


def below(place):
    found = []
    for path, directories, files in os.walk(place):
        found += [os.path.join(path, name) for name in directories + files]
    return sorted(found)


def text(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError as error:
        return error.strerror


def rows(path):
    return len(text(path).splitlines()[1:])


own = os.getpid()
others = [path for path in glob.glob("/proc/[0-9]*") if path != f"/proc/{own}"]
seen = {
    "files": {place: below(place) for place in PLACES},
    "scale": text(os.environ["SHOAL_SCALE_FILE"]),
    "processes": sorted(text(path + "/comm").strip() for path in others),
    "threads": len(glob.glob("/proc/1/task/*")),
    "limits": text("/proc/1/limits"),
    "ipc": {kind: rows("/proc/sysvipc/" + kind) for kind in ("shm", "sem", "msg")},
    "sockets": {kind: rows("/proc/net/" + kind) for kind in ("tcp", "udp")},
    # The number of a program among those of its sandbox says nothing of another.
    "environment": {name: value for name, value in os.environ.items() if name != "SHOAL_PROCESS"},
    "nice": [os.getpriority(os.PRIO_PROCESS, who) for who in (0, 1)],
    "processors": sorted(os.sched_getaffinity(0)),
    "mask": os.umask(0),
    "files at most": resource.getrlimit(resource.RLIMIT_NOFILE),
    "groups": os.getgroups(),
    "at": os.getcwd(),
    "mode": [oct(os.stat(place).st_mode) for place in PLACES if os.path.exists(place)],
}
print(json.dumps(seen, sort_keys=True))
