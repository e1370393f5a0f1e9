//! Many readers at once take few threads.

use super::*;

/// The threads of this process.
fn threads() -> usize {
    fs::read_dir("/proc/self/task").expect("threads").count()
}

#[test]
fn many_reads_at_once_take_few_threads() {
    let directory = Directory::new();
    let store = Arc::new(directory.open());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
    let runtime = runtime.expect("a runtime");
    let before = threads();
    // While this is held no read can end.
    let reader = locked(&store.shared.reader);
    let read = || {
        let store = Arc::clone(&store);
        runtime.spawn(async move { store.events(&EventQuery::after(0, 10)).await })
    };
    let reads: Vec<_> = (0..200).map(|_| read()).collect();
    std::thread::sleep(Duration::from_millis(300));
    let more = threads().saturating_sub(before);
    drop(reader);
    assert!(more <= THREADS_EACH + 2, "{more} more threads");
    for read in reads {
        runtime.block_on(read).expect("read").expect("events");
    }
}
