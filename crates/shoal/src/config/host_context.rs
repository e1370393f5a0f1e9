//! What defaults depend on: the user, the number of cores, the environment. It is read once, so
//! that tests can pass their own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The user, the cores and the environment of this process.
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
            // A name that is not UTF-8 cannot be one of ours.
            Some((name.into_string().ok()?, value))
        });
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        Self { root: rustix::process::geteuid().is_root(), cores, env: known.collect() }
    }

    /// A variable, unless it is empty.
    pub(crate) fn variable(&self, name: &str) -> Option<&OsString> {
        self.env.get(name).filter(|value| !value.is_empty())
    }

    /// The default data directory.
    pub(crate) fn data_dir(&self) -> PathBuf {
        client::default_data_dir(self.root, |name| self.variable(name).map(PathBuf::from))
    }

    /// Threads that serve requests: half of the cores, so that the other half can run sandboxes.
    pub(crate) fn workers(&self) -> u32 {
        (self.cores / 2).max(1)
    }

    /// Makes a path absolute, from the current directory.
    pub(crate) fn absolute(path: &Path) -> PathBuf {
        std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_half_of_the_cores() {
        for (cores, workers) in [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (64, 32)] {
            assert_eq!(
                HostContext { root: true, cores, env: BTreeMap::new() }.workers(),
                workers,
                "{cores}"
            );
        }
    }
}
