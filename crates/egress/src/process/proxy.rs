//! The proxy for programs that are configured to use one: HTTP and SOCKS5 on one port. It must never
//! allow what dialling the same target would not.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::connection::{Connection, Way, last_words, no_rule, pass};
use super::dial::Denied;
use super::requests;
use super::sandbox::Grant;
use crate::event::{EgressEvent, EventKind, Verdict};
use crate::http_head::{CONNECTED, Head, ProxyRequest, ProxyStep, Requests};
use crate::relay::{Piece, read_more, write_all};
use crate::socks::{Socks, SocksReply, SocksStep};
use crate::target::Target;

use model::ConnectionCheck;

/// How long a program may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a program wants.
enum Wish {
    Tunnel(Target, Way),
    Plain(Target, Head, Requests),
    /// Nothing that can be done: the answer, and the reason.
    Refused(Vec<u8>, &'static str),
    /// It left.
    Gone,
}

/// Serves a connection to the proxy.
pub(super) async fn serve(connection: &Arc<Connection>, client: TcpStream) {
    let mut buffer = Vec::new();
    let wish = timeout(PATIENCE, wish(&client, &mut buffer)).await.unwrap_or(Wish::Gone);
    match wish {
        Wish::Tunnel(target, way) => pass(connection, client, buffer, &target, way).await,
        Wish::Plain(target, head, requests) => {
            buffer.drain(..head.consumed);
            plain(connection, &client, buffer, &target, head, requests).await;
        }
        Wish::Refused(answer, reason) => {
            let sandbox = &connection.sandbox;
            let mut event = EgressEvent::of(sandbox.id, EventKind::Connection, Verdict::Refused);
            event.reason = Some(reason.to_owned());
            sandbox.report(event);
            last_words(&client, &answer).await;
        }
        Wish::Gone => {}
    }
}

/// Reads until it is clear what the program wants. What follows that stays in `buffer`.
async fn wish(client: &TcpStream, buffer: &mut Vec<u8>) -> Wish {
    let (mut socks, mut http) = (Socks::default(), ProxyRequest::default());
    let mut is_socks = false;
    loop {
        is_socks = is_socks || buffer.first().is_some_and(|first| Socks::begins(*first));
        if is_socks {
            match socks.step(buffer) {
                SocksStep::NeedMore => {}
                SocksStep::Reply { consumed, reply } => {
                    buffer.drain(..consumed);
                    if write_all(client, &reply).await.is_err() {
                        return Wish::Gone;
                    }
                    continue;
                }
                SocksStep::Request { consumed, target } => {
                    buffer.drain(..consumed);
                    return Wish::Tunnel(target, Way::Socks);
                }
                SocksStep::Refused { reply, reason } => return Wish::Refused(reply, reason),
            }
        } else {
            match http.step(buffer) {
                ProxyStep::NeedMore => {}
                ProxyStep::Connect { consumed, target } => {
                    buffer.drain(..consumed);
                    return Wish::Tunnel(target, Way::Tunnel);
                }
                ProxyStep::Plain { target, head, requests } => {
                    return Wish::Plain(target, head, requests);
                }
                ProxyStep::Refused(refusal) => {
                    return Wish::Refused(refusal.answer(), refusal.reason);
                }
            }
        }
        match read_more(client, buffer).await {
            Ok(Piece::Bytes(_) | Piece::Nothing) => {}
            Ok(Piece::End) | Err(_) => return Wish::Gone,
        }
    }
}

/// One plain request through the proxy.
async fn plain(
    connection: &Connection,
    client: &TcpStream,
    buffer: Vec<u8>,
    target: &Target,
    head: Head,
    requests: Requests,
) {
    let granted = connection.sandbox.grants(target).ok_or_else(|| no_rule(target));
    let granted = granted.and_then(|granted| match granted.check {
        Some(ConnectionCheck::Tls) => {
            Err(Denied::refused("the rule wants TLS, and this is a plain request".to_owned()))
        }
        Some(ConnectionCheck::Http) | None => Ok(granted),
    });
    let outcome = match granted {
        Ok(granted) => {
            let grant = Grant { target: target.clone(), address: None, check: granted.check };
            connection.sandbox.granted(connection.number, &grant);
            let first = requests::First { head, buffer, requests };
            requests::serve_from(connection, client, None, first, target, &granted).await
        }
        Err(denied) => Err(denied),
    };
    if let Err(denied) = outcome {
        connection.denied(target, None, &denied);
        last_words(client, &refusal(&denied)).await;
    }
}

/// How a program hears that its target is reached.
pub(super) fn reached(way: Way) -> Vec<u8> {
    match way {
        Way::Socks => SocksReply::Connected.bytes().to_vec(),
        Way::Direct | Way::Tunnel => CONNECTED.to_vec(),
    }
}

/// How a program that speaks HTTP hears that it goes no further.
pub(super) fn refusal(denied: &Denied) -> Vec<u8> {
    let status = match denied.verdict {
        Verdict::Allowed | Verdict::Noted | Verdict::Refused => "403 Forbidden",
        Verdict::Failed => "502 Bad Gateway",
    };
    let plain =
        |letter: char| if letter.is_ascii_graphic() || letter == ' ' { letter } else { '?' };
    let reason: String = denied.reason.chars().map(plain).take(300).collect();
    let length = reason.len() + 1;
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\
         X-Shoal-Reason: {reason}\r\nConnection: close\r\n\r\n{reason}\n"
    )
    .into_bytes()
}

/// How a program that speaks SOCKS hears it.
pub(super) fn socks_refusal(denied: &Denied) -> Vec<u8> {
    let reply = match denied.verdict {
        Verdict::Allowed | Verdict::Noted | Verdict::Refused => SocksReply::NotAllowed,
        Verdict::Failed => SocksReply::Unreachable,
    };
    reply.bytes().to_vec()
}
