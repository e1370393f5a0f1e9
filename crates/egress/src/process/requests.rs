//! Passes requests of HTTP to their host, each of them read and checked. It must never pass a byte
//! that no check has read, until the host itself has switched to another protocol.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::connection::{Connection, last_words};
use super::dial::{self, Denied};
use crate::http_head::{Answered, Head, Requests, Step, UpgradeAnswer};
use crate::policy::Granted;
use crate::relay::{Direction, Meter, Piece, pause, pump, read_more, relay, rest_after, write_all};
use crate::target::Target;

/// How long the first request may take to come whole.
const PATIENCE: Duration = Duration::from_secs(10);

/// A first request, and what follows it.
pub(super) struct First {
    pub head: Head,
    /// What came after the head.
    pub buffer: Vec<u8>,
    pub requests: Requests,
}

/// Serves a connection on which requests come. `host` is there if it was reached already.
pub(super) async fn serve(
    connection: &Connection,
    client: &TcpStream,
    host: Option<TcpStream>,
    mut buffer: Vec<u8>,
    mut requests: Requests,
    target: &Target,
    granted: &Granted,
) -> Result<(), Denied> {
    let first = async {
        loop {
            match requests.step(&buffer) {
                Step::Head(head) => return Some(Ok(head)),
                Step::Refused(refusal) => return Some(Err(refusal)),
                Step::NeedMore => {}
                Step::Body(_) | Step::Hold | Step::PassAll | Step::End => return None,
            }
            match read_more(client, &mut buffer).await {
                Ok(Piece::Bytes(_) | Piece::Nothing) => {}
                Ok(Piece::End) | Err(_) => return None,
            }
        }
    };
    match timeout(PATIENCE, first).await {
        Ok(Some(Ok(head))) => {
            buffer.drain(..head.consumed);
            let first = First { head, buffer, requests };
            serve_from(connection, client, host, first, target, granted).await
        }
        Ok(Some(Err(refusal))) => {
            let denied = Denied::refused(refusal.reason.to_owned());
            connection.denied(target, Some(granted), &denied);
            if requests.is_first() {
                last_words(client, &refusal.answer()).await;
            }
            Ok(())
        }
        Ok(None) => Ok(()),
        Err(_) => Err(Denied::refused("no request came in time".to_owned())),
    }
}

/// Serves from the first request on.
pub(super) async fn serve_from(
    connection: &Connection,
    client: &TcpStream,
    host: Option<TcpStream>,
    first: First,
    target: &Target,
    granted: &Granted,
) -> Result<(), Denied> {
    let First { head, mut buffer, mut requests } = first;
    let host = match host {
        Some(host) => host,
        None => dial::reach(connection, target, granted).await?,
    };
    if send(connection, &host, &head.bytes).await.is_err() {
        return Ok(());
    }
    if head.upgrade {
        match upgraded(connection, client, &host).await {
            Ok(switched) => requests.upgrade_answered(switched),
            Err(None) => return Ok(()),
            Err(Some(reason)) => {
                let denied = Denied::refused(reason.to_owned());
                connection.denied(target, Some(granted), &denied);
                return Ok(());
            }
        }
        if matches!(requests.step(&buffer), Step::PassAll) {
            if send(connection, &host, &buffer).await.is_ok() {
                drop(buffer);
                let pipes = &connection.sandbox.shared.pipes;
                let _ = relay(client, &host, pipes, connection).await;
            }
            return Ok(());
        }
    }
    let pipes = connection.sandbox.shared.pipes.clone();
    let outward = outward(connection, client, &host, &mut requests, &mut buffer);
    let inward = async {
        // A failure means that nothing can be answered any more.
        pump(&host, client, &pipes, connection, Direction::In).await.map_err(|_| None)
    };
    if let Err(Some(denied)) = tokio::try_join!(outward, inward) {
        connection.denied(target, Some(granted), &denied);
    }
    Ok(())
}

async fn send(connection: &impl Meter, host: &TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    write_all(host, bytes).await?;
    pause(connection.moved(Direction::Out, bytes.len())?).await;
    Ok(())
}

/// Whether the host switched. Its answer passes to the client; bytes of the client wait.
async fn upgraded(
    connection: &Connection,
    client: &TcpStream,
    host: &TcpStream,
) -> Result<bool, Option<&'static str>> {
    let mut answer = UpgradeAnswer::default();
    loop {
        let mut bytes = Vec::new();
        match read_more(host, &mut bytes).await {
            Ok(Piece::Bytes(_) | Piece::Nothing) => {}
            Ok(Piece::End) | Err(_) => return Err(None),
        }
        let answered = answer.read(&bytes);
        if let Answered::Refused(reason) = answered {
            return Err(Some(reason));
        }
        write_all(client, &bytes).await.map_err(|_| None)?;
        connection.moved(Direction::In, bytes.len()).map_err(|_| None)?;
        match answered {
            Answered::Switched => return Ok(true),
            Answered::Stays => return Ok(false),
            Answered::NeedMore | Answered::Refused(_) => {}
        }
    }
}

/// Passes requests until the client has no more. An error ends the connection: a refusal of a later
/// request cannot be answered, because it would be taken for the answer to an earlier one.
async fn outward(
    connection: &Connection,
    client: &TcpStream,
    host: &TcpStream,
    requests: &mut Requests,
    buffer: &mut Vec<u8>,
) -> Result<(), Option<Denied>> {
    let mut row = 0;
    loop {
        rest_after(&mut row).await;
        match requests.step(buffer) {
            Step::Head(head) => {
                send(connection, host, &head.bytes).await.map_err(|_| None)?;
                buffer.drain(..head.consumed);
                continue;
            }
            Step::Body(count) => {
                body(connection, client, host, buffer, count).await?;
                continue;
            }
            Step::Refused(refusal) => {
                return Err(Some(Denied::refused(refusal.reason.to_owned())));
            }
            Step::End => return last(client, host, buffer).await,
            // Only the first request can ask for these, and it has passed.
            Step::Hold | Step::PassAll => return Err(None),
            Step::NeedMore => {}
        }
        match read_more(client, buffer).await {
            Ok(Piece::Bytes(_) | Piece::Nothing) => {}
            Ok(Piece::End) if buffer.is_empty() => {
                let _ = rustix::net::shutdown(host, rustix::net::Shutdown::Write);
                return Ok(());
            }
            Ok(Piece::End) | Err(_) => return Err(None),
        }
    }
}

/// After the only request: the end of the client passes, and nothing else.
async fn last(
    client: &TcpStream,
    host: &TcpStream,
    buffer: &mut Vec<u8>,
) -> Result<(), Option<Denied>> {
    if !buffer.is_empty() {
        return Err(None);
    }
    match read_more(client, buffer).await {
        Ok(Piece::End) => {
            let _ = rustix::net::shutdown(host, rustix::net::Shutdown::Write);
            Ok(())
        }
        Ok(Piece::Bytes(_) | Piece::Nothing) | Err(_) => Err(None),
    }
}

/// Passes so many bytes, which are in the buffer or come after it. Sockets that are ready let a task run
/// on and on: one sandbox must not keep the only thread.
async fn body(
    connection: &impl Meter,
    client: &TcpStream,
    host: &TcpStream,
    buffer: &mut Vec<u8>,
    mut left: u64,
) -> Result<(), Option<Denied>> {
    let mut row = 0;
    while left > 0 {
        rest_after(&mut row).await;
        if buffer.is_empty() {
            match read_more(client, buffer).await {
                Ok(Piece::Bytes(_) | Piece::Nothing) => {}
                Ok(Piece::End) | Err(_) => return Err(None),
            }
        }
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        send(connection, host, &buffer[..count]).await.map_err(|_| None)?;
        buffer.drain(..count);
        left -= count as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use tokio::net::TcpListener;

    use super::*;
    use crate::relay::BUFFER_BYTES;

    #[derive(Default)]
    struct Moved(AtomicUsize);

    impl Meter for Moved {
        fn moved(&self, _: Direction, bytes: usize) -> io::Result<Duration> {
            self.0.fetch_add(bytes, Relaxed);
            Ok(Duration::ZERO)
        }
    }

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn a_body_that_is_there_at_once_does_not_keep_the_thread() {
        let (program, client) = pair().await;
        let (host, _server) = pair().await;
        program.writable().await.unwrap();
        let (piece, mut written) = (vec![b'x'; BUFFER_BYTES], 0);
        while let Ok(count) = program.try_write(&piece) {
            written += count;
        }
        let moved = Moved::default();
        let mut buffer = Vec::new();
        let mut passing = std::pin::pin!(body(&moved, &client, &host, &mut buffer, u64::MAX));
        assert!(futures_util::poll!(&mut passing).is_pending());
        let at_once = moved.0.load(Relaxed);
        assert!(at_once <= 8 * BUFFER_BYTES, "{at_once} of {written} bytes in one turn");
    }
}
