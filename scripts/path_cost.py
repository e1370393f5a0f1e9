"""What one acquire and one exec cost a server, in counts that do not depend on the speed of the machine.

    scripts/path_cost.py --shoal NEW --against OLD

Prints system calls, wake-ups and allocations of the server process for each acquire (with its return and
the refill of the pool) and each exec, for both programs. Needs `strace` and a C compiler, and root.
This script must never compare times: `cargo run --release -p bench -- --server` does that.
"""

import ctypes
import http.client
import json
import mmap
import pathlib
import re
import signal
import subprocess
import sys
import time
from statistics import median

sys.path.insert(0, str(pathlib.Path(__file__).parent / "outside"))
import outside  # noqa: E402

REQUESTS = 200
ROUNDS = 5
SETTLE_S = 1.0
CONFIG = """
[[templates]]
name = "default"
pool = { pool_size = 8, max_overflow = 8 }
"""

# Counts calls of the allocator in a file that this script maps too.
COUNTER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
static unsigned long own, *count = &own;
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("ALLOCATIONS");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED) count = shared;
    close(file);
    /* Only this process: what it starts is not counted. */
    unsetenv("ALLOCATIONS");
    unsetenv("LD_PRELOAD");
}
static void one(void) { __atomic_fetch_add(count, 1, __ATOMIC_RELAXED); }
void *malloc(size_t n) { one(); return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { one(); return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { one(); return __libc_realloc(p, n); }
int posix_memalign(void **p, size_t a, size_t n) { one(); *p = __libc_memalign(a, n); return *p ? 0 : 12; }
void *aligned_alloc(size_t a, size_t n) { one(); return __libc_memalign(a, n); }
"""


class Program:
    """A server of one program, and one connection to it."""

    def __init__(self, test, name, shoal, library):
        test.shoal = pathlib.Path(shoal).resolve()
        file = test.work / f"{name}.allocations"
        file.write_bytes(bytes(4096))
        env = {"LD_PRELOAD": str(library), "ALLOCATIONS": str(file)}
        self.server = outside.Server(test, name, CONFIG, env=env).start()
        with open(file, "r+b") as opened:
            self.shared = mmap.mmap(opened.fileno(), 4096)
        self.pid = self.server.process.pid
        self.connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        self.lease = self.send("POST", "/v1/checkouts", {"template": "default"})

    def send(self, method, path, body=None):
        headers = {"Authorization": f"Bearer {self.server.key}", "Content-Type": "application/json"}
        self.connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = self.connection.getresponse()
        text = answer.read()
        if not 200 <= answer.status < 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]!r}")
        return json.loads(text) if text else None

    def acquire(self):
        lease = self.send("POST", "/v1/checkouts", {"template": "default"})
        self.send("DELETE", f"/v1/checkouts/{lease['id']}")

    def execute(self):
        path = f"/v1/sandboxes/{self.lease['sandbox']['id']}/exec"
        if self.send("POST", path, {"argv": ["/usr/bin/true"]})["exit_code"] != 0:
            raise RuntimeError("a program did not end well")

    def allocations(self):
        return ctypes.c_ulong.from_buffer(self.shared).value

    def wakeups(self):
        """How often a thread of the server waited for something and was woken."""
        total = 0
        for status in pathlib.Path(f"/proc/{self.pid}/task").glob("*/status"):
            total += int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status.read_text(), re.M)[1])
        return total

    def counted(self, act):
        """Allocations and wake-ups of each request."""
        before = self.allocations(), self.wakeups()
        repeat(act)
        after = self.allocations(), self.wakeups()
        return [(late - early) / REQUESTS for early, late in zip(before, after)]

    def calls(self, act, work):
        """System calls of each request."""
        summary = work / "calls"
        # In a process group of its own: it leaves when this script says so.
        strace = subprocess.Popen(
            ["strace", "-f", "-c", "-o", summary, "-p", str(self.pid)], stderr=subprocess.PIPE, start_new_session=True
        )
        strace.stderr.readline()
        time.sleep(SETTLE_S)
        repeat(act)
        time.sleep(SETTLE_S)
        strace.send_signal(signal.SIGINT)
        strace.communicate(timeout=30)
        total = re.search(r"^100\.00\s+\S+\s+(?:\d+\s+)?(\d+)\s+(?:\d+\s+)?total$", summary.read_text(), re.M)
        return int(total[1]) / REQUESTS


def repeat(act):
    for _ in range(REQUESTS):
        act()
    time.sleep(SETTLE_S)


def body(test):
    source, library = test.work / "counter.c", test.work / "counter.so"
    source.write_text(COUNTER)
    built = outside.run(["cc", "-O1", "-shared", "-fPIC", "-fno-builtin", "-o", library, source])
    if built.returncode:
        raise outside.CannotTry(f"no C compiler: {built.stderr}")
    programs = {name: Program(test, name, path, library) for name, path in
                (("old", test.options.against), ("new", test.options.shoal))}
    time.sleep(SETTLE_S)
    for path in ("acquire", "execute"):
        found = {name: {"allocations": [], "wake-ups": [], "system calls": []} for name in programs}
        for program in programs.values():
            repeat(getattr(program, path))
        for _ in range(ROUNDS):
            for name, program in programs.items():
                allocations, wakeups = program.counted(getattr(program, path))
                found[name]["allocations"].append(allocations)
                found[name]["wake-ups"].append(wakeups)
                found[name]["system calls"].append(program.calls(getattr(program, path), test.work))
        for what in found["old"]:
            old, new = (median(found[name][what]) for name in ("old", "new"))
            test.saw(f"{path:8} {what:13} old {old:7.1f}  new {new:7.1f}  ratio {new / old:.3f}")


def main():
    def more(parser):
        parser.add_argument("--against", required=True, help="the program to compare with")

    outside.Test(__doc__.split("\n")[0], deadline_s=600, more=more).run(body)


if __name__ == "__main__":
    main()
