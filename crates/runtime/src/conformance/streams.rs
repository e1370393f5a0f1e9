//! Programs that are talked to while they run.

use std::time::Duration;

use guest_protocol::message::{ExitStatus, TerminalSize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::stage::{PATIENCE, run};
use super::{CaseResult, Stage};
use crate::exec::{ExecSpec, Stdin};

pub(super) async fn input_reaches_the_program(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let without = run(&*sandbox, ExecSpec::argv(["cat"])).await;
    assert_eq!(without.stdout, b"");
    for size in [0, 5, 65_536, 300_000] {
        let bytes: Vec<u8> = (0..size).map(|n: u32| (n % 251) as u8).collect();
        let spec = ExecSpec::argv(["cat"]).stdin(Stdin::Bytes(bytes.clone()));
        let collected = run(&*sandbox, spec).await;
        assert!(collected.exit.success());
        assert_eq!(collected.stdout.len(), bytes.len());
        assert!(collected.stdout == bytes, "bytes are the same, {size} of them");
    }
    Ok(())
}

pub(super) async fn a_stream_goes_both_ways(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let spec = ExecSpec::argv(["cat"]).stdin(Stdin::Stream);
    let mut process = sandbox.inside().exec(spec).await.expect("started");
    let mut stdin = process.stdin.take().expect("its input");
    let mut stdout = process.stdout.take().expect("its output");
    let mut buf = [0; 6];
    for word in [b"first\n", b"secnd\n"] {
        stdin.write_all(word).await.expect("written");
        let read = timeout(PATIENCE, stdout.read_exact(&mut buf)).await;
        read.expect("in time").expect("read");
        assert_eq!(&buf, word);
    }
    let early = timeout(Duration::from_millis(50), process.wait()).await;
    assert!(early.is_err(), "it waits for its input to end");
    stdin.shutdown().await.expect("ended");
    drop(stdin);
    let exit = timeout(PATIENCE, process.wait()).await.expect("in time").expect("an exit");
    assert!(exit.success());
    assert_eq!(stdout.read(&mut buf).await.expect("the end"), 0);
    Ok(())
}

pub(super) async fn handles_signal_programs(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let spec = ExecSpec { confirm_start: true, ..ExecSpec::argv(["sleep", "1000"]) };
    let mut process = sandbox.inside().exec(spec.clone()).await.expect("started");
    let handle = process.handle();
    handle.signal(15).await.expect("signalled");
    let exit = timeout(PATIENCE, process.wait()).await.expect("in time").expect("an exit");
    assert_eq!(exit.status, ExitStatus::Signal(15));
    handle.signal(15).await.expect("a signal to an ended program succeeds");
    handle.kill().await.expect("a signal to an ended program succeeds");
    let mut process = sandbox.inside().exec(spec).await.expect("started");
    process.handle().kill().await.expect("killed");
    let exit = timeout(PATIENCE, process.wait()).await.expect("in time").expect("an exit");
    assert_eq!(exit.status, ExitStatus::Signal(9));
    Ok(())
}

pub(super) async fn terminals_have_a_size(stage: &Stage) -> CaseResult {
    if !stage.runtime.capabilities().terminals {
        return Err("it has no terminals".to_owned());
    }
    let sandbox = stage.launch().await;
    let size = TerminalSize { rows: 33, columns: 101 };
    let line = "stty size; sleep 0.3; stty size";
    let spec = ExecSpec { terminal: Some(size), confirm_start: true, ..ExecSpec::shell(line) };
    let mut process = sandbox.inside().exec(spec).await.expect("started");
    assert!(process.stderr.is_none(), "a terminal has one output");
    let mut stdout = process.stdout.take().expect("its output");
    let mut first = [0; 6];
    timeout(PATIENCE, stdout.read_exact(&mut first)).await.expect("in time").expect("read");
    assert_eq!(&first, b"33 101");
    let larger = TerminalSize { rows: 44, columns: 120 };
    process.handle().resize(larger).await.expect("resized");
    let mut rest = Vec::new();
    timeout(PATIENCE, stdout.read_to_end(&mut rest)).await.expect("in time").expect("read");
    let rest = String::from_utf8_lossy(&rest).into_owned();
    assert!(rest.contains("44 120"), "{rest:?}");
    assert!(process.wait().await.expect("an exit").success());
    Ok(())
}

pub(super) async fn closed_output_ends_the_writer(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let mut process = sandbox
        .inside()
        .exec(ExecSpec::shell("head -c 100000000 /dev/zero"))
        .await
        .expect("started");
    let mut stdout = process.stdout.take().expect("its output");
    let mut buf = [0; 100];
    stdout.read_exact(&mut buf).await.expect("read");
    drop(stdout);
    let exit = timeout(PATIENCE, process.wait()).await.expect("in time").expect("an exit");
    assert!(!exit.success(), "{exit:?}");
    Ok(())
}
