"""What needs no server: where it is, what errors mean, what a line is, when something is tried again."""

from __future__ import annotations

import asyncio
import pickle
import re
from pathlib import Path

import pytest

import shoal_sandbox
from shoal_sandbox import (
    ConnectionFailed,
    HarnessEnded,
    InvalidArgument,
    OutOfMemory,
    SandboxCrashed,
    ShoalError,
)
from shoal_sandbox import _errors as errors
from shoal_sandbox._calls import Attempts, Call, Wanted, execute, inside
from shoal_sandbox._discover import DEFAULT_URL, find
from shoal_sandbox._lines import LINE_BYTES_MAX, Outgoing
from shoal_sandbox._renewal import pause_s

VARIABLES = ("SHOAL_URL", "SHOAL_API_KEY", "SHOAL_KEY", "SHOAL_DATA_DIR")


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHOAL_DATA_DIR", str(tmp_path))
    return tmp_path


def test_arguments_take_precedence_over_discovery(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (find().url, find().key) == (DEFAULT_URL, None)
    (nowhere / "admin.key").write_text("found\n")
    assert (find().url, find().key) == (DEFAULT_URL, "found")
    (nowhere / "address").write_text("http://10.0.0.1:9\n")
    assert (find().url, find().key) == ("http://10.0.0.1:9", "found")
    (nowhere / "other.key").write_text("other\n")
    (nowhere / "address").write_text("http://127.0.0.1:9\nother.key\n")
    assert (find().url, find().key) == ("http://127.0.0.1:9", "other")
    monkeypatch.setenv("SHOAL_KEY", "short")
    assert find().key == "short"
    monkeypatch.setenv("SHOAL_API_KEY", "long")
    monkeypatch.setenv("SHOAL_URL", "localhost:1")
    assert (find().url, find().key) == ("http://localhost:1", "long")
    assert (find("http://h:2/", "k").url, find("http://h:2/", "k").key) == ("http://h:2", "k")
    assert "long" not in repr(find())


def test_the_key_of_this_machine_stays_on_it(nowhere: Path) -> None:
    (nowhere / "admin.key").write_text("found\n")
    for url, key in [
        ("http://example.org", None),
        ("http://127.0.0.1.example.org", None),
        ("http://localhost", "found"),
        ("http://[::1]:7600", "found"),
    ]:
        assert find(url).key == key, url


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://u@h", "http://h?q", "http://h:99999", "//"])
def test_invalid_server_address_is_refused(nowhere: Path, url: str) -> None:
    with pytest.raises(InvalidArgument):
        find(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://ada:hush@h:1/p", "'http://h:1'"),
        ("ada:hush@h", "'http://h'"),
        ("http://ada:hu@sh@h", "'http://h'"),
        ("http://ada:hush@[::1]:99999", "'http://[::1]:99999'"),
        ("http://h:1?key=hush", "'http://h:1'"),
        ("http://h:99999", "'http://h:99999'"),
        ("ftp://ada:hush@h/hush", "'ftp://h'"),
        # Where it cannot be told what is a secret nothing is shown.
        ("http://ada:hush", "'http://ada'"),
        ("http://ada:hush#more@h", "the given text"),
        ("http://ada:hush/more@h", "the given text"),
        ("http://ada:hush@[h", "the given text"),
        ("//", "the given text"),
    ],
)
def test_an_address_that_is_refused_is_shown_without_secrets(nowhere: Path, url: str, shown: str) -> None:
    with pytest.raises(InvalidArgument) as told:
        find(url)
    assert told.value.cause == f"{shown} is not the address of a server"
    assert "hush" not in f"{told.value} {told.value!r}"


def test_requests_are_shown_without_secrets() -> None:
    wanted = Wanted("default", {"TOKEN": "hush"}, {}, None, None, None)
    program = execute("box", ["true"], timeout=None, env={"TOKEN": "hush"}, cwd=None, stdin="hush")
    marked = Call("GET", "/", headers={"Authorization": "hush"})
    assert b"hush" in wanted.checkout().body
    assert "default" in repr(wanted)
    for shown in (wanted, wanted.checkout(), program, marked):
        assert "hush" not in repr(shown)


def test_errors_are_what_python_calls_them() -> None:
    for code, of in [
        ("template_unknown", ValueError),
        ("launch_failed", RuntimeError),
        ("harness_failed", RuntimeError),
        ("checkout_timeout", asyncio.TimeoutError),
        ("ready_timeout", asyncio.TimeoutError),
        ("deadline_exceeded", asyncio.TimeoutError),
        ("sandbox_crashed", EOFError),
        ("sandbox_gone", EOFError),
        ("lease_lost", EOFError),
        ("oom", EOFError),
        ("path_not_found", FileNotFoundError),
        ("unauthorized", PermissionError),
        ("a_code_of_the_future", ShoalError),
    ]:
        problem = {"code": code, "detail": "it", "remedy": "do", "retryable": True, "retry_after_ms": 1500}
        error = errors.of_problem(418, problem)
        assert isinstance(error, of), code
        assert isinstance(error, ShoalError)
        told = (error.code, error.cause, error.remedy, error.retryable, error.status, error.retry_after)
        assert told == (code, "it", "do", True, 418, 1.5)
        assert str(error) == f"{code}: it (do)"


def test_errors_travel_between_processes() -> None:
    for of in vars(shoal_sandbox).values():
        if isinstance(of, type) and issubclass(of, ShoalError):
            error = of("code", "cause", remedy="remedy", retryable=True, status=503)
            again = pickle.loads(pickle.dumps(error))
            assert type(again) is of
            assert vars(again) == vars(error)
            assert str(again) == str(error)


def test_every_code_is_one_of_the_server() -> None:
    pages = Path(__file__).parents[3] / "docs" / "errors.md"
    codes = set(re.findall(r"^## (\w+)$", pages.read_text(), re.MULTILINE))
    assert len(codes) > 50
    assert set(errors._CLASSES) | errors._NOT_DONE <= codes


def test_closes_of_a_harness() -> None:
    for number, reason, of, code in [
        (4000, "harness_died: the harness exited with code 3: no", HarnessEnded, "harness_died"),
        (4001, "oom: the sandbox", OutOfMemory, "oom"),
        (4002, "sandbox_crashed: it", SandboxCrashed, "sandbox_crashed"),
        (4002, "of_the_future: it", SandboxCrashed, "of_the_future"),
        (4003, "harness_too_large: a line", HarnessEnded, "harness_too_large"),
        (4004, "harness_protocol: no text", HarnessEnded, "harness_protocol"),
        (1001, "shutting_down: the server stops", ShoalError, "shutting_down"),
        (1007, "invalid_argument: a line", InvalidArgument, "invalid_argument"),
        # The attempts are used up: no further wait.
        (1008, "deadline_exceeded: the client took nothing", HarnessEnded, "deadline_exceeded"),
        (1006, "", ConnectionFailed, "cut"),
        (None, "", ConnectionFailed, "cut"),
    ]:
        error = errors.of_close(number, reason)
        assert isinstance(error, of), reason
        assert error.code == code
    assert errors.of_close(4000, "harness_died: a: b").cause == "a: b"


def test_lines_are_whole_lines() -> None:
    out = Outgoing()
    for byte in "eins\nzwölf\n\nrest".encode():
        out.write(bytes([byte]))
    assert list(out.lines) == ["eins", "zwölf", ""]
    with pytest.raises(InvalidArgument):
        out.write_line("x")
    out.write(" of it\n")
    out.write_line({"a": [1]})
    assert list(out.lines)[3:] == ["rest of it", '{"a":[1]}']
    for wrong in ("a\nb", "x" * (LINE_BYTES_MAX + 1), b"\xff"):
        with pytest.raises(InvalidArgument):
            out.write_line(wrong)
    with pytest.raises(InvalidArgument):
        out.write("x" * (LINE_BYTES_MAX + 1))
    assert len(out.lines) == 5


def test_only_safe_requests_are_retried() -> None:
    cut = ConnectionFailed("cut", "it")
    busy = errors.of_code("overloaded", "it", retry_after=2.0)
    exhausted = errors.of_code("pool_empty", "it", retryable=True)
    for call, error, sent, again in [
        (Call("POST", "/"), cut, True, False),
        (Call("POST", "/"), cut, False, True),
        (Call("GET", "/", repeatable=True), cut, True, True),
        (Call("POST", "/"), busy, True, True),
        (Call("POST", "/", repeatable=True), exhausted, True, False),
    ]:
        assert (Attempts(call, 3).pause_after(error, sent) is not None) == again
    attempts = Attempts(Call("GET", "/", repeatable=True), 3)
    pauses = [attempts.pause_after(cut, True) for _ in range(4)]
    assert pauses[3] is None
    assert [pause for pause in pauses[:3] if pause is not None] == sorted(p for p in pauses[:3] if p)
    waited = Attempts(Call("POST", "/"), 1).pause_after(busy, True)
    assert waited is not None
    assert 2.0 <= waited <= 5.0
    far = errors.of_code("overloaded", "it", retry_after=3600.0)
    assert Attempts(Call("POST", "/"), 1).pause_after(far, True) == 5.0


def test_checkouts_are_marked_and_each_by_its_own() -> None:
    first = Wanted("default", {}, {}, None, None, None)
    second = Wanted("default", {}, {}, None, 1.5, "wait")
    marks = [
        call.headers["Idempotency-Key"] for call in (first.checkout(), first.checkout(), first.abandon())
    ]
    assert len(set(marks)) == 1
    assert second.checkout().headers["Idempotency-Key"] != marks[0]
    assert b'"wait_ms": 1500' in second.checkout().body
    for wait in (-1, 601):
        with pytest.raises(ValueError, match="wait"):
            Wanted("default", {}, {}, None, wait, None).checkout()


def test_values_of_answers() -> None:
    assert [inside("a"), inside("/a")] == ["/workspace/a", "/a"]
    assert pause_s(600) == 200
    assert 0 < pause_s(0.1) < 1
    assert pause_s(None) == 3600
