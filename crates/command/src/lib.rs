//! What the programs of the command line share: how they print, how they fail, how they open a
//! native runtime for a single command. It knows no command.

pub mod duration;
pub mod failure;
pub mod native;
pub mod output;
