//! The same tests as an ordinary user: this binary is started again as a user who owns nothing,
//! with subordinate users and without, and runs what is asked for. What is weaker in a mode is
//! asserted where it is: the tests know their mode.

use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use model::Limits;
use runtime::{ExecSpec, LaunchSpec, RunLimits, Runtime as _, RuntimeErrorCode, Users};

use super::isolation::show;
use super::node::{Node, USERS, name_of, needs, on_node, skip};

/// The first of some ordinary users, of whom nothing else runs and whom no package makes. Each part
/// of the suite has one to itself, because the kernel counts by user.
const FIRST_USER: u32 = 64_242;

/// Subordinate users, far from those of others: the first of them, and how many.
const SUBORDINATE: (u32, u32) = (0x6000_0000, 1000 << 16);

/// Longer than any part of the suite takes.
const PATIENCE: Duration = Duration::from_secs(170);

/// How long to wait before looking again.
const PAUSE: Duration = Duration::from_millis(20);

/// Runs the tests whose names contain one of these words, as the ordinary user.
fn as_an_ordinary_user(part: u32, users: Users, words: &[&str], at_least: usize) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return skip("no root: these tests ran as an ordinary user already");
    }
    let user = FIRST_USER + part;
    let exe = std::fs::File::open("/proc/self/exe")?;
    // The program is reached through a descriptor: its directories may be closed to that user.
    rustix::io::fcntl_setfd(&exe, rustix::io::FdFlags::empty())?;
    let program = format!("/proc/self/fd/{}", exe.as_raw_fd());
    let directory = std::env::temp_dir().join(format!("shoal-user-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let outcome = described(&directory, user).and_then(|()| {
        let become_user =
            format!("exec setpriv --reuid={user} --regid={user} --clear-groups \"$0\" \"$@\"");
        let place = directory.display();
        // Over the host's own, in a namespace of its own.
        let layer = format!("mount -t overlay overlay -o ro,lowerdir={place}:/etc /etc && ");
        let layer = if users == Users::Subordinate { layer } else { String::new() };
        let mut command = Command::new("/usr/bin/unshare");
        command
            .args(["--mount", "--propagation=private", "/bin/sh", "-c"])
            .arg(format!("{layer}{become_user}"))
            .arg(&program)
            .args(words)
            .args(["--test-threads=2", "--nocapture"])
            .args(["--skip", "native::rootless::as_"])
            .env(USERS, name_of(users))
            .env("HOME", "/nonexistent")
            .env_remove("XDG_RUNTIME_DIR");
        run(command)
    });
    std::fs::remove_dir_all(&directory)?;
    let said = outcome?;
    show(&said);
    let passed = said.lines().find_map(|line| line.strip_prefix("test result: ok. "));
    let passed: usize = passed
        .and_then(|rest| rest.split(' ').next())
        .context("the tests did not pass")?
        .parse()?;
    ensure!(passed >= at_least, "only {passed} tests were run");
    Ok(())
}

/// Files by which the user exists and has subordinate users, visible only to that user.
fn described(directory: &std::path::Path, user: u32) -> Result<()> {
    let with_line = |name: &str, line: &str| {
        let text = std::fs::read_to_string(format!("/etc/{name}")).unwrap_or_default();
        std::fs::write(directory.join(name), format!("{text}{line}\n"))
    };
    with_line("passwd", &format!("shoaluser:x:{user}:{user}::/nonexistent:/bin/sh"))?;
    with_line("group", &format!("shoaluser:x:{user}:"))?;
    let (first, count) = SUBORDINATE;
    for name in ["subuid", "subgid"] {
        with_line(name, &format!("{user}:{first}:{count}"))?;
    }
    Ok(())
}

/// Runs to the end and gives what it said; it must succeed in time.
fn run(mut command: Command) -> Result<String> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (mut stdout, mut stderr) =
        (child.stdout.take().context("piped")?, child.stderr.take().context("piped")?);
    let complaints = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stderr.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let words = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stdout.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut status = None;
    for _ in 0..PATIENCE.as_millis() / PAUSE.as_millis() {
        status = child.try_wait()?;
        if status.is_some() {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    let words = words.join().unwrap_or_default();
    let complaints = complaints.join().unwrap_or_default();
    let Some(status) = status else { bail!("no end in {PATIENCE:?}:\n{words}\n{complaints}") };
    ensure!(status.success(), "{status}:\n{words}\n{complaints}");
    // What a test that is skipped says must be heard here too.
    show(&complaints);
    Ok(words)
}

/// Whether this machine has what maps subordinate users.
fn can_map() -> Result<bool> {
    Ok(needs("/usr/bin/newuidmap")? && needs("/usr/bin/newgidmap")?)
}

const ATTACKS: &[(&str, usize)] =
    &[("native::isolation::", 15), ("native::escapes::", 25), ("native::between_users::", 2)];

#[test]
fn as_a_user_with_subordinate_users_nothing_gets_through() -> Result<()> {
    if !can_map()? {
        return Ok(());
    }
    let (words, at_least): (Vec<&str>, Vec<usize>) = ATTACKS.iter().copied().unzip();
    as_an_ordinary_user(0, Users::Subordinate, &words, at_least.iter().sum())
}

#[test]
fn as_a_user_alone_nothing_gets_through() -> Result<()> {
    let (words, at_least): (Vec<&str>, Vec<usize>) = ATTACKS.iter().copied().unzip();
    as_an_ordinary_user(1, Users::Alone, &words, at_least.iter().sum())
}

const REST: &[&str] = &[
    "native::programs::",
    "native::terminals::",
    "native::system_calls::",
    "native::limits::",
    "native::workspaces::",
    "native::modes::",
    "native::mounts::",
    "native::network::",
    "native::rootless::",
];

#[test]
fn as_a_user_with_subordinate_users_programs_and_limits_are_as_they_should_be() -> Result<()> {
    if !can_map()? {
        return Ok(());
    }
    as_an_ordinary_user(2, Users::Subordinate, REST, 20)
}

#[test]
fn as_a_user_alone_programs_and_limits_are_as_they_should_be() -> Result<()> {
    as_an_ordinary_user(3, Users::Alone, REST, 20)
}

const WAYS_AROUND: &[&str] = &["native::bypass::"];

#[test]
fn as_a_user_with_subordinate_users_no_way_around_a_policy_is_found() -> Result<()> {
    if !can_map()? {
        return Ok(());
    }
    as_an_ordinary_user(4, Users::Subordinate, WAYS_AROUND, 6)
}

#[test]
fn as_a_user_alone_no_way_around_a_policy_is_found() -> Result<()> {
    as_an_ordinary_user(5, Users::Alone, WAYS_AROUND, 6)
}

/// Nothing is silently weaker.
#[test]
fn a_limit_that_cannot_be_enforced_is_refused_by_name_unless_that_is_wanted() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let native = node.native();
            let capabilities = native.capabilities();
            let strict = LaunchSpec { limits: Limits::default(), ..node.spec() };
            ensure!(!strict.limits.best_effort, "limits are strict unless they say otherwise");
            let missing = [
                (capabilities.memory_limit, "limits.memory_mb"),
                (capabilities.cpu_limit, "limits.cpu_milli"),
                (capabilities.pids_limit, "limits.pids"),
            ];
            let missing = missing.into_iter().find(|(enforced, _)| !enforced);
            match (native.launch(strict).await, missing) {
                (Ok(_), None) => {}
                (Err(error), Some((_, field))) => {
                    ensure!(error.code() == RuntimeErrorCode::Unsupported, "{error:?}");
                    ensure!(error.to_string().contains(field), "{error} does not name {field}");
                }
                (Ok(_), Some((_, field))) => bail!("{field} is not enforced, and no error says so"),
                (Err(error), None) => bail!("everything can be enforced, and yet: {error}"),
            }
            let limits = Limits { best_effort: true, ..Limits::default() };
            native.launch(LaunchSpec { limits, ..node.spec() }).await?.inside().ping().await?;
            if node.users() == Users::Ranges {
                ensure!(missing.is_none(), "root can enforce everything: {missing:?}");
            }
            Ok(())
        },
    )
}

/// Does to its guest whatever it may, and says what that was.
const SABOTAGE: &str = r#"
import os, resource, signal
done = []
for name in ("NOFILE", "AS", "NPROC", "DATA", "STACK", "FSIZE", "CPU"):
    try:
        resource.prlimit(1, getattr(resource, "RLIMIT_" + name), (1, 1))
        done.append(name)
    except OSError:
        pass
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGSEGV, signal.SIGSTOP, signal.SIGKILL):
    try:
        os.kill(1, number)
        done.append(number.name)
    except OSError:
        pass
try:
    os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))
    done.append("scheduling")
except OSError:
    pass
print(" ".join(done))
"#;

/// Where the guest is who the programs are, a program can make its own sandbox unusable. That it
/// can is known; what counts is that other sandboxes do not notice.
#[test]
fn rootless_user_who_breaks_the_guest_breaks_only_that_sandbox() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let (sandbox, neighbour) = (node.sandbox().await?, node.sandbox().await?);
            let spec = ExecSpec::argv(["/usr/bin/python3", "-c", SABOTAGE]);
            let limits = RunLimits { output_bytes: 1024, timeout: Duration::from_secs(20) };
            let ran = sandbox.inside().run(spec, limits).await;
            match node.users() {
                Users::Ranges | Users::Subordinate => {
                    let said = ran?.stdout;
                    ensure!(said == b"\n", "{}", String::from_utf8_lossy(&said));
                    sandbox.inside().ping().await?;
                    ensure!(node.sh(&sandbox, "true").await?.exit.success());
                }
                Users::Alone => {
                    // It may answer or be gone, but not keep anyone waiting.
                    let asked =
                        tokio::time::timeout(Duration::from_secs(20), sandbox.inside().ping());
                    let _ = asked.await.context("a broken guest keeps its host waiting")?;
                }
            }
            neighbour.inside().ping().await?;
            ensure!(node.sh(&neighbour, "echo here").await?.stdout == b"here\n");
            sandbox.kill().await?;
            ensure!(node.sh(&node.sandbox().await?, "echo new").await?.stdout == b"new\n");
            Ok(())
        },
    )
}
