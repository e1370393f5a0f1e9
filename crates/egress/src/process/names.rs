//! Answers questions for names of one sandbox, over UDP and over TCP. It must never answer one that no
//! rule allows, and never ask anybody else.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use model::HostName;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::sandbox::Sandbox;
use crate::dns::{self, Framed, Outcome};
use crate::event::{EgressEvent, EventKind, Verdict};
use crate::relay::{Piece, pause, read_more, write_all};

/// How long a connection for questions may be silent.
const SILENCE: Duration = Duration::from_secs(10);
/// How many questions are answered before others have their turn.
const IN_A_ROW: u32 = 16;

/// Questions over UDP. Those beyond the limit are dropped: programs ask again.
pub(super) async fn answer_all(sandbox: Arc<Sandbox>, socket: Arc<UdpSocket>) {
    let mut row = 0;
    loop {
        if socket.readable().await.is_err() {
            return;
        }
        match answer_next(&sandbox, &socket) {
            Next::None => continue,
            Next::Answered => {}
            Next::Early(question, from) => {
                sandbox.shared.order.catch_up().await;
                answer_one(&sandbox, &socket, &question, from);
            }
        }
        row = (row + 1) % IN_A_ROW;
        if row == 0 {
            tokio::task::yield_now().await;
        }
    }
}

enum Next {
    None,
    Answered,
    /// It came while something that the server has said does not hold yet.
    Early(Vec<u8>, SocketAddr),
}

/// Answers the next question, if there is one. Its buffer is gone when it is answered: most sandboxes
/// ask nothing most of the time.
fn answer_next(sandbox: &Sandbox, socket: &UdpSocket) -> Next {
    let mut buffer = [0; dns::TCP_MESSAGE_MAX];
    // An error is about an answer of before that did not arrive.
    let Ok((count, from)) = socket.try_recv_from(&mut buffer) else { return Next::None };
    if sandbox.shared.order.is_behind() {
        return Next::Early(buffer[..count].to_vec(), from);
    }
    answer_one(sandbox, socket, &buffer[..count], from);
    Next::Answered
}

fn answer_one(sandbox: &Sandbox, socket: &UdpSocket, question: &[u8], from: SocketAddr) {
    if sandbox.questions.try_take()
        && let Some(answer) = answer(sandbox, question)
    {
        // One that does not fit into the socket is lost, as on any network.
        let _ = socket.try_send_to(&answer, from);
    }
}

/// Questions over TCP, one after the other.
pub(super) async fn answer_stream(sandbox: &Sandbox, client: &TcpStream) {
    let mut buffer = Vec::new();
    loop {
        match dns::next_of_stream(&buffer) {
            Framed::TooLong => return,
            Framed::NeedMore => match timeout(SILENCE, read_more(client, &mut buffer)).await {
                Ok(Ok(Piece::Bytes(_))) => {}
                Ok(_) | Err(_) => return,
            },
            Framed::Message { message, consumed } => {
                let wait = sandbox.questions.owe(1.0);
                let Some(answer) = answer(sandbox, message) else { return };
                buffer.drain(..consumed);
                pause(wait).await;
                let written = timeout(SILENCE, write_all(client, &dns::for_stream(&answer))).await;
                if !matches!(written, Ok(Ok(()))) {
                    return;
                }
            }
        }
    }
}

fn answer(sandbox: &Sandbox, message: &[u8]) -> Option<Vec<u8>> {
    let policy = sandbox.policy();
    let mut is_new = false;
    let mut full = false;
    let (bytes, asked) = dns::answer(message, |name: &HostName| -> Option<Ipv4Addr> {
        if !policy.resolves(name) {
            return None;
        }
        let mut names = sandbox.names.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(assigned) = names.address_of(name) else {
            full = true;
            return None;
        };
        is_new = assigned.is_new;
        Some(assigned.address)
    })?;
    let outbox = &sandbox.shared.outbox;
    let verdict = match asked.outcome {
        Outcome::Address(_) | Outcome::Empty => {
            outbox.names_allowed.fetch_add(1, Relaxed);
            Verdict::Allowed
        }
        Outcome::Refused | Outcome::Malformed => {
            outbox.names_refused.fetch_add(1, Relaxed);
            Verdict::Refused
        }
    };
    if is_new || verdict == Verdict::Refused {
        let reason = if verdict == Verdict::Allowed {
            None
        } else if full {
            Some("the sandbox has asked for too many names")
        } else if asked.outcome == Outcome::Malformed {
            Some("the question is malformed")
        } else {
            Some("no rule names it")
        };
        let mut event = EgressEvent::of(sandbox.id, EventKind::Name, verdict);
        event.name = asked.name;
        event.reason = reason.map(str::to_owned);
        sandbox.report(event);
    }
    Some(bytes)
}
