//! The conformance suite over each runtime, the connection to a real guest, and unexpected exits.

mod docker;
mod docker_engine;
mod docker_restarts;
mod fake;
mod faults;
mod link;
mod native;
mod oci;
mod restarts;
mod runc;
mod runsc;
mod unexpected_exits;
