//! Detects kills for want of memory: compares a counter in the sandbox's control group with its
//! last value.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use jail::groups::kills_in;

/// The files that have the counter, of the second and of the first generation.
const FILES: [&str; 2] = ["memory.events", "memory.oom_control"];

/// The counter of one sandbox.
#[derive(Debug)]
pub(crate) struct KillCounter {
    directory: PathBuf,
    seen: AtomicU64,
}

impl KillCounter {
    /// `before` were counted when the sandbox began.
    pub(crate) fn new(directory: impl Into<PathBuf>, before: u64) -> Self {
        Self { directory: directory.into(), seen: AtomicU64::new(before) }
    }

    /// Whether it has grown since the last call. Of two calls at the same time, one gets true.
    pub(crate) fn has_grown(&self) -> bool {
        let texts = FILES.iter().map(|file| fs::read_to_string(self.directory.join(file)));
        let Some(now) = texts.flatten().find_map(|text| kills_in(&text)) else { return false };
        self.seen.fetch_max(now, Ordering::SeqCst) < now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oom_kills_are_reported_once_in_both_cgroup_generations() {
        let first = "oom_kill_disable 0\nunder_oom 0\noom_kill ";
        let second = "low 0\nhigh 0\nmax 4\noom 9\noom_kill ";
        for (file, text) in [("memory.oom_control", first), ("memory.events", second)] {
            let name = format!("counter-{}-{file}", std::process::id());
            let place = std::env::temp_dir().join(name);
            fs::create_dir_all(&place).unwrap();
            let counter = KillCounter::new(&place, 0);
            assert!(!counter.has_grown(), "no file, no kill");
            for (count, reported) in [(0, false), (1, true), (1, false), (3, true), (3, false)] {
                fs::write(place.join(file), format!("{text}{count}\n")).unwrap();
                assert_eq!(counter.has_grown(), reported, "{file}: {count}");
            }
            fs::remove_dir_all(place).unwrap();
        }
    }
}
