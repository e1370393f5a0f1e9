//! A program that changes links under the hands of the files call, thousands of times: whatever the
//! host asks for meanwhile, it gets a file of the sandbox or an error, never anything of the guest,
//! of the host or of what is for reading only, and never waits.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use runtime::{ExecSpec, RunLimits, Sandbox};
use tokio::time::Instant;

use crate::native::node::{Node, on_node};

/// How often each call is made while names change their meaning, at least.
const ROUNDS: usize = 1000;

/// How often names change meanwhile, at least.
const TURNS: usize = 100;

/// On a busy machine one may be far behind the other; no longer than this.
const BUSY: Duration = Duration::from_secs(25);

/// No single call may take as long.
const CALL_PATIENCE: Duration = Duration::from_secs(10);

/// Swaps `d` (a directory, or a link to one of the places given) and `f` (a file, a link, a pipe or
/// a device's name) as fast as it can, until it is stopped.
const SWAPPER: &str = r#"
import ctypes, os, sys
places, targets = sys.argv[1].split(), sys.argv[2].split()
libc = ctypes.CDLL(None)
os.chdir("/workspace")
os.mkdir("real")
for name in ("environ", "comm", "oom_score_adj", "passwd", "canary", "mem"):
    open("real/" + name, "w").write("mine")
open("plain", "w").write("mine")
os.mkfifo("pipe")
for number, place in enumerate(places):
    os.symlink(place, f"place{number}")
for number, target in enumerate(targets):
    os.symlink(target, f"target{number}")
os.rename("real", "d")
os.rename("plain", "f")
EXCHANGE = 2
def exchange(one, other):
    libc.renameat2(-100, one.encode(), -100, other.encode(), EXCHANGE)
turn = 0
while not os.path.exists("enough"):
    turn += 1
    if turn == int(sys.argv[3]):
        open("turned", "w").close()
    place, target = f"place{turn % len(places)}", f"target{turn % len(targets)}"
    exchange("d", place)
    exchange("f", target)
    exchange("d", place)
    exchange("f", target)
    if turn % 3 == 0:
        exchange("f", "pipe")
        exchange("f", "pipe")
print(turn)
"#;

/// Makes calls while a program swaps names, and says how many got through to something.
async fn while_names_change(
    node: &Node,
    places: &str,
    targets: &str,
    calls: impl AsyncFnOnce(&Arc<dyn Sandbox>) -> Result<()>,
) -> Result<()> {
    let sandbox = node.sandbox().await?;
    let spec =
        ExecSpec::argv(["/usr/bin/python3", "-c", SWAPPER, places, targets, &TURNS.to_string()]);
    let limits = RunLimits { output_bytes: 1 << 16, timeout: Duration::from_secs(45) };
    let (swapped, called) = tokio::join!(sandbox.inside().run(spec, limits), async {
        while sandbox.inside().stat("/workspace/f").await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let called = calls(&sandbox).await;
        sandbox.inside().write_all("/workspace/enough", b"", None).await?;
        called
    });
    called?;
    let swapped = String::from_utf8(swapped?.stdout)?;
    let turns: usize = swapped.lines().last().context("the swapper says how often")?.parse()?;
    ensure!(turns >= TURNS, "names changed only {turns} times");
    sandbox.inside().ping().await?;
    Ok(())
}

/// The rounds to make: enough of them, and until names have changed often enough.
async fn another(sandbox: &Arc<dyn Sandbox>, round: usize, begun: Instant) -> bool {
    round < ROUNDS
        || (begun.elapsed() < BUSY && sandbox.inside().stat("/workspace/turned").await.is_err())
}

/// A call that is answered, however.
async fn answered<T, E>(what: &str, call: impl Future<Output = Result<T, E>>) -> Result<Option<T>> {
    let answer = tokio::time::timeout(CALL_PATIENCE, call).await;
    Ok(answer.with_context(|| format!("{what} is not answered"))?.ok())
}

#[test]
fn reading_while_links_are_swapped_gives_only_what_is_inside() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let canary = node.directory().join("canary");
            std::fs::write(&canary, "canary of the host")?;
            let directory = node.directory().to_string_lossy().into_owned();
            // The guest's own place in /proc is what a careless guest would show.
            let places = format!("/proc/self /proc/1 /proc/thread-self /etc {directory}");
            let targets = format!(
                "/proc/self/environ /proc/1/mem /proc/self/maps /dev/zero /dev/tty {}",
                canary.display()
            );
            while_names_change(node, &places, &targets, async |sandbox| {
                let (mut mine, mut round, begun) = (0, 0, Instant::now());
                while mine < 10 && begun.elapsed() < BUSY || another(sandbox, round, begun).await {
                    round += 1;
                    let name = ["environ", "comm", "mem", "canary"][round % 4];
                    for path in [format!("d/{name}"), "f".to_owned()] {
                        let read =
                            answered(&path, sandbox.inside().read_all(&path, 1 << 16)).await?;
                        ensure!(
                            read.as_ref().is_none_or(|bytes| bytes == b"mine"),
                            "{path} gave {:?}",
                            read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
                        );
                        mine += usize::from(read.is_some());
                    }
                    let listed =
                        answered("a list", sandbox.inside().list_files("d", None, 100)).await?;
                    let inside = listed.is_none_or(|page| {
                        page.entries.iter().all(|entry| entry.name != b"exe" && entry.name != b"fd")
                    });
                    ensure!(inside, "a list of /proc came out");
                }
                ensure!(mine >= 10, "only {mine} reads got anything: nothing was tested");
                Ok(())
            })
            .await
        },
    )
}

#[test]
fn writing_while_links_are_swapped_changes_only_what_is_inside() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let canary = node.directory().join("canary");
            std::fs::write(&canary, "canary of the host")?;
            let directory = node.directory().to_string_lossy().into_owned();
            let before = beside_the_canary(node)?;
            let places = format!("/proc/self /proc/1 /etc /usr/bin {directory}");
            let targets = format!("/proc/self/comm /etc/passwd {}", canary.display());
            while_names_change(node, &places, &targets, async |sandbox| {
                let guest = node.guest_of(sandbox)?;
                let proc_file =
                    |name: &str| std::fs::read_to_string(format!("/proc/{guest}/{name}"));
                let (comm, score) = (proc_file("comm")?, proc_file("oom_score_adj")?);
                let passwd = sandbox.inside().read_all("/etc/passwd", 1 << 16).await?;
                let (mut written, mut round, begun) = (0, 0, Instant::now());
                while written < 10 && begun.elapsed() < BUSY || another(sandbox, round, begun).await
                {
                    round += 1;
                    let name = ["comm", "oom_score_adj", "passwd", "canary"][round % 4];
                    for path in
                        [format!("d/{name}"), "f".to_owned(), format!("d/new{}", round % 50)]
                    {
                        let done =
                            answered(&path, sandbox.inside().write_all(&path, b"7", None)).await?;
                        written += usize::from(done.is_some());
                    }
                    answered("a directory", sandbox.inside().make_directory("d/deep/er", true))
                        .await?;
                    answered("a move", sandbox.inside().move_file("d/passwd", "d/canary", true))
                        .await?;
                    answered("a removal", sandbox.inside().remove("d/deep", true)).await?;
                }
                ensure!(written >= 10, "only {written} writes got anywhere: nothing was tested");
                ensure!(proc_file("comm")? == comm && proc_file("oom_score_adj")? == score);
                ensure!(sandbox.inside().read_all("/etc/passwd", 1 << 16).await? == passwd);
                Ok(())
            })
            .await?;
            ensure!(std::fs::read(&canary)? == b"canary of the host");
            ensure!(beside_the_canary(node)? == before, "something appeared beside the canary");
            Ok(())
        },
    )
}

/// What is in the directory of the node on the host.
fn beside_the_canary(node: &Node) -> Result<Vec<std::ffi::OsString>> {
    let mut names: Vec<_> = std::fs::read_dir(node.directory())?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}

#[test]
fn a_removal_follows_no_link_however_fast_it_is_put_there() -> Result<()> {
    // Directories within the tree become links to what is to be kept, and back.
    let swap = r#"
import ctypes, os
libc = ctypes.CDLL(None)
os.makedirs("/tmp/keep/sub", exist_ok=True)
for n in range(20):
    open(f"/tmp/keep/{n}", "w").close()
    open(f"/tmp/keep/sub/{n}", "w").close()
os.symlink("/tmp/keep", "/workspace/link")
print("ready", flush=True)
swapped = 0
while not os.path.exists("/workspace/enough"):
    swapped += libc.renameat2(-100, b"/workspace/tree/a", -100, b"/workspace/link", 2) == 0
    if swapped == 200:
        open("/workspace/swapped", "w").close()
print(swapped)
"#;
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let spec = ExecSpec::argv(["/usr/bin/python3", "-c", swap]);
            let limits = RunLimits { output_bytes: 1 << 16, timeout: Duration::from_secs(45) };
            let (swapped, removed) = tokio::join!(sandbox.inside().run(spec, limits), async {
                while sandbox.inside().stat("/workspace/link").await.is_err() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                for round in 0..100_000 {
                    if round > 300 && sandbox.inside().stat("/workspace/swapped").await.is_ok() {
                        break;
                    }
                    for n in 0..4 {
                        let path = format!("/workspace/tree/a/b{n}");
                        answered("a directory", sandbox.inside().make_directory(&path, true))
                            .await?;
                    }
                    answered("a removal", sandbox.inside().remove("/workspace/tree", true)).await?;
                }
                sandbox.inside().write_all("/workspace/enough", b"", None).await?;
                anyhow::Ok(())
            });
            removed?;
            let swapped = String::from_utf8(swapped?.stdout)?;
            let swapped: u32 = swapped.lines().last().context("it says how often")?.parse()?;
            ensure!(swapped >= 200, "swapped only {swapped} times");
            let kept = node.sh(&sandbox, "find /tmp/keep -type f | wc -l").await?;
            ensure!(kept.stdout.trim_ascii() == b"40", "removed through a link: {kept:?}");
            Ok(())
        },
    )
}
