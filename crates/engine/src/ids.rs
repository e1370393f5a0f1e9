//! Unique ids: the time, and random bits.

use model::{ErrorCode, Refusal, Wall};
use uuid::Uuid;

/// A fresh id. Later ones sort after earlier ones, as far as the clock can tell.
pub(crate) fn fresh_uuid(now: Wall) -> Result<Uuid, Refusal> {
    let mut bits = [0; 10];
    getrandom::fill(&mut bits)
        .map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?;
    Ok(uuid::Builder::from_unix_timestamp_millis(now.0, &bits).into_uuid())
}
