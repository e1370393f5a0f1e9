//! Waits for the greeting of TLS, and compares the host that it names; for the second greeting too, if
//! the host asks for one. It must never let a byte pass before that is done.

use std::io;
use std::time::Duration;

use model::HostName;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::connection::Connection;
use super::dial::Denied;
use crate::greeting::{GreetingReader, Progress};
use crate::relay::{Direction, Meter as _, Piece, pause, read_more, write_all};
use crate::second_greeting::{Asks, asks_again, second_begins};

/// How long a greeting, or the answer to it, may take.
const PATIENCE: Duration = Duration::from_secs(10);

fn refused(reason: &str) -> Denied {
    Denied::refused(reason.to_owned())
}

/// Reads until the greeting is whole. It stays in `buffer`, with whatever followed it; it has so many
/// bytes.
pub(super) async fn check(
    client: &TcpStream,
    buffer: &mut Vec<u8>,
    name: &HostName,
) -> Result<usize, Denied> {
    let read = greeting(client, buffer, 0, name);
    let late = |_| refused("no TLS greeting came in time");
    timeout(PATIENCE, read).await.map_err(late)?
}

/// Reads until the greeting that begins there in `buffer` is whole.
async fn greeting(
    client: &TcpStream,
    buffer: &mut Vec<u8>,
    at: usize,
    name: &HostName,
) -> Result<usize, Denied> {
    let mut reader = GreetingReader::default();
    let greeting = loop {
        match reader.read(&buffer[at..]) {
            Progress::Refused(reason) => return Err(refused(reason)),
            Progress::Hello(greeting) => break greeting,
            Progress::NeedMore => {}
        }
        match read_more(client, buffer).await {
            Ok(Piece::Bytes(_) | Piece::Nothing) => {}
            Ok(Piece::End) | Err(_) => return Err(refused("it closed before its greeting")),
        }
    };
    match greeting.server_name {
        Some(named) if named == *name => Ok(reader.consumed()),
        Some(named) => {
            Err(Denied::refused(format!("its TLS greeting names {named} and not {name}")))
        }
        None => Err(refused("its TLS greeting names no host")),
    }
}

/// Sends the greeting, which has so many bytes of `buffer`, and waits for what the host makes of it. If
/// the host wants another one, that is read like the first. What is left in `buffer` may pass then.
/// False: one of both ends has left.
pub(super) async fn introduce(
    connection: &Connection,
    (client, host): (&TcpStream, &TcpStream),
    buffer: &mut Vec<u8>,
    greeting_bytes: usize,
    name: &HostName,
) -> Result<bool, Denied> {
    let after = buffer.split_off(greeting_bytes);
    let first = std::mem::replace(buffer, after);
    let late = |_| Denied::failed(format!("{name} did not answer the TLS greeting in time"));
    let asked = timeout(PATIENCE, exchanged(connection, client, host, &first)).await;
    match asked.map_err(late)? {
        Ok(Asks::Again) => {}
        Ok(Asks::No | Asks::NeedMore) => return Ok(true),
        Err(_) => return Ok(false),
    }
    let second = async {
        loop {
            match second_begins(buffer) {
                Ok(Some(at)) => return greeting(client, buffer, at, name).await.map(|_| true),
                Ok(None) => {}
                Err(reason) => return Err(refused(reason)),
            }
            match read_more(client, buffer).await {
                Ok(Piece::Bytes(_) | Piece::Nothing) => {}
                Ok(Piece::End) | Err(_) => return Ok(false),
            }
        }
    };
    let late = |_| refused("no second TLS greeting came in time");
    timeout(PATIENCE, second).await.map_err(late)?
}

/// Sends the greeting, and passes the beginning of the answer on.
async fn exchanged(
    connection: &Connection,
    client: &TcpStream,
    host: &TcpStream,
    greeting: &[u8],
) -> io::Result<Asks> {
    write_all(host, greeting).await?;
    pause(connection.moved(Direction::Out, greeting.len())?).await;
    let mut answer = Vec::new();
    let mut asks = Asks::NeedMore;
    while asks == Asks::NeedMore {
        if let Piece::End = read_more(host, &mut answer).await? {
            break;
        }
        asks = asks_again(&answer);
    }
    write_all(client, &answer).await?;
    pause(connection.moved(Direction::In, answer.len())?).await;
    Ok(asks)
}
