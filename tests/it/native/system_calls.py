"""Makes each call that is given and says which did not end as the policy says."""
import ctypes
import errno
import json
import mmap
import os
import platform
import signal
import struct
import sys

GIVEN = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
WRONG, TRIED = [], 0


def attempt(number, arguments):
    """The error number of a call, or 0."""
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_ulong(argument) for argument in arguments])
    return ctypes.get_errno() if result == -1 else 0


def death_of(function):
    """How a child ends that does something for which it should be killed."""
    child = os.fork()
    if child == 0:
        # Whatever it is that was let through, it does not last.
        signal.alarm(5)
        function()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


me = os.getpid()
for number, arguments, expected in GIVEN["refused"]:
    found = attempt(number, arguments)
    if os.getpid() != me:
        os._exit(0)
    TRIED += 1
    if found != expected:
        WRONG.append(["call", number, arguments, found, expected])
for number, arguments, expected in GIVEN["past_the_filter"]:
    TRIED += 1
    harmless = (expected, errno.ENXIO)
    found = death_of(lambda number=number: os.kill(os.getpid(), signal.SIGILL if attempt(number, [0] * 6) in harmless else signal.SIGTERM))
    if found != signal.SIGILL:
        WRONG.append(["call past the filter", number, found])
for number in GIVEN["foreign"]:
    TRIED += 1
    found = death_of(lambda number=number: attempt(number, [0] * 6))
    if found != signal.SIGSYS:
        WRONG.append(["foreign call", number, found])
if platform.machine() == "x86_64":
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    for number in GIVEN["of_32_bits"]:
        TRIED += 1
        # mov eax, number; int 0x80; ret
        page[0:8] = b"\xb8" + struct.pack("<I", number) + b"\xcd\x80\xc3"
        found = death_of(code)
        # A kernel without 32-bit calls knows no such instruction.
        if found not in (signal.SIGSYS, signal.SIGSEGV):
            WRONG.append(["call of 32 bits", number, found])
print(json.dumps({"tried": TRIED, "wrong": WRONG}))
