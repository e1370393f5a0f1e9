//! Why a store failed. The code is for branching and never changes its meaning; the cause is for
//! people. Stored data never goes in here: it may be secret.

use model::{Retry, error_codes};

error_codes! {
    /// What kind of failure.
    pub enum StoreErrorCode {
        /// Whether trying again helps.
        retry: Retry,
        /// What can be done about it.
        remedy: &'static str,
    }
    /// No space is left. Nothing that was written before is lost.
    DiskFull, "disk_full", Retry::Later, "free space on the file system of the data directory; nothing is lost, and the server continues by itself";
    /// Another program has locked the database and does not release it.
    Locked, "locked", Retry::Later, "end the other program that writes to shoal.db: a second server, or an open sqlite3";
    /// The database was written by a newer version of this program.
    NewerVersion, "newer_version", Retry::Never, "run the newer version again; or, with this version, `shoal restore` a backup that it made into a new data directory";
    /// The database cannot be read as what it should be.
    Corrupt, "corrupt", Retry::Never, "`shoal restore` a backup into a new data directory; or move shoal.db and the files whose names begin with shoal.db- away and start once with `shoal serve --accept-loss`: files of sessions are kept on the disk, but sessions, keys and history are lost";
    /// The database lacks commits: its log is damaged or gone, or it is an older copy.
    Incomplete, "incomplete", Retry::Never, "nothing was changed: bring shoal.db, shoal.db-wal and shoal.db-mark back as they were together, or `shoal restore` a backup into a new data directory; if what is missing is gone for good, or an older copy was put there on purpose, start once with `shoal serve --accept-loss`";
    /// There is no database, though there is other data of an earlier run.
    Missing, "missing", Retry::Never, "nothing was changed: bring shoal.db back, or `shoal restore` a backup into a new data directory, or choose another directory with --data-dir; if it is gone for good, start once with `shoal serve --accept-loss`, which makes a new database and a new admin.key: sessions, keys and history are lost";
    /// The file with the key of the node is missing, and stored data was sealed with it.
    NodeKeyMissing, "node_key_missing", Retry::Never, "put node.key back into the data directory, from its safe copy or from a backup; without it environments, command lines and messages of sessions cannot be read, and the server makes no new one";
    /// The file with the key of the node is damaged, or belongs to another database.
    NodeKeyWrong, "node_key_wrong", Retry::Never, "put the node.key that belongs to this shoal.db into the data directory, from its safe copy or from a backup; the server makes no new one";
    /// The file system failed.
    Io, "io", Retry::Later, "check that the data directory exists, belongs to the server's user, and that its disk is healthy";
    /// The store was closed.
    Closed, "closed", Retry::Never, "start the server again";
}

/// A failure: its code, and the cause in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {cause}")]
pub struct StoreError {
    /// What to branch on.
    pub code: StoreErrorCode,
    /// What happened, for people.
    pub cause: String,
}

impl StoreError {
    /// A failure with its cause.
    pub fn new(code: StoreErrorCode, cause: impl Into<String>) -> Self {
        Self { code, cause: cause.into() }
    }

    /// What can be done about it.
    pub const fn remedy(&self) -> &'static str {
        self.code.remedy()
    }

    /// Whether the same call may work later.
    pub fn retryable(&self) -> bool {
        self.code.retry() == Retry::Later
    }

    pub(crate) fn closed() -> Self {
        Self::new(StoreErrorCode::Closed, "the store was closed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_unique_and_every_code_has_a_remedy() {
        let mut words: Vec<_> = StoreErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), StoreErrorCode::ALL.len());
        assert!(StoreErrorCode::ALL.iter().all(|code| !code.remedy().is_empty()));
    }

    #[test]
    fn an_error_says_its_code_and_its_cause() {
        let error = StoreError::new(StoreErrorCode::DiskFull, "write the journal");
        assert_eq!(error.to_string(), "disk_full: write the journal");
        assert!(error.retryable() && error.remedy().contains("free space"));
        assert!(!StoreError::closed().retryable());
    }
}
