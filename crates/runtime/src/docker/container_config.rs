//! The configuration of a container, computed from a launch spec without I/O. All of the hardening
//! is here, and none of it may depend on the image: an image's entry point, user, health check and
//! volumes are overridden.

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig,
    Mount, MountBindOptions, MountBindOptionsPropagationEnum, MountTmpfsOptions, MountType,
    MountVolumeOptions, ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};
use jail::plan::{DESCRIPTORS, MASKED, OOM_SCORE, USER};
use model::mount::is_beneath;

use super::names::Names;
use crate::container::{GUEST_PATH, WritableMount, writable_mounts};
use crate::spec::{LaunchSpec, host_name};

/// Where the directory with our socket is mounted inside, until the guest has connected: a
/// directory of the guest's volume, which no image can replace.
const LINK_PATH: &str = "/.shoal/link";
/// The name of that directory in the volume.
pub(super) const LINK_DIRECTORY: &str = "link";
/// The name of our socket in it.
pub(super) const LINK_NAME: &str = "link";
/// The file with the names of loopback, and the file that says where names are looked up: their
/// paths inside, and their names in our directory. Without a network the engine makes neither, and
/// those of an image would name other resolvers.
pub(super) const OWN_FILES: [(&str, &str); 2] =
    [("/etc/hosts", "hosts"), ("/etc/resolv.conf", "resolv.conf")];
const MIB: i64 = 1 << 20;
/// Billionths of a processor in a thousandth.
const NANO_PER_MILLI: i64 = 1_000_000;
/// Bytes for each inode of a file system in memory, which costs the kernel memory too; and how many
/// there are at least.
const BYTES_PER_INODE: u64 = 4096;
const INODES_MIN: u64 = 1024;
/// From which version of its interface on an engine makes what is mounted beneath a read-only mount
/// read-only, too.
const READ_ONLY_BENEATH_SINCE: (usize, usize) = (1, 44);
/// Where the guest's directory is mounted.
pub(super) const GUEST_DIRECTORY: &str = "/.shoal";

/// How the guest is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Transport {
    /// By its input and output.
    Stdio,
    /// By a socket in this directory, as the engine sees it.
    Socket(String),
}

/// A directory or file of the engine's host that is mounted inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BindMount {
    /// Its path, as the engine sees it.
    pub source: String,
    /// Its path inside.
    pub target: String,
    pub read_only: bool,
}

/// Everything that a container's configuration is made from.
pub(super) struct ContainerConfig<'a> {
    pub spec: &'a LaunchSpec,
    pub names: &'a Names,
    /// The id of the image.
    pub image: String,
    /// Where the image wants volumes, as [`overridden_volumes`] returns them.
    pub volumes: &'a [String],
    /// The volume with the guest.
    pub guest: &'a str,
    pub transport: &'a Transport,
    pub shown: &'a [BindMount],
    /// The engine makes a namespace with nothing but loopback in it and leaves it alone: twice as
    /// fast, but it writes no `/etc/hosts` and no `/etc/resolv.conf` either.
    pub bare_network: bool,
    /// The version of the engine's interface.
    pub api: (usize, usize),
}

impl ContainerConfig<'_> {
    /// The body of the engine's create request.
    pub(super) fn body(&self) -> ContainerCreateBody {
        let through_engine = *self.transport == Transport::Stdio;
        let link = match self.transport {
            Transport::Stdio => "stdio".to_owned(),
            Transport::Socket(_) => format!("unix:{LINK_PATH}/{LINK_NAME}"),
        };
        ContainerCreateBody {
            image: Some(self.image.clone()),
            hostname: Some(host_name(self.spec.instance)),
            user: Some(format!("{USER}:{USER}")),
            entrypoint: Some(vec![GUEST_PATH.to_owned()]),
            cmd: Some(vec!["contained".to_owned(), link]),
            env: Some(Vec::new()),
            working_dir: Some("/".to_owned()),
            // When our connection ends, its input ends, and so does the guest.
            open_stdin: Some(through_engine),
            stdin_once: Some(through_engine),
            attach_stdin: Some(through_engine),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(false),
            network_disabled: Some(self.bare_network),
            // An image's health check would make the engine run programs in the container.
            healthcheck: Some(HealthConfig {
                test: Some(vec!["NONE".to_owned()]),
                ..HealthConfig::default()
            }),
            labels: Some(self.names.labels(Some(self.spec.instance))),
            stop_signal: Some("SIGKILL".to_owned()),
            stop_timeout: Some(1),
            host_config: Some(self.host_config()),
            ..ContainerCreateBody::default()
        }
    }

    fn host_config(&self) -> HostConfig {
        let limits = &self.spec.limits;
        let memory_bytes = i64::from(limits.memory_mb) * MIB;
        let places = writable_mounts(self.spec);
        HostConfig {
            memory: Some(memory_bytes),
            // As much with swap as without it: none.
            memory_swap: Some(memory_bytes),
            nano_cpus: Some(i64::from(limits.cpu_milli) * NANO_PER_MILLI),
            pids_limit: Some(i64::from(limits.pids)),
            oom_kill_disable: Some(false),
            oom_score_adj: Some(i64::from(OOM_SCORE)),
            ulimits: Some(ulimits()),
            init: Some(false),
            auto_remove: Some(false),
            restart_policy: Some(RestartPolicy {
                name: Some(RestartPolicyNameEnum::NO),
                ..RestartPolicy::default()
            }),
            log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
            network_mode: Some("none".to_owned()),
            // Else the engine copies the resolvers of its machine.
            dns: (!self.bare_network).then(|| vec!["127.0.0.1".to_owned()]),
            dns_search: (!self.bare_network).then(|| vec![".".to_owned()]),
            ipc_mode: Some("private".to_owned()),
            cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
            privileged: Some(false),
            readonly_rootfs: Some(true),
            cap_drop: Some(vec!["ALL".to_owned()]),
            security_opt: Some(vec!["no-new-privileges".to_owned()]),
            masked_paths: Some(masked()),
            tmpfs: Some(
                places.iter().map(|place| (place.path.to_owned(), options(place))).collect(),
            ),
            mounts: Some(self.mounts()),
            ..HostConfig::default()
        }
    }

    fn mounts(&self) -> Vec<Mount> {
        let mut mounts = vec![guest_mount(self.guest, self.names, true)];
        if let Transport::Socket(directory) = self.transport {
            let (source, target) = (directory.clone(), LINK_PATH.to_owned());
            mounts.push(bind(&BindMount { source, target, read_only: true }, self.api));
        }
        mounts.extend(self.shown.iter().map(|shown| bind(shown, self.api)));
        for path in self.volumes {
            // An image's volume would be writable and never wiped.
            if !mounts.iter().any(|mount| mount.target.as_deref() == Some(path)) {
                mounts.push(empty_mount(path));
            }
        }
        mounts
    }
}

/// Masked paths: those of every sandbox, and what the engine would show of the host.
fn masked() -> Vec<String> {
    MASKED.iter().chain(["sys"].iter()).map(|path| format!("/{path}")).collect()
}

/// The volumes of an image that are not writable mounts of every sandbox. Volumes that cannot be
/// overridden are an error.
pub(super) fn overridden_volumes(
    volumes: &[String],
    places: &[WritableMount],
) -> Result<Vec<String>, String> {
    let mut paths = Vec::new();
    for volume in volumes {
        let path = cleaned(volume);
        let is_place = |place: &WritableMount| place.path == path;
        if path == "/" || places.iter().any(|place| is_within(&path, place.path)) {
            return Err(format!(
                "the image wants a volume at {path}, which is a sandbox's own: use an image without it"
            ));
        }
        if !places.iter().any(is_place) && !paths.contains(&path) {
            paths.push(path);
        }
    }
    Ok(paths)
}

fn is_within(path: &str, above: &str) -> bool {
    path != above && is_beneath(path, above)
}

/// A path as engines understand it: from the root, without detours.
fn cleaned(path: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/"))
}

/// Mounts the volume with the guest.
pub(super) fn guest_mount(volume: &str, names: &Names, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::VOLUME),
        source: Some(volume.to_owned()),
        target: Some(GUEST_DIRECTORY.to_owned()),
        read_only: Some(read_only),
        volume_options: Some(MountVolumeOptions {
            // If the volume is gone, the engine makes a new one, which must be found by label, too.
            labels: Some(names.labels(None)),
            // Files of the image at this path are not our guest.
            no_copy: Some(true),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }
}

/// Mounts a path of the engine's host.
pub(super) fn bind(shown: &BindMount, api: (usize, usize)) -> Mount {
    let beneath_too = api >= READ_ONLY_BENEATH_SINCE;
    Mount {
        typ: Some(MountType::BIND),
        source: Some(shown.source.clone()),
        target: Some(shown.target.clone()),
        read_only: Some(shown.read_only),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            // An older engine would mount what lies beneath it as writable.
            non_recursive: (shown.read_only && !beneath_too).then_some(true),
            read_only_force_recursive: (shown.read_only && beneath_too).then_some(true),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }
}

/// An empty read-only directory.
pub(super) fn empty_mount(path: &str) -> Mount {
    Mount {
        typ: Some(MountType::TMPFS),
        target: Some(path.to_owned()),
        read_only: Some(true),
        tmpfs_options: Some(MountTmpfsOptions {
            size_bytes: Some(4096),
            mode: Some(0o555),
            ..MountTmpfsOptions::default()
        }),
        ..Mount::default()
    }
}

fn options(place: &WritableMount) -> String {
    let WritableMount { bytes, mode, uid, no_programs, .. } = *place;
    let inodes = (bytes / BYTES_PER_INODE).max(INODES_MIN);
    let exec = if no_programs { "noexec" } else { "exec" };
    format!(
        "rw,{exec},nosuid,nodev,size={bytes},nr_inodes={inodes},mode={mode:o},uid={uid},gid={uid}"
    )
}

/// Like those of native sandboxes, as far as an engine without special powers can set them.
fn ulimits() -> Vec<ResourcesUlimits> {
    let exactly = |name: &str, value: i64| ResourcesUlimits {
        name: Some(name.to_owned()),
        soft: Some(value),
        hard: Some(value),
    };
    vec![
        exactly("nofile", DESCRIPTORS.cast_signed()),
        // One byte: too little for a file, and the only value at which nothing is piped to a
        // program of the host either.
        exactly("core", 1),
        exactly("rtprio", 0),
        exactly("nice", 0),
        exactly("msgqueue", 819_200),
        exactly("sigpending", 4096),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use model::{InstanceId, Template, TemplateName};

    use super::*;

    fn spec() -> LaunchSpec {
        let template = Template::named(TemplateName::new("default").unwrap());
        LaunchSpec::of(&template, InstanceId::from_u128(0x1234_5678))
    }

    fn body(
        transport: &Transport,
        shown: &[BindMount],
        api: (usize, usize),
    ) -> ContainerCreateBody {
        let (spec, names) = (spec(), Names::new("node", "run-1"));
        let volumes = ["/data".to_owned()];
        let wanted = ContainerConfig {
            spec: &spec,
            names: &names,
            image: "sha256:1".to_owned(),
            volumes: &volumes,
            guest: "volume",
            transport,
            shown,
            bare_network: false,
            api,
        };
        wanted.body()
    }

    fn targets(body: &ContainerCreateBody) -> Vec<(String, bool)> {
        let mounts = body.host_config.as_ref().unwrap().mounts.as_ref().unwrap();
        let about = |mount: &Mount| (mount.target.clone().unwrap(), mount.read_only.unwrap());
        mounts.iter().map(about).collect()
    }

    #[test]
    fn container_arguments_name_the_transport_of_the_guest() {
        for (transport, link, input) in [
            (Transport::Stdio, "stdio", true),
            (Transport::Socket("/run/links/1".into()), "unix:/.shoal/link/link", false),
        ] {
            let body = body(&transport, &[], (1, 41));
            assert_eq!(body.entrypoint.as_deref(), Some(&["/.shoal/guest".to_owned()][..]));
            assert_eq!(body.cmd, Some(vec!["contained".to_owned(), link.to_owned()]));
            assert_eq!((body.open_stdin, body.stdin_once), (Some(input), Some(input)));
            assert_eq!(body.hostname.as_deref(), Some("shoal-12345678"));
        }
    }

    #[test]
    fn container_mounts_are_read_only_unless_requested() {
        let shown = |target: &str, read_only| BindMount {
            source: "/srv".into(),
            target: target.into(),
            read_only,
        };
        let shown = [shown("/a", true), shown("/data", false)];
        let found = targets(&body(&Transport::Socket("/l".into()), &shown, (1, 41)));
        let expected = [("/.shoal", true), ("/.shoal/link", true), ("/a", true), ("/data", false)];
        assert_eq!(found, expected.map(|(path, read_only)| (path.to_owned(), read_only)));
        let found = targets(&body(&Transport::Stdio, &[], (1, 41)));
        assert_eq!(found, [("/.shoal".to_owned(), true), ("/data".to_owned(), true)]);
    }

    #[test]
    fn read_only_mounts_cover_what_lies_beneath() {
        let shown = |read_only| BindMount { source: "/srv".into(), target: "/a".into(), read_only };
        for (read_only, api, non_recursive, forced) in [
            (true, (1, 41), Some(true), None),
            (true, (1, 44), None, Some(true)),
            (true, (2, 0), None, Some(true)),
            (false, (1, 41), None, None),
            (false, (1, 44), None, None),
        ] {
            let options = bind(&shown(read_only), api).bind_options.unwrap();
            let is = (options.non_recursive, options.read_only_force_recursive);
            assert_eq!(is, (non_recursive, forced), "{read_only} {api:?}");
        }
    }

    #[test]
    fn writable_mounts_have_size_mode_and_owner() {
        let body = body(&Transport::Stdio, &[], (1, 41));
        let places: BTreeMap<_, _> = body.host_config.unwrap().tmpfs.unwrap().into_iter().collect();
        let found: Vec<_> =
            places.iter().map(|(path, how)| (path.as_str(), how.as_str())).collect();
        let memory = "nosuid,nodev,size=268435456,nr_inodes=65536,mode=1777,uid=0,gid=0";
        assert_eq!(
            found,
            [
                ("/dev/shm", format!("rw,exec,{memory}").as_str()),
                (
                    "/run/secrets",
                    "rw,noexec,nosuid,nodev,size=8388608,nr_inodes=2048,mode=700,uid=1000,gid=1000"
                ),
                (
                    "/run/shoal",
                    "rw,noexec,nosuid,nodev,size=8388608,nr_inodes=2048,mode=755,uid=1000,gid=1000"
                ),
                ("/tmp", format!("rw,exec,{memory}").as_str()),
                (
                    "/workspace",
                    "rw,exec,nosuid,nodev,size=536870912,nr_inodes=131072,mode=755,uid=1000,gid=1000"
                ),
            ]
        );
    }

    #[test]
    fn image_volumes_are_overridden_wherever_they_are() {
        let places = writable_mounts(&spec());
        let overridden = |volumes: &[&str]| {
            let volumes: Vec<_> = volumes.iter().map(|one| (*one).to_owned()).collect();
            overridden_volumes(&volumes, &places)
        };
        for (volumes, expected) in [
            (&["/data"][..], &["/data"][..]),
            (&["data", "./x/../y/", "/data"], &["/data", "/y"]),
            (&["/workspace", "/tmp/"], &[]),
            (&["../../etc"], &["/etc"]),
            (&["/workspaces"], &["/workspaces"]),
            (&[], &[]),
        ] {
            assert_eq!(overridden(volumes).unwrap(), expected, "{volumes:?}");
        }
        for refused in ["/", "..", "/workspace/cache", "tmp/x", "/run/shoal/y"] {
            assert!(overridden(&[refused]).unwrap_err().contains("wants a volume"), "{refused}");
        }
    }
}
