//! This test program once more, as a child that can be killed or run elsewhere: it runs one test,
//! which sees from its environment that it is the child.

use std::path::PathBuf;
use std::process::Command;

const DIRECTORY: &str = "STORE_TEST_CHILD";

/// The program and the arguments that run one test as a child.
pub(crate) fn command(test: &str) -> (PathBuf, [String; 3]) {
    let program = std::env::current_exe().expect("a path");
    (program, [test.to_owned(), "--exact".to_owned(), "--nocapture".to_owned()])
}

/// Sets the directory of a child.
pub(crate) fn with_directory<'a>(
    command: &'a mut Command,
    directory: &std::path::Path,
) -> &'a mut Command {
    command.env(DIRECTORY, directory)
}

/// The directory to use, if this is a child.
pub(crate) fn directory() -> Option<PathBuf> {
    std::env::var_os(DIRECTORY).map(PathBuf::from)
}
