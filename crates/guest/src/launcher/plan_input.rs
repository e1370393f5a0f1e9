//! Checks what the host asks for and translates it into the input of a plan. Pure. Whatever the
//! host asks for, no user of a sandbox is ever a user of the host, and no name leads out of the
//! directory in which it is looked up.

use guest_protocol::launcher::{LauncherConfig, NetworkMode, Spec, Workspace};
use jail::groups::Limits;
use jail::plan::{self, PlanInput, USER, Users};

/// Users that each slot owns.
const USERS_PER_SLOT: u32 = 65_536;

/// Other names of a workspace, and how long each may be.
const ALIASES_AT_MOST: usize = 8;
const ALIAS_BYTES_AT_MOST: usize = 64;

/// Whether a launcher can work with it.
pub(super) fn is_sound(config: &LauncherConfig) -> bool {
    let users = u64::from(config.slots).saturating_mul(u64::from(USERS_PER_SLOT));
    let users_end = u64::from(config.uid_base).saturating_add(users);
    let is_named = !config.run.is_empty()
        && config.run.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    // Host user 0 and the ids that mean "none" are never inside a slot.
    config.uid_base >= USERS_PER_SLOT && users_end < u64::from(u32::MAX) && is_named
}

/// The user that the first process of a slot becomes. The configuration is sound, the slot one of
/// its own.
pub(super) fn first_uid(config: &LauncherConfig, users: Users, slot: u32) -> u32 {
    match users {
        Users::Ranges => config.uid_base + slot * USERS_PER_SLOT,
        // In our own namespace we are 0, and subordinate users follow.
        Users::Subordinate => 1 + slot,
        Users::Alone => 0,
    }
}

/// What the users of a slot are shown as: by users inside, ours, and how many.
pub(super) fn user_map(users: Users, first_uid: u32) -> String {
    match users {
        Users::Ranges => format!("0 {first_uid} {USERS_PER_SLOT}"),
        Users::Subordinate => format!("0 {first_uid} 1\n{USER} 0 1"),
        Users::Alone => format!("{USER} 0 1"),
    }
}

/// What the control groups of a sandbox are to limit.
pub(super) fn limits(spec: &Spec) -> Limits {
    Limits {
        memory_bytes: spec.limits.memory_bytes,
        cpu_milli: spec.limits.cpu_milli,
        pids: spec.limits.pids,
    }
}

/// What a plan is made for. `count_processes`: no control group does.
pub(super) fn for_spec(
    spec: &Spec,
    mode: NetworkMode,
    users: Users,
    count_processes: bool,
) -> PlanInput {
    PlanInput {
        hostname: hostname(spec),
        scratch_bytes: spec.limits.scratch_bytes,
        workspace: match spec.workspace {
            Workspace::Memory => plan::Workspace::Memory(spec.limits.workspace_bytes),
            Workspace::Disk(_) => plan::Workspace::Given,
        },
        shown: spec.mounts.iter().map(|mount| mount.at.clone()).collect(),
        network: network(mode),
        users,
        processes: count_processes.then_some(spec.limits.pids),
    }
}

fn hostname(spec: &Spec) -> String {
    // The first bytes of an id are its time, which neighbours share.
    let [.., a, b, c, d] = spec.instance;
    format!("shoal-{:08x}", u32::from_be_bytes([a, b, c, d]))
}

/// How a sandbox gets its network, in the words of a plan.
pub(super) fn network(mode: NetworkMode) -> plan::Network {
    match mode {
        NetworkMode::Spare => plan::Network::Spare,
        NetworkMode::Fresh => plan::Network::Fresh,
        NetworkMode::Shared => plan::Network::Shared,
    }
}

/// Whether this names something beneath a directory, and not the directory itself. The kernel is
/// asked for the same again when it is opened.
pub(super) fn is_beneath(name: &str) -> bool {
    name.split('/').all(|part| !matches!(part, "" | "." | "..")) && !name.contains('\0')
}

/// Whether these can be names at the top of a root.
pub(super) fn are_names(names: &[String]) -> bool {
    let is_name = |name: &String| {
        let is_plain =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        name.len() <= ALIAS_BYTES_AT_MOST && is_beneath(name) && name.bytes().all(is_plain)
    };
    names.len() <= ALIASES_AT_MOST && names.iter().all(is_name)
}

/// Whether this is the digest of a layer.
pub(super) fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(uid_base: u32, slots: u32, run: &str) -> LauncherConfig {
        LauncherConfig {
            run: run.to_owned(),
            uid_base,
            slots,
            spares: 0,
            network: NetworkMode::Spare,
            directories: Vec::new(),
            images: None,
            workspaces: None,
            lent: Vec::new(),
            mounts: Vec::new(),
            run_directory: String::new(),
            limits: true,
            subordinate_users: true,
            tables: true,
            user: None,
        }
    }

    #[test]
    fn users_of_sandboxes_are_never_users_of_the_host() {
        for (uid_base, slots, run, sound) in [
            (0x6000_0000, 8000, "1-a", true),
            (65_536, 1, "1-a", true),
            (65_535, 1, "1-a", false),
            (0, 1, "1-a", false),
            (0xFFFE_0000, 1, "1-a", true),
            (0xFFFF_0000, 1, "1-a", false),
            (u32::MAX, u32::MAX, "1-a", false),
            (65_536, 1, "", false),
            (65_536, 1, "../1", false),
            (65_536, 1, "1/a", false),
        ] {
            assert_eq!(is_sound(&config(uid_base, slots, run)), sound, "{uid_base} {slots} {run}");
        }
    }

    #[test]
    fn workspace_aliases_are_single_names() {
        for (name, is_one) in [
            ("app", true),
            ("my-app_1.x", true),
            ("", false),
            ("..", false),
            ("a/b", false),
            ("a:b", false),
            ("a,b", false),
            ("a\0", false),
        ] {
            assert_eq!(are_names(&[name.to_owned()]), is_one, "{name:?}");
        }
        assert!(are_names(&vec!["a".to_owned(); 8]));
        assert!(!are_names(&vec!["a".to_owned(); 9]));
        assert!(!are_names(&["a".repeat(65)]));
    }

    #[test]
    fn root_names_stay_beneath_their_directory() {
        for (name, beneath) in [
            ("debian", true),
            ("os/debian-12", true),
            ("..a", true),
            ("", false),
            (".", false),
            ("..", false),
            ("/etc", false),
            ("a/../..", false),
            ("a//b", false),
            ("a/", false),
            ("a\0", false),
        ] {
            assert_eq!(is_beneath(name), beneath, "{name:?}");
        }
    }
}
