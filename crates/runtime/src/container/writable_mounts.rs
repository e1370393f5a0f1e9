//! Where programs in a container can write: each mount is a tmpfs of its own, so that a wipe can
//! replace it whole. Everything else is read-only. Makers and the keeper share this one list.

use jail::plan::{SECRETS, USER, WORKSPACE};

use crate::spec::LaunchSpec;

/// Where the guest's binary is found in every container, read-only.
pub(crate) const GUEST_PATH: &str = "/.shoal/guest";

const MIB: u64 = 1 << 20;
/// The directory of the scale file, and of the certificates that programs trust.
const OWN: &str = "/run/shoal";
const OWN_BYTES: u64 = 8 * MIB;
/// Values of secrets.
const SECRETS_BYTES: u64 = 8 * MIB;

/// One mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WritableMount {
    /// Where it is mounted.
    pub path: &'static str,
    /// How much fits.
    pub bytes: u64,
    /// Permissions of its top directory.
    pub mode: u32,
    /// Owner of its top directory, as seen inside.
    pub uid: u32,
    /// Whether it is mounted noexec.
    pub no_programs: bool,
}

/// All writable mounts of a sandbox.
pub(crate) fn writable_mounts(spec: &LaunchSpec) -> Vec<WritableMount> {
    let workspace_bytes = u64::from(spec.limits.workspace_mb) * MIB;
    // What is in there counts as memory too: half of it, so that a full one kills nothing.
    let scratch_bytes = u64::from(spec.limits.memory_mb) * MIB / 2;
    let place = |path, bytes, mode, uid| WritableMount {
        path,
        bytes,
        mode,
        uid,
        no_programs: path == OWN || path == SECRETS,
    };
    vec![
        place(WORKSPACE, workspace_bytes, 0o755, USER),
        place("/tmp", scratch_bytes, 0o1777, 0),
        place("/dev/shm", scratch_bytes, 0o1777, 0),
        // No programs: to start one, the guest would open its file, and the guest keeps the scale
        // file, so it would wait for itself.
        place(OWN, OWN_BYTES, 0o755, USER),
        place(SECRETS, SECRETS_BYTES, 0o700, USER),
    ]
}
