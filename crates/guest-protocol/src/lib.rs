//! The messages between the host and the inside of a sandbox: frames, messages, and streams with
//! flow control, without any I/O. It must never use tokio, because it is linked into the guest.

pub mod endpoint;
pub mod env;
pub mod error;
pub mod frame;
pub mod keeper;
pub mod launcher;
pub mod look;
pub mod message;
pub mod network;
pub mod pattern;
mod window;

pub use endpoint::{Endpoint, Incoming, decode};
pub use env::Env;
pub use error::ProtocolError;
