//! What defaults depend on: who runs us, and where. Read once at the edge, so that everything else
//! can be tested with surroundings of its own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Who runs us, and where.
#[derive(Debug, Clone)]
pub(crate) struct HostContext {
    pub(crate) root: bool,
    pub(crate) cores: u32,
    /// The environment.
    pub(crate) env: BTreeMap<String, OsString>,
}

impl HostContext {
    pub(crate) fn read() -> Self {
        let known = std::env::vars_os().filter_map(|(name, value)| {
            // A name that is not text is none of ours.
            Some((name.into_string().ok()?, value))
        });
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        Self { root: rustix::process::geteuid().is_root(), cores, env: known.collect() }
    }

    /// A variable, unless it is empty.
    pub(crate) fn variable(&self, name: &str) -> Option<&OsString> {
        self.env.get(name).filter(|value| !value.is_empty())
    }

    /// Where data is kept unless somebody says otherwise.
    pub(crate) fn data_dir(&self) -> PathBuf {
        client::default_data_dir(self.root, |name| self.variable(name).map(PathBuf::from))
    }

    /// Threads that serve requests: half of the cores, since the other half has sandboxes to run.
    pub(crate) fn workers(&self) -> u32 {
        (self.cores / 2).max(1)
    }

    /// Makes a path absolute as the user means it.
    pub(crate) fn absolute(path: &Path) -> PathBuf {
        std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_cores_serve() {
        for (cores, workers) in [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (64, 32)] {
            assert_eq!(
                HostContext { root: true, cores, env: BTreeMap::new() }.workers(),
                workers,
                "{cores}"
            );
        }
    }
}
