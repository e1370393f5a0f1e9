"""Waits for a server and makes a key of a role. Prints the key of its first admin and the new one."""

import json
import pathlib
import sys
import time
import urllib.error
import urllib.request

url, data_dir, role = sys.argv[1:]
deadline = time.monotonic() + 30


def ask(path, key=None, body=None):
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url + path, data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=5) as response:
        return response.read()


while True:
    try:
        ask("/health")
        break
    except (urllib.error.URLError, OSError):
        if time.monotonic() > deadline:
            sys.exit("the server did not start in 30 s")
        time.sleep(0.2)

admin = (pathlib.Path(data_dir) / "admin.key").read_text(encoding="utf-8").strip()
asked = json.dumps({"name": "schemathesis", "role": role}).encode()
print(admin, json.loads(ask("/v1/keys", admin, asked))["secret"])
