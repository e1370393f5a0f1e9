//! Native isolation as a library. `plan` lists what to do, purely; `carry_out` does it, step by
//! step; `sys` holds every system call that needs `unsafe`, and lets none of it out. It must never
//! use tokio: the launcher has one thread.

pub mod carry_out;
pub mod etc;
pub mod groups;
pub mod image;
pub mod machine;
pub mod network;
pub mod packet;
pub mod plan;
pub mod root;
pub mod seccomp;
pub mod socket_buffers;
pub mod sys;
