//! Streams of bytes that a program has apart from its output.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::stage::{PATIENCE, said};
use super::{CaseResult, Stage, code_of};
use crate::error::RuntimeErrorCode;
use crate::exec::{CHANNEL_NAME, ExecSpec, Stdin};
use crate::{ExitStatus, TerminalSize};

pub(super) async fn channels_go_both_ways(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let spec = ExecSpec::new(stage.subject.echo_channel()).channel();
    let mut process = sandbox.inside().exec(spec).await.expect("started");
    let mut channel = process.channel.take().expect("there is one");
    // More than any buffer on the way holds, so that both ends must be at work at once.
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n ^ (n >> 8)) as u8).collect();
    let (mut from, mut to) = tokio::io::split(&mut channel);
    let mut got = Vec::new();
    let write = async {
        to.write_all(&sent).await.expect("written");
        to.shutdown().await.expect("ended");
    };
    let both = async { tokio::join!(write, from.read_to_end(&mut got)) };
    timeout(PATIENCE, both).await.expect("in time").1.expect("read");
    assert!(got == sent, "{} of {} bytes came back", got.len(), sent.len());
    let exit = timeout(PATIENCE, process.wait()).await.expect("in time").expect("it ended");
    assert_eq!(exit.status, ExitStatus::Code(0), "the end of the channel ended it");
    Ok(())
}

pub(super) async fn channels_end_with_their_program(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let mut spec = ExecSpec::new(stage.subject.echo_channel()).channel();
    spec.confirm_start = true;
    let mut process = sandbox.inside().exec(spec.clone()).await.expect("started");
    let mut channel = process.channel.take().expect("there is one");
    process.handle().kill().await.expect("killed");
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, channel.read_to_end(&mut rest)).await.expect("it ends");
    assert_eq!(rest, b"");
    let exit = timeout(PATIENCE, process.wait()).await.expect("in time").expect("it ended");
    assert_eq!(exit.status, ExitStatus::Signal(9));
    let line = format!("printenv {CHANNEL_NAME}");
    let named = sandbox.inside().exec(ExecSpec::shell(line).channel()).await.expect("started");
    let mut named = named;
    let mut text = String::new();
    let stdout = named.stdout.as_mut().expect("a stream");
    timeout(PATIENCE, stdout.read_to_string(&mut text)).await.expect("in time").expect("text");
    assert_eq!(text, "3\n");
    // Of one that dies with its sandbox, too.
    let mut process = sandbox.inside().exec(spec).await.expect("started");
    let mut channel = process.channel.take().expect("there is one");
    sandbox.kill().await.expect("killed");
    let ended = timeout(PATIENCE, channel.read_to_end(&mut rest)).await.expect("it ends");
    assert!(ended.is_err() || rest.is_empty());
    Ok(())
}

pub(super) async fn channels_and_input_exclude_each_other(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let fed = ExecSpec::argv(["true"]).stdin(Stdin::Stream).channel();
    assert_eq!(code_of(sandbox.inside().exec(fed).await), RuntimeErrorCode::Invalid);
    let mut on_terminal = ExecSpec::argv(["true"]).channel();
    on_terminal.terminal = Some(TerminalSize { rows: 24, columns: 80 });
    assert_eq!(code_of(sandbox.inside().exec(on_terminal).await), RuntimeErrorCode::Invalid);
    assert_eq!(said(&*sandbox, "echo on").await, "on\n");
    Ok(())
}
