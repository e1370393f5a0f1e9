"""The network and its secrets in containers: Docker and runc.

    contained.py --shoal PATH [--long]

A server with one template for each kind of container. Their sandboxes reach what the policy names and
nothing else, as native ones do. Containers are used again, so the next user must have nothing of a policy,
a secret or a connection of the last one; nothing inside may change or replace what decides. Killed egress
processes and a killed server open nothing, and afterwards all works again.

`--long` adds crun, and gVisor's refusal. The Docker engine is that of DOCKER_HOST.
"""

import os
import shutil
import signal
import uuid

from network import API, INNER, NOWHERE, OTHER, Box, certificates, egress_processes, serve
from outside import CannotTry, Server, Test, search_disk, wait_until

CONFIG = f"""
[egress]
hosts = ["api.shoal.test={API}", "x.wild.test={API}", "other.shoal.test={OTHER}", "inner.shoal.test={INNER}"]
upstream_ca = "CA"
"""

TEMPLATE = f"""
[[templates]]
name = "KIND"
runtime = "KIND"
network = {{ allow = ["api.shoal.test", "*.wild.test:443", "inner.shoal.test", "{API}"] }}
pool = {{ pool_size = 1 }}
"""

# What a program may do to the network that decides for it. Each line is what happened.
INSIDE = r"""
import errno, socket, struct, sys, time
def said(what, act):
    try:
        print(what, act())
    except OSError as error:
        print(what, errno.errorcode.get(error.errno, error))
def bound(port, kind=socket.SOCK_STREAM, address="127.0.0.1"):
    with socket.socket(socket.AF_INET, kind) as it:
        it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        it.bind((address, port))
        return "taken"
def netlink(kind):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, kind) as it:
        # Remove the route that makes every address local.
        body = struct.pack("=8BI", 2, 0, 0, 0, 255, 3, 254, 2, 0) + struct.pack("=HHI", 8, 4, 1)
        it.send(struct.pack("=IHHII", 16 + len(body), 25, 5, 1, 0) + body)
        return errno.errorcode.get(-struct.unpack_from("=i", it.recv(4096), 16)[0], "changed")
def ping(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as it:
        it.settimeout(1)
        it.connect((address, 0))
        packet = struct.pack("!BBHHH", 8, 0, 0, 0, 1)
        it.send(packet)
        return "answered" if it.recv(100) else "nothing"
said("names", lambda: bound(53, socket.SOCK_DGRAM))
said("names of all", lambda: bound(53, socket.SOCK_DGRAM, "0.0.0.0"))
said("listener", lambda: bound(1))
said("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1) and "made")
said("packets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3) and "made")
said("tables", lambda: netlink(12))
said("routes", lambda: netlink(0))
said("ping", lambda: ping(sys.argv[1]))
"""
# Each may be refused in more than one way: the engine's filter, ours, or the kernel.
NEVER = {"taken", "made", "changed", "answered"}

# What the kernel remembers of connections, beside what it says of none.
REMEMBERED = "cat /proc/net/tcp /proc/net/udp | grep -cv local_address"


def reaches(test, kind, box, other):
    for url in ("http://api.shoal.test/", "https://api.shoal.test/", "https://x.wild.test/"):
        status = box.curl(url)
        test.check(status == "200", f"{kind}: {url} is reached without settings", f"{kind}: {url}: {status}")
    proxied = box.sh("curl -sk -m 5 -o /dev/null -w '%{http_code}' https://api.shoal.test/ || true")
    test.check(proxied == "200", f"{kind}: the proxy inside reaches it, too", f"{kind}: by the proxy: {proxied}")
    by_number = box.sh(f"curl -s -m 5 -x http://127.0.0.1:3128 --noproxy '' -o /dev/null -w '%{{http_code}}' http://{API}/ || true")
    test.check(by_number == "200", f"{kind}: an address with a rule is reached by number", f"{kind}: by number: {by_number}")
    refused = {
        "a name without a rule": "http://other.shoal.test/",
        "a name that resolves to a private address": "http://inner.shoal.test/",
        "another port": "http://api.shoal.test:8080/",
        "an address without a rule": f"http://{NOWHERE}/",
        "the metadata service": "http://169.254.169.254/",
        "the server itself": f"http://127.0.0.1:{box.server.port}/health",
    }
    for what, url in refused.items():
        status = box.curl(url)
        test.check(status in ("000", "403"), f"{kind}: {what} is refused", f"{kind}: {what}: {url} answered {status}")
    test.check(not other.seen, f"{kind}: nothing arrived where nothing may", f"{kind}: {other.seen}")
    named = box.network().json["refused_addresses"]
    test.check(f"{NOWHERE}:80" in named, f"{kind}: an address that was dialled by number is named", f"{kind}: {named}")
    resolver = box.sh("grep -v '^options' /etc/resolv.conf")
    test.check(resolver == "nameserver 127.0.0.1", f"{kind}: only the resolver inside is named", f"{kind}: {resolver}")
    own = box.sh("python3 -m http.server 8080 >/dev/null 2>&1 & for i in $(seq 100); do code=$(curl -s -m 3 -o /dev/null -w '%{http_code}' http://127.0.0.1:8080/); [ $code = 200 ] && break; sleep 0.1; done; echo $code; kill %1")
    test.check(own.startswith("200"), f"{kind}: a server inside is reached inside", f"{kind}: {own}")


def cannot_change_it(test, kind, box):
    said = box.sh(f"python3 - {NOWHERE} <<'END'\n{INSIDE}\nEND")
    words = [line.split()[-1] for line in said.splitlines()]
    test.check(len(words) == 8 and not NEVER & set(words), f"{kind}: nothing inside changes or replaces it", f"{kind}: {said}")
    test.check(box.curl("http://api.shoal.test/") == "200", f"{kind}: and it works as before")


def changes(test, kind, server):
    box = Box(server, template=kind, network={"allow": ["api.shoal.test:80", API]})
    urls = ("http://api.shoal.test/", "https://api.shoal.test/")
    now = tuple(map(box.curl, urls))
    test.check(now == ("200", "000"), f"{kind}: a claim can narrow it", f"{kind}: {now}")
    wider = Box(server, template=kind, network={"allow": ["other.shoal.test"]})
    test.check(wider.answer.code == "network_refused", f"{kind}: and not widen it", f"{kind}: {wider.answer}")
    changed = box.network({"network": {"allow": ["api.shoal.test:443", API]}})
    now = tuple(map(box.curl, urls))
    test.check(changed.ok and now[0] in ("000", "403") and now[1] == "200", f"{kind}: a change has taken effect when it is answered", f"{kind}: {changed} {now}")
    test.check(box.network({"network": "none"}).ok and box.curl(urls[1]) == "000", f"{kind}: `none` closes it")
    test.check(box.network({"network": None}).ok and box.curl(urls[0]) == "200", f"{kind}: null goes back to the template")
    box.end()


def uses_of(server, box):
    return server.call("GET", f"/v1/sandboxes/{box.id}").json["uses"]


def give_back(server, box):
    """Returns it to its pool, which wipes it. A sandbox that is deleted is never used again."""
    return server.call("DELETE", f"/v1/checkouts/{box.answer.json['lease']}")


def same_container(server, kind, name):
    """The next use of a container. While it is wiped, the pool hands out another."""
    others = []

    def found():
        box = Box(server, template=kind)
        if box.id and box.sh("hostname") == name:
            return box
        others.append(box)
        return None

    box = wait_until(20, found, 0.5)
    for other in others:
        if other.id:
            other.end()
    return box


def next_user(test, kind, server, web):
    """What one user leaves for the next: the same container, and nothing in it."""
    value = f"sk-outside-{uuid.uuid4().hex}"
    put = server.call("PUT", "/v1/secrets/model", {"value": value})
    test.check(put.ok, f"{kind}: a secret is stored", f"{put}")
    boundary = {"hosts": ["api.shoal.test"], "header": "authorization"}
    uses = [
        {"secret": "model", "env": "API_KEY", "boundary": boundary},
        {"secret": "model", "file": "model"},
    ]
    box = Box(server, template=kind, network={"allow": ["api.shoal.test", API]}, secrets=uses)
    if not test.check(box.id, f"{kind}: a claim with secrets works", f"{kind}: {box.answer}"):
        return
    inside = box.sh("printenv API_KEY")
    test.check(inside and value not in inside, f"{kind}: the sandbox has a placeholder", f"{kind}: {inside}")
    got = box.sh('curl -sS -m 10 https://api.shoal.test/blind -H "Authorization: Bearer $API_KEY"')
    sent = web.seen[-1][1].get("authorization") if web.seen else None
    test.check(sent == f"Bearer {value}", f"{kind}: the value is in the request that arrives, and curl trusts the boundary", f"{kind}: {got} {sent}")
    file = box.sh("cat /run/secrets/model; echo; stat -c %a /run/secrets/model").split()
    test.check(file == [value, "400"], f"{kind}: a secret is a file of its user", f"{kind}: {file}")
    # Left behind: a server on a port of ours, one that waits, connections, questions, refused addresses.
    box.sh("setsid python3 -c \"import socket,time; s=socket.socket(); s.bind(('0.0.0.0',3128)); s.listen(); time.sleep(999)\" >/dev/null 2>&1 & true")
    box.sh("setsid curl -sN -m 99 https://api.shoal.test/events >/dev/null 2>&1 & sleep 0.3")
    box.sh("for n in 1 2 3 4 5 6 7 8; do curl -s -m 3 -o /dev/null http://api.shoal.test/; done; getent hosts api.shoal.test")
    box.curl(f"http://{NOWHERE}/")
    was = uses_of(server, box)
    name = box.sh("hostname")
    give_back(server, box)
    after = same_container(server, kind, name)
    if not test.check(after, f"{kind}: the next user gets the same container", f"{kind}: not {name}: {server.cli('events', '--limit', '30').stdout[-3000:]}"):
        return
    test.check(uses_of(server, after) > was, f"{kind}: it was proven clean")
    report = after.network().json
    test.check(not report["refused_addresses"] and report["policy"] == report["template_policy"], f"{kind}: the next user has the policy of the template", f"{kind}: {report}")
    # One socket for connections and one for names are ours.
    left = after.sh(REMEMBERED)
    test.check(left == "2", f"{kind}: no connection of the last user is remembered", f"{kind}: {left}: " + after.sh("cat /proc/net/tcp /proc/net/udp"))
    said = after.sh("printenv API_KEY; ls -A /run/secrets | grep . && exit 3; exit 4")
    test.check(said.startswith("exit 4"), f"{kind}: and no secret", f"{kind}: {said}")
    test.check(after.curl("http://api.shoal.test/") == "200", f"{kind}: and reaches what it may")
    web.seen.clear()
    after.sh(f'curl -sk -m 10 https://api.shoal.test/blind -H "Authorization: Bearer {inside}"')
    sent = web.seen[-1][1].get("authorization") if web.seen else None
    test.check(sent == f"Bearer {inside}", f"{kind}: the placeholder of the last user is a text like any other", f"{kind}: {sent}")
    after.end()
    found = search_disk(server.data, rb"sk-outside-[0-9a-f]{32}")
    test.check(not found, f"{kind}: no file of the server has the value", f"{kind}: {found}")


def killed(test, kind, server):
    box = Box(server, template=kind)
    test.check(box.curl("http://api.shoal.test/") == "200", f"{kind}: it works before")
    for pid in egress_processes(server):
        os.kill(pid, signal.SIGKILL)
    during = box.curl("http://other.shoal.test/")
    test.check(during in ("000", "403"), f"{kind}: without an egress process nothing opens", f"{kind}: {during}")
    back = wait_until(15, lambda: box.curl("http://api.shoal.test/") == "200", 0.3)
    test.check(back, f"{kind}: with its successor the sandbox reaches what it may")
    test.check(box.curl("http://other.shoal.test/") in ("000", "403"), f"{kind}: and nothing else")
    # Killed again, and returned at once: whatever the wipe meets, the next user is well.
    for pid in egress_processes(server):
        os.kill(pid, signal.SIGKILL)
    give_back(server, box)
    after = Box(server, template=kind)
    well = wait_until(20, lambda: after.curl("http://api.shoal.test/") == "200", 0.3)
    test.check(well, f"{kind}: so does the next user, if it died before the return", f"{kind}: {after.answer}")
    after.end()


def kinds_of(test):
    if "DOCKER_HOST" not in os.environ:
        raise CannotTry("no Docker engine (DOCKER_HOST): scripts/containers.sh start DIR")
    kinds = ["docker", "runc"] + (["crun"] if test.options.long else [])
    for program in kinds[1:] + (["runsc"] if test.options.long else []):
        if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
            raise CannotTry(f"no {program}: scripts/containers.sh start DIR says how to get it")
    return kinds


def body(test):
    kinds = kinds_of(test)
    ca, tls = certificates(test)
    serve(API, 80)
    secure, other = serve(API, 443, tls), serve(OTHER, 80)
    serve(INNER, 80)
    config = CONFIG.replace('"CA"', f'"{ca}"') + "".join(TEMPLATE.replace("KIND", kind) for kind in kinds)
    env = {"DOCKER_HOST": os.environ["DOCKER_HOST"]}
    server = Server(test, "contained", config, env=env).start(patience_s=90)
    for kind in kinds:
        box = Box(server, template=kind)
        if not test.check(box.id, f"{kind}: a sandbox with a network is handed out", f"{kind}: {box.answer}"):
            continue
        reaches(test, kind, box, other)
        cannot_change_it(test, kind, box)
        box.end()
        changes(test, kind, server)
        next_user(test, kind, server, secure)
        killed(test, kind, server)
    if test.options.long:
        put = server.call("PUT", "/v1/templates/sentry", {"name": "sentry", "runtime": "runsc", "network": {"allow": ["api.shoal.test"]}})
        test.check(put.code == "unsupported" and "gVisor" in put.detail, "gVisor refuses a network, and says why", f"{put}")
    held = [Box(server, template=kind) for kind in kinds]
    server.kill()
    server.start(patience_s=90)
    for kind, box in zip(kinds, held):
        gone = server.call("GET", f"/v1/sandboxes/{box.id}")
        test.check(not gone.ok, f"{kind}: a killed server takes its sandboxes along", f"{kind}: {gone}")
        after = Box(server, template=kind)
        status = after.curl("http://api.shoal.test/") if after.id else f"{after.answer}"
        test.check(status == "200", f"{kind}: the next one makes new ones that work", f"{kind}: {status}")
        test.check(after.curl("http://other.shoal.test/") in ("000", "403"), f"{kind}: and reach nothing else")
        after.end()
    test.check(server.stop() == 0, "the server stopped in order")


if __name__ == "__main__":
    more = lambda parser: parser.add_argument("--long", action="store_true", help="crun and gVisor, too")  # noqa: E731
    Test(__doc__, deadline_s=lambda options: 760 if options.long else 380, more=more).run(body)
