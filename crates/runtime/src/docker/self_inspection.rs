//! Whether this server runs in a container of the very engine that it uses, and if so, where its own
//! directories are on that engine's machine: the engine is asked about the container that we are. If it
//! does not know it, our files may be others than the engine's, whatever they are called.

use std::fs;

use bollard::models::ContainerInspectResponse;

use super::engine::{Engine, QUICK, Trouble};
use super::path_map::PathMap;

/// The length of a container's whole id, and of the short one that is its first name.
const ID_DIGITS: usize = 64;
const SHORT_ID_DIGITS: usize = 12;

/// Where the directories of the container that we are in come from.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Origins {
    paths: PathMap,
    /// Leads nowhere where we may only read.
    writable: PathMap,
}

impl Origins {
    /// A path of ours as the engine sees it.
    pub(super) fn translate(&self, path: &str) -> Option<String> {
        self.paths.translate(path)
    }

    /// Whether this comes from the engine's machine for us to read, not to write: what we may not do, we
    /// let nobody else do.
    pub(super) fn is_read_only(&self, path: &str) -> bool {
        self.paths.translate(path).is_some() && self.writable.translate(path).is_none()
    }
}

/// Where we are, as far as an engine is concerned.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// In no container, as far as can be told.
    Machine,
    /// In a container of this engine.
    Container(Origins),
    /// In a container that this engine does not know: of another one, or of none.
    Elsewhere,
}

/// Files that others put into their containers.
const MARKS: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];
/// What tells programs that they are in a pod.
const POD: &str = "KUBERNETES_SERVICE_HOST";

/// Where we are. It must be known: who believed by mistake that he is in no container would show
/// others' files.
pub(super) async fn whereabouts(engine: &Engine) -> Result<Whereabouts, Trouble> {
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
            Ok(container) => return Ok(Whereabouts::Container(paths_of(&container))),
            Err(trouble) if trouble.is_missing() => {}
            Err(trouble) => return Err(trouble),
        }
    }
    Ok(if marked { Whereabouts::Elsewhere } else { Whereabouts::Machine })
}

/// What may be the id of the container that we are in, the surest first.
fn ids_of_ours(mountinfo: &str, cgroup: &str, hostname: &str) -> Vec<String> {
    let is_id =
        |text: &&str| text.len() == ID_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut ids = Vec::new();
    // Engines keep these files of a container in a directory that is called like it.
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
        // Volumes have a source too, but what is in memory has none and is seen by nobody else.
        paths.push((here.clone(), rooted(&mount.source)));
        writable.push((here.clone(), (mount.rw != Some(false)).then_some(here)));
    }
    // Of what makes no sense nothing is seen.
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
    fn the_id_is_found_in_each_place() {
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
    fn directories_of_ours_are_found_where_they_come_from() {
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
    fn what_we_may_only_read_is_known_by_the_nearest_mount() {
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
