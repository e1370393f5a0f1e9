//! The engine on a fake runtime and a store in memory, on paused time.

mod basics;
mod chance;
mod clocks;
mod disk;
mod going_wrong;
mod harnesses;
mod held;
mod images;
mod keeping;
mod mounts;
mod named;
mod names;
mod node;
mod processes;
mod processes_by_chance;
mod processes_kept;
mod processes_restarted;
mod recycling;
mod rest;
mod roots;
mod sessions;
mod stillness;
mod talks_by_chance;
mod uploads;
