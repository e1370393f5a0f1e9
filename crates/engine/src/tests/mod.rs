//! The engine on a fake runtime and a store in memory, on paused time.

mod basics;
mod clocks;
mod decision_log;
mod faults;
mod harness_holds;
mod harnesses;
mod images;
mod keep_alive_status;
mod mounts;
mod named_documents;
mod node;
mod process_records;
mod process_restarts;
mod processes;
mod quiesce;
mod random_processes;
mod random_sessions;
mod random_worlds;
mod recycling;
mod roots;
mod session_names;
mod sessions;
mod uploads;
mod usage;
mod workspace_disk;
mod workspace_persistence;
