//! Input and output of a container, attached before it starts so that nothing of it is missed. The
//! library takes the engine's frames apart; here their contents are passed on. Standard output carries
//! the guest's protocol and nothing else; what comes by standard error is for people. What is torn (an
//! end in the middle of a frame, a frame of no kind we asked for) ends the connection, and with it the
//! sandbox: nothing is ever guessed.

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

use super::engine::{Engine, QUICK, Trouble};

/// How much of standard error is remembered.
const REMEMBERED_BYTES: usize = 1024;
/// How much input is passed on at once.
const INPUT_BYTES: usize = 16 * 1024;

/// The last that a container said by standard error.
#[derive(Debug, Clone, Default)]
pub(super) struct LastWords {
    bytes: Arc<Mutex<VecDeque<u8>>>,
}

impl LastWords {
    fn heard(&self, instance: InstanceId, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        tracing::debug!(%instance, text = text.trim_end(), "a guest wrote to standard error");
        let mut remembered = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.extend(bytes.iter().skip(bytes.len().saturating_sub(REMEMBERED_BYTES)));
        let excess = remembered.len().saturating_sub(REMEMBERED_BYTES);
        remembered.drain(..excess);
    }

    /// What it was, if it was anything.
    pub(super) fn text(&self) -> Option<String> {
        let remembered = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = remembered.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        Some(text).filter(|text| !text.is_empty())
    }
}

/// Attaches to a container, with its input if that is wanted.
pub(super) async fn attach(
    engine: &Engine,
    container: &str,
    input: bool,
) -> Result<AttachContainerResults, Trouble> {
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

/// A socket that is made of what is attached.
pub(super) struct AsSocket {
    /// What is written to it becomes input, and output can be read from it. It ends when either side
    /// does.
    pub socket: OwnedFd,
    /// Told when the first output is there; dropped if it ends before that.
    pub spoke: oneshot::Receiver<()>,
}

/// Makes a socket of what is attached.
pub(super) fn as_socket(
    attached: AttachContainerResults,
    instance: InstanceId,
    words: LastWords,
) -> io::Result<AsSocket> {
    let (ours, theirs) = StdStream::pair()?;
    theirs.set_nonblocking(true)?;
    let (read, write) = UnixStream::from_std(theirs)?.into_split();
    let (speaks, spoke) = oneshot::channel();
    tasks::spawn(async move {
        let AttachContainerResults { output, input } = attached;
        let to = Outward { to: write, instance, words, speaks: Some(speaks) };
        // Whatever ends first ends both: neither is dropped in the middle of anything that goes on.
        tokio::select! {
            () = to.pass_on(output) => {}
            () = inward(read, input) => {}
        }
    });
    Ok(AsSocket { socket: ours.into(), spoke })
}

/// Where output goes.
struct Outward {
    to: OwnedWriteHalf,
    instance: InstanceId,
    words: LastWords,
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
                        // Nobody need wait for it.
                        let _ = speaks.send(());
                    }
                }
                Ok(LogOutput::StdErr { message }) => self.words.heard(instance, &message),
                Ok(LogOutput::Console { .. } | LogOutput::StdIn { .. }) => {
                    tracing::warn!(%instance, "the engine's stream of a container is torn");
                    return;
                }
                Err(error) => {
                    tracing::warn!(%instance, %error, "the engine's stream of a container broke");
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

/// Listens to a container that is reached in another way, until it is over.
pub(super) async fn last_words(
    attached: AttachContainerResults,
    instance: InstanceId,
    words: &LastWords,
) {
    let AttachContainerResults { mut output, input } = attached;
    while let Some(Ok(frame)) = output.next().await {
        words.heard(instance, frame.as_ref());
    }
    drop(input);
}
