//! Freezing in the middle of work: many busy threads, files being written, connections and streams
//! on their way. Whatever it hits, nothing is lost.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use model::Limits;
use runtime::{ExecSpec, Runtime as _, Sandbox};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::node::{Node, on_node, skip};

/// How often it is frozen while something goes on.
const TIMES: usize = 12;

/// How long it runs, and how long it stands still, in between.
const PAUSE: Duration = Duration::from_millis(15);

const MIB: usize = 1 << 20;

/// Freezes and thaws while programs run.
async fn freeze_now_and_then(sandbox: &dyn Sandbox) -> Result<()> {
    for _ in 0..TIMES {
        tokio::time::sleep(PAUSE).await;
        sandbox.freeze().await?;
        tokio::time::sleep(PAUSE).await;
        sandbox.thaw().await?;
    }
    Ok(())
}

fn on_freezing_node(test: impl AsyncFnOnce(&Node) -> Result<()>) -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            if !node.native().capabilities().freeze {
                return skip("nothing here freezes");
            }
            test(node).await
        },
    )
}

#[test]
fn two_hundred_busy_threads_stand_still_and_go_on() -> Result<()> {
    on_freezing_node(async |node: &Node| {
        let limits = Limits { pids: 300, ..Limits::default() };
        let sandbox = node.sandbox_with(limits).await?;
        let busy = "import sys, threading\n\
            counts = [0] * 200\n\
            def work(n):\n\
            \x20   for _ in range(20_000): counts[n] += 1\n\
            threads = [threading.Thread(target=work, args=(n,)) for n in range(200)]\n\
            for one in threads: one.start()\n\
            print('on', flush=True)\n\
            for one in threads: one.join()\n\
            print(sum(counts))";
        let mut process = sandbox.inside().exec(ExecSpec::argv(["python3", "-c", busy])).await?;
        let mut stdout = process.stdout.take().context("a stream")?;
        let mut said = String::new();
        let (frozen, read, exit) = tokio::join!(
            freeze_now_and_then(&*sandbox),
            stdout.read_to_string(&mut said),
            process.wait()
        );
        frozen?;
        read?;
        ensure!(exit?.success() && said == "on\n4000000\n", "{said}");
        Ok(())
    })
}

#[test]
fn files_being_written_are_whole_afterwards() -> Result<()> {
    on_freezing_node(async |node: &Node| {
        let sandbox = node.sandbox().await?;
        let write = "import hashlib, os\n\
            sum = hashlib.sha256()\n\
            with open('/workspace/big', 'wb') as file:\n\
            \x20   for n in range(128):\n\
            \x20       piece = bytes([n]) * (1 << 20)\n\
            \x20       sum.update(piece)\n\
            \x20       file.write(piece)\n\
            assert hashlib.sha256(open('/workspace/big', 'rb').read()).digest() == sum.digest()\n\
            print(os.path.getsize('/workspace/big'))";
        let inside = node.python(&sandbox, write, &[]);
        let (frozen, said) = tokio::join!(freeze_now_and_then(&*sandbox), inside);
        frozen?;
        ensure!(said?.trim() == (128 * MIB).to_string());
        // The same from outside, through the guest.
        let piece: Vec<u8> = (0..MIB).map(|n| (n % 251) as u8).collect();
        let outside = async {
            let mut writer = sandbox.inside().write_file("/workspace/brought", None).await?;
            for _ in 0..64 {
                writer.write_all(&piece).await?;
            }
            anyhow::Ok(writer.finish().await?.size)
        };
        let (frozen, size) = tokio::join!(freeze_now_and_then(&*sandbox), outside);
        frozen?;
        ensure!(size? == 64 * MIB as u64);
        let back = sandbox.inside().read_all("/workspace/brought", 65 * MIB as u64).await?;
        ensure!(back.chunks(MIB).all(|one| one == piece), "what was written is not what is there");
        Ok(())
    })
}

#[test]
fn connections_and_streams_lose_no_byte() -> Result<()> {
    on_freezing_node(async |node: &Node| {
        let sandbox = node.sandbox().await?;
        let server = "import socketserver\n\
            class Echo(socketserver.BaseRequestHandler):\n\
            \x20   def handle(self):\n\
            \x20       while data := self.request.recv(65536): self.request.sendall(data)\n\
            socketserver.ThreadingTCPServer(('127.0.0.1', 8080), Echo).serve_forever()";
        let server = ExecSpec::argv(["python3", "-c", server]);
        let _server = sandbox.inside().exec(server).await?;
        let connection = connected(&sandbox).await?;
        let (mut from, mut to) = tokio::io::split(connection);
        let sent: Vec<u8> = (0..16 * MIB).map(|n| (n % 253) as u8).collect();
        let send = async {
            to.write_all(&sent).await?;
            to.shutdown().await
        };
        let mut echoed = Vec::new();
        let receive = from.read_to_end(&mut echoed);

        // The test reads this one only at the end: its pipe is full while it is frozen.
        let spec = ExecSpec::shell("head -c 33554432 /dev/zero; echo end");
        let mut program = sandbox.inside().exec(spec).await?;
        let mut stdout = program.stdout.take().context("a stream")?;

        let (frozen, sending, receiving) =
            tokio::join!(freeze_now_and_then(&*sandbox), send, receive);
        frozen?;
        sending?;
        receiving?;
        ensure!(echoed == sent, "{} of {} bytes came back", echoed.len(), sent.len());

        sandbox.freeze().await?;
        let mut first = vec![0; 4096];
        stdout.read_exact(&mut first).await?;
        sandbox.thaw().await?;
        let mut written = Vec::new();
        let (frozen, read, exit) = tokio::join!(
            freeze_now_and_then(&*sandbox),
            stdout.read_to_end(&mut written),
            program.wait()
        );
        frozen?;
        read?;
        ensure!(exit?.success());
        ensure!(first.len() + written.len() == 33_554_432 + 4, "{}", written.len());
        ensure!(written.ends_with(b"\0end\n"));
        Ok(())
    })
}

async fn connected(sandbox: &Arc<dyn Sandbox>) -> Result<Box<dyn runtime::Duplex>> {
    for _ in 0..500 {
        if let Ok(connection) = sandbox.inside().dial(8080).await {
            return Ok(connection);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    anyhow::bail!("no program listens")
}
