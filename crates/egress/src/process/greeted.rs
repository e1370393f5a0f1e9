//! Waits for the greeting of TLS, and compares the host that it names. It must never let a byte pass
//! before.

use std::time::Duration;

use model::HostName;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::dial::Denied;
use crate::greeting::{GreetingReader, Progress};
use crate::relay::{Piece, read_more};

/// How long the greeting may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads until the greeting is whole. It stays in `buffer`, with whatever followed it.
pub(super) async fn check(
    client: &TcpStream,
    buffer: &mut Vec<u8>,
    name: &HostName,
) -> Result<(), Denied> {
    let refused = |reason: &str| Denied::refused(reason.to_owned());
    let mut reader = GreetingReader::default();
    let read = async {
        loop {
            match reader.read(buffer) {
                Progress::Refused(reason) => return Err(refused(reason)),
                Progress::Hello(greeting) => return Ok(greeting),
                Progress::NeedMore => {}
            }
            match read_more(client, buffer).await {
                Ok(Piece::Bytes(_) | Piece::Nothing) => {}
                Ok(Piece::End) | Err(_) => return Err(refused("it closed before its greeting")),
            }
        }
    };
    let late = |_| refused("no TLS greeting came in time");
    let greeting = timeout(PATIENCE, read).await.map_err(late)??;
    match greeting.server_name {
        Some(named) if named == *name => Ok(()),
        Some(named) => {
            Err(Denied::refused(format!("its TLS greeting names {named} and not {name}")))
        }
        None => Err(Denied::refused("its TLS greeting names no host".to_owned())),
    }
}
