//! The state of a container that must be the same after every use as when it was new: what its
//! first process is and may do, what is mounted, and where its network leads. It is text, to be compared and shown. This
//! module does not know how the state should be.

use guest_protocol::keeper::{Fact, WritableMountSpec};
use jail::sys::ipc::io_priority;
use rustix::fs::{OFlags, fstatfs};

use super::network;
use super::process::{Process, field, foreign, open_beneath};
use super::{Named as _, Refusal};

/// Lines about the first process that do not change while it lives.
const STATUS: [&str; 15] = [
    "Name",
    "TracerPid",
    "Uid",
    "Gid",
    "Groups",
    "NSpid",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
    "Cpus_allowed",
];

/// The longest text of all facts together: they are sent in one packet.
const MAX_BYTES: usize = 48 * 1024;

/// All facts.
pub(super) fn facts(process: &Process, places: &[WritableMountSpec]) -> Result<Vec<Fact>, Refusal> {
    let mounted = process.read("mountinfo")?;
    let mounts = mounts(&mounted, places)?;
    let facts = vec![
        fact("program", process.link("exe")?),
        fact("directory", process.link("cwd")?),
        fact("secrecy", process.owner()?.to_string()),
        fact("status", status(&process.read("status")?)),
        fact("limits", process.read("limits")?),
        fact("scheduling", scheduling(&process.read("stat")?)),
        fact("io priority", io_priority(process.pid).named("io priority")?.to_string()),
        fact("oom score", process.read("oom_score_adj")?.trim().to_owned()),
        fact("control groups", process.read("cgroup")?),
        fact("mounts", mounts.iter().map(Mount::line).collect::<Vec<_>>().join("\n")),
        fact("memory in use", usage(process, &mounts)?),
        fact("network", network::paths(process)?),
    ];
    let bytes: usize = facts.iter().map(|fact| fact.name.len() + fact.value.len()).sum();
    if bytes > MAX_BYTES {
        return Err(foreign("the container has more mounts than fit into one report"));
    }
    Ok(facts)
}

fn fact(name: &str, value: String) -> Fact {
    Fact { name: name.to_owned(), value }
}

fn status(text: &str) -> String {
    let is_stable =
        |line: &&str| line.split_once(':').is_some_and(|(name, _)| STATUS.contains(&name));
    text.lines().filter(is_stable).collect::<Vec<_>>().join("\n")
}

/// Its priority, its nice value, and its scheduling policy.
fn scheduling(stat: &str) -> String {
    let rest = stat.rsplit(')').next().unwrap_or_default();
    [16, 17, 38, 39].map(|number| field(rest, number)).join(" ")
}

/// A mount that is not one of the writable ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Mount<'a> {
    path: &'a str,
    options: &'a str,
    kind: &'a str,
    /// The device, and which part of it is mounted.
    source: [&'a str; 2],
    rest: &'a str,
}

impl Mount<'_> {
    fn line(&self) -> String {
        let Mount { path, options, kind, source: [device, root], rest } = self;
        format!("{path} {options} {kind} {device} {root} {rest}")
    }

    fn is_writable(&self) -> bool {
        self.options.split(',').any(|option| option == "rw")
    }
}

/// All mounts except the writable ones. Each writable one must be there exactly once, with nothing
/// beneath it.
fn mounts<'a>(text: &'a str, places: &[WritableMountSpec]) -> Result<Vec<Mount<'a>>, Refusal> {
    let mut mounts = Vec::new();
    let mut seen = vec![0; places.len()];
    for line in text.lines() {
        let mount = parse(line)
            .ok_or_else(|| foreign("the mount table of the container cannot be read"))?;
        let beneath = |place: &WritableMountSpec| {
            mount
                .path
                .strip_prefix(place.path.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match places.iter().position(beneath) {
            None => mounts.push(mount),
            Some(index) if mount.path == places[index].path && is_sound(&mount, &places[index]) => {
                seen[index] += 1;
            }
            Some(_) => {
                return Err(foreign(format!("{} is mounted with other settings", mount.path)));
            }
        }
    }
    if let Some(index) = seen.iter().position(|&count| count != 1) {
        let (path, count) = (&places[index].path, seen[index]);
        return Err(foreign(format!("{path} is mounted {count} times")));
    }
    mounts.sort();
    Ok(mounts)
}

/// Whether a writable mount has the settings that it should have.
fn is_sound(mount: &Mount<'_>, place: &WritableMountSpec) -> bool {
    let has = |option: &str| mount.options.split(',').any(|found| found == option);
    mount.kind == "tmpfs"
        && has("rw")
        && has("nosuid")
        && has("nodev")
        && has("noexec") == place.no_programs
}

/// `36 35 98:0 /root /path rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse(line: &str) -> Option<Mount<'_>> {
    let (mount, system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(2);
    let (device, root, path, options) =
        (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let (kind, rest) = system.split_once(' ')?;
    Some(Mount { path, options, kind, source: [device, root], rest })
}

/// How much is in a tmpfs that is writable and not one of the writable mounts: only root could
/// change that.
fn usage(process: &Process, mounts: &[Mount<'_>]) -> Result<String, Refusal> {
    let root = process.root()?;
    let mut usage = Vec::new();
    for mount in mounts.iter().filter(|mount| mount.kind == "tmpfs" && mount.is_writable()) {
        // A mount of a file, or one with another mount over it, is not inspected.
        if let Ok(top) = open_beneath(&root, mount.path, OFlags::PATH) {
            let found = fstatfs(&top).named(mount.path)?;
            let files = found.f_files.saturating_sub(found.f_ffree);
            let blocks = found.f_blocks.saturating_sub(found.f_bfree);
            usage.push(format!("{} {files} {blocks}", mount.path));
        }
    }
    Ok(usage.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str) -> WritableMountSpec {
        WritableMountSpec { path: path.to_owned(), bytes: 1, mode: 0, uid: 0, no_programs: false }
    }

    const ROOT: &str = "700 600 0:50 / / ro,relatime master:1 - overlay overlay ro,lowerdir=/a";
    const TMP: &str = "702 700 0:52 / /tmp rw,nosuid,nodev,relatime - tmpfs tmpfs rw,size=4k";

    #[test]
    fn writable_mounts_are_not_listed_as_facts() {
        let text = format!("{TMP}\n{ROOT}\n");
        let found = mounts(&text, &[place("/tmp")]).unwrap();
        let lines: Vec<_> = found.iter().map(Mount::line).collect();
        assert_eq!(lines, ["/ ro,relatime overlay 0:50 / overlay ro,lowerdir=/a"]);
        assert!(!found[0].is_writable());
        // Whatever has a place as the beginning of its name is something else.
        assert_eq!(mounts(&text.replace("/tmp", "/tmpfiles"), &[]).unwrap().len(), 2);
    }

    #[test]
    fn writable_mounts_are_there_once_with_nothing_beneath() {
        let once = format!("{ROOT}\n{TMP}");
        for (text, is_well) in [
            (once.clone(), true),
            (ROOT.to_owned(), false),
            (format!("{once}\n{TMP}"), false),
            (format!("{once}\n{}", TMP.replace("/tmp", "/tmp/a")), false),
            (once.replace("nosuid,", ""), false),
            (once.replace("nodev", "noexec,nodev"), false),
            (once.replace("tmpfs tmpfs", "ext4 /dev/sda"), false),
            (format!("{once}\nnonsense"), false),
        ] {
            assert_eq!(mounts(&text, &[place("/tmp")]).is_ok(), is_well, "{text}");
        }
        let no_programs = WritableMountSpec { no_programs: true, ..place("/tmp") };
        assert!(mounts(&once, std::slice::from_ref(&no_programs)).is_err());
        assert!(mounts(&once.replace("nodev", "nodev,noexec"), &[no_programs]).is_ok());
    }

    #[test]
    fn only_stable_facts_are_reported() {
        let text = "Name:\tguest\nUmask:\t0022\nVmPeak:\t 9 kB\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!(status(text), "Name:\tguest\nSeccomp:\t2\nSeccomp_filters:\t1");
        let stat = "1 (x) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 -5 1 0 77 9 1 2 3 4 5 6 7 8 9 0 1 2 3 4 17 1 0 3 0 0";
        assert_eq!(scheduling(stat), "20 -5 0 3");
    }
}
