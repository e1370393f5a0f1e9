//! Tests of the stores as whoever uses them meets them.

mod backups;
mod child;
mod crash;
mod disk_full;
mod memory;
mod opening;
mod place;
mod sealed;
mod sqlite;
