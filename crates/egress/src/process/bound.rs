//! Connections to hosts of boundary secrets: TLS ends here, and the values are put in their places. It
//! must never say more of a request than what became of a secret.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use model::HostName;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use super::connection::{Connection, Way};
use super::dial::{self, Denied};
use super::proxy;
use crate::boundary::{BoundSecret, BoundaryNote, Dialled, Place};
use crate::control::BoundarySecret;
use crate::event::{EgressEvent, EventKind, Verdict};
use crate::policy::Granted;
use crate::relay::write_all;
use crate::target::{Host, Target};

/// The only port on which values go out.
const PORT: u16 = 443;

pub(super) fn prepared(secret: BoundarySecret) -> BoundSecret {
    let BoundarySecret { placeholder, value, header, hosts, secret } = secret;
    BoundSecret { placeholder, value, header, hosts, secret }
}

/// The name of a target for which the sandbox has a secret.
pub(super) fn name_of<'a>(connection: &Connection, target: &'a Target) -> Option<&'a HostName> {
    match &target.host {
        Host::Name(name) if target.port == PORT => {
            let secrets = &connection.sandbox.secrets;
            secrets.iter().any(|secret| secret.hosts.contains(name)).then_some(name)
        }
        Host::Name(_) | Host::Address(IpAddr::V4(_) | IpAddr::V6(_)) => None,
    }
}

/// Serves a connection to such a host.
pub(super) async fn serve(
    connection: &Arc<Connection>,
    client: TcpStream,
    buffer: Vec<u8>,
    (name, target): (&HostName, &Target),
    granted: &Granted,
    way: Way,
) -> Result<(), Denied> {
    let Some(terminator) = &connection.sandbox.shared.boundary else {
        return Err(Denied::failed("this process has no authority for secrets".to_owned()));
    };
    match way {
        Way::Direct => {}
        Way::Tunnel | Way::Socks => {
            if write_all(&client, &proxy::reached(way)).await.is_err() {
                return Ok(());
            }
        }
    }
    let dial = {
        let (connection, target, granted) = (connection.clone(), target.clone(), granted.clone());
        move || {
            let (connection, target, granted) =
                (connection.clone(), target.clone(), granted.clone());
            let reached = async move {
                let reached = dial::reach_quietly(&connection, &target, &granted).await;
                let (stream, address) = reached.map_err(|denied| {
                    connection.denied(&target, Some(&granted), &denied);
                    io::Error::other(denied.reason)
                })?;
                // A host whose certificate is wrong was not reached.
                let verified = Box::new(move || connection.connected(&target, &granted, address));
                Ok(Dialled { stream, verified })
            };
            Box::pin(reached) as BoxFuture<'static, io::Result<Dialled<TcpStream>>>
        }
    };
    let log = {
        let (connection, target) = (connection.clone(), target.clone());
        move |note| report(&connection, &target, note)
    };
    let (read, write) = client.into_split();
    let client = tokio::io::join(io::Cursor::new(buffer).chain(read), write);
    let secrets = connection.sandbox.secrets.clone();
    let client = (client, connection.clone());
    let served = terminator.serve(client, name.clone(), secrets, dial, log).await;
    if let Err(error) = served {
        let denied = Denied::refused(format!("its TLS handshake failed: {error}"));
        connection.denied(target, Some(granted), &denied);
    }
    Ok(())
}

fn report(connection: &Connection, target: &Target, note: BoundaryNote) {
    let (kind, verdict, reason) = match note {
        BoundaryNote::Request { .. } => return,
        BoundaryNote::Replaced { secret } => {
            (EventKind::Secret, Verdict::Allowed, format!("the value of {secret} went out"))
        }
        BoundaryNote::PlaceholderElsewhere { secret, place } => {
            let place = match place {
                Place::Target => "the path".to_owned(),
                Place::Header(name) => format!("the header {name}"),
                Place::Body => "the body".to_owned(),
            };
            let reason = format!("the placeholder of {secret} is in {place}, and stays there");
            (EventKind::Secret, Verdict::Noted, reason)
        }
        BoundaryNote::EchoRedacted { secret } => {
            let reason = format!("the host sent the value of {secret} back, and it was taken out");
            (EventKind::Secret, Verdict::Noted, reason)
        }
        BoundaryNote::WrongHost { named } => {
            let reason = format!("a request names {named}");
            (EventKind::Connection, Verdict::Refused, reason)
        }
        BoundaryNote::MethodRefused { method } => {
            let reason = format!("{method} is not passed to hosts of secrets");
            (EventKind::Connection, Verdict::Refused, reason)
        }
        BoundaryNote::UpstreamFailed { reason } => (EventKind::Connection, Verdict::Failed, reason),
    };
    let event = connection.event(target, verdict);
    connection.sandbox.report(EgressEvent { kind, reason: Some(reason), ..event });
}
