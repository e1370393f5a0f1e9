//! Attacks on the moment in which something of the host enters: to start a program, to copy a file.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use model::ClaimSettings;
use runtime::{ExecSpec, RunLimits};
use tokio::time::Instant;

use crate::native::node::{Node, needs, on_node};

/// Tries to open the program of every process for writing, over and over, and says what it could
/// open or read of processes that it should not see into.
const SCANNER: &str = r#"
import os
found, looks = set(), 0
usual = ("/usr/", "/etc/", "/workspace", "/tmp", "/dev/null", "/dev/pts", "pipe:[", "/proc/")
open("/workspace/scanning", "w").close()
while not os.path.exists("/workspace/enough"):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        looks += 1
        if looks == 200:
            open("/workspace/looked", "w").close()
        try:
            descriptor = os.open(f"/proc/{pid}/exe", os.O_RDWR)
            found.add("opened for writing: " + os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            pass
        for name in ["exe", "cwd", "root"] + [f"fd/{n}" for n in range(12)]:
            try:
                target = os.readlink(f"/proc/{pid}/{name}")
                if not target.startswith(usual) and target != "/":
                    found.add(f"{name} -> {target}")
            except OSError:
                pass
        for name in ("environ", "maps"):
            try:
                text = open(f"/proc/{pid}/{name}", "rb").read()
                if b"memfd:" in text or b"shoal-guest" in text:
                    found.add(f"{name} of the guest")
            except OSError:
                pass
print(looks)
print("\n".join(sorted(found)))
"#;

/// Runs programs while another one looks at everything that appears.
async fn scanned(node: &Node, programs: &[ExecSpec]) -> Result<Vec<String>> {
    let sandbox = node.sandbox().await?;
    let script = "#!/proc/self/exe\n";
    sandbox.inside().write_all("evil", script.as_bytes(), Some(0o755)).await?;
    let spec = ExecSpec::argv(["/usr/bin/python3", "-c", SCANNER]);
    let limits = RunLimits { output_bytes: 1 << 20, timeout: Duration::from_secs(40) };
    let (scan, ran) = tokio::join!(sandbox.inside().run(spec, limits), async {
        while sandbox.inside().stat("/workspace/scanning").await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let begun = Instant::now();
        for round in 0..10_000 {
            // On a busy machine the one who looks may be far behind.
            let enough = round >= 60 && sandbox.inside().stat("/workspace/looked").await.is_ok();
            if enough || begun.elapsed() > Duration::from_secs(25) {
                break;
            }
            for program in programs {
                // Whether it can be started does not matter; what is seen meanwhile does.
                let _ = node.run(&sandbox, program.clone()).await;
            }
        }
        sandbox.inside().write_all("enough", b"", None).await?;
        anyhow::Ok(())
    });
    ran?;
    let scan = String::from_utf8(scan?.stdout)?;
    let mut lines = scan.lines().map(str::to_owned);
    let looks: u32 = lines.next().context("it says how often it looked")?.parse()?;
    ensure!(looks >= 200, "looked only {looks} times");
    sandbox.inside().ping().await?;
    Ok(lines.filter(|line| !line.is_empty()).collect())
}

/// The program of the runtime that started others inside was opened through `/proc/self/exe`, and
/// overwritten on the host.
#[test]
fn cve_2019_5736_the_guests_program_cannot_be_overwritten() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let programs = [
                // The file to start names what starts it as its interpreter.
                ExecSpec::argv(["/workspace/evil"]),
                ExecSpec::argv(["/proc/self/exe"]),
                ExecSpec::argv(["/proc/self/exe", "noop"]),
                ExecSpec::shell("exec /proc/self/exe -c true"),
            ];
            let found = scanned(node, &programs).await?;
            let opened: Vec<_> = found.iter().filter(|line| line.contains("writing")).collect();
            ensure!(opened.is_empty(), "{opened:?}");
            for pid in [node.launcher(), node.guest_of(&node.sandbox().await?)?] {
                let program = std::fs::read(format!("/proc/{pid}/exe"))?;
                ensure!(program == guest_image::bytes()?, "the program was changed");
            }
            Ok(())
        },
    )
}

/// Programs of the container traced the process that entered it, before it had given up the host's
/// files and privileges.
#[test]
fn cve_2016_9962_what_enters_cannot_be_looked_into() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let programs = [ExecSpec::argv(["/usr/bin/true"]), ExecSpec::shell("echo $$")];
            let found = scanned(node, &programs).await?;
            ensure!(found.is_empty(), "seen of what enters: {found:?}");
            Ok(())
        },
    )
}

/// A descriptor of the host's directories was left open; a working directory of
/// `/proc/self/fd/N` then was the host's.
#[test]
fn cve_2024_21626_no_working_directory_is_outside() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let canary = node.directory().join("canary");
            std::fs::write(&canary, "canary of the host")?;
            let sandbox = node.sandbox().await?;
            let mut directories: Vec<String> =
                (0..64).map(|number| format!("/proc/self/fd/{number}")).collect();
            directories.extend((0..8).map(|number| format!("/proc/self/fd/{number}/../../..")));
            directories.extend(
                [
                    "/proc/self/cwd",
                    "/proc/self/root",
                    "/proc/1/cwd",
                    "/proc/1/root",
                    "/proc/self/ns",
                ]
                .map(str::to_owned),
            );
            sandbox.inside().make_link("/workspace/link", "/proc/self/fd/8").await?;
            directories.push("/workspace/link".to_owned());
            let look = format!(
                "import os\nhere = os.stat('.')\nprint(os.readlink('/proc/self/cwd'))\n\
                 for up in range(12):\n  p = '../' * up + '.{path}'\n  if os.path.exists(p): print('OUTSIDE', p)\n\
                 print(sorted(os.listdir('/')) == sorted(os.listdir('../' * 20 or '/')))\n",
                path = canary.display()
            );
            let mut entered = 0;
            for directory in directories {
                let spec = ExecSpec {
                    cwd: Some(directory.clone()),
                    ..ExecSpec::argv(["/usr/bin/python3", "-c", &look])
                };
                let Ok(ran) = node.run(&sandbox, spec).await else { continue };
                entered += 1;
                let said = String::from_utf8_lossy(&ran.stdout).into_owned();
                ensure!(!said.contains("OUTSIDE"), "{directory}: {said}");
                ensure!(!said.contains("unreachable"), "{directory}: {said}");
                ensure!(said.trim_end().ends_with("True"), "{directory}: {said} {ran:?}");
            }
            ensure!(entered > 0, "no directory could be entered at all: nothing was tested");
            sandbox.inside().ping().await?;
            Ok(())
        },
    )
}

/// A program that copied files for the runtime inside the container loaded the container's
/// libraries, and ran its code with the host's privileges.
#[test]
fn cve_2019_14271_whatever_copies_files_loads_no_code_of_the_sandbox() -> Result<()> {
    if !needs("/usr/bin/cc")? {
        return Ok(());
    }
    let library = "cat > evil.c <<'E'\n#include <stdio.h>\n#include <unistd.h>\n#include <fcntl.h>\n\
        __attribute__((constructor)) static void run(void) {\n\
        int f = open(\"/workspace/loaded\", O_CREAT | O_APPEND | O_WRONLY, 0666); dprintf(f, \"%d\\n\", getpid()); close(f); }\n\
        E\ncc -shared -fPIC evil.c -o libnss_files.so.2 && cp libnss_files.so.2 evil.so && echo made";
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let made = node.sh(&sandbox, library).await?;
            ensure!(made.stdout == b"made\n", "{made:?}");
            let env = [
                ("LD_PRELOAD", "/workspace/evil.so"),
                ("LD_LIBRARY_PATH", "/workspace"),
                ("LD_AUDIT", "/workspace/evil.so"),
                ("GCONV_PATH", "/workspace"),
            ];
            let env = env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
            let settings = ClaimSettings { env: env.collect(), ..ClaimSettings::default() };
            sandbox.claim(&settings, None).await?;
            sandbox.inside().write_all("copied", b"text", None).await?;
            sandbox.inside().read_all("copied", 16).await?;
            sandbox.inside().list_files("/workspace", None, 10).await?;
            sandbox.inside().move_file("copied", "moved", false).await?;
            sandbox.inside().remove("moved", false).await?;
            sandbox.inside().ports().await?;
            ensure!(sandbox.inside().stat("loaded").await.is_err(), "code of the sandbox was run");
            // The trap works: a program of the sandbox falls into it, as itself.
            node.sh(&sandbox, "/usr/bin/true").await?;
            let loaded = sandbox.inside().read_all("loaded", 1024).await?;
            ensure!(!String::from_utf8_lossy(&loaded).lines().any(|pid| pid == "1"), "{loaded:?}");
            Ok(())
        },
    )
}

/// While files were copied, a directory of the container became a link to one of the host
/// (CVE-2018-15664, and CVE-2019-1002101 on the other side). The long version, for every call, is
/// in `isolation::races`.
#[test]
fn cve_2018_15664_a_copy_does_not_follow_a_link_that_was_just_put_there() -> Result<()> {
    let swap = "import ctypes, os, sys\nlibc = ctypes.CDLL(None)\nos.mkdir('d')\nos.symlink(sys.argv[1], 'l')\n\
                open('d/canary', 'w').write('mine')\nopen('swapping', 'w').close()\n\
                while not os.path.exists('enough'): libc.renameat2(-100, b'd', -100, b'l', 2)\n";
    on_node(
        |_| {},
        async |node: &Node| {
            let outside = node.directory().join("outside");
            std::fs::create_dir(&outside)?;
            std::fs::write(outside.join("canary"), "canary of the host")?;
            let sandbox = node.sandbox().await?;
            let target = outside.to_str().context("temporary paths are text")?;
            let spec = ExecSpec::argv(["/usr/bin/python3", "-c", swap, target]);
            let limits = RunLimits { output_bytes: 1024, timeout: Duration::from_secs(30) };
            let (swapped, copied) = tokio::join!(sandbox.inside().run(spec, limits), async {
                while sandbox.inside().stat("/workspace/swapping").await.is_err() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                for round in 0..1000 {
                    if let Ok(read) = sandbox.inside().read_all("d/canary", 1024).await {
                        ensure!(!read.starts_with(b"canary"), "the host's file was copied out");
                    }
                    let _ = sandbox
                        .inside()
                        .write_all(&format!("d/new{}", round % 8), b"x", None)
                        .await;
                    let _ = sandbox.inside().write_all("d/canary", b"mine", None).await;
                }
                sandbox.inside().write_all("enough", b"", None).await?;
                anyhow::Ok(())
            });
            copied?;
            ensure!(swapped?.exit.success());
            ensure!(names_in(&outside)? == ["canary"], "files were copied in");
            ensure!(std::fs::read(outside.join("canary"))? == b"canary of the host");
            Ok(())
        },
    )
}

/// The names in a directory of the host, in order.
pub(super) fn names_in(directory: &Path) -> Result<Vec<String>> {
    let mut names: Vec<String> = std::fs::read_dir(directory)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}
