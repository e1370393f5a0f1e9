"""Counts what was answered, and fails if a route never succeeded though its key allows it: then
nothing but refusals were looked at. A key that may only read owns nothing, so it finds nothing. With
few requests for each route, chance may leave a route or two without a success."""

import json
import os
import sys
from collections import Counter, defaultdict

role, path = sys.argv[1:]
routes = defaultdict(Counter)
with open(path, encoding="utf-8") as file:
    for line in file:
        one = json.loads(line)
        routes[one["route"]][one["status"]] += one["count"]

statuses = Counter()
for counted in routes.values():
    statuses.update(counted)
told = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
print(f"{role}: {len(routes)} routes, {statuses.total()} requests: {told}")

# Nobody makes up an archive that is one: the hooks bring images by this route themselves.
# What goes over to something else than HTTP, or has no end, is not for this kind of client.
# What is asked of a process may come when it is forgotten: others of its routes succeed.
excused = {"POST /v1/images", "GET /v1/sandboxes/{id}/processes/{process}/logs"}
beyond = ("/terminal", "/attach", "/harness", "/forward/{port}", "/ports/{port}/{path}", "/files/watch")
missed = [
    label
    for label, counted in sorted(routes.items())
    if label not in excused and not label.endswith(beyond) and 403 not in counted and not any(status < 300 for status in counted)
]
if role == "read":
    missed = []
for label in missed:
    print(f"  {label} never succeeded: {dict(sorted(routes[label].items()))}")
by_chance = 0 if int(os.environ["EXAMPLES"]) >= 20 else 2
sys.exit(0 if routes and len(missed) <= by_chance else 1)
