//! What a runtime over an OCI program is configured with.

use std::path::{Path, PathBuf};

use super::Program;
use crate::native::new_run;

/// What a runtime over an OCI program is configured with.
#[derive(Debug, Clone)]
pub struct OciConfig {
    /// The program that makes containers.
    pub program: Program,
    /// Its path; searched for if not given.
    pub path: Option<PathBuf>,
    /// Additional arguments, before the verb.
    pub arguments: Vec<String>,
    /// Where each run has a lock file and its bundles, in a directory for each program.
    pub run_directory: PathBuf,
    /// Names this run; everything that is made carries it. Letters, digits and dashes.
    pub run: String,
    /// Beneath which directories root filesystems are found.
    pub directories: Vec<PathBuf>,
    /// Where the image store is, if there is one.
    pub images: Option<PathBuf>,
}

impl OciConfig {
    /// A run with its lock and bundles beneath this directory, and every default: the program that
    /// is found, and the host's programs in its sandboxes.
    pub fn new(program: Program, run_directory: impl Into<PathBuf>) -> Self {
        Self {
            program,
            path: None,
            arguments: program.usual_arguments(),
            run_directory: run_directory.into(),
            run: new_run(),
            directories: Vec::new(),
            images: None,
        }
    }

    /// The path of the program: the configured one, else in `PATH`, else in the directories of
    /// administrators' programs. None if it is not installed.
    pub fn found(&self) -> Option<PathBuf> {
        let is_program = |path: &Path| {
            use std::os::unix::fs::PermissionsExt as _;
            let about = std::fs::metadata(path);
            about.is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
        };
        if let Some(path) = &self.path {
            return Some(path.clone()).filter(|path| is_program(path));
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .filter(|directory| directory.is_absolute())
            .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
            .map(|directory| directory.join(self.program.as_str()))
            .find(|path| is_program(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oci_program_is_only_looked_for_at_its_configured_path() {
        let mut config = OciConfig::new(Program::Runc, "/run/x");
        config.path = Some(PathBuf::from("/etc/passwd"));
        assert_eq!(config.found(), None, "no program");
        config.path = Some(PathBuf::from("/bin/sh"));
        assert_eq!(config.found(), Some(PathBuf::from("/bin/sh")));
    }
}
