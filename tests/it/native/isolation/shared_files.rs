//! Files that all sandboxes have in common, and the files call: neither tells of others, is a way
//! to block them, or a way around what programs may reach.

use anyhow::{Result, ensure};
use runtime::Users;

use crate::native::node::{Node, on_node};

#[test]
fn files_call_is_no_way_around_the_sandbox() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let made = node
                .sh(
                    &sandbox,
                    "ln -s /proc/1/mem mem; ln -s / root; ln -s /etc/passwd passwd; mkfifo fifo",
                )
                .await?;
            ensure!(made.exit.success(), "{made:?}");
            for path in [
                "/proc/1/mem",
                "/proc/self/mem",
                "mem",
                "/proc/self/environ",
                "root/proc/1/maps",
                "/proc/1/root/etc/passwd",
                "fifo",
                "/dev/zero",
                "/dev/tty",
            ] {
                let read = sandbox.inside().read_all(path, 1 << 20).await;
                ensure!(read.is_err(), "{path} was read");
            }
            for path in [
                "/proc/1/mem",
                "/proc/self/oom_score_adj",
                "mem",
                "passwd",
                "/etc/passwd",
                "/usr/bin/sh",
                "/x",
                "fifo",
            ] {
                let written = sandbox.inside().write_all(path, b"x", None).await;
                if path == "mem" || path == "passwd" {
                    // It takes the place of the link, in a directory of the user's own.
                    continue;
                }
                ensure!(written.is_err(), "{path} was written");
            }
            ensure!(!sandbox.inside().read_all("/etc/passwd", 1 << 20).await?.starts_with(b"x"));
            sandbox.inside().ping().await?;
            Ok(())
        },
    )
}

/// Watches a directory of programs and files that all sandboxes have, and says what it saw.
const WATCH: &str = r#"
import ctypes, os, struct, time
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(os.O_NONBLOCK)
for path in (b"/usr/bin", b"/etc", b"/dev", b"/usr/bin/env"):
    assert libc.inotify_add_watch(watch, path, 0x20 | 0x1 | 0x10) >= 0
open("/workspace/watching", "w").close()
while not os.path.exists("/workspace/enough"):
    time.sleep(0.01)
os.listdir("/usr/bin")
try:
    events = os.read(watch, 65536)
except BlockingIOError:
    events = b""
names, at = set(), 0
while at < len(events):
    _, _, _, length = struct.unpack_from("iIII", events, at)
    names.add(events[at + 16:at + 16 + length].rstrip(b"\0").decode())
    at += 16 + length
print("mine" if "" in names else "blind", " ".join(sorted(name for name in names if name)))
"#;

#[test]
fn shared_files_neither_show_nor_block_other_sandboxes() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let (watcher, other) = (node.sandbox().await?, node.sandbox().await?);
            let watching = node.python(&watcher, WATCH, &[]);
            let doing = async {
                while watcher.inside().stat("/workspace/watching").await.is_err() {
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
                node.sh(&other, "whoami; env; cat /etc/passwd /dev/null").await?;
                // The host does the same with its own.
                std::process::Command::new("/usr/bin/env").arg("true").status()?;
                watcher.inside().write_all("/workspace/enough", b"", None).await?;
                anyhow::Ok(())
            };
            let (said, ()) = tokio::try_join!(watching, doing)?;
            ensure!(said.trim() == "mine", "seen of others: {said}");

            let lock = "flock -n /usr/bin/env sleep 30 & flock -n /dev/null sleep 30 & sleep 0.2; echo held";
            ensure!(node.sh(&watcher, lock).await?.stdout == b"held\n");
            let free =
                "for f in /usr/bin/env /dev/null; do flock -n $f true && echo free $f; done; true";
            ensure!(node.sh(&watcher, free).await?.stdout.is_empty(), "the lock is not held");
            let expected = match node.users() {
                Users::Ranges => "free /usr/bin/env\nfree /dev/null\n",
                // An ordinary user cannot make device files and shares the host's.
                Users::Subordinate | Users::Alone => "free /usr/bin/env\n",
            };
            let found = String::from_utf8(node.sh(&other, free).await?.stdout)?;
            ensure!(found == expected, "a neighbour blocks: {found:?}");
            let on_host = std::process::Command::new("flock")
                .args(["-n", "/usr/bin/env", "true"])
                .status()?;
            ensure!(on_host.success(), "a sandbox blocks the host");
            Ok(())
        },
    )
}
