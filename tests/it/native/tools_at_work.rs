//! What people really run: package managers, compilers, version control, databases, virtual
//! machines, a browser. Each does some honest work under the filter, without a network. What is not
//! installed is said to be skipped; what scripts/test.sh does not install either is just looked
//! for.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use model::Limits;
use runtime::{ExecSpec, RunLimits, Runtime as _};

use super::isolation::show;
use super::node::{Node, needs, on_node};

/// Whether a tool must be there in CI.
#[derive(PartialEq, Eq)]
enum Wanted {
    /// scripts/test.sh sees to it.
    Always,
    /// It is large, and tried where it happens to be.
    IfInstalled,
}

struct Work {
    tool: &'static str,
    wanted: Wanted,
    line: &'static str,
    /// The last line that it prints.
    says: &'static str,
}

const fn work(tool: &'static str, line: &'static str, says: &'static str) -> Work {
    Work { tool, wanted: Wanted::Always, line, says }
}

const fn perhaps(tool: &'static str, line: &'static str, says: &'static str) -> Work {
    Work { tool, wanted: Wanted::IfInstalled, line, says }
}

/// A wheel made by hand, from which pip installs into an environment of its own.
const PIP: &str = r#"
python3 - <<'E'
import zipfile
with zipfile.ZipFile("shoalpkg-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("shoalpkg.py", "def answer(): return 42\n")
    info = "shoalpkg-1.0.dist-info/"
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: shoalpkg\nVersion: 1.0\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "RECORD", f"shoalpkg.py,,\n{info}METADATA,,\n{info}WHEEL,,\n{info}RECORD,,\n")
E
python3 -m venv --without-pip env && pip3 --python env/bin/python install -q --no-index --find-links . shoalpkg && env/bin/python -c 'import shoalpkg; print(shoalpkg.answer())'
"#;

const NPM: &str = r#"
mkdir lib app && cd lib && echo '{"name":"shoallib","version":"1.0.0","main":"i.js","scripts":{"postinstall":"echo ran > ran"}}' > package.json
echo 'module.exports = () => 42' > i.js && npm pack --silent --offline && cd ../app && echo '{"name":"app","version":"1.0.0"}' > package.json
npm install --offline --no-audit --no-fund --loglevel=error ../lib/shoallib-1.0.0.tgz >&2 && node -e 'console.log(require("shoallib")())'
"#;

const GIT: &str = r"
git init -q r && cd r && git config user.email a@b && git config user.name n && for i in 1 2 3; do echo $i > f$i && git add . && git commit -qm c$i; done
git checkout -q -b side HEAD~1 && echo s > side && git add . && git commit -qm side && git merge -q -m merged - && git gc -q && git fsck 2>&1 >&2
cd .. && git clone -q r copy && git clone -q file://$PWD/r other && git -C other log --oneline | wc -l
";

const MAKE: &str = r#"
mkdir src && for i in 1 2 3 4 5 6; do echo "int f$i(void) { return $i; }" > src/f$i.c; done
printf 'int f1(void),f2(void),f3(void),f4(void),f5(void),f6(void);\nint printf(const char*,...);\nint main(void){printf("%%d\\n",f1()+f2()+f3()+f4()+f5()+f6());return 0;}' > src/main.c
printf 'OBJ=$(patsubst src/%%.c,%%.o,$(wildcard src/*.c))\nall: prog\n%%.o: src/%%.c\n\t$(CC) -O2 -g -c $< -o $@\nprog: $(OBJ)\n\t$(CC) -flto -o $@ $^\n' > Makefile
make -s -j4 && ./prog
"#;

const CURL: &str = r"
python3 -m http.server --bind 127.0.0.1 8123 >/dev/null 2>&1 & echo served > page
for i in 1 2 3 4 5 6 7 8 9 10; do curl -sf http://127.0.0.1:8123/page && break; sleep 0.2; done; kill $!
";

/// What a program sees of its network.
const INTERFACES: &str = r#"node -p 'Object.entries(require("os").networkInterfaces()).map(([name, all]) => name + " " + all.map(one => one.address).sort()).join()'"#;

const JAVA: &str = r#"
cat > A.java <<'E'
import java.util.concurrent.*; import java.nio.file.*;
public class A { public static void main(String[] a) throws Exception {
  ExecutorService pool = Executors.newFixedThreadPool(4); int sum = 0;
  for (Future<Integer> f : pool.invokeAll(java.util.Collections.nCopies(8, (Callable<Integer>) () -> 5))) sum += f.get();
  pool.shutdown(); Files.writeString(Path.of("out"), "2"); System.gc();
  System.out.println(sum + Integer.parseInt(Files.readString(Path.of("out")))); } }
E
java -XX:ActiveProcessorCount=2 A.java
"#;

const SQLITE: &str = "sqlite3 db 'pragma journal_mode=wal; create table t(x); with recursive n(i) as (select 1 union all select i+1 from n where i<1000) insert into t select i from n; select sum(x) from t;'";

const BROWSER: &str = r#"
echo '<p id=p></p><script>document.getElementById("p").textContent = 6 * 7</script>' > page.html
chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir=/tmp/profile --dump-dom file:///workspace/page.html 2>/tmp/complaints | grep -o '>42<' || tail -n 5 /tmp/complaints
"#;

const PACKAGES: &[Work] = &[work("pip3", PIP, "42"), work("npm", NPM, "42")];

const TOOLS: &[Work] = &[
    work("git", GIT, "5"),
    work("make", MAKE, "21"),
    work(
        "perl",
        "perl -MPOSIX -MSocket -e 'pipe R, W; if (my $p = fork) { close W; print scalar <R>; waitpid $p, 0 } else { close R; print W \"child\\n\" }'",
        "child",
    ),
    work("python3", "python3 -c 'import socket; print(socket.if_nameindex())'", "[(1, 'lo')]"),
    work("node", INTERFACES, "lo 127.0.0.1,::1"),
    work("ip", "ip -o -4 addr show dev lo | grep -o '127[^ ]*'", "127.0.0.1/8"),
    work("curl", CURL, "served"),
    work("sqlite3", SQLITE, "500500"),
    work(
        "bash",
        "bash -c 'coproc cat; echo through >&${COPROC[1]}; read -r line <&${COPROC[0]}; echo $line; kill $COPROC_PID'",
        "through",
    ),
    work(
        "python3",
        "python3 -c 'import asyncio, concurrent.futures as c, sqlite3, tempfile, mmap, signal\nasync def f(): return sum(await asyncio.gather(*[asyncio.sleep(0.001, i) for i in range(10)]))\nprint(asyncio.run(f()) + sum(c.ProcessPoolExecutor(2).map(abs, [-1, -2])))'",
        "48",
    ),
    work(
        "node",
        "node -e 'const {Worker} = require(\"worker_threads\"); const h = require(\"http\"); const s = h.createServer((q, r) => r.end(\"42\")).listen(0, \"127.0.0.1\", () => h.get({port: s.address().port, host: \"127.0.0.1\"}, (r) => r.on(\"data\", (d) => new Worker(\"require(\\\"worker_threads\\\").parentPort.postMessage(1)\", {eval: true}).on(\"message\", () => { console.log(String(d)); s.close() }))))'",
        "42",
    ),
];

const MACHINES: &[Work] = &[
    perhaps("java", JAVA, "42"),
    perhaps("chromium", BROWSER, ">42<"),
    perhaps(
        "rustc",
        "echo 'fn main() { println!(\"{}\", std::thread::spawn(|| 42).join().unwrap()) }' > a.rs && rustc a.rs && ./a",
        "42",
    ),
    perhaps(
        "go",
        "printf 'package main\\nfunc main() { c := make(chan int); go func() { c <- 42 }(); println(<-c) }' > a.go && go run a.go 2>&1",
        "42",
    ),
    perhaps("ruby", "ruby -e 'puts Thread.new { 42 }.value'", "42"),
    perhaps("php", "php -r 'echo 6 * 7, \"\\n\";'", "42"),
];

/// Room for a browser and a virtual machine.
fn limits() -> Limits {
    Limits { memory_mb: 2048, cpu_milli: 2000, pids: 512, workspace_mb: 512, ..Limits::default() }
}

#[test]
fn package_managers_work() -> Result<()> {
    all_work(PACKAGES)
}

#[test]
fn version_control_compilers_interpreters_and_databases_work() -> Result<()> {
    all_work(TOOLS)
}

#[test]
fn virtual_machines_and_browsers_work() -> Result<()> {
    all_work(MACHINES)
}

fn all_work(works: &[Work]) -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            for Work { tool, wanted, line, says } in works {
                let program = format!("/usr/bin/{tool}");
                let there = match wanted {
                    Wanted::Always => needs(&program)?,
                    Wanted::IfInstalled => Path::new(&program).exists(),
                };
                if !there {
                    show(&format!("tools/{tool}: not installed"));
                    continue;
                }
                let spec = runtime::LaunchSpec { limits: limits(), ..node.spec() };
                let sandbox = node.native().launch(spec).await?;
                let run = RunLimits { output_bytes: 1 << 20, timeout: Duration::from_secs(30) };
                let ran = sandbox.inside().run(ExecSpec::shell(*line), run).await.context(*tool)?;
                let (said, complained) =
                    (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
                let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
                ensure!(last == Some(*says), "{tool} said {said:?} and {complained}");
                show(&format!("tools/{tool}: works"));
                sandbox.kill().await?;
            }
            Ok(())
        },
    )
}
