//! Where programs in a container can write: each place is a file system in memory of its own, so
//! that all of it can be thrown away at once. Everything else is read-only. The list is here once,
//! for whoever makes containers and whoever wipes them.

use jail::plan::{USER, WORKSPACE};

use crate::spec::LaunchSpec;

/// Where the guest's binary is found in every container, read-only.
pub(crate) const GUEST_PATH: &str = "/.shoal/guest";

const MIB: u64 = 1 << 20;
/// The directory of the scale file.
const SCALE: &str = "/run/shoal";
const SCALE_BYTES: u64 = 64 * 1024;

/// One place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Where it is mounted.
    pub path: &'static str,
    /// How much fits.
    pub bytes: u64,
    /// Permissions of its top.
    pub mode: u32,
    /// Whose its top is, inside.
    pub uid: u32,
    /// Whether programs cannot be run from there.
    pub no_programs: bool,
}

/// All places of a sandbox.
pub(crate) fn places(spec: &LaunchSpec) -> Vec<Place> {
    let workspace_bytes = u64::from(spec.limits.workspace_mb) * MIB;
    // What is in there counts as memory too: half of it, so that a full one kills nothing.
    let scratch_bytes = u64::from(spec.limits.memory_mb) * MIB / 2;
    let place =
        |path, bytes, mode, uid| Place { path, bytes, mode, uid, no_programs: path == SCALE };
    vec![
        place(WORKSPACE, workspace_bytes, 0o755, USER),
        place("/tmp", scratch_bytes, 0o1777, 0),
        place("/dev/shm", scratch_bytes, 0o1777, 0),
        // Whoever starts a program opens its file: the guest, which keeps the scale file, would
        // wait for itself.
        place(SCALE, SCALE_BYTES, 0o755, USER),
    ]
}
