//! Which fields of a record are sealed, for which row, and how the record is joined again: the
//! environment and the configuration of a session, the command line of a process, the message of a
//! turn (for some harnesses a command line), the whole body of a document, and the value of a secret.
//! The rest of a record stays readable, so that a migration can work on it.

use std::sync::Arc;

use model::process::{ProcessEnd, ProcessRecord};
use model::record::SessionRecord;
use model::turn::TurnRecord;
use model::{KeyId, SandboxId, SecretName, SecretOwner, SessionId, TurnId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::secrets::owner_bytes;
use super::tables::read;
use crate::error::{StoreError, StoreErrorCode};
use sealing::{NodeKey, OVERHEAD_BYTES, Place, SealError};

/// The sealed fields of a process.
#[derive(Serialize, Deserialize)]
pub(super) struct SealedProcess {
    command: Arc<str>,
    /// How it ended, in words, which name a program that does not exist.
    detail: Option<Arc<str>>,
}

/// The length of the text of a turn with its sealed fields, for SQL. The record has an empty input.
pub(super) const TURN_BYTES: &str = "(octet_length(record) - 2 + octet_length(sealed) - 49)";
const _: () = assert!(OVERHEAD_BYTES == 49, "TURN_BYTES must say the same");

/// The length of the body of a document, for SQL.
pub(super) const DOCUMENT_BYTES: &str = "(octet_length(sealed) - 49)";

pub(super) fn of_session(id: SessionId) -> Place {
    Place::new("sessions").and(&id.as_u128().to_be_bytes())
}

pub(super) fn of_turn(id: TurnId) -> Place {
    Place::new("turns").and(&id.as_u128().to_be_bytes())
}

pub(super) fn of_process(sandbox: SandboxId, number: i64) -> Place {
    Place::new("processes").and(&sandbox.as_u128().to_be_bytes()).and(&number.to_be_bytes())
}

pub(super) fn of_document(kind: &str, tenant: KeyId, name: &str) -> Place {
    let tenant = tenant.as_u128().to_be_bytes();
    Place::new("documents").and(kind.as_bytes()).and(&tenant).and(name.as_bytes())
}

pub(super) fn of_secret(owner: SecretOwner, name: &SecretName) -> Place {
    of_secret_row(&owner_bytes(owner), name.as_str())
}

/// The same for the columns of a secret.
pub(super) fn of_secret_row(owner: &[u8], name: &str) -> Place {
    Place::new("secrets").and(owner).and(name.as_bytes())
}

/// A session without its sealed field, which is its claim.
pub(super) fn bare_session(record: &SessionRecord) -> SessionRecord {
    SessionRecord { claim: None, ..record.clone() }
}

/// A turn without its sealed field, and without its outcome, which has columns of its own.
pub(super) fn bare_turn(record: &TurnRecord) -> TurnRecord {
    TurnRecord { number: 0, started: None, end: None, input: Arc::from(""), ..record.clone() }
}

/// A process without its sealed fields, and those fields.
pub(super) fn split_process(record: &ProcessRecord) -> (ProcessRecord, SealedProcess) {
    let detail = record.end.as_ref().and_then(|end| end.detail.clone());
    let hidden = SealedProcess { command: Arc::clone(&record.command), detail };
    let end = record.end.clone().map(|end| ProcessEnd { detail: None, ..end });
    (ProcessRecord { command: Arc::from(""), end, ..record.clone() }, hidden)
}

/// Joins a session with its sealed fields.
pub(super) fn join_session(
    key: &NodeKey,
    slot: i64,
    record: &mut SessionRecord,
    sealed: Option<&[u8]>,
) -> Result<(), StoreError> {
    if let Some(sealed) = sealed {
        record.claim = Some(opened(key, "sessions", slot, &of_session(record.id), Some(sealed))?);
    }
    Ok(())
}

pub(super) fn join_turn(
    key: &NodeKey,
    number: i64,
    record: &mut TurnRecord,
    sealed: Option<&[u8]>,
) -> Result<(), StoreError> {
    record.input = opened(key, "turns", number, &of_turn(record.id), sealed)?;
    Ok(())
}

pub(super) fn join_process(
    key: &NodeKey,
    record: &mut ProcessRecord,
    sealed: Option<&[u8]>,
) -> Result<(), StoreError> {
    let number = record.number.cast_signed();
    let place = of_process(record.sandbox, number);
    let hidden: SealedProcess = opened(key, "processes", number, &place, sealed)?;
    record.command = hidden.command;
    if let Some(end) = &mut record.end {
        end.detail = hidden.detail;
    }
    Ok(())
}

/// Opens the envelope of a row, and decodes it.
fn opened<T: DeserializeOwned>(
    key: &NodeKey,
    table: &str,
    row: i64,
    place: &Place,
    sealed: Option<&[u8]>,
) -> Result<T, StoreError> {
    let unsealed = || corrupt(table, row, "has no envelope");
    let clear = key.open(place, sealed.ok_or_else(unsealed)?);
    read(table, row, clear.map_err(|error| corrupt(table, row, &error.to_string()))?)
}

/// The body of a document.
pub(super) fn open_body(
    key: &NodeKey,
    place: &Place,
    sealed: &[u8],
) -> Result<Arc<str>, StoreError> {
    let unreadable = |error: &dyn std::fmt::Display| {
        StoreError::new(StoreErrorCode::Corrupt, format!("read a document: {error}"))
    };
    let clear = key.open(place, sealed).map_err(|error| unreadable(&error))?;
    // The error never includes the text: it may be secret.
    let text = String::from_utf8(clear).map_err(|_| unreadable(&"it is not valid UTF-8"))?;
    Ok(text.into())
}

fn corrupt(table: &str, row: i64, why: &str) -> StoreError {
    StoreError::new(StoreErrorCode::Corrupt, format!("row {row} of {table} cannot be read: {why}"))
}

/// Why something could not be sealed.
pub(super) fn unsealed(error: SealError) -> StoreError {
    StoreError::new(StoreErrorCode::Io, format!("seal a record: {error}"))
}
