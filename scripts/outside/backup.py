"""Backup and restore: a copy that was made while the server worked has everything that was there before it.

    backup.py --shoal PATH

`shoal backup` to a file and to a directory, while clients write. `shoal restore` into an empty data directory;
a server on that has every session, every file as of the backup or later, and the same keys. A restore does not
overwrite a data directory that holds something.
"""

import shutil
import threading
import time

from ledger import Books
from outside import DidNotStart, Server, Test, run, wait_until

CONFIG = """
[server]
shutdown_grace_ms = 5000
[node]
max_live = 12
[[templates]]
name = "disk"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
[templates.workspace]
kind = "disk"
limit = "soft"
[[templates]]
name = "memory"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
[templates.workspace]
kind = "memory"
"""
SESSIONS = 8


def writer(books, sessions, over):
    number = 0
    while not over.is_set():
        session = sessions[number % len(sessions)]
        file = session.file("moving")
        if file.busy.acquire(blocking=False):
            try:
                books.write(session, file, ("put", "exec")[number % 2])
            finally:
                file.busy.release()
        number += 1


def floors(sessions):
    return {(session.id, file.name): file.floor for session in sessions for file in session.files.values()}


def restored(test, server, books, sessions, before, target, what):
    """Restores into a new directory, and reads everything there."""
    data = test.work / f"restored-{what}"
    done = run([test.shoal, "restore", target, "--data-dir", data], env=server.env, patience_s=60)
    if done.returncode:
        test.lie(f"{what}: restore: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        return
    other = Server(test, f"restored-{what}", CONFIG, data=data)
    try:
        other.start()
    except DidNotStart as error:
        test.lie(f"{what}: no server starts on what was restored: {error}")
        return
    test.check(other.key == server.key, f"{what}: the key is the same", f"{what}: the key is another one")
    kept = lost = 0
    for session in sessions:
        copy = type(session)(books, other, other.key, session.id, session.label, session.files.values())
        for file in session.files.values():
            found = {}

            def read(copy=copy, file=file, found=found):
                answer, found["text"] = books.read_by_get(copy, file)
                return found["text"] is not None

            wait_until(15, read, 0.2)
            text = found.get("text")
            version = books.version_of(copy, file, text) if text is not None else None
            floor = before[(session.id, file.name)]
            if version is not None and version >= floor:
                kept += 1
            else:
                lost += 1
                if lost <= 3:
                    test.lie(f"{what}: {file.name} of {session.label} ({session.id}): version {floor} was acknowledged before the backup, {version} is there\n    {copy.account()}")
    test.check(not lost, f"{what}: {kept} files are as of the backup or later", f"{what}: {lost} files are older than the backup, {kept} are not")
    turn = other.call("GET", f"/v1/sessions/{sessions[0].id}/turns")
    test.check(turn.ok and turn.json["turns"], f"{what}: the history is there", f"{what}: the history: {turn}")
    other.stop()
    again = run([test.shoal, "restore", target, "--data-dir", data], env=server.env, patience_s=60)
    test.check(again.returncode != 0, f"{what}: a directory that holds something is not overwritten: {again.stderr.strip()[:160]}", f"{what}: restore overwrote a data directory")


def body(test):
    server = Server(test, "live", CONFIG).start()
    for verb in ("backup", "restore"):
        helped = run([test.shoal, verb, "--help"], env=server.env)
        if helped.returncode:
            test.lie(f"there is no `shoal {verb}`: {helped.stderr.strip().splitlines()[0]}")
    if test.lies:
        return
    books = Books(test)
    sessions = []
    for number in range(SESSIONS):
        session, answer = books.create(server, ("disk", "memory")[number % 2])
        if session is None:
            raise RuntimeError(f"no session: {answer}")
        books.write(session, session.file("still"), "put")
        books.write(session, session.file("moving"), "put")
        session.call("turn", "POST", "/turns", {"input": "echo said"}, accept="application/json")
        sessions.append(session)
    # Some sleep, some are archives, some work.
    for session in sessions[:4]:
        session.call("pause", "POST", "/pause")
    over = threading.Event()
    threads = [threading.Thread(target=writer, args=(books, sessions[4:], over), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    results = []
    for what in ("file", "directory"):
        target = test.work / (f"backup-{what}" + (".tar.zst" if what == "file" else ""))
        if what == "directory":
            target.mkdir()
        before = floors(sessions)
        done = server.cli("backup", target, "--data-dir", server.data, patience_s=60)
        text = (done.stdout + done.stderr).strip()
        test.check(done.returncode == 0, f"backup to a {what} while clients write: {text[-300:]}", f"backup to a {what}: exit code {done.returncode}: {text[-300:]}")
        if done.returncode == 0:
            test.check("node" in text.lower() and "key" in text.lower(), f"backup to a {what} says whether the node key is in it", f"backup to a {what} does not say whether the node key is in it: {text[-200:]}")
            results.append((what, target, before))
    over.set()
    for thread in threads:
        thread.join(30)
    test.check(server.stop() == 0, "the server stopped in order")
    for what, target, before in results:
        restored(test, server, books, sessions, before, target, what)
    # The backup of a server that does not run.
    offline = test.work / "backup-offline"
    offline.mkdir()
    before = floors(sessions)
    done = server.cli("backup", offline, "--data-dir", server.data, patience_s=60)
    if test.check(done.returncode == 0, "backup of a server that is stopped", f"backup of a server that is stopped: {done.stderr.strip()[-300:]}"):
        restored(test, server, books, sessions, before, offline, "offline")
    shutil.rmtree(offline, ignore_errors=True)


if __name__ == "__main__":
    Test(__doc__, deadline_s=240).run(body)
