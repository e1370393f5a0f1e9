//! Resources that are not only a sandbox's own: what the kernel counts by user or for the whole
//! machine, and what a large answer costs the host. A sandbox that takes all of it is stopped at a
//! limit of its own, and neighbour and host have theirs. Processes, memory, disk and output are in
//! `limits`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use model::Limits;
use runtime::{ExecSpec, RunLimits, Runtime as _, Sandbox, Users};

use crate::native::node::{Node, on_node};

/// Little enough that a limit is reached soon.
fn limits() -> Limits {
    Limits { memory_mb: 128, pids: 64, workspace_mb: 32, ..Limits::default() }
}

/// What a greedy program takes, and how a modest one asks whether there is any left.
struct Greed {
    name: &'static str,
    /// Takes until it is refused, prints how much and why, and keeps it.
    take: &'static str,
    /// Errors with which it may be refused.
    refused: &'static [&'static str],
    /// Fails if nothing is left for others.
    modest: &'static str,
    /// What keeps neighbours apart.
    kept_by: KeptBy,
}

/// What a limit is a limit of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeptBy {
    /// The sandbox, or a process of it.
    Sandbox,
    /// A user of the host: sandboxes have users of their own only if root makes them.
    User,
    /// The memory of the sandbox, where that is limited.
    Memory,
}

/// Takes what `one` gives until that fails. `ending` is how the program goes on.
const TAKER: &str = r#"
import errno, fcntl, os, pty, select, socket, sys, tempfile, time, ctypes, resource
libc = ctypes.CDLL(None, use_errno=True)
held, at_most = [], 200000
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result
one = {ONE}
try:
    while len(held) < at_most:
        held.append(one())
    print(len(held), "NOLIMIT", flush=True)
except (OSError, MemoryError) as error:
    print(len(held), errno.errorcode.get(getattr(error, "errno", 12), "ENOMEM"), flush=True)
time.sleep(float(sys.argv[1]))
"#;

const GREEDS: &[Greed] = &[
    Greed {
        name: "inotify instances",
        take: "lambda: check(libc.inotify_init1(0))",
        refused: &["EMFILE"],
        modest: "assert libc.inotify_init1(0) >= 0",
        kept_by: KeptBy::User,
    },
    Greed {
        name: "inotify watches",
        take: "(lambda w: lambda: (open(f'/tmp/{len(held)}', 'x').close(), check(libc.inotify_add_watch(w, f'/tmp/{len(held)}'.encode(), 2))))(libc.inotify_init1(0))",
        refused: &["ENOSPC", "ENOMEM"],
        modest: "assert libc.inotify_add_watch(libc.inotify_init1(0), b'/tmp', 2) >= 0",
        kept_by: KeptBy::User,
    },
    Greed {
        name: "pages of pipes",
        take: "lambda: (lambda p: (fcntl.fcntl(p[1], 1031, 1 << 20), os.set_blocking(p[1], False), os.write(p[1], bytes(1 << 20))))(os.pipe())",
        refused: &["EPERM", "EMFILE", "ENOMEM"],
        modest: "r, w = os.pipe(); assert fcntl.fcntl(w, 1031, 1 << 20) == 1 << 20",
        kept_by: KeptBy::User,
    },
    Greed {
        name: "terminals",
        take: "lambda: os.open('/dev/ptmx', os.O_RDWR)",
        refused: &["ENOSPC", "EIO"],
        modest: "pty.openpty()",
        kept_by: KeptBy::Sandbox,
    },
    Greed {
        name: "message queues",
        take: "lambda: check(libc.mq_open(f'/q{len(held)}'.encode(), os.O_CREAT | os.O_RDWR, 0o600, None))",
        refused: &["EMFILE", "ENOSPC"],
        modest: "assert libc.mq_open(b'/mine', os.O_CREAT | os.O_RDWR, 0o600, None) >= 0",
        kept_by: KeptBy::User,
    },
    Greed {
        name: "System V semaphores",
        take: "lambda: check(libc.semget(0, 250, 0o1600))",
        refused: &["ENOSPC", "ENOMEM"],
        modest: "assert libc.semget(0, 1, 0o1600) >= 0",
        kept_by: KeptBy::Memory,
    },
    Greed {
        name: "System V shared memory",
        take: "lambda: check(libc.shmget(0, 4096, 0o1600))",
        refused: &["ENOSPC", "ENOMEM"],
        modest: "assert libc.shmget(0, 4096, 0o1600) >= 0",
        kept_by: KeptBy::Sandbox,
    },
    Greed {
        name: "locked memory",
        take: "lambda: (lambda m: check(libc.mlock(ctypes.byref(m), 1 << 20)) or m)(ctypes.create_string_buffer(1 << 20))",
        refused: &["ENOMEM", "EPERM", "EAGAIN"],
        modest: "b = ctypes.create_string_buffer(4096); assert libc.mlock(ctypes.byref(b), 4096) == 0",
        kept_by: KeptBy::Sandbox,
    },
    Greed {
        name: "timers",
        take: "lambda: check(libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())))",
        refused: &["EAGAIN", "ENOMEM"],
        modest: "assert libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0",
        kept_by: KeptBy::User,
    },
    Greed {
        name: "local sockets full of descriptors",
        take: "lambda: (lambda p: (p, p[0].setblocking(False), socket.send_fds(p[0], [b'x'], [0] * 200)))(socket.socketpair())",
        refused: &["ETOOMANYREFS", "EMFILE", "EAGAIN"],
        modest: "a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [0] * 3)",
        kept_by: KeptBy::User,
    },
    Greed {
        name: "files in memory",
        take: "lambda: (lambda f: (f, os.write(f, bytes(1 << 20))))(os.memfd_create('x'))",
        refused: &["ENOMEM", "ENOSPC", "EMFILE"],
        modest: "os.write(os.memfd_create('x'), bytes(1 << 20))",
        kept_by: KeptBy::Memory,
    },
    Greed {
        name: "event polls",
        take: "lambda: (lambda e: (e, e.register(1)))(select.epoll())",
        refused: &["EMFILE", "ENOSPC", "EPERM"],
        modest: "select.epoll()",
        kept_by: KeptBy::User,
    },
];

#[test]
fn what_the_kernel_counts_by_user_is_each_sandboxs_own() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let memory_limit = node.native().capabilities().memory_limit;
            for greed in GREEDS {
                // What only memory bounds would be the host's.
                if greed.kept_by == KeptBy::Memory && !memory_limit {
                    super::show(&format!("resources/{}: not bounded here", greed.name));
                    continue;
                }
                taken_by_one(node, greed).await.context(greed.name)?;
            }
            Ok(())
        },
    )
}

async fn taken_by_one(node: &Node, greed: &Greed) -> Result<()> {
    let greedy = node.sandbox_with(limits()).await?;
    let neighbour = node.sandbox_with(limits()).await?;
    let program = TAKER.replace("{ONE}", greed.take);
    let spec = ExecSpec::argv(["/usr/bin/python3", "-c", &program, "60"]);
    let mut process = greedy.inside().exec(spec).await?;
    let mut stdout = process.stdout.take().context("it has output")?;
    let said = first_line(&mut stdout).await?;
    super::show(&format!("resources/{}: refused {}", greed.name, said.trim()));
    match said.trim().split_once(' ') {
        Some((count, how)) => {
            ensure!(count.parse::<u64>().is_ok() && greed.refused.contains(&how), "{said}");
        }
        // It was memory that ran out first, and it was killed for that.
        None => ensure!(process.wait().await?.out_of_memory, "it said {said:?} and ended"),
    }
    let modest = format!(
        "import ctypes, fcntl, os, pty, select, socket\nlibc = ctypes.CDLL(None)\n{}",
        greed.modest
    );
    if greed.kept_by == KeptBy::User && node.users() != Users::Ranges {
        super::show(&format!("resources/{}: weaker, shared by all of this user", greed.name));
    } else {
        node.python(&neighbour, &modest, &[]).await.context("nothing is left for a neighbour")?;
        let host = std::process::Command::new("/usr/bin/python3").args(["-c", &modest]).status()?;
        ensure!(host.success(), "nothing is left for the host");
    }
    greedy.inside().ping().await?;
    greedy.kill().await?;
    Ok(())
}

/// What is said before the first line break, or before the end.
async fn first_line(reader: &mut (impl tokio::io::AsyncRead + Unpin)) -> Result<String> {
    use tokio::io::AsyncReadExt as _;
    let mut said = Vec::new();
    let reading = async {
        let mut byte = [0];
        while said.last() != Some(&b'\n') && reader.read(&mut byte).await? == 1 {
            said.push(byte[0]);
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(30), reading).await.context("it says nothing")??;
    Ok(String::from_utf8(said)?)
}

#[test]
fn threads_are_counted_as_processes_are() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox_with(limits()).await?;
            let threads = "import threading, time\nn = 0\ntry:\n  while n < 2000:\n    threading.Thread(target=time.sleep, args=(5,), daemon=True).start(); n += 1\nexcept RuntimeError: pass\nprint(n, flush=True)\nimport os; os._exit(0)\n";
            let made: u32 = node.python(&sandbox, threads, &[]).await?.trim().parse()?;
            ensure!(made < limits().pids, "{made} threads");
            sandbox.inside().ping().await?;
            Ok(())
        },
    )
}

/// Answers of the guest that a program can make large.
#[test]
fn large_answers_are_cut_or_refused_and_the_guest_goes_on() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox_with(limits()).await?;
            let make = "import os, socket\nos.mkdir('many')\nfor n in range(6000):\n  open(f'many/{n:05}' + 'n' * 240, 'x').close()\n\
                        os.symlink('t' * 4095, 'longlink')\nos.truncate(os.open('sparse', os.O_CREAT | os.O_RDWR), 1 << 45)\n\
                        deep = 'd' * 200\nfor _ in range(200): os.mkdir(deep); os.chdir(deep)\n\
                        s = []\ntry:\n  for n in range(3000):\n    a = socket.socket(); a.bind(('127.0.0.1', 0)); a.listen(); s.append(a)\nexcept OSError: pass\n\
                        print(len(s), flush=True)\nif os.fork() == 0:\n  import time; os.close(1); os.close(2); time.sleep(100)\n";
            let listening: usize = node.python(&sandbox, make, &[]).await?.trim().parse()?;
            let page = sandbox.inside().list_files("many", None, u32::MAX).await?;
            ensure!(page.more && page.entries.len() < 6000, "{} names at once", page.entries.len());
            let mut after = None;
            let mut names = 0;
            loop {
                let page = sandbox.inside().list_files("many", after.as_deref(), 1000).await?;
                names += page.entries.len();
                after = page.entries.last().map(|entry| entry.name.clone());
                if !page.more {
                    break;
                }
            }
            ensure!(names == 6000, "{names} names in all");
            let target = sandbox.inside().stat("longlink").await?.target;
            ensure!(target.is_some_and(|target| target.len() == 4095));
            ensure!(
                sandbox.inside().read_all("sparse", 1 << 20).await.is_err(),
                "32 TiB were read"
            );
            let ports = sandbox.inside().ports().await;
            ensure!(
                ports.as_ref().is_ok_and(|ports| ports.len() >= listening.min(1000)),
                "{:?}",
                ports.map(|p| p.len())
            );
            sandbox.inside().remove("d".repeat(200).as_str(), true).await?;
            sandbox.inside().ping().await?;
            Ok(())
        },
    )
}

/// Requests that are larger than a frame may be.
#[test]
fn requests_that_are_too_large_are_refused_before_they_travel() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let huge = "x".repeat(2 << 20);
            ensure!(node.run(&sandbox, ExecSpec::argv(["/bin/true", &huge])).await.is_err());
            ensure!(node.run(&sandbox, ExecSpec::shell("true").env("HUGE", &huge)).await.is_err());
            ensure!(sandbox.inside().stat(&huge).await.is_err());
            ensure!(sandbox.inside().make_link("link", &huge).await.is_err());
            ensure!(sandbox.inside().write_all(&huge, b"", None).await.is_err());
            sandbox.inside().ping().await?;
            ensure!(node.sh(&sandbox, "true").await?.exit.success());
            Ok(())
        },
    )
}

/// A file that grows faster than it is read, and one that is cut off under the reader.
#[test]
fn a_file_that_changes_while_it_is_read_ends_all_the_same() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox: Arc<dyn Sandbox> = node.sandbox_with(limits()).await?;
            let change = "import os, time\nf = os.open('grows', os.O_CREAT | os.O_RDWR)\nend = time.monotonic() + 3\nwhile time.monotonic() < end:\n  try: os.write(f, bytes(1 << 20))\n  except OSError: os.ftruncate(f, 0); os.lseek(f, 0, 0)\n";
            let spec = ExecSpec::argv(["/usr/bin/python3", "-c", change]);
            let run = RunLimits { output_bytes: 1024, timeout: Duration::from_secs(20) };
            let (changed, read) = tokio::join!(sandbox.inside().run(spec, run), async {
                for _ in 0..40 {
                    let reading = sandbox.inside().read_all("grows", 64 << 20);
                    let _ = tokio::time::timeout(Duration::from_secs(10), reading)
                        .await
                        .context("a read hangs")?;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                anyhow::Ok(())
            });
            ensure!(changed?.exit.success());
            read?;
            sandbox.inside().ping().await?;
            Ok(())
        },
    )
}
