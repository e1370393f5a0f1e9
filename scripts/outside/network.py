"""What sandboxes may reach, and secrets that they never see.

    network.py --shoal PATH

Servers of the test listen on loopback addresses of their own and have names that only the configuration
knows. Sandboxes reach what their policy names and nothing else, without any setting: by name, by number,
through the proxy. A claim never gets more than its template allows. A secret for the boundary is in the
request that arrives and nowhere in the sandbox or on the server's disk. A killed egress process closes
everything, and what comes after it works again.
"""

import contextlib
import http.server
import json
import os
import pathlib
import shutil
import signal
import ssl
import threading
import time
import uuid

from outside import CannotTry, Server, Test, run, search_disk, wait_until

# Addresses of loopback that nothing else uses.
API, OTHER, INNER = "127.77.0.1", "127.77.0.2", "127.77.0.3"
# An address that no rule has. Nothing is ever sent to it: the kernel refuses to.
NOWHERE = "10.77.0.9"
VALUE = rb"sk-outside-[0-9a-f]{32}"

CONFIG = f"""
[egress]
hosts = ["api.shoal.test={API}", "x.wild.test={API}", "other.shoal.test={OTHER}", "inner.shoal.test={INNER}"]
upstream_ca = "CA"
[[templates]]
name = "default"
[[templates]]
name = "net"
network = {{ allow = ["api.shoal.test", "api.shoal.test:8443/tls", "*.wild.test:443", "inner.shoal.test", "{API}"] }}
[templates.pool]
pool_size = 1
"""


class Web(http.server.BaseHTTPRequestHandler):
    """Says what arrived."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        if self.path.startswith("/events"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number in range(3):
                data = f"data: {number}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
                time.sleep(0.2)
            self.wfile.write(b"0\r\n\r\n")
            return
        body = json.dumps({"path": self.path, "authorization": self.headers.get("Authorization")}).encode()
        if self.path == "/blind":
            body = b'{"arrived": true}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        if self.path == "/echo":
            self.send_header("X-Echo", self.headers.get("Authorization", ""))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def serve(address, port, tls=None):
    try:
        server = http.server.ThreadingHTTPServer((address, port), Web)
    except OSError as error:
        raise CannotTry(f"no server on {address}:{port}: {error}") from error
    server.daemon_threads, server.seen = True, []
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def certificates(test):
    """An authority of the test, and a certificate for the names."""
    if not shutil.which("openssl"):
        raise CannotTry("no openssl to make certificates (Debian: openssl)")
    ca, key, cert = test.work / "ca.pem", test.work / "key.pem", test.work / "cert.pem"
    names = "subjectAltName=DNS:api.shoal.test,DNS:*.wild.test,DNS:other.shoal.test"
    steps = [
        ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", test.work / "ca.key", "-out", ca,
         "-subj", "/CN=Test", "-days", "2", "-addext", "basicConstraints=critical,CA:TRUE"],
        ["req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", test.work / "csr.pem", "-subj", "/CN=api"],
        ["x509", "-req", "-in", test.work / "csr.pem", "-CA", ca, "-CAkey", test.work / "ca.key", "-CAcreateserial",
         "-out", cert, "-days", "2", "-extfile", test.work / "names"],
    ]
    (test.work / "names").write_text(names)
    for step in steps:
        made = run(["openssl", *step])
        if made.returncode:
            raise CannotTry(f"openssl {step[0]}: {made.stderr}")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    return ca, tls


class Box:
    """A sandbox under a lease."""

    def __init__(self, server, **request):
        self.server = server
        self.answer = server.call("POST", "/v1/sandboxes", {"template": "net", **request})
        self.id = self.answer.json.get("id") if self.answer.ok else None

    def sh(self, line, timeout_ms=20_000, **options):
        body = {"command": line, "timeout_ms": timeout_ms}
        answer = self.server.call("POST", f"/v1/sandboxes/{self.id}/exec", body, patience_s=40, **options)
        if not answer.ok:
            return f"{answer}"
        return answer.json["stdout"].strip() or f"exit {answer.json['exit_code']}: {answer.json['stderr'].strip()}"

    def curl(self, url, *more):
        """The status, or `000`; without the proxy, so that the transparent way is tried."""
        return self.sh(f"curl -sk -m 5 --noproxy '*' -o /dev/null -w '%{{http_code}}' {' '.join(more)} {url} || true")

    def network(self, body=None):
        if body is None:
            return self.server.call("GET", f"/v1/sandboxes/{self.id}/network")
        return self.server.call("PATCH", f"/v1/sandboxes/{self.id}/network", body)

    def end(self):
        return self.server.call("DELETE", f"/v1/sandboxes/{self.id}")


def reach(test, box, web, other):
    for url in ("http://api.shoal.test/", "https://api.shoal.test/", "https://x.wild.test/"):
        test.check(box.curl(url) == "200", f"{url} is reached without settings", f"{url}: {box.curl(url)}")
    proxied = box.sh("curl -sk -m 5 -o /dev/null -w '%{http_code}' https://api.shoal.test/ || true")
    test.check(proxied == "200", "the proxy inside reaches it, too", proxied)
    began = time.monotonic()
    refused = {
        "a name without a rule": "http://other.shoal.test/",
        "a name that resolves to a private address": "http://inner.shoal.test/",
        "the domain of a wildcard itself": "https://wild.test/",
        "a look-alike": "https://evilwild.test/",
        "another port": "http://api.shoal.test:8080/",
        "an address without a rule": f"http://{NOWHERE}/",
        "the metadata service": "http://169.254.169.254/",
        "the server itself": f"http://127.0.0.1:{box.server.port}/health",
    }
    for what, url in refused.items():
        status = box.curl(url)
        test.check(status in ("000", "403"), f"{what} is refused", f"{what}: {url} answered {status}")
    test.check(time.monotonic() - began < 30, "refusals do not wait for a timeout")
    test.check(box.curl("http://api.shoal.test/", "-H 'Host: other.shoal.test'") == "403", "another Host is refused on port 80")
    sni = box.curl("https://other.shoal.test/", "--connect-to other.shoal.test:443:api.shoal.test:443")
    test.check(sni == "000", "another name in TLS is refused on port 443", sni)
    test.check(not other.seen and web, "nothing arrived where nothing may", f"{other.seen}")
    udp = box.sh("python3 -c \"import socket; s=socket.socket(2,2); s.settimeout(2); s.sendto(b'x',('8.8.8.8',53)); print(s.recv(9))\" 2>&1 | tail -1")
    test.check("rror" in udp, "UDP is refused", udp)
    own = box.sh("python3 -m http.server 8080 >/dev/null 2>&1 & for i in $(seq 100); do code=$(curl -s -m 3 -o /dev/null -w '%{http_code}' http://127.0.0.1:8080/); [ $code = 200 ] && break; sleep 0.1; done; echo $code; kill %1")
    test.check(own.startswith("200"), "a server inside is reached inside", own)


def explained(test, server, box, key):
    network = box.network().json
    test.check(f"{NOWHERE}:80" in network["refused_addresses"], "an address that was dialled by number is named", f"{network['refused_addresses']}")
    why = server.call("GET", f"/v1/sandboxes/{box.id}/why").json
    named = {entry.get("name") for entry in why.get("network_refused", [])}
    test.check("other.shoal.test" in named, "`why` names what was refused", f"{why}")
    dialled = {(entry.get("address"), entry.get("port")) for entry in why.get("network_refused", [])}
    test.check((NOWHERE, 80) in dialled, "`why` has an address that was dialled by number", f"{why}")
    log = server.call("GET", f"/v1/network/log?sandbox={box.id}&limit=1000").json["entries"]
    closed = [entry for entry in log if entry["kind"] == "closed" and entry.get("name") == "api.shoal.test"]
    test.check(closed and closed[0]["received_bytes"] > 0, "the log has connections with their bytes")
    theirs = server.call("GET", "/v1/network/log?limit=1000", key=key).json["entries"]
    test.check(not theirs, "another key sees nothing of it", f"{theirs[:2]}")
    said = server.cli("network", "log", box.id, "--refused")
    test.check("other.shoal.test" in said.stdout, "`shoal network log` has it", f"{said}")
    said = server.cli("network", "log", str(uuid.uuid4()))
    test.check(said.returncode == 1 and "session_unknown" in said.stderr, "an id that does not exist has no empty log", f"{said}")
    for flags in (["--no-network"], ["--allow", "api.shoal.test"], ["--secret", "model"], ["--ttl", "1h"], ["-l", "a=b"]):
        said = server.cli("exec", box.id, *flags, "--", "true")
        test.check(said.returncode == 125 and flags[0].strip("-")[0] in said.stderr, f"exec refuses {flags[0]} for a sandbox that exists", f"{said}")
    for path in ("/run", "/run/shoal", "/etc/ssl"):
        packed = server.call("GET", f"/v1/sandboxes/{box.id}/archive?path={path}")
        test.check(packed.ok and len(packed.body) % 512 == 0 and packed.body[-1024:] == bytes(1024), f"an archive of {path} is whole", f"{packed.status}")


def changes(test, server):
    wider = Box(server, network={"allow": ["other.shoal.test"]})
    test.check(wider.answer.code == "network_refused", "a claim cannot widen its template", f"{wider.answer}")
    open_ = Box(server, template="default", network="open")
    test.check(open_.answer.code == "network_refused", "nor open one without a network", f"{open_.answer}")
    box = Box(server, network={"allow": ["api.shoal.test:80", API]})
    test.check((box.curl("http://api.shoal.test/"), box.curl("https://api.shoal.test/")) == ("200", "000"), "a claim can narrow it")
    changed = box.network({"network": {"allow": ["api.shoal.test:443", API]}})
    now = (box.curl("http://api.shoal.test/"), box.curl("https://api.shoal.test/"))
    test.check(changed.ok and now[0] in ("000", "403") and now[1] == "200", "a change has taken effect when it is answered", f"{changed} {now}")
    test.check(box.network({"network": "none"}).ok and box.curl("https://api.shoal.test/") == "000", "`none` closes it")
    test.check(box.network({"network": None}).ok and box.curl("http://api.shoal.test/") == "200", "null goes back to the template")
    refused = box.network({"network": {"allow": ["other.shoal.test"]}})
    test.check(refused.code == "network_refused", "a change cannot widen it", f"{refused}")
    bad = box.network({"network": {"allow": ["10.0.0.1/8"]}})
    test.check(400 <= bad.status < 500, "a rule that means nothing is refused", f"{bad}")
    box.end()
    again = Box(server)
    test.check(again.network().json["policy"] == again.network().json["template_policy"], "the next user has the policy of the template")
    again.curl(f"http://{NOWHERE}:81/")
    again.end()

    def known():
        entries = server.call("GET", f"/v1/network/log?sandbox={again.id}&limit=1000").json["entries"]
        return any((entry.get("address"), entry["port"]) == (NOWHERE, 81) for entry in entries)

    test.check(wait_until(20, known), "an address that was dialled by number is in the log after the sandbox has ended")
    plain = Box(server, template="default")
    test.check(plain.curl("http://api.shoal.test/") == "000", "without a network nothing is reached")
    plain.end()


def secrets(test, server, web):
    value = f"sk-outside-{uuid.uuid4().hex}"
    put = server.call("PUT", "/v1/secrets/model", {"value": value})
    test.check(put.ok, "a secret is stored", f"{put}")
    missing = Box(server, secrets=[{"secret": "nothing", "env": "X"}])
    test.check(missing.answer.code == "secret_missing", "a secret that is missing fails the claim by name", f"{missing.answer}")
    boundary = {"hosts": ["api.shoal.test"], "header": "authorization"}
    box = Box(server, secrets=[{"secret": "model", "env": "API_KEY", "boundary": boundary}])
    if not test.check(box.id, "a claim with a boundary secret works", f"{box.answer}"):
        return
    inside = box.sh("printenv API_KEY")
    test.check(inside and value not in inside, "the sandbox has a placeholder", inside)
    web.seen.clear()
    got = box.sh('curl -sS -m 10 https://api.shoal.test/blind -H "Authorization: Bearer $API_KEY"')
    sent = web.seen[-1][1].get("authorization") if web.seen else None
    test.check(sent == f"Bearer {value}", "the value is in the request that arrives, and curl trusts the boundary", f"{got} {sent}")
    python = "import os,urllib.request as u; print(u.urlopen(u.Request('https://api.shoal.test/blind', headers={'Authorization': 'Bearer '+os.environ['API_KEY']})).status)"
    test.check(box.sh(f'python3 -c "{python}"') == "200" and web.seen[-1][1].get("authorization") == f"Bearer {value}", "Python trusts it, too", box.sh(f'python3 -c "{python}"'))
    if shutil.which("node"):
        node = "fetch('https://api.shoal.test/blind', {headers: {Authorization: 'Bearer ' + process.env.API_KEY}}).then(r => console.log(r.status), e => console.log(e.cause))"
        said = box.sh(f'node -e "{node}"')
        test.check(said == "200", "Node trusts it, too", said)
    box.sh('curl -sk -m 10 https://x.wild.test/blind -H "Authorization: Bearer $API_KEY"')
    test.check(web.seen[-1][1].get("authorization") == f"Bearer {inside}", "another host gets the placeholder")
    box.sh('curl -sS -m 10 "https://api.shoal.test/blind?key=$API_KEY"')
    test.check(value not in web.seen[-1][0], "only the named header is replaced")
    guessing = Box(server, secrets=[{"secret": "model", "env": "API_KEY", "boundary": boundary}])
    web.seen.clear()
    guessing.sh(f'curl -sS -m 10 https://api.shoal.test/blind -H "Authorization: Bearer {inside}"')
    test.check(web.seen and web.seen[-1][1].get("authorization") == f"Bearer {inside}", "the placeholder of another sandbox stays one", f"{web.seen}")
    guessing.end()
    server.call("PUT", "/v1/secrets/lines", {"value": f"{value}\nX-Evil: y"})
    lines = Box(server, secrets=[{"secret": "lines", "env": "X", "boundary": boundary}])
    test.check(lines.answer.code == "invalid_argument", "a value with a line break cannot be in a header", f"{lines.answer}")
    server.call("DELETE", "/v1/secrets/lines")
    gone = Box(server, secrets=[{"secret": "lines", "env": "X"}])
    test.check(gone.answer.code == "secret_missing", "a secret that was removed is missing", f"{gone.answer}")
    echoed = box.sh('curl -sS -m 10 -D - -o /dev/null https://api.shoal.test/echo -H "Authorization: Bearer $API_KEY"')
    test.check("x-echo" in echoed.lower() and value not in echoed, "a header of the answer that repeats it does not show it", echoed)
    began = time.monotonic()
    first = box.sh("curl -sN -m 10 https://api.shoal.test/events | (read -r line; date +%s.%N; cat >/dev/null; date +%s.%N)").split()
    test.check(len(first) == 2 and float(first[1]) - float(first[0]) > 0.15, "events arrive one by one", f"{first} {time.monotonic() - began}")
    look = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; grep -rs sk-outside / --include=* -l --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr; true"
    test.check(value not in box.sh(look, timeout_ms=60_000), "the value is nowhere in the sandbox")
    box.end()
    plain = Box(server, secrets=[{"secret": "model", "env": "A", "file": "model"}])
    said = plain.sh("printenv A; cat /run/secrets/model; echo; stat -c %a /run/secrets/model")
    test.check(said.split() == [value, value, "400"], "a secret is a variable and a file of its user", said)
    plain.end()
    own = f"sk-outside-{uuid.uuid4().hex}"
    claimed = Box(server, secrets=[{"secret": "model", "env": "A"}], secret_values={"model": own})
    test.check(claimed.sh("printenv A") == own, "a value of the claim comes first")
    claimed.end()
    after = Box(server)
    test.check("exit" in after.sh("printenv A API_KEY; ls /run/secrets | grep . && exit 3; exit 4"), "the next user has none of them")
    after.end()
    found = search_disk(server.data, VALUE)
    test.check(not found, "no file of the server has a value", f"{found}")


def egress_processes(server):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"egress-process" in (entry / "cmdline").read_bytes():
                parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
                if int(parent) == server.process.pid:
                    found.append(int(entry.name))
        except OSError:
            continue
    return found


def killed(test, server):
    box = Box(server)
    test.check(box.curl("http://api.shoal.test/") == "200", "it works before")
    pids = egress_processes(server)
    test.check(pids, "the server has an egress process")
    for pid in pids:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        caps = [line for line in status.splitlines() if line.startswith(("CapEff", "CapPrm"))]
        test.check(all(line.split()[1].strip("0") == "" for line in caps) and "NoNewPrivs:\t1" in status, "it has no capabilities", f"{caps}")
        os.kill(pid, signal.SIGKILL)
    during = box.curl("http://other.shoal.test/")
    test.check(during in ("000", "403"), "without it nothing opens", during)
    back = wait_until(15, lambda: box.curl("http://api.shoal.test/") == "200", 0.3)
    test.check(back, "with its successor the sandbox reaches what it may")
    test.check(box.curl("http://other.shoal.test/") in ("000", "403"), "and nothing else")
    box.end()


def hung(test, server):
    """A process that does not answer: what it was asked holds before it serves anything else."""
    pids = egress_processes(server)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    box = None
    try:
        box = Box(server, network={"allow": ["api.shoal.test:80", API]})
        test.check(box.id, "a narrower claim does not wait for the egress process", f"{box.answer}")
        during = box.curl("https://api.shoal.test/", "-m 1")
        test.check(during == "000", "nothing opens meanwhile", during)
        if test.options.long:
            asked = box.network({"network": {"allow": ["api.shoal.test:80"]}})
            test.check(asked.code == "egress_unavailable", "a change that is not attached is refused", f"{asked}")
            health = server.call("GET", "/health").json
            test.check(health["status"] == "degraded" and "egress" in f"{health}", "the node is degraded", f"{health}")
            test.check(box.network().json["attached"] is False, "the policy is shown as not attached")
            why = server.call("GET", f"/v1/sandboxes/{box.id}/why").json
            test.check(why.get("network_detached") is True, "`why` says so", f"{why}")
    finally:
        for pid in pids:
            # That of a key without sandboxes was ended meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    if test.options.long:
        test.check(wait_until(90, lambda: server.call("GET", "/health").json["status"] == "ok", 1), "the node recovers")
        test.check(box.network({"network": {"allow": ["api.shoal.test:80", API]}}).ok, "the next change is attached")
    now = wait_until(15, lambda: box.curl("http://api.shoal.test/") == "200", 0.3)
    test.check(now and box.curl("https://api.shoal.test/") == "000", "then the narrower policy holds", f"{now}")
    box.end()


def sessions(test, server):
    made = server.call("POST", "/v1/sessions", {"template": "net", "network": {"allow": ["api.shoal.test:80", API]}})
    test.check(made.ok, "a session has a policy", f"{made}")
    path = f"/v1/sessions/{made.json['id']}"
    curl = "curl -sk -m 5 --noproxy '*' -o /dev/null -w '%{http_code}' "

    def sh(url):
        answer = server.call("POST", f"{path}/exec", {"command": f"{curl}{url} || true"}, patience_s=40)
        return answer.json["stdout"] if answer.ok else f"{answer}"

    expected = ("200", "000")
    urls = ("http://api.shoal.test/", "https://api.shoal.test/")
    test.check(tuple(map(sh, urls)) == expected, "it holds in its sandbox")
    server.call("POST", f"{path}/pause", {})
    test.check(tuple(map(sh, urls)) == expected, "it holds in the next one")
    server.kill()
    server.start()
    test.check(tuple(map(sh, urls)) == expected, "it holds after a crash of the server", f"{tuple(map(sh, urls))}")
    changed = server.call("PATCH", f"{path}/network", {"network": "none"})
    test.check(changed.ok and sh(urls[0]) == "000", "it can be changed", f"{changed}")


def body(test):
    if os.geteuid() != 0:
        raise CannotTry("ports 80 and 443 of loopback need root")
    ca, tls = certificates(test)
    plain, secure, other = serve(API, 80), serve(API, 443, tls), serve(OTHER, 80)
    serve(INNER, 80)
    server = Server(test, "network", CONFIG.replace('"CA"', f'"{ca}"')).start()
    key = server.call("POST", "/v1/keys", {"name": "second", "role": "use"}).json["secret"]
    box = Box(server)
    if test.check(box.id, "a sandbox with a network is handed out", f"{box.answer}"):
        reach(test, box, plain, other)
        explained(test, server, box, key)
        box.end()
        changes(test, server)
        secrets(test, server, secure)
        killed(test, server)
        hung(test, server)
        sessions(test, server)
    test.check(server.stop() == 0, "the server stopped in order")


if __name__ == "__main__":
    more = lambda parser: parser.add_argument("--long", action="store_true", help="with an egress process that hangs for long")
    Test(__doc__, deadline_s=lambda options: 390 if options.long else 240, more=more).run(body)
