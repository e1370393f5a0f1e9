"""What every probe begins with: each attempt has a name and the ways in which it may fail.

An attempt that raises an error is refused, and the error must be one of those that are expected.
`Absent` is raised where nothing fails but there is nothing either. An attempt that returns got
through. Every attempt prints one line.
"""
import ctypes
import errno
import json
import os
import socket
import sys

libc = ctypes.CDLL(None, use_errno=True)
# What the host says about itself, and the numbers of system calls by name.
GIVEN = json.loads(sys.argv[1])
CALLS = GIVEN["calls"]
GROUP = GIVEN["group"]
# Whose the users of this sandbox are on the host: "ranges", "subordinate" or "alone".
USERS = GIVEN["users"]
# What would be the end of the sandbox, where it is known to be.
NOT_TRIED = GIVEN.get("not_tried", [])
ATTEMPTS = []


class Absent(Exception):
    """There is nothing to be had."""


def call(name, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(CALLS[name]), *arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def tries(name, expected, function):
    """`expected`: names of errors, and `absent`, of which one must be the outcome."""
    ATTEMPTS.append((name, expected.split(), function))


def attempt(expected):
    """The same for a function with a body."""
    def keep(function):
        tries(function.__name__, expected, function)
        return function
    return keep


def weaker(modes, names):
    """What is known to get through in a mode: that it does is asserted like everything else."""
    if USERS in modes:
        for index, (name, _, function) in enumerate(ATTEMPTS):
            if name in names:
                ATTEMPTS[index] = (name, ["REACHED"], function)


def system_call(expected, name, *arguments, label=None):
    tries(label or name, expected, lambda: call(name, *arguments))


def read(path):
    """Something of a file or directory, if there is anything."""
    if os.path.isdir(path):
        found = os.listdir(path)
    else:
        with open(path, "rb") as file:
            found = file.read(16)
    if not found:
        raise Absent("empty")
    return found


def append(path):
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    return os.write(descriptor, b"1")


def create(path):
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def in_child(function):
    """The outcome of something after which this process would not be the same."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = [0, repr(function())]
        except OSError as error:
            answer = [error.errno, str(error)]
        except Absent as error:
            answer = [-1, str(error)]
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    said = b""
    while part := os.read(reading, 4096):
        said += part
    os.close(reading)
    os.waitpid(child, 0)
    number, text = json.loads(said)
    if number == -1:
        raise Absent(text)
    if number:
        raise OSError(number, os.strerror(number))
    return text


def report():
    names = [name for name, _, _ in ATTEMPTS]
    twice = sorted({name for name in names if names.count(name) > 1})
    assert not twice, f"two attempts have one name: {twice}"
    for name, expected, function in ATTEMPTS:
        if name in NOT_TRIED:
            print(f"{GROUP}/{name}: not tried")
            continue
        try:
            outcome, detail = "REACHED", repr(function())
        except OSError as error:
            outcome, detail = errno.errorcode.get(error.errno, str(error)), ""
        except Absent as error:
            outcome, detail = "absent", str(error)
        meant = "weaker" if outcome == "REACHED" else "refused"
        how = meant if outcome in expected else "NOT AS MEANT"
        print(f"{GROUP}/{name}: {how} {outcome} {detail}".rstrip())
    print(f"tried: {len(ATTEMPTS)}")
