//! Runtimes, which isolate sandboxes: the traits [`Runtime`] and [`Sandbox`], their
//! implementations, and the suite that each of them must pass.
//!
//! Nothing here decides: the caller says what to launch, freeze and kill, and gets the result.
//! Every wait has a deadline, and every failure a code. Any future may be dropped at any await;
//! what it began is then undone.

mod child_exit;
mod claim;
mod collect;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod container;
mod contract;
mod deaths;
pub mod docker;
pub mod error;
pub mod exec;
pub mod fake;
pub mod files;
mod groups;
pub mod guest_link;
pub mod inside;
pub mod leftovers;
mod lost_guests;
pub mod native;
mod network_rules;
pub mod oci;
pub mod output_room;
mod scale;
mod socket;
pub mod spec;

pub use collect::{Collected, RunLimits};
pub use contract::{Inside, NetworkSockets, Runtime, Sandbox};
pub use deaths::{Deaths, Died, LauncherExit};
pub use error::{RuntimeError, RuntimeErrorCode};
pub use exec::{CHANNEL_NAME, ExecSpec, Exit, Process, ProcessHandle, Sink, Stdin};
pub use files::{ByteReader, ByteWriter, Duplex, FileReader, FileWriter, Page};
pub use guest_protocol::message::{
    Command, Entry, EntryKind, ExitStatus, Port, ProcessLimits, TerminalSize,
};
pub use inside::{
    ChangeKind, Changes, FileChange, FileWatch, FindQuery, Found, FoundEntry, ScaleNote,
    SearchQuery, Searched, Socket, TextMatch, WatchQuery,
};
pub use lost_guests::LostGuests;
pub use scale::ScaleNotes;
pub use spec::{
    Capabilities, LaunchSpec, NetworkAbility, Reaped, Root, Users, WorkspaceSource, host_name,
};
