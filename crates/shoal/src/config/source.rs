//! The source of a value, and errors about values. An error always names its place, so that the
//! user need not search for it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::failure::Failure;

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    /// Line and column count from 1.
    File {
        path: Arc<Path>,
        line: usize,
        column: usize,
    },
    Environment(String),
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line, .. } => write!(f, "{}:{line}", path.display()),
            Self::Environment(variable) => write!(f, "env {variable}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// A configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigError {
    pub(crate) source: Source,
    /// The key, where it is known.
    pub(crate) key: Option<String>,
    pub(crate) problem: String,
    pub(crate) remedy: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::File { path, line, column } => {
                write!(f, "{}:{line}:{column}: ", path.display())?;
            }
            Source::Environment(name) | Source::Flag(name) => write!(f, "{name}: ")?,
            Source::Default => {}
        }
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.problem)
    }
}

impl ConfigError {
    pub(crate) fn failure(self) -> Failure {
        Failure::new("cannot use this configuration", &self).remedy(self.remedy).usage()
    }
}
