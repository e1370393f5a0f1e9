//! Files and directories of the host that a template mounts into its sandboxes. This module checks
//! only what can be checked without the host; the server decides whether a path may be mounted.

use serde::{Deserialize, Serialize};

/// A file or directory of the host that is mounted into sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Mount {
    /// The file or directory, as this server sees it. Beneath one of the directories that the
    /// server allows (`mounts.roots`).
    pub host_path: String,
    /// Its path inside the sandbox.
    pub path: String,
    /// Whether programs inside cannot change it.
    #[serde(default = "yes")]
    pub read_only: bool,
    /// The same path as the Docker engine sees it, if different. It takes precedence over
    /// `docker.host_path_map`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub docker_host_path: Option<String>,
}

const fn yes() -> bool {
    true
}

/// How many there may be.
const MOUNTS_MAX: usize = 32;
/// The longest path.
const PATH_BYTES_MAX: usize = 4096;
/// The most bytes of all paths together: the launcher gets them in one packet.
const ALL_BYTES_MAX: usize = 8192;

/// Where nothing may be mounted, and nothing beneath.
const TAKEN: &[&str] = &[
    "/proc",
    "/sys",
    "/dev",
    "/workspace",
    "/tmp",
    "/run/secrets",
    "/run/shoal",
    "/run/trusted",
    "/.shoal",
    "/.shoal-link",
    "/.shoal-look",
    "/etc/hosts",
    "/etc/hostname",
    "/etc/resolv.conf",
];
/// Where nothing may be mounted, but beneath it may.
const TOPS: &[&str] = &["/", "/bin", "/etc", "/lib", "/lib64", "/run", "/sbin", "/usr", "/var"];

/// The problem with these mounts, if there is one.
pub(crate) fn problem(mounts: &[Mount]) -> Option<&'static str> {
    if mounts.len() > MOUNTS_MAX {
        return Some("at most 32 mounts are allowed");
    }
    let bytes = |mount: &Mount| mount.host_path.len() + mount.path.len();
    if mounts.iter().map(bytes).sum::<usize>() > ALL_BYTES_MAX {
        return Some("the paths are longer than 8 KiB in total");
    }
    for (index, mount) in mounts.iter().enumerate() {
        let outside = [Some(&mount.host_path), mount.docker_host_path.as_ref()];
        if !outside.into_iter().flatten().all(|path| is_plain(path)) || !is_plain(&mount.path) {
            return Some("each path must be absolute, without `.`, `..`, doubled or last slashes");
        }
        if TOPS.contains(&mount.path.as_str())
            || TAKEN.iter().any(|taken| is_beneath(&mount.path, taken))
        {
            return Some("a path is reserved: every sandbox has its own");
        }
        if mounts[..index].iter().any(|before| before.path == mount.path) {
            return Some("two mounts have the same path");
        }
    }
    None
}

/// Whether a path is another one or lies beneath it. Both are plain.
pub fn is_beneath(path: &str, above: &str) -> bool {
    let above = above.trim_end_matches('/');
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a path is absolute and normalised.
pub fn is_plain(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    path.len() <= PATH_BYTES_MAX
        && !path.contains('\0')
        && (rest.is_empty() || rest.split('/').all(|name| !matches!(name, "" | "." | "..")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(host_path: &str, path: &str) -> Mount {
        Mount {
            host_path: host_path.to_owned(),
            path: path.to_owned(),
            read_only: true,
            docker_host_path: None,
        }
    }

    #[test]
    fn mounts_need_plain_paths_that_are_not_reserved() {
        for (host_path, path, fine) in [
            ("/srv/data", "/data", true),
            ("/srv/data", "/usr/share/data", true),
            ("/", "/host", true),
            ("srv", "/data", false),
            ("/srv/../etc", "/data", false),
            ("/srv/", "/data", false),
            ("/srv//a", "/data", false),
            ("/srv", "data", false),
            ("/srv", "/", false),
            ("/srv", "/usr", false),
            ("/srv", "/proc/self", false),
            ("/srv", "/workspace", false),
            ("/srv", "/workspace/in", false),
            ("/srv", "/workspaces", true),
            ("/srv", "/run/secrets", false),
            ("/srv", "/run/secrets/token", false),
            ("/srv", "/run/shoal/trusted.pem", false),
            ("/srv", "/run/trusted", false),
            ("/srv", "/run/secretsx", true),
            ("/srv", "/data/./x", false),
            ("/srv\0", "/data", false),
        ] {
            assert_eq!(problem(&[mount(host_path, path)]).is_none(), fine, "{host_path} {path}");
        }
        assert!(problem(&[mount("/a", "/x"), mount("/b", "/x")]).is_some());
        assert!(problem(&[mount("/a", "/x"), mount("/a", "/y")]).is_none(), "one at two places");
        let many: Vec<_> = (0..33).map(|n| mount("/a", &format!("/x{n}"))).collect();
        assert!(problem(&many).is_some());
        let long: Vec<_> =
            (0..8).map(|n| mount("/a", &format!("/{n}{}", "x".repeat(1024)))).collect();
        assert!(problem(&long).is_some() && problem(&long[..7]).is_none());
        let elsewhere = Mount { docker_host_path: Some("../x".to_owned()), ..mount("/a", "/x") };
        assert!(problem(&[elsewhere]).is_some());
    }

    #[test]
    fn mount_path_is_beneath_by_whole_names() {
        for (path, above, expected) in [
            ("/data", "/data", true),
            ("/data/x", "/data", true),
            ("/database", "/data", false),
            ("/data", "/", true),
            ("/", "/", true),
            ("/", "/data", false),
        ] {
            assert_eq!(is_beneath(path, above), expected, "{path} {above}");
        }
    }
}
