//! The file by which commands on this machine find the server. A full disk does not stop the
//! server: the file is written as soon as there is space.

use std::convert::Infallible;
use std::future::pending;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::sleep;

use super::data_dir::{DataDir, unwritable};
use crate::failure::Failure;

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// Writes the file, unless there is no space for it.
pub(super) fn write(place: &DataDir, address: SocketAddr) -> Result<(), Failure> {
    match place.write_address(address) {
        Err(error) if error.kind() == ErrorKind::StorageFull => {
            tracing::warn!(
                %address,
                "disk full: cannot write the address file; until then commands need --server"
            );
            Ok(())
        }
        Err(error) => Err(unwritable(&place.address_file(), error)),
        Ok(()) => Ok(()),
    }
}

/// Tries to write the file until it succeeds. Never returns.
pub(super) async fn keep(place: &DataDir, address: SocketAddr) -> Infallible {
    while !place.has_address(address) && place.write_address(address).is_err() {
        sleep(PAUSE).await;
    }
    pending().await
}
