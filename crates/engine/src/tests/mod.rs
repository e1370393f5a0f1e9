//! The engine on a fake runtime and a store in memory, on paused time.

mod basics;
mod chance;
mod disk;
mod going_wrong;
mod harnesses;
mod images;
mod keeping;
mod node;
mod processes;
mod processes_by_chance;
mod processes_kept;
mod rest;
mod sessions;
mod talks_by_chance;
