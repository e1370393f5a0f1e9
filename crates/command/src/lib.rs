//! Shared by the programs of the command line: printing, failures with exit codes, and a native
//! runtime for a single command. It knows no command.

pub mod duration;
pub mod failure;
pub mod native;
pub mod output;
pub mod plain_text;
