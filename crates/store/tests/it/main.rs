//! Tests of the stores through their public interface.

mod backups;
mod child;
mod crash;
mod damage;
mod disk_full;
mod memory;
mod opening;
mod sealing;
mod size_limit;
mod sqlite;
mod temp_dir;
