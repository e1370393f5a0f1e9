//! The store in memory passes the suite; a restart is a crash.

use std::sync::{Arc, Mutex};

use store::conformance::Subject;
use store::memory::MemoryStore;
use store::{Retention, Store};

#[derive(Default)]
struct Memory(Mutex<Option<Arc<MemoryStore>>>);

impl Subject for Memory {
    fn open(&self, retention: Retention) -> Arc<dyn Store> {
        let mut last = self.0.lock().expect("no panic before");
        let next = last.as_ref().map_or_else(|| MemoryStore::new(retention), |last| last.crash());
        let next = Arc::new(next);
        *last = Some(Arc::clone(&next));
        next
    }
}

store::conformance_tests! { Memory::default() }
