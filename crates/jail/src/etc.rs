//! The synthetic `/etc` and `/dev` of a sandbox whose root is made from the host's `/usr`: the
//! files that are written, and the few files of the host that are copied because programs do not
//! work without them. It contains nothing about the users of the host: no users, no names, no keys.

use crate::plan::USER;

/// Names are looked up inside of the sandbox, where a policy may answer. Without one, nothing listens
/// there and C libraries learn that at once, or do not wait for long. Names are never completed: that
/// would ask for names that no program meant.
pub const RESOLVER: &str = "nameserver 127.0.0.1\noptions ndots:1 timeout:2 attempts:2\n";

/// Files with contents of our own.
pub fn written() -> Vec<(&'static str, String)> {
    vec![
        (
            "etc/passwd",
            format!(
                "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n\
                 agent:x:{USER}:{USER}:agent:/workspace:/bin/sh\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
            ),
        ),
        ("etc/group", format!("root:x:0:\ntty:x:5:\nagent:x:{USER}:\nnogroup:x:65534:\n")),
        (HOSTS, hosts(None)),
        (
            "etc/nsswitch.conf",
            "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n"
                .to_owned(),
        ),
        ("etc/resolv.conf", RESOLVER.to_owned()),
        ("etc/host.conf", "multi on\n".to_owned()),
        ("etc/shells", "/bin/sh\n/bin/bash\n".to_owned()),
        ("etc/profile", "umask 022\n".to_owned()),
    ]
}

/// The file of host names, and the one that a sandbox has of its own: its name is in it.
pub const HOSTS: &str = "etc/hosts";

/// See [`HOSTS`].
pub const OWN_HOSTS: &str = "run/shoal/hosts";

/// The directory in the memory of a sandbox that has what it has of its own.
pub const OWN: &str = "run/shoal";

/// The directory of the root with what links to [`OWN`] hide.
pub const KEPT: &str = "run/trusted";

/// Certificates that programs trust.
pub struct Trusted {
    /// The name of the file in [`OWN`] and in [`KEPT`].
    pub name: &'static str,
    /// Where programs look for it. Systems differ; where a root has no file, it gets none.
    pub places: &'static [&'static str],
}

/// What a sandbox may get anew while it runs: the boundary of its secrets has an authority of its own.
pub const TRUSTED: &[Trusted] = &[
    Trusted {
        name: "trusted.pem",
        places: &[
            "etc/ssl/certs/ca-certificates.crt",
            "etc/pki/tls/certs/ca-bundle.crt",
            "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
            "etc/ssl/ca-bundle.pem",
            "etc/ssl/cert.pem",
        ],
    },
    // Java reads no other.
    Trusted {
        name: "trusted.jks",
        places: &[
            "etc/ssl/certs/java/cacerts",
            "etc/pki/java/cacerts",
            "etc/pki/ca-trust/extracted/java/cacerts",
        ],
    },
];

/// Whether a file of a root may be a link of ours.
pub fn is_trusted(path: &str) -> bool {
    TRUSTED.iter().any(|trusted| trusted.places.contains(&path))
}

/// The file of host names.
pub fn hosts(own_name: Option<&str>) -> String {
    let own = own_name.map(|name| format!(" {name}")).unwrap_or_default();
    format!("127.0.0.1\tlocalhost{own}\n::1\tlocalhost ip6-localhost ip6-loopback\n")
}

/// Files and directories of the host's `/etc` that are copied, if they exist. Links are copied as
/// links. Only files that all users may read.
pub const COPIED: &[&str] = &[
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "chromium",
    "chromium.d",
    "debian_version",
    "fonts",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "os-release",
    "perl",
    "protocols",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
];

/// The most bytes copied of the host's `/etc`, so that an odd host cannot fill our memory.
pub const COPIED_BYTES_AT_MOST: u64 = 16 << 20;

/// Directories of the root.
pub const DIRECTORIES: &[&str] = &[
    "dev",
    "etc",
    "home",
    "opt",
    "proc",
    "root",
    "run",
    "run/secrets",
    "run/shoal",
    "srv",
    "sys",
    "tmp",
    "usr",
    "var",
    "var/lib",
    "workspace",
];

/// Our own directories over the root of an image or a directory.
pub const OWN_DIRECTORIES: &[&str] =
    &["dev", "etc", "proc", "run", "run/secrets", "run/shoal", "sys", "tmp", "var", "workspace"];

/// Links of the root.
pub const LINKS: &[(&str, &str)] = &[
    ("etc/mtab", "/proc/self/mounts"),
    ("var/tmp", "/tmp"),
    ("var/run", "/run"),
    ("var/lock", "/run"),
];

/// Directories of `/dev`.
pub const DEVICE_DIRECTORIES: &[&str] = &["pts", "shm"];

/// Links of `/dev`.
pub const DEVICE_LINKS: &[(&str, &str)] = &[
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// Device files of `/dev`: name, major, minor.
pub const DEVICES: &[(&str, u32, u32)] = &[
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

/// An empty directory that hides others.
pub const EMPTY_DIRECTORY: &str = "run/empty";

/// An empty file that hides others.
pub const EMPTY_FILE: &str = "run/nothing";
