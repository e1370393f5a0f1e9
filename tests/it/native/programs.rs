//! Programs behave inside as they do outside: what they print, how they end, what they find.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use runtime::{ExecSpec, ExitStatus, RunLimits, Stdin, Users};

use super::node::{Node, needs, on_node};

/// Command lines with what they print and how they end.
const LINES: &[(&str, &str, i32)] = &[
    ("echo hello", "hello\n", 0),
    ("exit 0", "", 0),
    ("exit 1", "", 1),
    ("exit 42", "", 42),
    ("exit 255", "", 255),
    ("printf 'a b c' | tr ' ' '\\n' | sort -r | head -n 1", "c\n", 0),
    ("awk 'BEGIN { print 6 * 7 }'", "42\n", 0),
    ("which awk pager nawk >/dev/null; echo text | sed s/t/T/", "Text\n", 0),
    ("id -u; id -g; id -un", "1000\n1000\nagent\n", 0),
    ("pwd; echo $HOME; echo $USER", "/workspace\n/workspace\nagent\n", 0),
    ("hostname | cut -c1-6", "shoal-\n", 0),
    ("cat /proc/sys/kernel/hostname | cut -c1-6", "shoal-\n", 0),
    ("umask", "0022\n", 0),
    ("python3 -c 'import socket; print(socket.if_nameindex())'", "[(1, 'lo')]\n", 0),
    ("test -t 0 || echo no terminal", "no terminal\n", 0),
    ("echo out; echo err >&2", "out\n", 0),
    ("echo named > /dev/stdout; echo err > /dev/stderr", "named\n", 0),
    ("echo typed | cat /dev/stdin", "typed\n", 0),
    ("cat /dev/null; head -c 3 /dev/zero | wc -c; head -c 5 /dev/urandom | wc -c", "3\n5\n", 0),
    ("echo x > /dev/full", "", 1),
    ("getent hosts localhost | awk '{print $2}' | head -n 1", "localhost\n", 0),
    ("getent passwd agent | cut -d: -f6", "/workspace\n", 0),
    ("date -u -d @0 +%Y", "1970\n", 0),
    ("(sleep 0.01; echo late) & wait; echo done", "late\ndone\n", 0),
    ("mkdir -p a/b/c && touch a/b/c/f && find a -type f", "a/b/c/f\n", 0),
    ("tar cf - -C /usr/share/misc . 2>/dev/null | tar tf - >/dev/null && echo ok", "ok\n", 0),
    ("ulimit -n; ulimit -c", "4096\n0\n", 0),
    ("trap 'echo caught; exit 7' TERM; kill -TERM $$; sleep 1", "caught\n", 7),
    ("perl -e 'print join(\",\", map { $_ ** 2 } 1..4), \"\\n\"'", "1,4,9,16\n", 0),
    ("kill -0 1 2>/dev/null || echo cannot", "cannot\n", 0),
    (
        "ls /",
        "bin\ndev\netc\nhome\nlib\nlib64\nopt\nproc\nroot\nrun\nsbin\nsrv\nsys\ntmp\nusr\nvar\nworkspace\n",
        0,
    ),
];

#[test]
fn command_lines_do_what_they_do_outside() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            for (line, stdout, code) in LINES {
                // The guest is who the programs are: they may ask whether it is there.
                if node.users() == Users::Alone && line.starts_with("kill -0 1") {
                    continue;
                }
                let ran = node.sh(&sandbox, line).await.with_context(|| (*line).to_owned())?;
                let said = String::from_utf8_lossy(&ran.stdout).into_owned();
                // Some roots have directories that others do not: only ours must be there.
                if *line == "ls /" {
                    for name in stdout.lines().filter(|name| *name != "lib64") {
                        ensure!(
                            said.lines().any(|found| found == name),
                            "{name} is missing in {said}"
                        );
                    }
                    continue;
                }
                ensure!(
                    said == *stdout,
                    "{line}\nsaid {said:?}, stderr {:?}",
                    String::from_utf8_lossy(&ran.stderr)
                );
                ensure!(ran.exit.status == ExitStatus::Code(*code), "{line}: {:?}", ran.exit);
            }
            Ok(())
        },
    )
}

#[test]
fn signals_are_reported_exactly() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            for signal in [1, 2, 3, 6, 8, 9, 11, 13, 14, 15, 10, 12] {
                let ran = node.sh(&sandbox, &format!("kill -{signal} $$; sleep 5")).await?;
                ensure!(ran.exit.status == ExitStatus::Signal(signal), "{signal}: {:?}", ran.exit);
                ensure!(!ran.exit.out_of_memory, "{signal}");
            }
            Ok(())
        },
    )
}

#[test]
fn programs_that_do_not_exist_or_may_not_run_say_so() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            for (program, code) in [
                ("no-such-program", "path_not_found"),
                ("/etc/passwd", "path_denied"),
                ("/usr", "path_denied"),
            ] {
                let ran = node.run(&sandbox, ExecSpec::argv([program])).await;
                let error =
                    ran.err().and_then(|error| error.downcast::<runtime::RuntimeError>().ok());
                let found = error.as_ref().map(|error| error.code().as_str());
                ensure!(found == Some(code), "{program}: {found:?} {error:?}");
            }
            Ok(())
        },
    )
}

#[test]
fn interpreters_and_compilers_work() -> Result<()> {
    let c = "cat > a.c <<'E'\n#include <stdio.h>\n#include <math.h>\nint main(void) { printf(\"%.3f\\n\", sqrt(2.0)); return 3; }\nE\ncc -O1 a.c -o a -lm && ./a";
    let git = "git init -q r && cd r && git config user.email a@b && git config user.name n && echo x > f && git add f && git commit -qm first && git log --oneline | wc -l";
    let node_js = "node -e 'require(\"fs\").writeFileSync(\"n\", \"1\"); setTimeout(() => { console.log(process.version.length > 2, require(\"os\").userInfo().username); process.exit(5) }, 5)'";
    let python = "python3 -c 'import subprocess, threading, ssl, sqlite3, multiprocessing as m; t = threading.Thread(target=print, args=(\"thread\",)); t.start(); t.join(); print(subprocess.check_output([\"echo\", \"child\"]).decode().strip()); p = m.Pool(2); print(p.map(abs, [-1, -2])); p.close(); p.join()'";
    let cases: &[(&str, &str, &str, i32)] = &[
        ("cc", c, "1.414\n", 3),
        ("git", git, "1\n", 0),
        ("node", node_js, "true agent\n", 5),
        ("python3", python, "thread\nchild\n[1, 2]\n", 0),
        (
            "bash",
            "bash -c 'shopt -s lastpipe; a=(1 2 3); echo ${a[@]:1} $((2**10)); diff <(echo a) <(echo a) && echo same'",
            "2 3 1024\nsame\n",
            0,
        ),
    ];
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            for (tool, line, stdout, code) in cases {
                if !needs(&format!("/usr/bin/{tool}"))? {
                    continue;
                }
                let ran = node.sh(&sandbox, line).await.with_context(|| (*tool).to_owned())?;
                let said = String::from_utf8_lossy(&ran.stdout);
                ensure!(
                    said == *stdout,
                    "{tool} said {said:?}, stderr {}",
                    String::from_utf8_lossy(&ran.stderr)
                );
                ensure!(ran.exit.status == ExitStatus::Code(*code), "{tool}: {:?}", ran.exit);
            }
            Ok(())
        },
    )
}

#[test]
fn much_output_arrives_whole_and_apart() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let writer = "import os, sys\nfor i in range(256):\n  sys.stdout.buffer.write(bytes([i]) * 65536)\n  sys.stderr.buffer.write(bytes([255 - i]) * 16384)\n";
            let spec = ExecSpec::argv(["/usr/bin/python3", "-c", writer]);
            let limits = RunLimits { output_bytes: 64 << 20, timeout: Duration::from_secs(30) };
            let ran = sandbox.inside().run(spec, limits).await?;
            let expected = |bytes: usize, of: &dyn Fn(u8) -> u8| {
                (0..=255_u8)
                    .flat_map(|byte| std::iter::repeat_n(of(byte), bytes))
                    .collect::<Vec<u8>>()
            };
            ensure!(
                ran.stdout == expected(65536, &|byte| byte),
                "stdout: {} bytes",
                ran.stdout.len()
            );
            ensure!(
                ran.stderr == expected(16384, &|byte| 255 - byte),
                "stderr: {} bytes",
                ran.stderr.len()
            );
            ensure!(!ran.stdout_truncated && !ran.stderr_truncated);
            Ok(())
        },
    )
}

#[test]
fn input_goes_through_and_comes_back() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
            let spec = ExecSpec::argv(["cat"]).stdin(Stdin::Bytes(bytes.clone()));
            let limits = RunLimits { output_bytes: 8 << 20, timeout: Duration::from_secs(30) };
            let ran = sandbox.inside().run(spec, limits).await?;
            ensure!(ran.stdout == bytes, "{} of {} bytes", ran.stdout.len(), bytes.len());
            // A program that does not read its input does not hang anyone.
            let spec = ExecSpec::argv(["true"]).stdin(Stdin::Bytes(bytes));
            ensure!(sandbox.inside().run(spec, limits).await?.exit.success());
            Ok(())
        },
    )
}

#[test]
fn exec_does_not_wait_for_what_a_program_left_running() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let ran = node.sh(&sandbox, "sleep 300 & echo $!").await?;
            ensure!(ran.exit.success(), "{ran:?}");
            let pid = String::from_utf8(ran.stdout)?;
            let alive = node.sh(&sandbox, &format!("kill -0 {}", pid.trim())).await?;
            ensure!(alive.exit.success(), "it ended without a request");
            Ok(())
        },
    )
}

#[test]
fn deep_trees_are_killed_whole_and_nothing_stays_a_zombie() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let deep = "import os, time\nfor _ in range(40):\n  if os.fork(): os.wait(); os._exit(0)\n  os.setsid() if _ % 7 == 0 else None\nopen('/workspace/deep', 'w').close()\ntime.sleep(600)\n";
            let spec = ExecSpec::argv(["/usr/bin/python3", "-c", deep]);
            let mut process = sandbox.inside().exec(spec).await?;
            while sandbox.inside().stat("/workspace/deep").await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            process.handle().kill().await?;
            let exit = process.wait().await?;
            ensure!(exit.status == ExitStatus::Signal(9), "{exit:?}");
            let count =
                "ls -d /proc/[0-9]* | wc -l; grep -l 'State:.Z' /proc/[0-9]*/status | wc -l";
            let mut left = String::new();
            // What was killed has still to run to its end.
            for _ in 0..100 {
                left = String::from_utf8(node.sh(&sandbox, count).await?.stdout)?;
                let counts: Vec<u32> = left.lines().map(str::parse).collect::<Result<_, _>>()?;
                // The guest, the shell, and what the shell has just started.
                if matches!(counts[..], [all, 0] if all <= 5) {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            anyhow::bail!("{left}")
        },
    )
}

#[test]
fn a_hundred_programs_at_once_each_get_their_own() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let all = (0..100).map(|n| {
                let sandbox = &sandbox;
                async move {
                    let ran = node.sh(sandbox, &format!("echo {n}; exit {n}")).await?;
                    ensure!(ran.stdout == format!("{n}\n").into_bytes(), "{n}: {ran:?}");
                    ensure!(ran.exit.status == ExitStatus::Code(n), "{n}: {ran:?}");
                    anyhow::Ok(())
                }
            });
            for one in all_of(all).await {
                one?;
            }
            Ok(())
        },
    )
}

/// All at once, on one task.
pub(super) async fn all_of<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pinned: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|cx| {
        let mut pending = false;
        for (future, output) in &mut pinned {
            if output.is_none() {
                match future.as_mut().poll(cx) {
                    std::task::Poll::Ready(ready) => *output = Some(ready),
                    std::task::Poll::Pending => pending = true,
                }
            }
        }
        if pending { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    pinned.into_iter().filter_map(|(_, output)| output).collect()
}
