//! Tests of the stores as whoever uses them meets them.

mod backups;
mod bound;
mod child;
mod crash;
mod damage;
mod disk_full;
mod memory;
mod opening;
mod place;
mod sealed;
mod sqlite;
