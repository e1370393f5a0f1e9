//! What a runtime over an OCI program is configured with.

use std::path::{Path, PathBuf};

use super::Program;
use crate::native::new_run;

/// What a runtime over an OCI program is configured with.
#[derive(Debug, Clone)]
pub struct OciConfig {
    /// Who makes containers.
    pub program: Program,
    /// Where it is; else it is looked for.
    pub path: Option<PathBuf>,
    /// What it is told besides, before the verb.
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
    /// A run with its lock and bundles beneath this directory, and every default: the program that is
    /// found, and the host's programs in its sandboxes.
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

    /// Where the program is, if it is anywhere: where it was said to be, else in `PATH`, else where
    /// administrators have it and users' paths do not lead.
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
    fn a_program_is_where_it_was_said_to_be_or_nowhere() {
        let mut config = OciConfig::new(Program::Runc, "/run/x");
        config.path = Some(PathBuf::from("/etc/passwd"));
        assert_eq!(config.found(), None, "no program");
        config.path = Some(PathBuf::from("/bin/sh"));
        assert_eq!(config.found(), Some(PathBuf::from("/bin/sh")));
    }
}
