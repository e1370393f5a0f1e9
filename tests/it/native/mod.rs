//! Native sandboxes as their users meet them: real programs, real limits, real attackers, real
//! crashes. Needs root on Linux; without it these tests say loudly that they were skipped, and in
//! CI that is a failure.

mod between_users;
mod crash;
mod crowd;
mod density;
mod escapes;
mod isolation;
mod limits;
mod modes;
mod node;
mod programs;
mod second_generation;
mod system_calls;
mod terminals;
mod tools_at_work;
mod workspaces;
