//! What SQLite says, in our codes.

use rusqlite::ErrorCode;

use crate::error::{StoreError, StoreErrorCode};

/// The shared memory beside the log could not grow, for which there is one usual reason.
const SHARED_MEMORY_SIZE: i32 = rusqlite::ffi::SQLITE_IOERR_SHMSIZE;

/// A failure of SQLite, as a failure of a step.
pub(super) fn told(step: &str, error: &rusqlite::Error) -> StoreError {
    StoreError::new(code(error), format!("{step}: {error}"))
}

/// For `map_err`: what a step is called, in front of what went wrong.
pub(super) fn at(step: &str) -> impl Fn(rusqlite::Error) -> StoreError {
    move |error| told(step, &error)
}

fn code(error: &rusqlite::Error) -> StoreErrorCode {
    let Some(fault) = error.sqlite_error() else {
        // What is not SQLite's is about the shape of rows: a column of another type, say.
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
    fn each_kind_of_failure_has_its_code() {
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
