//! Errors of SQLite as store errors.

use rusqlite::ErrorCode;

use crate::error::{StoreError, StoreErrorCode};

/// The shared memory beside the log could not grow, for which there is one usual reason.
const SHARED_MEMORY_SIZE: i32 = rusqlite::ffi::SQLITE_IOERR_SHMSIZE;

/// An error of SQLite in a step.
pub(super) fn step_error(step: &str, error: &rusqlite::Error) -> StoreError {
    StoreError::new(code(error), format!("{step}: {error}"))
}

/// For `map_err`: adds the name of the step.
pub(super) fn at(step: &str) -> impl Fn(rusqlite::Error) -> StoreError {
    move |error| step_error(step, &error)
}

fn code(error: &rusqlite::Error) -> StoreErrorCode {
    let Some(fault) = error.sqlite_error() else {
        // Other errors are about the shape of rows: a column of another type, for example.
        return StoreErrorCode::Corrupt;
    };
    if fault.code == ErrorCode::DiskFull || fault.extended_code == SHARED_MEMORY_SIZE {
        StoreErrorCode::DiskFull
    } else if matches!(fault.code, ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) {
        StoreErrorCode::Locked
    } else if matches!(fault.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) {
        StoreErrorCode::Corrupt
    } else {
        StoreErrorCode::Io
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn sqlite_errors_have_their_codes() {
        for (raw, expected) in [
            (ffi::SQLITE_FULL, StoreErrorCode::DiskFull),
            (ffi::SQLITE_IOERR_SHMSIZE, StoreErrorCode::DiskFull),
            (ffi::SQLITE_BUSY, StoreErrorCode::Locked),
            (ffi::SQLITE_BUSY_SNAPSHOT, StoreErrorCode::Locked),
            (ffi::SQLITE_LOCKED, StoreErrorCode::Locked),
            (ffi::SQLITE_CORRUPT, StoreErrorCode::Corrupt),
            (ffi::SQLITE_CORRUPT_INDEX, StoreErrorCode::Corrupt),
            (ffi::SQLITE_NOTADB, StoreErrorCode::Corrupt),
            (ffi::SQLITE_IOERR_WRITE, StoreErrorCode::Io),
            (ffi::SQLITE_CANTOPEN, StoreErrorCode::Io),
            (ffi::SQLITE_READONLY, StoreErrorCode::Io),
        ] {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(raw), None);
            assert_eq!(code(&error), expected, "{error}");
        }
        assert_eq!(code(&rusqlite::Error::QueryReturnedNoRows), StoreErrorCode::Corrupt);
    }
}
