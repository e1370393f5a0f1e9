//! Parses what the kernel writes into `/proc`. Pure, and tolerant: a line that cannot be parsed is
//! left out, because kernels add to these files.

use std::path::PathBuf;

/// A line of `/proc/self/mountinfo`, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The part of the file system that is mounted.
    pub root: String,
    /// The mount point.
    pub point: PathBuf,
    /// The kind of file system.
    pub kind: String,
    /// Whether it is mounted read-only.
    pub read_only: bool,
    /// Options of the file system: for control groups, its controllers.
    pub options: Vec<String>,
}

/// All mounts, in the kernel's order.
pub fn mounts(mountinfo: &str) -> Vec<Mount> {
    mountinfo.lines().filter_map(mount).collect()
}

fn mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point, shown) = (left.next()?, left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, _source, options) = (right.next()?, right.next()?, right.next().unwrap_or(""));
    Some(Mount {
        root: unescape(root),
        point: unescape(point).into(),
        kind: kind.to_owned(),
        read_only: shown.split(',').any(|option| option == "ro")
            || options.split(',').any(|option| option == "ro"),
        options: options.split(',').map(str::to_owned).collect(),
    })
}

/// Spaces and similar characters are written as a backslash and three octal digits.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut bytes = parts.next().unwrap_or("").as_bytes().to_vec();
    for part in parts {
        if let Some(byte) = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            bytes.push(byte);
            bytes.extend_from_slice(&part.as_bytes()[3..]);
        } else {
            bytes.push(b'\\');
            bytes.extend_from_slice(part.as_bytes());
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A line of `/proc/self/cgroup`: our group in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// Its controllers; none for v2.
    pub controllers: Vec<String>,
    /// Our group, as seen from the hierarchy's top.
    pub path: String,
}

/// All our groups.
pub fn memberships(cgroup: &str) -> Vec<Membership> {
    let line = |line: &str| {
        let (_number, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let controllers = controllers.split(',').filter(|name| !name.is_empty());
        Some(Membership {
            controllers: controllers.map(str::to_owned).collect(),
            path: path.to_owned(),
        })
    };
    cgroup.lines().filter_map(line).collect()
}

/// The value of a line `Key:   value` of `/proc/self/status` or `/proc/meminfo`.
pub fn value_of<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| *name == key)
        .map(|(_, value)| value.trim())
}

/// A value of `/proc/meminfo` in bytes.
pub fn memory_bytes(meminfo: &str, key: &str) -> Option<u64> {
    let kib: u64 = value_of(meminfo, key)?.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The version in a kernel's release: the first two numbers.
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Soft and hard limit of open files, from `/proc/self/limits`; none is unlimited.
pub fn open_files(limits: &str) -> Option<(Option<u64>, Option<u64>)> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let mut values = line.split_whitespace().map(|word| word.parse().ok());
    Some((values.next()?, values.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_read_with_its_optional_fields_and_escapes() {
        let text = "36 35 98:0 /mnt1 /mnt\\040two rw,noatime master:1 shared:7 - ext3 /dev/root rw,errors=continue\n\
                    37 35 0:9 / /sys ro,nosuid - sysfs sysfs rw\n\
                    38 35 0:9 / /x rw - tmpfs tmpfs ro\n\
                    nonsense\n";
        let mounts = mounts(text);
        assert_eq!(mounts.len(), 3);
        assert_eq!(mounts[0].point, PathBuf::from("/mnt two"));
        assert_eq!((mounts[0].root.as_str(), mounts[0].kind.as_str()), ("/mnt1", "ext3"));
        assert_eq!(
            mounts.iter().map(|mount| mount.read_only).collect::<Vec<_>>(),
            [false, true, true]
        );
        assert_eq!(unescape("a\\011b\\9\\"), "a\tb\\9\\");
    }

    #[test]
    fn memberships_of_both_generations_are_read() {
        let found = memberships("12:cpu,cpuacct:/a:b\n1:name=systemd:/\n0::/user.slice\nbad\n");
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].controllers, ["cpu", "cpuacct"]);
        assert_eq!(found[0].path, "/a:b");
        assert_eq!(found[2], Membership { controllers: vec![], path: "/user.slice".into() });
    }

    #[test]
    fn versions_limits_and_memory_are_parsed() {
        let cases = [
            ("6.18.5", Some((6, 18))),
            ("5.15.153.1-microsoft-standard-WSL2\n", Some((5, 15))),
            ("6.1-rc3", Some((6, 1))),
            ("4", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(version(text), expected, "{text}");
        }
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max processes             96000                unlimited            processes\n\
                      Max open files            1024                 1048576              files\n";
        assert_eq!(open_files(limits), Some((Some(1024), Some(1_048_576))));
        assert_eq!(open_files("Max open files unlimited unlimited files"), Some((None, None)));
        assert_eq!(memory_bytes("MemTotal:       16 kB\n", "MemTotal"), Some(16_384));
        assert_eq!(value_of("CapEff:\t00ff\nUid:\t0\t0\n", "Uid"), Some("0\t0"));
    }
}
