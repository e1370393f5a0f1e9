"""Where files live is what `config`, `templates`, `doctor` and the session say.

    where.py --shoal PATH

With every default, with only `pool_size` changed in the configuration, with it changed over the API, and with a
template that says nothing about workspaces: a file is written, and looked for on the disk. What the program says
must be where the file is, and on disk `kill -9` takes nothing. A template that says `memory` is in memory.
"""

import re
import uuid

from outside import Server, Test, search_disk

POOL_SIZE = """
[[templates]]
name = "default"
[templates.pool]
pool_size = 3
"""
MORE = """
[[templates]]
name = "default"
[[templates]]
name = "small"
[templates.limits]
memory_mb = 128
"""
MEMORY = """
[[templates]]
name = "default"
[templates.workspace]
kind = "memory"
"""


def must(answer, what):
    if not answer.ok:
        raise RuntimeError(f"{what}: {answer}")
    return answer.json


def configured_kind(text, template):
    """What `shoal config` prints as the kind of the workspace of a template; None if it prints none."""
    effective = re.search(rf"^#?\s*{template}: workspace (?:on|in) (disk|memory)", text, re.M)
    if effective:
        return effective[1]
    for part in text.split("[[templates]]")[1:]:
        name = re.search(r'^\s*name\s*=\s*"([^"]+)"', part, re.M)
        if not name or name[1] != template:
            continue
        inline = re.search(r'^\s*workspace\s*=\s*\{[^}]*kind\s*=\s*"(\w+)"', part, re.M)
        section = re.search(r'\[templates\.workspace\][^\[]*?^\s*kind\s*=\s*"(\w+)"', part, re.M | re.S)
        return (inline or section or [None, None])[1]
    return None


def shown_kind(server, template):
    """What `shoal templates` says, in whatever form it says it."""
    told = {}
    for arguments in (("templates", "get", template), ("templates", "get", template, "--json"), ("templates", "ls")):
        done = server.cli(*arguments)
        if done.returncode:
            continue
        lines = [line for line in done.stdout.splitlines() if "workspace" in line.lower() or '"kind"' in line or line.split()[:1] == [template]]
        kinds = set(re.findall(r"\b(disk|memory)\b(?!_)", " ".join(lines)))
        if len(kinds) == 1:
            told[" ".join(arguments)] = kinds.pop()
    return told


def look(test, server, template, what):
    """Writes a file and looks where it is; `disk` or `memory`."""
    mark = f"OUTSIDE-{uuid.uuid4().hex}"
    session = must(server.call("POST", "/v1/sessions", {"template": template}), f"{what}: a session")
    must(server.call("PUT", f"/v1/sessions/{session['id']}/files?path=/workspace/f", mark.encode()), f"{what}: a write")
    really = "disk" if search_disk(server.data, mark.encode()) else "memory"
    said = must(server.call("GET", f"/v1/sessions/{session['id']}"), "a look").get("workspace") or {}
    test.check(said.get("place") == really, f"{what}: the file is in {really}, and the session says so", f"{what}: the file is in {really}, and the session says {said}")
    listed = must(server.call("GET", "/v1/templates"), "the templates")["effective"]
    api = next(one for one in listed if one["template"] == template)["workspace"]["kind"]
    test.check(api == really, f"{what}: GET /v1/templates says {api}", f"{what}: the file is in {really}, and GET /v1/templates says {api}")
    for command, kind in shown_kind(server, template).items():
        test.check(kind == really, f"{what}: `shoal {command}` says {kind}", f"{what}: the file is in {really}, and `shoal {command}` says {kind}")
    return session["id"], mark, really


def survives(test, server, session, mark, what, really):
    server.kill()
    server.start()
    got = server.call("GET", f"/v1/sessions/{session}/files?path=/workspace/f")
    if really == "disk":
        test.check(got.ok and got.body.decode() == mark, f"{what}: it is there after kill -9", f"{what}: after kill -9: {got}, a loss reported: {got.reports_loss}")
    else:
        kept = got.ok and got.body.decode() == mark
        test.check(kept or got.reports_loss, f"{what}: after kill -9 it is {'there' if kept else 'reported as lost'}", f"{what}: after kill -9 it is lost without a report: {got}")


def one(test, name, config, wanted):
    server = Server(test, name, config).start()
    session, mark, really = look(test, server, "default", name)
    test.check(really == wanted, f"{name}: workspaces are in {wanted}", f"{name}: workspaces are in {really}, not in {wanted}")
    shown = server.cli("config")
    kind = configured_kind(shown.stdout, "default")
    test.check(kind == really, f"{name}: `shoal config` says {kind}", f"{name}: the file is in {really}, and `shoal config` says {kind}")
    if name == "every default":
        doctor = server.cli("doctor").stdout
        lines = [line.strip() for line in doctor.splitlines() if "workspace" in line.lower()]
        test.check(any("disk" in line for line in lines), f"{name}: `shoal doctor` says: {lines[:2]}", f"{name}: nothing about workspaces on disk in `shoal doctor`: {lines}")
    survives(test, server, session, mark, name, really)
    return server


def body(test):
    server = one(test, "every default", "", "disk")
    # Changes over the API move nothing.
    must(server.call("PATCH", "/v1/pools/default", {"pool_size": 4}), "resize")
    session, mark, really = look(test, server, "default", "resized over the API")
    test.check(really == "disk", "resized over the API: workspaces are on disk", f"resized over the API: workspaces are in {really}")
    survives(test, server, session, mark, "resized over the API", really)
    must(server.call("POST", "/v1/templates", {"name": "made"}), "a template")
    session, mark, really = look(test, server, "made", "template made over the API")
    test.check(really == "disk", "template made over the API: workspaces are on disk", f"template made over the API: workspaces are in {really}")
    survives(test, server, session, mark, "template made over the API", really)
    server.stop()
    one(test, "pool_size changed", POOL_SIZE, "disk").stop()
    server = one(test, "a second template", MORE, "disk")
    session, mark, really = look(test, server, "small", "the second template")
    test.check(really == "disk", "the second template: workspaces are on disk", f"the second template: workspaces are in {really}")
    survives(test, server, session, mark, "the second template", really)
    server.stop()
    one(test, "memory by choice", MEMORY, "memory").stop()


if __name__ == "__main__":
    Test(__doc__, deadline_s=120).run(body)
