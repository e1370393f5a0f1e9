//! File searches in trees that programs made to mislead or to block them: links that lead out,
//! pipes, names that are no text, depths and lines without end, trees that change meanwhile. And
//! the scale file, mishandled. Nothing may hang, nothing may lead out.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use runtime::{ExecSpec, FindQuery, RuntimeErrorCode, Sandbox, SearchQuery, WatchQuery};
use tokio::time::timeout;

use super::node::{Node, on_node, slowed};

/// No look at such a tree takes as long.
const PATIENCE: Duration = Duration::from_secs(20);

const TREE: &str = "import os\n\
    os.makedirs('t/real'); os.chdir('t')\n\
    for name, target in [('proc', '/proc'), ('root', '/'), ('up', '..'), ('self', '.'), ('fd', '/proc/self/fd'), ('etc', '/etc/passwd'), ('none', 'nowhere')]:\n\
    \x20   os.symlink(target, name)\n\
    os.mkfifo('pipe')\n\
    open(b'not\\xfftext', 'w').write('needle')\n\
    open('sparse', 'w').truncate(1 << 40)\n\
    open('huge', 'w').write('x' * (8 << 20) + 'needle' + 'y' * (8 << 20))\n\
    open('real/lines', 'w').write('needle\\n' * 200_000)\n\
    os.mkdir('closed', 0); open('secret', 'w').write('needle'); os.chmod('secret', 0)\n\
    for _ in range(10_000):\n\
    \x20   os.mkdir('d'); os.chdir('d')\n";

fn find(path: &str) -> FindQuery {
    FindQuery { path: path.to_owned(), max_results: 50_000, ..FindQuery::default() }
}

fn search(path: &str) -> SearchQuery {
    SearchQuery {
        path: path.to_owned(),
        text: "needle".to_owned(),
        max_results: 1000,
        ..SearchQuery::default()
    }
}

async fn within<T>(look: impl Future<Output = T>) -> Result<T> {
    Ok(timeout(slowed(PATIENCE), look).await?)
}

#[test]
fn isolation_of_looks_into_hostile_trees() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            node.python(&sandbox, TREE, &[]).await?;
            let found = within(sandbox.inside().find(&find("t"))).await??;
            ensure!(found.unreadable >= 1, "the deepest cannot be reached: {}", found.unreadable);
            ensure!(found.entries.len() > 1000, "{}", found.entries.len());
            let beyond = ["proc/", "root/", "up/", "self/", "fd/"];
            let led_out = found
                .entries
                .iter()
                .find(|one| beyond.iter().any(|link| one.path.starts_with(link.as_bytes())));
            ensure!(led_out.is_none(), "{led_out:?}");
            ensure!(found.entries.iter().any(|one| one.path == b"not\xfftext"));

            let searched = within(sandbox.inside().search(&search("t"))).await??;
            ensure!(searched.matches.len() == 1000 && searched.truncated);
            let huge = searched.matches.iter().find(|one| one.path == b"huge");
            ensure!(huge.is_some_and(|one| one.column == (8 << 20) + 1 && one.text.len() <= 1024));
            let at = |path: &[u8]| searched.matches.iter().any(|one| one.path == path);
            ensure!(!at(b"etc") && at(b"not\xfftext"));

            for path in ["/proc", "/proc/self", "t/proc", "t/fd"] {
                let code =
                    within(sandbox.inside().find(&find(path))).await?.err().map(|error| error.code);
                ensure!(code == Some(RuntimeErrorCode::Denied), "{path}: {code:?}");
                let query = WatchQuery { path: path.to_owned(), recursive: true };
                let code =
                    within(sandbox.inside().watch(&query)).await?.err().map(|error| error.code);
                ensure!(code == Some(RuntimeErrorCode::Denied), "{path}: {code:?}");
            }
            // The search does not wait for a pipe without a writer.
            let piped = within(sandbox.inside().search(&search("t/pipe"))).await??;
            ensure!(piped.matches.is_empty());
            let everything = within(sandbox.inside().find(&find("/"))).await??;
            ensure!(!everything.entries.iter().any(|one| one.path.starts_with(b"proc/")));

            let query = WatchQuery { path: "t".to_owned(), recursive: true };
            let watch = within(sandbox.inside().watch(&query)).await?;
            ensure!(
                watch.is_ok() || watch.is_err_and(|e| e.code == RuntimeErrorCode::LimitReached)
            );
            still_works(node, &sandbox).await
        },
    )
}

#[test]
fn file_search_results_are_bounded_in_bytes() -> Result<()> {
    const LONG: &str = "import os\n\
        os.mkdir('l'); os.chdir('l')\n\
        for _ in range(14):\n\
        \x20   os.mkdir('d' * 250); os.chdir('d' * 250)\n\
        for n in range(4000): open(f'{n:0250}', 'w')";
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            node.python(&sandbox, LONG, &[]).await?;
            let found = within(sandbox.inside().find(&find("l"))).await??;
            let bytes: usize = found.entries.iter().map(|one| one.path.len()).sum();
            ensure!(found.truncated && bytes <= 8 << 20, "{bytes}");
            ensure!(bytes > 4 << 20, "{bytes}");
            still_works(node, &sandbox).await
        },
    )
}

#[test]
fn isolation_of_looks_into_changing_trees() -> Result<()> {
    const CHANGE: &str = "import os, shutil, time\n\
        end = time.monotonic() + 4\n\
        n = 0\n\
        while time.monotonic() < end:\n\
        \x20   n += 1\n\
        \x20   os.makedirs(f'c/{n % 7}/x/y', exist_ok=True)\n\
        \x20   open(f'c/{n % 7}/x/y/f{n % 50}', 'w').write('needle')\n\
        \x20   try: os.rename(f'c/{n % 7}/x', f'c/{(n + 1) % 7}/z')\n\
        \x20   except OSError: shutil.rmtree(f'c/{(n + 1) % 7}', ignore_errors=True)\n\
        \x20   if n % 3 == 0:\n\
        \x20       shutil.rmtree(f'c/{n % 7}', ignore_errors=True)\n\
        \x20       try: os.symlink('/', f'c/{n % 7}')\n\
        \x20       except OSError: pass\n\
        \x20       try: os.unlink(f'c/{n % 7}')\n\
        \x20       except OSError: pass\n";
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            node.sh(&sandbox, "mkdir c").await?;
            let changer = ExecSpec::argv(["python3", "-c", CHANGE]);
            let mut changer = sandbox.inside().exec(changer).await?;
            let query = WatchQuery { path: "c".to_owned(), recursive: true };
            let mut watch = within(sandbox.inside().watch(&query)).await??;
            let looks = async {
                loop {
                    // What goes while it is looked at may be refused, but nothing hangs.
                    let found = within(sandbox.inside().find(&find("c"))).await?;
                    let searched = within(sandbox.inside().search(&search("c"))).await?;
                    for path in found.into_iter().flat_map(|found| found.entries) {
                        ensure!(!path.path.windows(5).any(|part| part == b"/etc/"), "{path:?}");
                    }
                    drop(searched);
                }
            };
            let changes = async {
                loop {
                    let change = watch.next().await?;
                    let Some(change) = change else { return anyhow::Ok(()) };
                    ensure!(change.path.is_empty() || change.path.starts_with(b"/workspace/c/"));
                }
            };
            tokio::select! {
                ended = changer.wait() => ensure!(ended?.success()),
                failed = looks => return failed,
                over = changes => over?,
            }
            still_works(node, &sandbox).await
        },
    )
}

#[test]
fn isolation_of_the_scale_file_from_those_who_break_it() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            ensure!(said(node, &sandbox, "echo +2 > $F; cat $F").await? == "=2\n");
            for harm in [
                "rm $F",
                "rm $F; mkfifo $F",
                "rm $F; mkdir $F",
                "rm $F; ln -s /etc/passwd $F",
                "rm $F; ln -s /proc/1/mem $F",
                "mv $F $F.away; ln $F.away $F",
                "mkfifo $(dirname $F)/.new",
                "rm -rf $(dirname $F)/.new; mkdir $(dirname $F)/.new",
                "rmdir $(dirname $F)/.new; chmod 0 $F",
                "chmod 700 $F; $F",
                "for i in $(seq 300); do exec 8<> $F; done",
                "for i in $(seq 100); do (exec 8< $F; sleep 1) & done; wait",
                "truncate -s 100M $F; head -c 1M /dev/urandom > $F; : > $F; echo =2 > $F",
                "flock -n $F true; flock -x $F true",
            ] {
                node.sh(&sandbox, &harm.replace("$F", "$SHOAL_SCALE_FILE")).await?;
                sandbox.inside().ping().await?;
                let mend = "chmod 644 $F; cat $F";
                let found = said(node, &sandbox, mend).await?;
                ensure!(found.starts_with('='), "{harm}: {found}");
            }
            said(node, &sandbox, "echo =0 > $F").await?;
            let many = "import os\n\
                F = os.environ['SHOAL_SCALE_FILE']\n\
                for _ in range(1500):\n\
                \x20   with open(F, 'w') as file: file.write('+')\n\
                print(open(F).read().strip())";
            let found = node.python(&sandbox, many, &[]).await?;
            ensure!(found == "=1500\n", "{found}");
            let lease = "import fcntl, os\n\
                fd = os.open('/workspace/tool', os.O_RDWR | os.O_CREAT, 0o755)\n\
                try: fcntl.fcntl(fd, 1024, fcntl.F_WRLCK)\n\
                except PermissionError: print('refused')";
            let found = node.python(&sandbox, lease, &[]).await?;
            ensure!(found == "refused\n", "a program with a file lease blocks its start");
            // The guest would open a program from there, and wait for itself.
            let copied = "cp /bin/true $(dirname $F)/prog && $(dirname $F)/prog";
            let ran = node.sh(&sandbox, &copied.replace("$F", "$SHOAL_SCALE_FILE")).await?;
            ensure!(!ran.exit.success(), "programs run from there");
            still_works(node, &sandbox).await
        },
    )
}

async fn said(node: &Node, sandbox: &Arc<dyn Sandbox>, line: &str) -> Result<String> {
    let ran = node.sh(sandbox, &line.replace("$F", "$SHOAL_SCALE_FILE")).await?;
    Ok(String::from_utf8(ran.stdout)?)
}

/// The guest answers, no look is left, and programs start.
async fn still_works(node: &Node, sandbox: &Arc<dyn Sandbox>) -> Result<()> {
    sandbox.inside().ping().await?;
    ensure!(said(node, sandbox, "echo on").await? == "on\n");
    Ok(())
}
