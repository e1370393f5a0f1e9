"""Lines to and from a scripted harness, for coroutines and for threads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from websockets.sync.server import ServerConnection

from conftest import eventually
from fake_server import PATIENCE_S, FakeHarness
from shoal_sandbox import HarnessBusy, HarnessEnded, InvalidArgument, Timeout
from shoal_sandbox._discover import Server
from shoal_sandbox._lines import UNREAD_BYTES_MAX
from shoal_sandbox._loop import Loop
from shoal_sandbox._pipes import Harness, StdinPipe, StdoutPipe
from shoal_sandbox._sync_pipes import SyncStdinPipe, SyncStdoutPipe

LONG = 1 << 20


@contextlib.asynccontextmanager
async def spoken(fake: FakeHarness) -> AsyncIterator[tuple[StdinPipe, StdoutPipe]]:
    harness = Harness(Server(fake.url, None), "box")
    try:
        yield StdinPipe(harness), StdoutPipe(harness)
    finally:
        await harness.close()


@contextlib.contextmanager
def sync_spoken(fake: FakeHarness) -> Iterator[tuple[SyncStdinPipe, SyncStdoutPipe]]:
    async def made() -> Harness:
        return Harness(Server(fake.url, None), "box")

    loop = Loop()
    harness = loop.run(made())
    try:
        yield SyncStdinPipe(loop, harness), SyncStdoutPipe(loop, harness)
    finally:
        loop.close(harness.close)


async def test_coroutines_may_write_at_once() -> None:
    with FakeHarness() as fake:
        async with spoken(fake) as (stdin, stdout):

            async def writing(who: int) -> None:
                for n in range(100):
                    await stdin.write_line({"who": who, "n": n})

            await asyncio.gather(*(writing(who) for who in range(5)))
            said = [json.loads(await stdout.readline(PATIENCE_S)) for _ in range(500)]
    for who in range(5):
        assert [line["n"] for line in said if line["who"] == who] == list(range(100))


def test_threads_may_write_at_once() -> None:
    with FakeHarness() as fake, sync_spoken(fake) as (stdin, stdout), ThreadPoolExecutor(5) as threads:

        def writing(who: int) -> None:
            for n in range(100):
                stdin.write_line({"who": who, "n": n})

        list(threads.map(writing, range(5)))
        said = [json.loads(stdout.readline(PATIENCE_S)) for _ in range(500)]
    for who in range(5):
        assert [line["n"] for line in said if line["who"] == who] == list(range(100))


async def test_a_line_that_was_refused_is_not_sent_later() -> None:
    with FakeHarness() as fake:
        async with spoken(fake) as (stdin, stdout):
            fake.refusals.extend(["harness_busy"] * 3)
            for _ in range(3):
                with pytest.raises(HarnessBusy):
                    await stdin.write_line("once")
            with pytest.raises(InvalidArgument):
                await stdin.write_line("no\nline")
            await stdin.write_line("once")
            await stdin.write_line("end")
            assert [await stdout.readline(PATIENCE_S) for _ in range(2)] == ["once", "end"]
    assert fake.heard == ["once", "end"]


def test_a_line_of_a_thread_that_was_refused_is_not_sent_later() -> None:
    with FakeHarness() as fake, sync_spoken(fake) as (stdin, stdout):
        fake.refusals.extend(["harness_busy"] * 3)
        for _ in range(3):
            with pytest.raises(HarnessBusy):
                stdin.write_line("once")
        with pytest.raises(InvalidArgument):
            stdin.write_line("no\nline")
        stdin.write_line("once")
        stdin.write_line("end")
        assert [stdout.readline(PATIENCE_S) for _ in range(2)] == ["once", "end"]
    assert fake.heard == ["once", "end"]


async def test_a_line_whose_writer_gave_up_is_sent_all_the_same() -> None:
    with FakeHarness() as fake:
        async with spoken(fake) as (stdin, stdout):
            fake.keep_back("open")
            writing = asyncio.create_task(stdin.write_line("first"))
            await eventually("it is asked", lambda: fake.opened == 1)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            fake.let_go("open")
            await stdin.write_line("second")
            assert [await stdout.readline(PATIENCE_S) for _ in range(2)] == ["first", "second"]


class Talker:
    """Writes many unread lines, and checks whether pings are answered."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.asked = threading.Event()
        self.answered: bool | None = None

    def speak(self, socket: ServerConnection) -> None:
        for n in range(self._count):
            socket.send(f"{n}")
        self.answered = socket.ping().wait(PATIENCE_S / 4)
        self.asked.set()
        for _ in socket:
            pass


async def test_client_with_many_unread_lines_still_answers_pings() -> None:
    talker = Talker(5000)
    with FakeHarness(talker.speak) as fake:
        async with spoken(fake) as (_, stdout):
            assert await stdout.readline(PATIENCE_S) == "0"
            await eventually("it was asked", talker.asked.is_set)
            assert talker.answered
            assert [await stdout.readline(PATIENCE_S) for _ in range(4999)][-1] == "4999"


def test_a_thread_that_does_not_read_many_short_lines_is_still_there() -> None:
    talker = Talker(5000)
    with FakeHarness(talker.speak) as fake, sync_spoken(fake) as (_, stdout):
        assert stdout.readline(PATIENCE_S) == "0"
        assert talker.asked.wait(PATIENCE_S)
        assert talker.answered
        assert [stdout.readline(PATIENCE_S) for _ in range(4999)][-1] == "4999"


def test_unread_lines_are_bounded_and_none_is_lost() -> None:
    count = 60

    def speak(socket: ServerConnection) -> None:
        for _ in range(count):
            socket.send("x" * LONG)
        for _ in socket:
            pass

    with FakeHarness(speak) as fake, sync_spoken(fake) as (_, stdout):
        assert len(stdout.readline(PATIENCE_S)) == LONG
        harness = stdout._harness
        deadline = time.monotonic() + PATIENCE_S
        while harness._unread_bytes <= UNREAD_BYTES_MAX:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.3)
        assert harness._unread_bytes <= UNREAD_BYTES_MAX + LONG
        for _ in range(count - 1):
            assert len(stdout.readline(PATIENCE_S)) == LONG


# So many are not all heard before they are read, and the end is.
FAREWELL = 25


def farewell(socket: ServerConnection) -> None:
    """Writes many lines, and ends."""
    for n in range(FAREWELL):
        socket.send(f"{n} ".ljust(LONG))
    socket.close(4000, "harness_died: the program exited")


async def test_lines_before_the_end_of_a_harness_are_read_first() -> None:
    with FakeHarness(farewell) as fake:
        async with spoken(fake) as (stdin, stdout):
            assert (await stdout.readline(PATIENCE_S)).split() == ["0"]
            with pytest.raises(HarnessEnded):
                while True:
                    await stdin.write_line("is there anybody?")
                    await asyncio.sleep(0.01)
            for n in range(1, FAREWELL):
                assert (await stdout.readline(PATIENCE_S)).split() == [f"{n}"]
            for _ in range(2):
                with pytest.raises(HarnessEnded) as told:
                    await stdout.readline(PATIENCE_S)
                assert told.value.cause == "the program exited"


def test_lines_before_the_end_of_a_harness_are_read_by_threads() -> None:
    with FakeHarness(farewell) as fake, sync_spoken(fake) as (stdin, stdout):
        assert stdout.readline(PATIENCE_S).split() == ["0"]
        with pytest.raises(HarnessEnded):
            while True:
                stdin.write_line("is there anybody?")
                time.sleep(0.01)
        for n in range(1, FAREWELL):
            assert stdout.readline(PATIENCE_S).split() == [f"{n}"]
        for _ in range(2):
            with pytest.raises(HarnessEnded) as told:
                stdout.readline(PATIENCE_S)
            assert told.value.cause == "the program exited"


def test_a_harness_that_starts_slowly_is_not_waited_for_any_longer() -> None:
    with FakeHarness() as fake, sync_spoken(fake) as (stdin, stdout):
        fake.keep_back("open")
        for _ in range(3):
            began = time.monotonic()
            with pytest.raises(Timeout) as told:
                stdout.readline(timeout=0.1)
            assert told.value.code == "line_timeout"
            assert time.monotonic() - began < PATIENCE_S / 4
        fake.let_go("open")
        stdin.write_line("it")
        assert stdout.readline(PATIENCE_S) == "it"
        # It was started once, however often it was given up.
        assert fake.opened == 1


def test_wait_for_a_harness_ends_when_it_is_closed() -> None:
    with FakeHarness() as fake, sync_spoken(fake) as (stdin, stdout), ThreadPoolExecutor(1) as threads:
        fake.keep_back("open")
        reading = threads.submit(stdout.readline)
        while fake.opened == 0:
            time.sleep(0.01)
        stdin.close()
        with pytest.raises(HarnessEnded, match="closed"):
            reading.result(PATIENCE_S)


UNHEARD = """
import sys
from shoal_sandbox import Timeout
from shoal_sandbox._discover import Server
from shoal_sandbox._loop import Loop
from shoal_sandbox._pipes import Harness
from shoal_sandbox._sync_pipes import SyncStdoutPipe


async def made():
    return Harness(Server(sys.argv[1], None), "box")


loop = Loop()
try:
    SyncStdoutPipe(loop, loop.run(made())).readline(timeout=0.1)
except Timeout:
    print("gave up")
"""


def test_a_harness_that_never_starts_keeps_no_program_from_ending() -> None:
    with FakeHarness() as fake:
        fake.keep_back("open")
        ran = subprocess.run(
            [sys.executable, "-c", UNHEARD, fake.url],
            stdout=subprocess.PIPE,
            timeout=PATIENCE_S / 2,
            check=True,
        )
    assert ran.stdout == b"gave up\n"
