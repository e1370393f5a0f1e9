//! Limits hold: a program that wants too much is stopped with the cause, while its neighbour and
//! the host go on working. Each of these programs is bounded by the limits of its sandbox and of
//! its own loop.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jail::groups::Use;
use jail::machine::{CgroupLayout, Host};
use model::Limits;
use runtime::{ExecSpec, ExitStatus, RunLimits, Runtime as _, Users};

use super::node::{Node, on_node, slowed};

const LIMITS: Limits = Limits {
    memory_mb: 128,
    cpu_milli: 500,
    pids: 32,
    workspace_mb: 16,
    exec_output_bytes: 1 << 20,
    exec_timeout_ms: 20_000,
    best_effort: false,
};

/// Runs a program beside a neighbour, and afterwards both must answer.
async fn beside_a_neighbour(
    node: &Node,
    program: &str,
) -> Result<(runtime::Collected, std::sync::Arc<dyn runtime::Sandbox>)> {
    let greedy = node.sandbox_with(LIMITS).await?;
    let neighbour = node.sandbox_with(LIMITS).await?;
    let spec = ExecSpec::argv(["/usr/bin/python3", "-c", program]);
    let timeout = slowed(Duration::from_secs(20));
    let limits = RunLimits { timeout, ..RunLimits::from(&LIMITS) };
    let (ran, beside) = tokio::join!(greedy.inside().run(spec, limits), async {
        for _ in 0..20 {
            let echo = node.sh(&neighbour, "echo here").await?;
            ensure!(echo.stdout == b"here\n", "{echo:?}");
        }
        anyhow::Ok(())
    });
    beside?;
    neighbour.inside().ping().await?;
    Ok((ran?, greedy))
}

/// Only without root there may be no such limit; that asking for one is refused then is a test of
/// its own.
fn unlimited(node: &Node) -> Result<()> {
    ensure!(node.users() != Users::Ranges, "root can enforce every limit");
    Ok(())
}

#[test]
fn a_fork_bomb_stays_inside() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let bomb = "import os, time\nn = 0\nfor _ in range(2000):\n  try:\n    if os.fork() == 0:\n      time.sleep(5); os._exit(0)\n    n += 1\n  except OSError as e:\n    print(n, e.errno); break\n";
            let (ran, greedy) = beside_a_neighbour(node, bomb).await?;
            let text = String::from_utf8(ran.stdout)?;
            let (made, errno) = text.trim().split_once(' ').unwrap_or(("none", ""));
            ensure!(errno == "11", "{text}");
            ensure!(made.parse::<u32>()? <= LIMITS.pids, "{text}");
            greedy.inside().ping().await?;
            Ok(())
        },
    )
}

#[test]
fn each_has_its_own_limits_whatever_its_slot_had_before() -> Result<()> {
    on_node(
        |config| {
            config.slots = 8;
            config.spares = 4;
        },
        async |node: &Node| {
            let count = "import os, time\nn = 0\nwhile n < 200:\n  try:\n    if os.fork() == 0: time.sleep(20); os._exit(0)\n    n += 1\n  except OSError: break\nprint(n)\n";
            // All at once and again, so that limits change while slot parents start and slots are
            // reused.
            for round in 0..4 {
                let launches = (0..8).map(|turn| async move {
                    let pids = if (turn + round) % 2 == 0 { 12 } else { 48 };
                    let sandbox = node.sandbox_with(Limits { pids, ..LIMITS }).await?;
                    let made: u32 = node.python(&sandbox, count, &[]).await?.trim().parse()?;
                    sandbox.kill().await?;
                    // The program that counts is one of them itself.
                    ensure!(made + 1 == pids, "{made} children with a limit of {pids}");
                    anyhow::Ok(())
                });
                for launched in super::programs::all_of(launches).await {
                    launched?;
                }
            }
            Ok(())
        },
    )
}

#[test]
fn a_bomb_that_never_stops_is_ended_with_its_sandbox() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let greedy = node.sandbox_with(LIMITS).await?;
            let spec = ExecSpec::shell("bomb() { bomb | bomb & }; bomb; sleep 1; bomb; wait");
            let limits = RunLimits { timeout: Duration::from_secs(2), ..RunLimits::from(&LIMITS) };
            // However that ends: it must end, and take everything along.
            let _ = greedy.inside().run(spec, limits).await;
            greedy.kill().await?;
            node.sandbox().await?.inside().ping().await?;
            Ok(())
        },
    )
}

#[test]
fn memory_hog_ends_as_out_of_memory() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            // Unlimited, it would take the host's.
            if !node.native().capabilities().memory_limit {
                return unlimited(node);
            }
            let (ran, greedy) =
                beside_a_neighbour(node, "x = []\nwhile True: x.append(bytearray(1 << 20))")
                    .await?;
            ensure!(ran.exit.status == ExitStatus::Signal(9), "{:?}", ran.exit);
            ensure!(ran.exit.out_of_memory, "it was killed without a reported cause");
            // The program died, not its sandbox.
            let after = node.sh(&greedy, "echo alive").await?;
            ensure!(after.stdout == b"alive\n", "{after:?}");
            let killed = node.sh(&greedy, "kill -9 $$").await?;
            ensure!(killed.exit.status == ExitStatus::Signal(9) && !killed.exit.out_of_memory);
            Ok(())
        },
    )
}

/// Fills connections that no program reads, up to four times the memory, and says how much they
/// held. The kernel lets each end have 64 KiB whatever the limit is, so there are few.
pub(crate) const BUFFER_FLOOD: &str = r#"
import socket, time
end = time.monotonic() + 8
listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen(1000)
held, total, most = [], 0, 512 << 20
part = bytes(1 << 16)
try:
    for _ in range(200):
        one = socket.socket(); one.connect(listener.getsockname())
        held += [one, listener.accept()[0]]
    for one in held:
        one.setblocking(False)
    while total < most and time.monotonic() < end:
        before = total
        for one in held:
            try:
                total += one.send(part)
            except BlockingIOError:
                pass
        if total == before:
            break
except OSError:
    pass
print(total >> 20)
"#;

#[test]
fn socket_buffers_count_as_memory() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            if !node.native().capabilities().memory_limit {
                return unlimited(node);
            }
            let (ran, greedy) = beside_a_neighbour(node, BUFFER_FLOOD).await?;
            // Where buffers are part of the memory, it may also be ended for want of it.
            let text = String::from_utf8(ran.stdout)?;
            let held_mb: u32 = if ran.exit.out_of_memory { 0 } else { text.trim().parse()? };
            ensure!(held_mb < LIMITS.memory_mb, "{held_mb} MB in buffers");
            // What it held is given back with it.
            let again = node.python(&greedy, BUFFER_FLOOD, &[]).await?;
            ensure!(again.trim().parse::<u32>()? > 0, "{again}");
            Ok(())
        },
    )
}

#[test]
fn one_connection_buffers_a_megabyte_each_way_at_most() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let settings = "cut -f3 /proc/sys/net/ipv4/tcp_rmem /proc/sys/net/ipv4/tcp_wmem";
            let settings = String::from_utf8(node.sh(&sandbox, settings).await?.stdout)?;
            let sizes: Vec<u64> = settings.lines().map(str::parse).collect::<Result<_, _>>()?;
            ensure!(sizes.len() == 2 && sizes.iter().all(|size| *size <= 1 << 20), "{settings}");
            Ok(())
        },
    )
}

/// The group of all sandboxes leaves something of the machine to others.
#[test]
fn sandboxes_together_leave_room_for_the_server() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            if node.users() != Users::Ranges {
                return Ok(());
            }
            node.sandbox().await?;
            let layout = CgroupLayout::find(&Host, true);
            let number = |used: Use, files: [&str; 2]| -> Result<u64> {
                let found = layout.placement(used).context("root has all of them")?;
                let texts = files.map(|file| found.directory.join("shoal").join(file));
                let text = texts.iter().find_map(|file| std::fs::read_to_string(file).ok());
                Ok(text.context("neither generation")?.trim().parse()?)
            };
            let info = rustix::system::sysinfo();
            let machine = info.totalram * u64::from(info.mem_unit);
            let of_run = |file: &str| format!("{}/{file}", node.name());
            let [first, second] = ["memory.limit_in_bytes", "memory.max"].map(of_run);
            let memory = number(Use::Memory, [&first, &second])?;
            ensure!(memory < machine, "{memory} of {machine}");
            let pids = of_run("pids.max");
            let most: u64 = std::fs::read_to_string("/proc/sys/kernel/pid_max")?.trim().parse()?;
            ensure!(number(Use::Pids, [&pids, &pids])? < most, "all processes of the machine");
            let weight = number(Use::Cpu, ["cpu.shares", "cpu.weight"])?;
            ensure!(weight == 256 || weight == 25, "a quarter of the usual, not {weight}");
            Ok(())
        },
    )
}

/// If the machine runs out of memory, programs in sandboxes go before the server does.
#[test]
fn programs_are_given_up_before_the_server() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let score = node.sh(&sandbox, "cat /proc/self/oom_score_adj").await?.stdout;
            let score: i32 = String::from_utf8(score)?.trim().parse()?;
            let ours: i32 = std::fs::read_to_string("/proc/self/oom_score_adj")?.trim().parse()?;
            ensure!(score >= 500 && score >= ours, "{score} inside, {ours} outside");
            Ok(())
        },
    )
}

#[test]
fn a_disk_filler_is_stopped_at_the_size() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            for (place, at_most) in
                [("/workspace", 16 << 20), ("/tmp", 128 << 20), ("/dev/shm", 128 << 20)]
            {
                let filler = format!(
                    "import errno\nn = 0\nwith open('{place}/big', 'wb', 0) as f:\n  try:\n    while n < 1 << 30: n += f.write(bytes(1 << 16))\n  except OSError as e:\n    print(n, e.errno)\n"
                );
                let greedy = node.sandbox_with(LIMITS).await?;
                let ran = node.python(&greedy, &filler, &[]).await;
                // Memory is the other limit: whichever is reached first.
                let Ok(text) = ran else { continue };
                let (size, errno) = text.trim().split_once(' ').unwrap_or(("none", ""));
                ensure!(errno == "28", "{place}: {text}");
                ensure!(size.parse::<u64>()? <= at_most, "{place}: {text}");
                greedy.inside().ping().await?;
            }
            Ok(())
        },
    )
}

#[test]
fn files_without_bytes_are_bounded_too() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let greedy = node.sandbox_with(LIMITS).await?;
            let text = node
                .python(&greedy, "n = 0\ntry:\n  while n < 1000000: open(f'/workspace/{n}', 'x').close(); n += 1\nexcept OSError as e: print(n, e.errno)\n", &[])
                .await?;
            ensure!(text.trim().ends_with(" 28"), "{text}");
            Ok(())
        },
    )
}

#[test]
fn output_flood_is_cut_and_marked_as_cut() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let flood = "import os\nfor _ in range(1 << 12): os.write(1, b'x' * (1 << 16))\n";
            let (ran, _) = beside_a_neighbour(node, flood).await?;
            ensure!(ran.exit.success(), "{:?}", ran.exit);
            ensure!(ran.stdout.len() as u64 <= LIMITS.exec_output_bytes);
            ensure!(ran.stdout_truncated, "cut and not said to be");
            Ok(())
        },
    )
}

#[test]
fn a_descriptor_flood_ends_at_the_limit() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let flood = "import os\nn = 0\ntry:\n  while n < 100000: os.dup(1); n += 1\nexcept OSError as e: print(n, e.errno)\n";
            let (ran, _) = beside_a_neighbour(node, flood).await?;
            let text = String::from_utf8(ran.stdout)?;
            let (opened, errno) = text.trim().split_once(' ').unwrap_or(("none", ""));
            ensure!(errno == "24" && opened.parse::<u64>()? < jail::plan::DESCRIPTORS, "{text}");
            Ok(())
        },
    )
}

#[test]
fn processor_hog_gets_only_its_share() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            if !node.native().capabilities().cpu_limit {
                return unlimited(node);
            }
            let greedy = node.sandbox_with(Limits { cpu_milli: 100, ..LIMITS }).await?;
            let spin = "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\nprint(time.process_time())\n";
            let text = node.python(&greedy, spin, &[]).await?;
            let used_s: f64 = text.trim().parse()?;
            // A tenth of two seconds, and generously more: unlimited it would be two.
            ensure!(used_s < 1.0, "used {used_s} s of processor time in 2 s");
            Ok(())
        },
    )
}

#[test]
fn a_program_that_takes_too_long_is_ended_with_all_it_started() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox_with(LIMITS).await?;
            let spec = ExecSpec::shell("setsid sh -c 'sleep 600' & sleep 600");
            let limits =
                RunLimits { timeout: Duration::from_millis(300), ..RunLimits::from(&LIMITS) };
            let ran = sandbox.inside().run(spec, limits).await?;
            ensure!(ran.timed_out && ran.exit.status == ExitStatus::Signal(9), "{ran:?}");
            let left = node
                .sh(&sandbox, "grep -l '[6]00' /proc/[0-9]*/cmdline | grep -v self | wc -l")
                .await?;
            ensure!(left.stdout.trim_ascii() == b"0", "{left:?}");
            Ok(())
        },
    )
}
