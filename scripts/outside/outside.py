"""What the outside tests share: servers, requests, disks, and how a test ends.

The tests know what a stranger knows: the guides, `shoal --help`, the OpenAPI document. They start the
built program on data directories of their own, speak HTTP on loopback and run the command line. This
module must never look at the source code, never wait without a deadline, and never leave a process, a
mount or a directory behind.

A test ends with 0 if every promise held, 1 if one did not, 3 if it cannot be tried on this machine.
"""

import argparse
import faulthandler
import http.client
import json
import mmap
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
CONNECT_FAILED = 0
TIMED_OUT = -1


class CannotTry(Exception):
    """This machine lacks something that the test needs."""


class DidNotStart(Exception):
    """A server ended, or did not answer, instead of becoming ready."""

    def __init__(self, exit_code, log):
        super().__init__(f"exit code {exit_code}: {last_lines(log, 6)}")
        self.exit_code, self.log = exit_code, log


def last_lines(text, count):
    return " | ".join(line.strip() for line in text.strip().splitlines()[-count:])


def json_says_lost(value):
    """Whether a JSON value has `state_lost` (or a dialect's `stateLost`) anywhere in it, and it is not false."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in ("state_lost", "stateLost") and inner:
                return True
            if json_says_lost(inner):
                return True
    if isinstance(value, list):
        return any(json_says_lost(inner) for inner in value)
    return False


class Answer:
    """What came back. `status` is 0 if there was no connection, or it broke; -1 if the patience was over."""

    def __init__(self, status, headers=(), body=b"", error=""):
        self.status, self.headers, self.body, self.error = status, list(headers), body, error
        self.json, self.events = None, []
        kind = self.header("content-type") or ""
        if "event-stream" in kind:
            self.events = parse_events(body)
        elif "json" in kind:
            try:
                self.json = json.loads(body)
            except ValueError:
                self.error = "the body is no JSON"

    def header(self, name):
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def ok(self):
        return 200 <= self.status < 300

    @property
    def unanswered(self):
        return self.status in (CONNECT_FAILED, TIMED_OUT)

    @property
    def code(self):
        """The stable code of a refusal, or what stands for it."""
        if self.status == CONNECT_FAILED:
            return "no_connection"
        if self.status == TIMED_OUT:
            return "patience_over"
        if isinstance(self.json, dict) and isinstance(self.json.get("code"), str):
            return self.json["code"]
        return self.header("x-shoal-error") or str(self.status)

    @property
    def detail(self):
        """The cause of a refusal, or what there is of it."""
        if isinstance(self.json, dict):
            return str(self.json.get("detail") or self.json.get("error") or "")
        return self.error

    @property
    def reports_loss(self):
        """Whether it says that files of the session were lost: in a header, a JSON field or an event."""
        for name, value in self.headers:
            if "state-lost" in name.lower() and value.strip().lower() not in ("", "0", "false"):
                return True
        return json_says_lost(self.json) or any(json_says_lost(data) for _, data in self.events)

    def __str__(self):
        text = self.error or self.body[:300].decode("utf-8", "replace")
        return f"{self.status} {self.code}: {text}"


def parse_events(body):
    """The events of a stream, as (name, data); data that is no JSON stays text."""
    found, name, data = [], "message", []
    for line in body.decode("utf-8", "replace").splitlines() + [""]:
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data.append(line[5:].strip())
        elif not line and data:
            text = "\n".join(data)
            try:
                found.append((name, json.loads(text)))
            except ValueError:
                found.append((name, text))
            name, data = "message", []
    return found


def request(port, method, path, body=None, *, key=None, accept=None, headers=None, patience_s=30):
    """One request on a connection of its own; the whole answer, within the patience."""
    sent = {"Connection": "close"}
    if key:
        sent["Authorization"] = f"Bearer {key}"
    if accept:
        sent["Accept"] = accept
    if isinstance(body, (dict, list)):
        body = json.dumps(body).encode()
        sent["Content-Type"] = "application/json"
    elif body is not None:
        sent["Content-Type"] = "application/octet-stream"
    sent.update(headers or {})
    until = time.monotonic() + patience_s
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience_s)
    try:
        connection.request(method, path, body, sent)
        # `getresponse` gives the socket away when the connection is to be closed.
        wire = connection.sock
        answer = connection.getresponse()
        parts = []
        while True:
            wire.settimeout(max(0.01, until - time.monotonic()))
            part = answer.read1(1 << 16)
            if not part:
                break
            parts.append(part)
            if time.monotonic() > until:
                raise TimeoutError
        if answer.length:
            raise http.client.IncompleteRead(b"".join(parts))
        return Answer(answer.status, answer.getheaders(), b"".join(parts))
    except TimeoutError:
        return Answer(TIMED_OUT, error=f"no whole answer within {patience_s} s")
    except (OSError, http.client.HTTPException) as error:
        return Answer(CONNECT_FAILED, error=f"{type(error).__name__}: {error}")
    finally:
        connection.close()


def free_port():
    """A port that nothing listens on, beneath those that the system hands out to clients."""
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as held:
            try:
                held.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Server:
    """A `shoal serve` on a data directory of its own, which can be killed, stopped and started again."""

    def __init__(self, test, name, config="", *, data=None, env=None, arguments=()):
        self.test, self.name = test, name
        self.port, self.starts, self.process, self.key = free_port(), 0, None, None
        self.data = pathlib.Path(data or test.work / name)
        self.config = test.work / f"{name}-{self.port}.toml"
        self.config.write_text(config)
        self.env = {"PATH": os.environ["PATH"], "HOME": str(test.work), **(env or {})}
        self.arguments = list(arguments)
        self.log_path = None
        test.servers.append(self)

    def begin(self):
        """Starts the program and does not wait for it."""
        self.starts += 1
        self.log_path = self.test.work / f"{self.name}-{self.port}.{self.starts}.log"
        command = [self.test.shoal, "serve", "--listen", f"127.0.0.1:{self.port}"]
        command += ["--data-dir", self.data, "--config", self.config, *self.arguments]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env
            )

    def start(self, patience_s=30):
        """Starts it, and waits until `/health` answers."""
        self.begin()
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise DidNotStart(self.process.returncode, self.log())
            if request(self.port, "GET", "/health", patience_s=5).status == 200:
                # A server that reports its health has made its key.
                self.key = (self.data / "admin.key").read_text().strip()
                return self
            time.sleep(0.02)
        log = self.log()
        self.kill()
        raise DidNotStart(f"none, no health within {patience_s} s", log)

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path else ""

    def kill(self):
        """`kill -9` of the server alone: what it started is its own to end."""
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process:
            self.process.wait(30)

    def stop(self, patience_s=45):
        """SIGTERM; the exit code, or None if it had to be killed."""
        if not self.process:
            return 0
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def call(self, method, path, body=None, **options):
        options.setdefault("key", self.key)
        return request(self.port, method, path, body, **options)

    def health(self):
        return self.call("GET", "/health", patience_s=5)

    def cli(self, *arguments, patience_s=30):
        """A command of the command line, on this data directory."""
        env = {**self.env, "SHOAL_DATA_DIR": str(self.data), "SHOAL_CONFIG": str(self.config), "NO_COLOR": "1"}
        return run([self.test.shoal, *arguments], env=env, patience_s=patience_s)


def run(command, *, env=None, patience_s=30):
    """A program to its end, killed when its time is over."""
    command = [str(part) for part in command]
    try:
        return subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience_s
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, -1, "", f"not over within {patience_s} s")


class SmallDisk:
    """An ext4 in a file, mounted: a disk that can be filled and freed."""

    def __init__(self, test, name, size_mb):
        if not shutil.which("mkfs.ext4"):
            raise CannotTry("no mkfs.ext4 for a small disk (Debian: e2fsprogs)")
        self.image, self.at = test.work / f"{name}.img", test.work / f"{name}.mnt"
        with open(self.image, "wb") as image:
            image.truncate(size_mb << 20)
        made = run(["mkfs.ext4", "-q", "-F", "-m", "0", self.image])
        self.at.mkdir()
        mounted = run(["mount", "-o", "loop", self.image, self.at])
        if made.returncode or mounted.returncode:
            raise CannotTry(f"no small disk: {made.stderr} {mounted.stderr}")
        test.disks.append(self)
        self.data, self.ballast = self.at / "data", self.at / "ballast"
        self.data.mkdir()

    def fill(self, leave_mb=0):
        """Until not one byte more fits, or just so much."""
        with open(self.ballast, "ab", buffering=0) as ballast:
            size = ballast.tell()
            for piece in (64 << 20, 1 << 20, 1 << 12):
                try:
                    while True:
                        os.posix_fallocate(ballast.fileno(), size, piece)
                        size += piece
                except OSError:
                    ballast.truncate(size)
            if leave_mb:
                ballast.truncate(size - (leave_mb << 20))

    def free(self):
        self.ballast.unlink(missing_ok=True)

    def remove(self):
        for how in ([], ["-l"]):
            if run(["umount", *how, self.at]).returncode == 0:
                break
        self.image.unlink(missing_ok=True)


def data_ranges(file, size):
    """The parts of a file that are no holes."""
    at = 0
    while at < size:
        try:
            begin = os.lseek(file.fileno(), at, os.SEEK_DATA)
            at = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
        except OSError:
            return
        yield begin, at


def texts_of(path):
    """The bytes of a file, in one or more pieces; those of a zstd archive unpacked."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return
        if file.read(4) == ZSTD_MAGIC:
            if not shutil.which("zstd"):
                raise CannotTry("no zstd, to look into archives (Debian: zstd)")
            yield subprocess.run(["zstd", "-dcq", str(path)], stdin=subprocess.DEVNULL, capture_output=True, timeout=60).stdout
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            for begin, end in data_ranges(file, size):
                yield mapped[begin:end]


def search_disk(directory, pattern):
    """Which files beneath a directory have a match, and which matches: {path: {match, ...}}. A file that
    goes while it is read is gone, which is what is asked."""
    found, pattern = {}, re.compile(pattern)
    for parent, _, names in os.walk(directory):
        for name in names:
            path = pathlib.Path(parent, name)
            try:
                if not path.is_file() or path.is_symlink():
                    continue
                matches = {match.decode() for text in texts_of(path) for match in pattern.findall(text)}
            except (FileNotFoundError, ValueError):
                continue
            if matches:
                found[str(path.relative_to(directory))] = matches
    return found


def wait_until(patience_s, condition, pause_s=0.1):
    """What the condition gives once it is true, or its last false value."""
    until = time.monotonic() + patience_s
    while True:
        value = condition()
        if value or time.monotonic() > until:
            return value
        time.sleep(pause_s)


class Test:
    """One script: its arguments, what it saw, what was untrue, and everything that it has to remove."""

    def __init__(self, about, *, deadline_s=120, more=None):
        parser = argparse.ArgumentParser(description=about)
        parser.add_argument("--shoal", required=True, help="the built program")
        parser.add_argument("--seed", type=int, default=1, help="of everything that is left to chance")
        parser.add_argument("--keep", action="store_true", help="leave data directories and logs where they are")
        if more:
            more(parser)
        self.options = parser.parse_args()
        self.shoal = pathlib.Path(self.options.shoal).resolve()
        self.name = pathlib.Path(sys.argv[0]).stem
        self.servers, self.disks, self.lies, self.lock = [], [], [], threading.Lock()
        self.random = random.Random(self.options.seed)
        self.work = pathlib.Path(tempfile.mkdtemp(prefix=f"shoal-outside-{self.name}-"))
        self.began = time.monotonic()
        deadline_s = deadline_s(self.options) if callable(deadline_s) else deadline_s
        self.watch = threading.Timer(deadline_s, self.too_late, [deadline_s])
        self.watch.daemon = True
        self.watch.start()

    def saw(self, text):
        with self.lock:
            print(f"  {text}", flush=True)

    def lie(self, text):
        """A promise that was not kept."""
        with self.lock:
            self.lies.append(text)
            print(f"  UNTRUE: {text}", flush=True)

    def check(self, condition, kept, broken=None):
        """Says what was kept, or that it was not."""
        if condition:
            self.saw(kept)
        else:
            self.lie(broken or f"not so: {kept}")
        return bool(condition)

    def too_late(self, deadline_s):
        print(f"{self.name}: not over within {deadline_s} s; every thread is at:", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        self.clean_up()
        os._exit(1)

    def clean_up(self):
        for server in self.servers:
            try:
                server.kill()
            except (OSError, subprocess.TimeoutExpired) as error:
                print(f"{self.name}: {server.name} cannot be ended: {error}", file=sys.stderr)
        for disk in self.disks:
            disk.remove()
        if self.options.keep:
            print(f"  kept: {self.work}")
        else:
            shutil.rmtree(self.work, ignore_errors=True)

    def run(self, body):
        """Runs the test, removes what it made, and ends the program."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        status = 1
        try:
            if os.geteuid() != 0:
                raise CannotTry("not root, which sandboxes with limits need")
            body(self)
            status = 1 if self.lies else 0
        except CannotTry as reason:
            print(f"{self.name}: skipped: {reason}")
            status = 3
        except DidNotStart as error:
            print(f"{self.name}: UNTRUE: a server did not start: {error}")
        except Exception:
            traceback.print_exc()
        finally:
            self.watch.cancel()
            self.clean_up()
        took = time.monotonic() - self.began
        word = {0: "ok", 3: "skipped"}.get(status, f"FAILED, {len(self.lies)} untrue")
        print(f"{self.name}: {word} ({took:.1f} s)", flush=True)
        sys.exit(status)
