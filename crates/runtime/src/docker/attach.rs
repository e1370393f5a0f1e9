//! Input and output of a container, attached before it starts so that nothing is missed. The
//! library decodes the engine's frames; this module passes their contents on. Standard output
//! carries the guest's protocol and nothing else; standard error is for people. A broken stream (an
//! end within a frame, or a frame of an unexpected kind) ends the connection, and with it the
//! sandbox: nothing may be guessed.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::{Arc, Mutex, PoisonError};

use bollard::container::{AttachContainerResults, LogOutput};
use bollard::query_parameters::AttachContainerOptionsBuilder;
use futures_util::{Stream, StreamExt as _};
use model::InstanceId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::oneshot;

use super::engine::{Engine, EngineFailure, QUICK};

/// How much of standard error is remembered.
const REMEMBERED_BYTES: usize = 1024;
/// How much input is passed on at once.
const INPUT_BYTES: usize = 16 * 1024;

/// The end of a container's standard error.
#[derive(Debug, Clone, Default)]
pub(super) struct StderrTail {
    bytes: Arc<Mutex<VecDeque<u8>>>,
}

impl StderrTail {
    fn append(&self, instance: InstanceId, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        tracing::debug!(%instance, text = text.trim_end(), "the guest wrote to standard error");
        let mut remembered = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.extend(bytes.iter().skip(bytes.len().saturating_sub(REMEMBERED_BYTES)));
        let excess = remembered.len().saturating_sub(REMEMBERED_BYTES);
        remembered.drain(..excess);
    }

    /// The text, if there is any.
    pub(super) fn text(&self) -> Option<String> {
        let remembered = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = remembered.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        Some(text).filter(|text| !text.is_empty())
    }
}

/// Attaches to a container, with its input if `input`.
pub(super) async fn attach(
    engine: &Engine,
    container: &str,
    input: bool,
) -> Result<AttachContainerResults, EngineFailure> {
    let options = AttachContainerOptionsBuilder::new()
        .stream(true)
        .logs(false)
        .stdin(input)
        .stdout(true)
        .stderr(true)
        .build();
    engine
        .ask(QUICK, |docker| async move { docker.attach_container(container, Some(options)).await })
        .await
}

/// A socket in front of an attached container.
pub(super) struct AttachedSocket {
    /// What is written to it becomes input, and output can be read from it. It ends when either
    /// side does.
    pub socket: OwnedFd,
    /// Completes with the first output; closed if the container ends before that.
    pub spoke: oneshot::Receiver<()>,
}

/// Puts a socket in front of an attached container.
pub(super) fn as_socket(
    attached: AttachContainerResults,
    instance: InstanceId,
    stderr: StderrTail,
) -> io::Result<AttachedSocket> {
    let (ours, theirs) = StdStream::pair()?;
    theirs.set_nonblocking(true)?;
    let (read, write) = UnixStream::from_std(theirs)?.into_split();
    let (speaks, spoke) = oneshot::channel();
    tasks::spawn(async move {
        let AttachContainerResults { output, input } = attached;
        let to = Outward { to: write, instance, stderr, speaks: Some(speaks) };
        // The first direction that ends, ends both.
        tokio::select! {
            () = to.pass_on(output) => {}
            () = inward(read, input) => {}
        }
    });
    Ok(AttachedSocket { socket: ours.into(), spoke })
}

/// Where output goes.
struct Outward {
    to: OwnedWriteHalf,
    instance: InstanceId,
    stderr: StderrTail,
    speaks: Option<oneshot::Sender<()>>,
}

impl Outward {
    async fn pass_on(
        mut self,
        mut output: impl Stream<Item = Result<LogOutput, bollard::errors::Error>> + Unpin,
    ) {
        let instance = self.instance;
        while let Some(frame) = output.next().await {
            match frame {
                Ok(LogOutput::StdOut { message }) => {
                    if self.to.write_all(&message).await.is_err() {
                        return;
                    }
                    if let Some(speaks) = self.speaks.take() {
                        // The receiver may be gone, which is fine.
                        let _ = speaks.send(());
                    }
                }
                Ok(LogOutput::StdErr { message }) => self.stderr.append(instance, &message),
                Ok(LogOutput::Console { .. } | LogOutput::StdIn { .. }) => {
                    let what = "the Docker engine sent an unexpected frame; the sandbox ends";
                    tracing::warn!(%instance, "{what}");
                    return;
                }
                Err(error) => {
                    let what = "the Docker engine's stream broke; the sandbox ends";
                    tracing::warn!(%instance, %error, "{what}");
                    return;
                }
            }
        }
    }
}

async fn inward(mut from: OwnedReadHalf, mut input: impl tokio::io::AsyncWrite + Unpin) {
    let mut buffer = vec![0; INPUT_BYTES];
    while let Ok(count) = from.read(&mut buffer).await {
        if count == 0
            || input.write_all(&buffer[..count]).await.is_err()
            || input.flush().await.is_err()
        {
            break;
        }
    }
    let _ = input.shutdown().await;
}

/// Collects the standard error of a container that is connected by a socket, until it ends.
pub(super) async fn collect_stderr(
    attached: AttachContainerResults,
    instance: InstanceId,
    stderr: &StderrTail,
) {
    let AttachContainerResults { mut output, input } = attached;
    while let Some(Ok(frame)) = output.next().await {
        stderr.append(instance, frame.as_ref());
    }
    drop(input);
}
