//! The store in a file passes the suite.

use std::sync::Arc;

use store::conformance::Subject;
use store::sqlite::SqliteStore;
use store::{Retention, Store};

use crate::temp_dir::TempDir;

struct Sqlite(TempDir);

impl Subject for Sqlite {
    fn open(&self, retention: Retention) -> Arc<dyn Store> {
        Arc::new(SqliteStore::open(self.0.path(), retention).expect("opened"))
    }
}

store::conformance_tests! { Sqlite(TempDir::new()) }
