"""What Schemathesis cannot know by itself about this server.

Random ids name nothing, so every other request gets the id of a sandbox, lease, session, turn or
template that exists: or nearly all answers would be 404. The keys in use are never revoked, or all answers after
that would be 401. Each refusal must have a code that the document names for its route and status.
"""

import atexit
import gzip
import io
import json
import os
import re
import tarfile
import uuid
from collections import Counter

import requests
import schemathesis

URL = os.environ["SHOAL_URL"]
# Makes what the requests need, whichever role is tested.
ADMIN = {"Authorization": f"Bearer {os.environ['SHOAL_ADMIN_KEY']}"}
TESTED = {"Authorization": f"Bearer {os.environ['SHOAL_TESTED_KEY']}"}
ROLE = os.environ["SHOAL_TESTED_ROLE"]

# The first is what sandboxes are made of; the second is changed, drained and deleted.
TEMPLATE, DOOMED = "default", "doomed"
IMAGE = "brought"
NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,63}$")
FILE, DIRECTORY = "/workspace/a", "/workspace"
# Each costs a place, and the node of the test has few.
KEPT = 4
# What a server in good health may say while it has no room, or while others hold what is to end.
UNLUCKY = {"capacity_exhausted", "checkout_timeout", "queue_full", "pool_empty", "pool_closed",
           "deadline_exceeded", "port_closed"}

calls, answers = Counter(), Counter()
current = None
conversation = None


def ask(method, path, headers=None, **rest):
    return requests.request(method, URL + path, headers=headers or ADMIN, timeout=15, **rest)


# Those that are in use when the test begins.
KEYS = {key["id"] for key in ask("GET", "/v1/keys").json()["keys"]}
NOBODY = str(uuid.UUID(int=1))


def lease():
    """One that exists, with its sandbox; none if there is no room for it."""
    global current
    if current and ask("GET", f"/v1/checkouts/{current['id']}").ok:
        return current
    current = check_out()
    if current is None:
        ask("DELETE", f"/v1/templates/{TEMPLATE}", params={"force": "true"})
        ask("PUT", f"/v1/templates/{TEMPLATE}", json={"name": TEMPLATE})
        make_room()
        current = check_out()
    return current


def check_out():
    # A key that may only read sees nothing but its own, and has nothing.
    owner = ADMIN if ROLE == "read" else TESTED
    made = ask("POST", "/v1/checkouts", owner, json={"template": TEMPLATE, "wait_ms": 3000})
    return made.json() if made.status_code == 201 else None


def session():
    """One that takes messages, and a turn of it; none if there is no room for it."""
    global conversation
    if conversation:
        shown = ask("GET", f"/v1/sessions/{conversation['id']}")
        if shown.ok and shown.json()["status"] in ("active", "paused"):
            if shown.json()["sandbox_status"] == "connected":
                return conversation
            if ask("POST", f"/v1/sessions/{conversation['id']}/resume").ok:
                return conversation
    conversation = begin()
    if conversation is None:
        make_room()
        conversation = begin()
    return conversation


def begin():
    owner = ADMIN if ROLE == "read" else TESTED
    made = ask("POST", "/v1/sessions", owner, json={"template": TEMPLATE})
    if made.status_code != 201:
        return None
    session = made.json()["id"]
    said = ask("POST", f"/v1/sessions/{session}/turns", {**owner, "Accept": "application/json"},
               json={"input": "echo hi"})
    return {"id": session, "turn": said.json()["id"]} if said.ok else None


def make_room():
    """Ends what other requests made."""
    for one in ask("GET", "/v1/sessions", params={"limit": 1000}).json()["sessions"]:
        if one["status"] != "ended":
            ask("DELETE", f"/v1/sessions/{one['id']}")
    for one in ask("GET", "/v1/templates").json()["templates"]:
        if one["name"] != TEMPLATE:
            ask("DELETE", f"/v1/templates/{one['name']}", params={"force": "true"})
    listed = ask("GET", "/v1/sandboxes", params={"limit": 1000}).json()["sandboxes"]
    for one in [one for one in listed if one.get("lease")][KEPT:]:
        ask("DELETE", f"/v1/sandboxes/{one['id']}")


def is_id(text):
    try:
        return str(uuid.UUID(text)) == text
    except (ValueError, TypeError, AttributeError):
        return False


def archive(media_type):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("b"), io.BytesIO())
    return gzip.compress(made.getvalue()) if media_type == "application/gzip" else made.getvalue()


@schemathesis.serializer("application/x-tar", "application/gzip")
def bytes_as_they_are(context, value):
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


@schemathesis.hook
def map_body(context, body):
    """JSON Schema takes 1.0 for an integer, and knows no largest number. The server takes none of
    them, and no client writes them so."""
    if isinstance(body, dict):
        return {name: map_body(context, value) for name, value in body.items()}
    if isinstance(body, list):
        return [map_body(context, value) for value in body]
    if isinstance(body, float) and body.is_integer():
        body = int(body)
    if isinstance(body, int) and abs(body) > 2**1000:
        return 0
    return body


@schemathesis.hook
def before_call(context, case, kwargs):
    path, given = case.operation.path, case.path_parameters or {}
    calls[case.operation.label] += 1
    count = calls[case.operation.label]
    if given.get("id") in KEYS:
        given["id"] = NOBODY
    bound(case.body)
    bound(case.query)
    if path.endswith("/ports") and "wait_for" in (case.query or {}):
        # Nothing listens, and the wait that is not given is a long one.
        case.query.setdefault("timeout_ms", 100)
    if path.endswith("/wait") and "timeout_ms" not in (case.query or {}):
        case.query = {**(case.query or {}), "timeout_ms": 100}
    if path.endswith("/files/watch") and case.query:
        # A watch that is armed has no end of its own.
        case.query["path"] = "/nosuch"
    if count % 2:
        return
    if path == "/v1/templates" and is_name(case.body, "name"):
        # What this node does not serve is refused, and made up of so much nearly all of it is.
        case.body = {"name": f"made-{count}", "pool": {"pool_size": 0}}
    if isinstance(given.get("secret"), str):
        # The same for all, so that what one stores another removes.
        given["secret"] = "stored"
    if isinstance(given.get("image"), str):
        given["image"] = image()
    if path in ("/v1/checkouts", "/v1/sandboxes", "/v1/sessions") and is_name(case.body, "template"):
        case.body["template"] = TEMPLATE
        if path == "/v1/sessions":
            plain(case.body)
    for name in ("template", "name"):
        if is_name(given, name):
            given[name] = TEMPLATE if case.method == "GET" else doomed()
            if case.method == "PUT" and is_name(case.body, "name"):
                case.body["name"] = given[name]
    if is_id(given.get("id")) and path.startswith("/v1/sessions/") and (known := session()):
        given["id"] = known["id"]
        if is_id(given.get("turn")):
            given["turn"] = known["turn"]
        # The others find out what a session that exists makes of anything else.
        if count % 8 != 2:
            fit(path, case, f"/v1/sessions/{known['id']}")
    elif is_id(given.get("id")) and (real := lease()):
        if path.startswith("/v1/checkouts/"):
            given["id"] = real["id"]
        elif path.startswith("/v1/sandboxes/"):
            given["id"] = real["sandbox"]["id"]
            if isinstance(given.get("process"), str):
                given["process"] = process(given["id"], path)
            if count % 4 == 0:
                fit(path, case, f"/v1/sandboxes/{given['id']}")


def process(sandbox, path):
    """One that exists and can be fed, resized and ended; one that is over where its end is waited for."""
    wanted = {"command": "true" if path.endswith("/wait") else "cat", "stdin_open": True,
              "terminal": {"rows": 24, "columns": 80}}
    made = ask("POST", f"/v1/sandboxes/{sandbox}/processes", json=wanted)
    return made.json()["id"] if made.ok else NOBODY


def is_name(value, field):
    return isinstance(value, dict) and NAME.match(str(value.get(field))) is not None


def bound(body):
    """Waits that nobody has the time for."""
    if isinstance(body, dict):
        for field in ("wait_ms", "timeout_ms", "wait_timeout_ms", "grace_ms"):
            # What is out of bounds stays so.
            given = str(body.get(field))
            if given.isdigit() and 1000 < int(given) <= 86_400_000:
                body[field] = type(body[field])(1000)


def doomed():
    ask("PUT", f"/v1/templates/{DOOMED}", json={"name": DOOMED, "pool": {"pool_size": 0}})
    return DOOMED


def image():
    """One that exists."""
    tar = {**ADMIN, "Content-Type": "application/x-tar"}
    ask("POST", "/v1/images", tar, params={"name": IMAGE}, data=archive("application/x-tar"))
    return IMAGE


def plain(body):
    """A session that anybody could have, with nothing about it that is refused by other rules."""
    for field in ("id", "env", "metadata", "config", "files"):
        body.pop(field, None)


def fit(path, case, at):
    """Names a file that exists, gives exactly one program, and says what a shell understands."""
    body = case.body
    if isinstance((case.query or {}).get("path"), str):
        ask("PUT", f"{at}/files", params={"path": FILE}, data=b"hello")
        is_directory = path.endswith(("/archive", "/list", "/tree", "/find", "/search", "/multipart"))
        case.query["path"] = DIRECTORY if is_directory else FILE
    if path.endswith("/archive") and isinstance(body, bytes):
        case.body = archive(case.media_type)
    if path.endswith("/move") and isinstance(body, dict) and isinstance(body.get("from"), str):
        ask("PUT", f"{at}/files", params={"path": FILE}, data=b"hello")
        body.update({"from": FILE, "to": FILE + "b", "overwrite": True})
    if path.endswith("/directory") and isinstance(body, dict) and isinstance(body.get("path"), str):
        body["path"] = DIRECTORY + "/made"
    if path.endswith("/turns") and isinstance(body, dict) and isinstance(body.get("input"), (str, dict)):
        body["input"] = "echo hi"
        body.pop("id", None)
    if path == "/v1/sessions/{id}" and isinstance(body, dict):
        for field in ("metadata", "config"):
            if isinstance(body.get(field), dict):
                body[field] = {}
    if path.endswith("/link") and isinstance(body, dict) and isinstance(body.get("path"), str):
        body.update({"path": f"{DIRECTORY}/link-{uuid.uuid4()}", "target": FILE})
    if path.endswith("/search") and isinstance((case.query or {}).get("text"), str):
        case.query["text"] = "hello"
    if path.endswith("/files") and case.method == "PATCH" and isinstance(body, dict):
        case.body = {"mode": "0644"}
    if path.endswith("/ports") and case.query:
        case.query.pop("wait_for", None)
    if path.endswith("/signal") and isinstance(body, dict) and isinstance(body.get("signal"), str):
        body["signal"] = "SIGWINCH"
    if path.endswith("/processes") and case.method == "POST" and isinstance(body, dict):
        case.body = {"command": "true", "wait": bool(body.get("wait"))}
    if path.endswith("/exec") and isinstance(body, dict):
        if isinstance(body.get("command"), str) and isinstance(body.get("argv"), (list, type(None))):
            body.pop("argv", None)


@schemathesis.hook
def after_call(context, case, response):
    answers[case.operation.label, response.status_code] += 1


@schemathesis.check
def documented_code(context, response, case):
    """A refusal has a code that the document names here, and none is a mistake of the server."""
    documented = case.operation.definition.raw["responses"].get(str(response.status_code))
    if response.status_code < 400 or documented is None:
        return
    code = response.json()["code"]
    assert f"`{code}`" in documented["description"], f"{code} is not documented here"
    if response.status_code >= 500:
        assert code in UNLUCKY, f"{code} is no answer of a server in good health"


@atexit.register
def tell():
    with open(os.environ["SHOAL_ANSWERS"], "w", encoding="utf-8") as file:
        for (label, status), count in sorted(answers.items()):
            print(json.dumps({"route": label, "status": status, "count": count}), file=file)
