//! Finds out whether this server runs in a container of the engine that it uses, and if so, where
//! the server's directories are on that engine's host: the engine is asked about the server's own
//! container. If the engine does not know it, equal paths may mean different files.

use std::fs;

use bollard::models::ContainerInspectResponse;

use super::engine::{Engine, EngineFailure, QUICK};
use super::path_map::PathMap;

/// The length of a container's whole id, and of the short one that is its first name.
const ID_DIGITS: usize = 64;
const SHORT_ID_DIGITS: usize = 12;

/// Where the directories of the server's own container come from.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Origins {
    paths: PathMap,
    /// Has no translation for what the server may only read.
    writable: PathMap,
}

impl Origins {
    /// A path of this server as the engine sees it.
    pub(super) fn translate(&self, path: &str) -> Option<String> {
        self.paths.translate(path)
    }

    /// Whether the server has this directory read-only from the engine's host. Then sandboxes must
    /// not get it writable.
    pub(super) fn is_read_only(&self, path: &str) -> bool {
        self.paths.translate(path).is_some() && self.writable.translate(path).is_none()
    }
}

/// Where this server runs, from an engine's point of view.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ServerLocation {
    /// In no container, as far as is known.
    Machine,
    /// In a container of this engine.
    Container(Origins),
    /// In a container that this engine does not know: of another one, or of none.
    Elsewhere,
}

/// Files that container engines put into their containers.
const MARKS: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];
/// A variable that every Kubernetes pod has.
const POD: &str = "KUBERNETES_SERVICE_HOST";

/// Where this server runs. A failure must not count as "in no container": sandboxes would then see
/// files of another machine.
pub(super) async fn locate_server(engine: &Engine) -> Result<ServerLocation, EngineFailure> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let (mountinfo, cgroup) = (read("/proc/self/mountinfo"), read("/proc/self/cgroup"));
    let sure = ids_of_ours(&mountinfo, &cgroup, "");
    let marked = !sure.is_empty()
        || MARKS.iter().any(|mark| fs::exists(mark).unwrap_or(false))
        || std::env::var_os(POD).is_some();
    for id in ids_of_ours(&mountinfo, &cgroup, &read("/proc/sys/kernel/hostname")) {
        let asked = engine
            .ask(QUICK, |docker| async move { docker.inspect_container(&id, None).await })
            .await;
        match asked {
            Ok(container) => return Ok(ServerLocation::Container(paths_of(&container))),
            Err(failure) if failure.is_missing() => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(if marked { ServerLocation::Elsewhere } else { ServerLocation::Machine })
}

/// Candidates for the id of the server's own container, the most reliable first.
fn ids_of_ours(mountinfo: &str, cgroup: &str, hostname: &str) -> Vec<String> {
    let is_id =
        |text: &&str| text.len() == ID_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut ids = Vec::new();
    // Engines keep these files in a directory that is named by the container's id.
    for line in mountinfo.lines() {
        let mut fields = line.split(' ');
        let (Some(root), Some(target)) = (fields.nth(3), fields.next()) else { continue };
        if matches!(target, "/etc/hostname" | "/etc/hosts" | "/etc/resolv.conf") {
            ids.extend(root.split('/').filter(is_id).map(str::to_owned));
        }
    }
    let separators = ['/', '-', '.', ':', '\n'];
    ids.extend(cgroup.split(separators).filter(is_id).map(str::to_owned));
    let hostname = hostname.trim();
    if hostname.len() == SHORT_ID_DIGITS && hostname.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        ids.push(hostname.to_owned());
    }
    let mut seen = Vec::new();
    ids.retain(|id| {
        let is_new = !seen.contains(id);
        if is_new {
            seen.push(id.clone());
        }
        is_new
    });
    ids
}

/// Where its directories come from.
fn paths_of(container: &ContainerInspectResponse) -> Origins {
    let plain = |path: &str| match path.trim_end_matches('/') {
        "" => "/".to_owned(),
        trimmed => trimmed.to_owned(),
    };
    let rooted =
        |path: &Option<String>| path.as_deref().filter(|path| path.starts_with('/')).map(plain);
    let (mut paths, mut writable) = (Vec::new(), Vec::new());
    for mount in container.mounts.iter().flatten() {
        let Some(here) = rooted(&mount.destination) else { continue };
        // Volumes have a source, too; a tmpfs has none, and the engine cannot see it.
        paths.push((here.clone(), rooted(&mount.source)));
        writable.push((here.clone(), (mount.rw != Some(false)).then_some(here)));
    }
    // Without a valid table, no path has a translation.
    match (PathMap::with_hidden(paths), PathMap::with_hidden(writable)) {
        (Ok(paths), Ok(writable)) => Origins { paths, writable },
        (Err(_), _) | (_, Err(_)) => Origins::default(),
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::MountPoint;

    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn own_container_id_is_found_in_each_source() {
        let mounted = format!(
            "1 0 254:0 / / rw - overlay overlay rw\n\
             710 700 254:0 /var/lib/docker/containers/{ID}/hostname /etc/hostname rw - ext4 /dev/vda rw\n"
        );
        let other = ID.replace('0', "f");
        for (mountinfo, cgroup, hostname, expected) in [
            (mounted.as_str(), String::new(), "", vec![ID]),
            ("", format!("4:memory:/docker/{ID}\n0::/docker/{ID}\n"), "", vec![ID]),
            ("", format!("0::/system.slice/docker-{ID}.scope\n"), "box", vec![ID]),
            ("", String::new(), "0123456789ab\n", vec!["0123456789ab"]),
            (mounted.as_str(), format!("0::/docker/{other}\n"), "", vec![ID, other.as_str()]),
            ("1 0 254:0 / / rw - ext4 /dev/vda rw\n", "0::/init.scope\n".into(), "host", vec![]),
            ("short\n", "0::/\n".into(), "0123456789xy", vec![]),
        ] {
            assert_eq!(ids_of_ours(mountinfo, &cgroup, hostname), expected, "{cgroup} {hostname}");
        }
    }

    #[test]
    fn own_directories_are_translated_to_their_origin() {
        let mount = |source: Option<&str>, destination: &str| MountPoint {
            source: source.map(str::to_owned),
            destination: Some(destination.to_owned()),
            ..MountPoint::default()
        };
        let container = ContainerInspectResponse {
            mounts: Some(vec![
                mount(Some("/srv/shoal"), "/var/lib/shoal"),
                mount(Some("/var/run/docker.sock"), "/var/run/docker.sock"),
                mount(Some("/var/lib/docker/volumes/v/_data"), "/cache/"),
                mount(Some(""), "/tmp"),
                mount(Some(""), "/var/lib/shoal/memory"),
                mount(None, "/none"),
            ]),
            ..ContainerInspectResponse::default()
        };
        let paths = paths_of(&container);
        for (path, expected) in [
            ("/var/lib/shoal/run", Some("/srv/shoal/run")),
            ("/cache/x", Some("/var/lib/docker/volumes/v/_data/x")),
            ("/tmp/x", None),
            ("/var/lib/shoal/memory/x", None),
            ("/none/x", None),
            ("/etc", None),
        ] {
            assert_eq!(paths.translate(path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn read_only_paths_follow_the_nearest_mount() {
        let mount = |destination: &str, rw| MountPoint {
            source: Some(format!("/srv{destination}")),
            destination: Some(destination.to_owned()),
            rw,
            ..MountPoint::default()
        };
        let container = ContainerInspectResponse {
            mounts: Some(vec![
                mount("/models", Some(false)),
                mount("/models/cache", Some(true)),
                mount("/data", Some(true)),
                mount("/data/golden/", Some(false)),
                mount("/old", None),
            ]),
            ..ContainerInspectResponse::default()
        };
        let origins = paths_of(&container);
        for (path, expected) in [
            ("/models", true),
            ("/models/x", true),
            ("/models/cache/x", false),
            ("/models2", false),
            ("/data/x", false),
            ("/data/golden", true),
            ("/data/golden/x", true),
            ("/data/goldener", false),
            ("/old/x", false),
            ("/elsewhere", false),
        ] {
            assert_eq!(origins.is_read_only(path), expected, "{path}");
        }
    }
}
