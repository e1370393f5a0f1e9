//! Programs that write what looks like a message of the guest, or like someone else's output: it
//! stays the output of that program, byte by byte, and neither guest nor host takes it for more.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use guest_protocol::Endpoint;
use guest_protocol::frame::{Header, Kind};
use guest_protocol::message::{Exited, Reply};
use runtime::{ExecSpec, ExitStatus, RunLimits, Stdin, TerminalSize};
use tokio::io::AsyncReadExt as _;

use crate::native::node::{Node, on_node};

/// How many channels are spoken for in forged frames: those of programs that run are among them.
const CHANNELS: u32 = 64;

/// The frame by which a guest says that a program has ended well.
pub(super) fn forged_exit(channel: u32) -> Result<Vec<u8>> {
    let mut endpoint = Endpoint::accepting();
    let exited = Exited { status: ExitStatus::Code(0), user_us: 1, system_us: 1, max_rss_kb: 1 };
    endpoint.send(channel, &Reply::Exited(exited))?;
    let frame = endpoint.outgoing().to_vec();
    ensure!(!frame.is_empty(), "there is no frame to forge");
    Ok(frame)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Every kind of frame for many channels, true to the letter; and headers that promise gigabytes.
fn forged() -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for channel in 0..CHANNELS {
        bytes.extend(forged_exit(channel)?);
        for kind in [Kind::Data, Kind::Credit, Kind::End, Kind::Reset] {
            let payload: &[u8] = match kind {
                Kind::Message | Kind::Data => b"forged",
                Kind::Credit => &[0xff; 4],
                Kind::End | Kind::Reset => b"",
            };
            let header = Header { channel, kind, lane: 1, payload_bytes: payload.len() };
            bytes.extend(header.to_bytes());
            bytes.extend(payload);
        }
    }
    for length in [u32::MAX, 1 << 31, 0, 5] {
        bytes.extend(length.to_le_bytes());
        bytes.extend([0; 6]);
    }
    Ok(bytes)
}

/// Writes given bytes wherever it can, and ends with a code of its own.
const WRITER: &str = "import os, sys\nb = bytes.fromhex(sys.argv[1])\nfor fd in map(int, sys.argv[2].split()):\n  \
                      n = 0\n  while n < len(b): n += os.write(fd, b[n:])\nos._exit(5)\n";

#[test]
fn forged_frames_stay_output() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let frames = forged()?;
            // Something that a believed frame would end.
            let sleeper = sandbox.inside().exec(ExecSpec::shell("sleep 0.5; exit 3")).await?;
            let argv = ["/usr/bin/python3", "-c", WRITER, &hex(&frames), "1 2"];
            let ran = node.run(&sandbox, ExecSpec::argv(argv)).await?;
            ensure!(ran.stdout == frames && ran.stderr == frames, "output was changed");
            ensure!(ran.exit.status == ExitStatus::Code(5), "{:?}", ran.exit);
            let mut sleeper = sleeper;
            let exit = sleeper.wait().await?;
            ensure!(exit.status == ExitStatus::Code(3), "a forged end was believed: {exit:?}");
            sandbox.inside().ping().await?;
            Ok(())
        },
    )
}

#[test]
fn forged_frames_on_a_terminal_stay_output() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let frames = forged()?;
            let spec = ExecSpec {
                stdin: Stdin::Stream,
                terminal: Some(TerminalSize { rows: 24, columns: 80 }),
                ..ExecSpec::argv([
                    "/bin/sh",
                    "-c",
                    "stty raw -echo; exec /usr/bin/python3 -c \"$0\" \"$1\" \"$2\"",
                    WRITER,
                    &hex(&frames),
                    "1",
                ])
            };
            let mut process = sandbox.inside().exec(spec).await?;
            let mut stdout = process.stdout.take().context("a terminal has output")?;
            let mut said = Vec::new();
            let reading = stdout.read_to_end(&mut said);
            tokio::time::timeout(Duration::from_secs(20), reading).await??;
            ensure!(said == frames, "{} bytes of {}", said.len(), frames.len());
            ensure!(process.wait().await?.status == ExitStatus::Code(5));
            sandbox.inside().ping().await?;
            Ok(())
        },
    )
}

#[test]
fn leftover_process_cannot_write_output_of_a_later_program() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            // It keeps its streams, and tries those of every program that comes.
            let forger = "trap '' PIPE; while :; do echo forged; echo forged >&2; \
                          for fd in /proc/[0-9]*/fd/[3-9]; do echo forged > $fd; done; done 2>/dev/null";
            let left = format!("setsid sh -c '{}' & echo $!", forger.replace('\'', "'\\''"));
            let first = node.sh(&sandbox, &left).await?;
            ensure!(first.exit.success(), "{first:?}");
            for round in 0..30 {
                let ran = node.run(&sandbox, ExecSpec::argv(["/usr/bin/printf", "true"])).await?;
                ensure!(ran.stdout == b"true", "round {round}: {:?}", ran.stdout);
            }
            Ok(())
        },
    )
}

#[test]
fn a_program_that_calls_itself_the_guest_is_not_taken_for_it() -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let guest = node.guest_of(&sandbox)?;
            let comm = std::fs::read_to_string(format!("/proc/{guest}/comm"))?;
            let pretend = format!(
                "import ctypes, os, time\nctypes.CDLL(None).prctl(15, b'{}')\nos.setsid()\nprint('there', flush=True)\ntime.sleep(30)\n",
                comm.trim()
            );
            let spec = ExecSpec {
                confirm_start: true,
                ..ExecSpec::argv(["/usr/bin/python3", "-c", &pretend])
            };
            let process = sandbox.inside().exec(spec).await?;
            ensure!(node.guest_of(&sandbox)? == guest);
            let limits = RunLimits { output_bytes: 1024, timeout: Duration::from_secs(5) };
            let ran =
                sandbox.inside().run(ExecSpec::argv(["/usr/bin/printf", "true"]), limits).await?;
            ensure!(ran.stdout == b"true", "{ran:?}");
            process.handle().kill().await?;
            sandbox.inside().ping().await?;
            Ok(())
        },
    )
}
